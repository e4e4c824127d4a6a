"""A member of a consumer group: CLIENT ADDRESS GROUP TOPIC [INSTANCE].

Commits each record after it has told of it, and tells of everything in lines on standard output:

    assigned 0 1 2            these partitions are its own now
    record PARTITION OFFSET   it has got this record
    committed PARTITION OFFSET
                              and committed that it has
    closed                    it has left the group in order, after SIGTERM
"""

import asyncio
import signal
import sys

client, address, group, topic = sys.argv[1:5]
instance = sys.argv[5] if len(sys.argv) > 5 else None
# A static member is to be back within its session, however slowly it starts.
SESSION_MS = 15000 if instance else 3000
HEARTBEAT_MS = 300
COOPERATIVE = "cooperative-sticky"
# Of kafka-python and aiokafka, which call them the same.
PYTHON = dict(
    bootstrap_servers=address,
    group_id=group,
    group_instance_id=instance,
    session_timeout_ms=SESSION_MS,
    heartbeat_interval_ms=HEARTBEAT_MS,
    auto_offset_reset="earliest",
    enable_auto_commit=False,
    max_poll_records=1,
    metadata_max_age_ms=1000,
)
stopping = []
signal.signal(signal.SIGTERM, lambda *_: stopping.append(True))


def tell(*words):
    print(*words, flush=True)


def confluent_kafka(strategy="range,roundrobin"):
    from confluent_kafka import Consumer, KafkaException, TopicPartition

    settings = {
        "bootstrap.servers": address,
        "group.id": group,
        "session.timeout.ms": SESSION_MS,
        "heartbeat.interval.ms": HEARTBEAT_MS,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "topic.metadata.refresh.interval.ms": 1000,
        "partition.assignment.strategy": strategy,
    }
    if instance:
        settings["group.instance.id"] = instance
    consumer = Consumer(settings)
    owned = set()

    def on_assign(_, partitions):
        if strategy != COOPERATIVE:
            owned.clear()
        owned.update(p.partition for p in partitions)
        tell("assigned", *sorted(owned))

    def on_revoke(_, partitions):
        owned.difference_update(p.partition for p in partitions)
        if strategy == COOPERATIVE:
            tell("assigned", *sorted(owned))

    consumer.subscribe([topic], on_assign=on_assign, on_revoke=on_revoke)
    while not stopping:
        message = consumer.poll(0.1)
        if message is None or message.error():
            continue
        partition, offset = message.partition(), message.offset()
        tell("record", partition, offset)
        try:
            consumer.commit(offsets=[TopicPartition(topic, partition, offset + 1)], asynchronous=False)
            tell("committed", partition, offset)
        except KafkaException as error:
            print(error, file=sys.stderr)
    consumer.close()


def kafka_python():
    from kafka import ConsumerRebalanceListener, KafkaConsumer
    from kafka.errors import KafkaError
    from kafka.structs import OffsetAndMetadata

    class Listener(ConsumerRebalanceListener):
        def on_partitions_revoked(self, revoked):
            pass

        def on_partitions_assigned(self, assigned):
            tell("assigned", *sorted(p.partition for p in assigned))

    consumer = KafkaConsumer(**PYTHON)
    consumer.subscribe([topic], listener=Listener())
    while not stopping:
        for partition, records in consumer.poll(timeout_ms=100).items():
            for record in records:
                tell("record", record.partition, record.offset)
                try:
                    consumer.commit({partition: OffsetAndMetadata(record.offset + 1, "", -1)})
                    tell("committed", record.partition, record.offset)
                except KafkaError as error:
                    print(error, file=sys.stderr)
    consumer.close()


async def aiokafka():
    from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener
    from aiokafka.errors import KafkaError
    from aiokafka.structs import OffsetAndMetadata

    class Listener(ConsumerRebalanceListener):
        async def on_partitions_revoked(self, revoked):
            pass

        async def on_partitions_assigned(self, assigned):
            tell("assigned", *sorted(p.partition for p in assigned))

    consumer = AIOKafkaConsumer(**PYTHON)
    await consumer.start()
    consumer.subscribe([topic], listener=Listener())
    while not stopping:
        for partition, records in (await consumer.getmany(timeout_ms=100)).items():
            for record in records:
                tell("record", record.partition, record.offset)
                try:
                    await consumer.commit({partition: OffsetAndMetadata(record.offset + 1, "")})
                    tell("committed", record.partition, record.offset)
                except KafkaError as error:
                    print(error, file=sys.stderr)
    await consumer.stop()


{
    "aiokafka": lambda: asyncio.run(aiokafka()),
    "confluent_kafka": confluent_kafka,
    "cooperative": lambda: confluent_kafka(COOPERATIVE),
    "kafka_python": kafka_python,
}[client]()
tell("closed")
