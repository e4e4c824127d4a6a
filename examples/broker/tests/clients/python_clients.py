"""What Python's clients do with a broker, in the simplest way: CLIENT ACTION ADDRESS TOPIC [COUNT]; see table.py."""

import asyncio
import sys

client, action, address, topic = sys.argv[1:5]
count = int(sys.argv[5]) if len(sys.argv) > 5 else 0


def kafka_python():
    from kafka import KafkaConsumer, KafkaProducer

    if action == "produce":
        producer = KafkaProducer(bootstrap_servers=address)
        for number in range(count):
            producer.send(topic, b"%d" % number).get(10)
        return producer.close()
    consumer = KafkaConsumer(topic, bootstrap_servers=address, auto_offset_reset="earliest")
    if action == "list":
        return print(topic, len(consumer.partitions_for_topic(topic)))
    for _ in range(count):
        print(next(consumer).value.decode())


def confluent_kafka():
    from confluent_kafka import Consumer, Producer, TopicPartition

    if action == "produce":
        producer = Producer({"bootstrap.servers": address})
        for number in range(count):
            producer.produce(topic, b"%d" % number)
        return sys.exit(producer.flush(10))
    consumer = Consumer({"bootstrap.servers": address, "group.id": "none"})
    if action == "list":
        return print(topic, len(consumer.list_topics(topic, 10).topics[topic].partitions))
    consumer.assign([TopicPartition(topic, 0, 0)])
    for _ in range(count):
        print(consumer.poll(10).value().decode())


async def aiokafka():
    from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

    if action == "produce":
        producer = AIOKafkaProducer(bootstrap_servers=address)
        await producer.start()
        for number in range(count):
            await producer.send_and_wait(topic, b"%d" % number)
        return await producer.stop()
    consumer = AIOKafkaConsumer(topic, bootstrap_servers=address, auto_offset_reset="earliest")
    await consumer.start()
    if action == "list":
        print(topic, len(consumer.partitions_for_topic(topic)))
    for _ in range(count):
        print((await consumer.getone()).value.decode())
    await consumer.stop()


{
    "aiokafka": lambda: asyncio.run(aiokafka()),
    "confluent_kafka": confluent_kafka,
    "kafka_python": kafka_python,
}[client]()
