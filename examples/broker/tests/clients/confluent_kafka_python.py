"""Checks of a broker with confluent-kafka, which is librdkafka."""

import json
import time

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic

import checks

TOPIC = "t"


def create(address, partitions=1):
    admin = AdminClient({"bootstrap.servers": address})
    for created in admin.create_topics([NewTopic(TOPIC, partitions, 1)]).values():
        created.result(10)


def consumer(address, partitions=1, **settings):
    settings = {
        "bootstrap.servers": address,
        "group.id": "none",
        "enable.auto.commit": False,
        "fetch.wait.max.ms": 5000,
        **settings,
    }
    consumer = Consumer(settings)
    consumer.assign([TopicPartition(TOPIC, index, 0) for index in range(partitions)])
    return consumer


def produce(producer, value, partition=0):
    """Produces a record and returns the error, if any, and its offset."""
    delivered = []
    producer.produce(
        TOPIC,
        value,
        partition=partition,
        on_delivery=lambda error, message: delivered.append((error, message.offset())),
    )
    producer.flush(20)
    return delivered[0]


def value_of(message):
    if message.error():
        raise SystemExit(message.error())
    return message.value()


def round_trip(address):
    create(address)
    expected = []
    for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
        producer = Producer(
            {
                "bootstrap.servers": address,
                "compression.type": codec,
                "enable.idempotence": codec == "lz4",
                "linger.ms": 5,
            }
        )
        for number in range(500):
            value = f"{codec} {number}".encode() * 10
            producer.produce(TOPIC, value, partition=0)
            expected.append((len(expected), value))
        checks.equal(producer.flush(20), 0)
    reader = consumer(address)
    found = []
    while len(found) < len(expected):
        message = checks.eventually(lambda: reader.poll(1), bool)
        found.append((message.offset(), value_of(message)))
    checks.equal(found, expected)
    # (Its request waits on the connection behind a fetch, which is parked for five seconds.)
    checks.equal(reader.get_watermark_offsets(TopicPartition(TOPIC, 0), 20), (0, len(expected)))
    reader.close()


def woken(address, partitions):
    """Produces to one partition after the other while a consumer of all is parked."""
    create(address, partitions)
    producer = Producer({"bootstrap.servers": address, "linger.ms": 0})
    reader = consumer(address, partitions)
    reader.poll(1)
    tries = []
    for count in range(checks.TRIES):
        partition = (partitions - 1 - 2 * count) % partitions
        checks.settle()
        sent = time.monotonic()
        producer.produce(TOPIC, b"value", partition=partition)
        message = checks.eventually(lambda: reader.poll(5), bool)
        tries.append(time.monotonic() - sent)
        checks.equal((message.partition(), value_of(message)), (partition, b"value"))
        producer.flush(20)
    checks.prompt(tries)
    reader.close()


def any_partition(address):
    woken(address, 16)


def expiry(address):
    """The longest round trip, in microseconds, is in the client's own statistics. It begins when the client has noticed
    that the request was sent, so on a busy machine it is shorter than the wait."""
    create(address)
    longest = [0]

    def note(statistics):
        for broker in json.loads(statistics)["brokers"].values():
            longest[0] = max(longest[0], broker["rtt"]["max"] / 1e6)

    idle = consumer(address, **{"statistics.interval.ms": 500, "stats_cb": note})
    checks.equal(idle.poll(7), None)
    checks.within(longest[0], 4.99, 5.1)
    idle.close()


def min_bytes(address):
    create(address)
    producer = Producer({"bootstrap.servers": address})
    settings = {"fetch.min.bytes": 1000, "fetch.wait.max.ms": 50000}
    reader = consumer(address, **settings)
    checks.equal(reader.poll(1), None)
    for offset in range(2):
        checks.equal(produce(producer, b"x" * 300), (None, offset))
        checks.equal(reader.poll(0.3), None)
    checks.equal(produce(producer, b"x" * 300), (None, 2))
    for offset in range(3):
        message = checks.eventually(lambda: reader.poll(1), bool)
        checks.equal((message.offset(), value_of(message)), (offset, b"x" * 300))
    reader.close()


def slow_follower(address):
    """The follower is 0.7 seconds behind."""
    create(address)
    patient = Producer({"bootstrap.servers": address, "linger.ms": 0})
    sent = time.monotonic()
    checks.equal(produce(patient, b"value"), (None, 0))
    checks.within(time.monotonic() - sent, 0.7, 2.7)

    settings = {"bootstrap.servers": address, "request.timeout.ms": 100, "retries": 0}
    error, _ = produce(Producer(settings), b"value")
    checks.equal(error and error.code(), KafkaError.REQUEST_TIMED_OUT)


def administration(address):
    """What librdkafka's administrator does; its Metadata request has three bytes too many."""
    create(address, 3)
    admin = AdminClient({"bootstrap.servers": address})
    listed = admin.list_topics(timeout=10)
    checks.equal({name: len(topic.partitions) for name, topic in listed.topics.items()}, {TOPIC: 3})
    checks.equal(list(listed.brokers), [1])
    checks.equal(len(admin.list_topics(TOPIC, timeout=10).topics[TOPIC].partitions), 3)
    consumer_listed = consumer(address).list_topics(timeout=10)
    checks.equal(list(consumer_listed.topics), [TOPIC])

    described = admin.describe_topics(TopicCollection([TOPIC, "missing"]))
    checks.equal(len(described[TOPIC].result(10).partitions), 3)
    fails(described["missing"], KafkaError.UNKNOWN_TOPIC_OR_PART)
    cluster = admin.describe_cluster().result(10)
    checks.equal((cluster.cluster_id, len(cluster.nodes)), ("request-purgatory", 1))

    topic = ConfigResource(ConfigResource.Type.TOPIC, TOPIC)
    broker = ConfigResource(ConfigResource.Type.BROKER, "1")
    configs = admin.describe_configs([topic, broker])
    policy = configs[topic].result(10)["cleanup.policy"]
    checks.equal((policy.value, policy.is_read_only, policy.is_default), ("delete", True, True))
    checks.equal(configs[broker].result(10)["num.partitions"].value, "1")

    (created,) = admin.create_topics([NewTopic(TOPIC, 1, 1)]).values()
    fails(created, KafkaError.TOPIC_ALREADY_EXISTS)
    deleted = admin.delete_topics([TOPIC, "missing"])
    checks.equal(deleted[TOPIC].result(10), None)
    fails(deleted["missing"], KafkaError.UNKNOWN_TOPIC_OR_PART)
    checks.equal(admin.list_topics(timeout=10).topics, {})


def refusals(address):
    """Neither a transaction nor a group of KIP-848 fails without a word of the cause."""
    producer = Producer({"bootstrap.servers": address, "transactional.id": "tx"})
    try:
        # librdkafka asks again until then.
        producer.init_transactions(2)
    except KafkaException as error:
        checks.equal(error.args[0].code(), KafkaError.UNSUPPORTED_VERSION)
    else:
        raise SystemExit("a transaction")

    errors = []
    settings = {"bootstrap.servers": address, "group.id": "g", "group.protocol": "consumer", "error_cb": errors.append}
    reader = Consumer(settings)
    reader.subscribe([TOPIC])
    started = time.monotonic()
    while not errors and time.monotonic() - started < 10:
        try:
            message = reader.poll(0.2)
        except KafkaException as error:
            errors.append(error.args[0])
        else:
            if message is not None and message.error():
                errors.append(message.error())
    print(errors)
    checks.equal("ConsumerGroupHeartbeat" in str(errors) and "not supported" in str(errors), True)
    reader.close()


def fails(future, code):
    try:
        future.result(10)
    except KafkaException as error:
        checks.equal(error.args[0].code(), code)
    else:
        raise SystemExit(f"no error {code}")


checks.run(
    {
        "round_trip": round_trip,
        "any_partition": any_partition,
        "expiry": expiry,
        "min_bytes": min_bytes,
        "slow_follower": slow_follower,
        "administration": administration,
        "refusals": refusals,
    }
)
