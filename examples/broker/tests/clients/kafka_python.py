"""Checks of a broker with kafka-python."""

from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import ConfigResource, ConfigResourceType, KafkaAdminClient, NewTopic
from kafka.errors import TopicAlreadyExistsError

import checks

TOPIC = "t"


def create(address, partitions=1):
    admin = KafkaAdminClient(bootstrap_servers=address)
    admin.create_topics([NewTopic(TOPIC, partitions, 1)])
    admin.close()


def consumer(address, partitions=1, **settings):
    settings = {"fetch_max_wait_ms": 5000, "enable_auto_commit": False, **settings}
    consumer = KafkaConsumer(bootstrap_servers=address, **settings)
    assigned = [TopicPartition(TOPIC, index) for index in range(partitions)]
    consumer.assign(assigned)
    for partition in assigned:
        consumer.seek(partition, 0)
    return consumer


def round_trip(address):
    create(address)
    expected = []
    # The other codecs need packages of their own; kcat's tests cover them.
    for codec in (None, "gzip"):
        producer = KafkaProducer(
            bootstrap_servers=address, acks="all", compression_type=codec, linger_ms=5
        )
        for number in range(500):
            value = f"{codec} {number}".encode() * 10
            producer.send(TOPIC, value, key=b"k%d" % number, headers=[("h", b"v")])
            expected.append((len(expected), b"k%d" % number, value, [("h", b"v")]))
        producer.flush()
        producer.close()
    reader = consumer(address)
    found = []
    while len(found) < len(expected):
        records = checks.eventually(lambda: reader.poll(timeout_ms=1000), bool)
        for record in records[TopicPartition(TOPIC, 0)]:
            found.append((record.offset, record.key, record.value, list(record.headers)))
    checks.equal(found, expected)
    partition = TopicPartition(TOPIC, 0)
    checks.equal(reader.beginning_offsets([partition]), {partition: 0})
    checks.equal(reader.end_offsets([partition]), {partition: 1000})
    checks.equal(reader.offsets_for_times({partition: 0})[partition].offset, 0)
    reader.close()


def administration(address):
    create(address, 3)
    admin = KafkaAdminClient(bootstrap_servers=address)
    checks.equal(admin.list_topics(), [TOPIC])
    (described,) = admin.describe_topics([TOPIC])
    checks.equal(len(described["partitions"]), 3)
    checks.equal(len(admin.describe_cluster()["brokers"]), 1)
    resources = [ConfigResource(ConfigResourceType.TOPIC, TOPIC), ConfigResource(ConfigResourceType.BROKER, "1")]
    configs = str(admin.describe_configs(resources, config_filter="all"))
    for name in ("cleanup.policy", "num.partitions"):
        if name not in configs:
            raise SystemExit(f"no {name} in {configs}")
    try:
        admin.create_topics([NewTopic(TOPIC, 1, 1)])
    except TopicAlreadyExistsError:
        pass
    else:
        raise SystemExit("created twice")
    admin.delete_topics([TOPIC])
    checks.equal(admin.list_topics(), [])
    admin.close()


checks.run(
    {
        "round_trip": round_trip,
        "administration": administration,
    }
)
