"""Checks of a broker with kafka-python."""

import threading
import time

from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import ConfigResource, ConfigResourceType, KafkaAdminClient, NewTopic
from kafka.errors import KafkaError, KafkaTimeoutError, RequestTimedOutError, TopicAlreadyExistsError

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


class Background:
    """Polls a consumer in a thread, and notes what comes and when."""

    def __init__(self, consumer):
        self.consumer = consumer
        self.records = []
        self.came = threading.Condition()
        self.stop = False
        # A check that fails ends without asking this to stop.
        self.thread = threading.Thread(target=self.poll, daemon=True)
        self.thread.start()

    def poll(self):
        while not self.stop:
            for records in self.consumer.poll(timeout_ms=100).values():
                with self.came:
                    now = time.monotonic()
                    self.records += [(record, now) for record in records]
                    self.came.notify()

    def wait_for(self, count):
        with self.came:
            if not self.came.wait_for(lambda: len(self.records) >= count, 20):
                raise SystemExit(f"{count} records wanted, got {len(self.records)}")
            return self.records

    def close(self):
        self.stop = True
        self.thread.join()
        self.consumer.close()


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


def any_partition(address):
    create(address, 16)
    producer = KafkaProducer(bootstrap_servers=address, acks="all")
    background = Background(consumer(address, 16))
    tries = []
    for count in range(1, checks.TRIES + 1):
        checks.settle()
        sent = time.monotonic()
        producer.send(TOPIC, b"value", partition=16 - 2 * count)
        record, came = background.wait_for(count)[-1]
        checks.equal(record.partition, 16 - 2 * count)
        tries.append(came - sent)
    checks.prompt(tries)
    background.close()
    producer.close()


def expiry(address):
    create(address)
    idle = consumer(address)
    records = idle.poll(timeout_ms=7000)
    checks.equal(records, {})
    figures = idle.metrics()["consumer-fetch-manager-metrics"]
    # Fetches of the one kind that there was: parked for five seconds, in vain.
    checks.within(figures["fetch-latency-max"] / 1000, 5.0, 5.1)
    idle.close()


def min_bytes(address):
    create(address)
    producer = KafkaProducer(bootstrap_servers=address, acks="all")
    # Longer than anybody waits here, so that the fetch cannot come back by expiring.
    waits = {"fetch_max_wait_ms": 50000, "request_timeout_ms": 60000}
    background = Background(consumer(address, fetch_min_bytes=1000, **waits))
    for _ in range(2):
        checks.settle()
        producer.send(TOPIC, b"x" * 300, partition=0).get(10)
        checks.settle()
        checks.equal(background.records, [])
    producer.send(TOPIC, b"x" * 300, partition=0).get(10)
    checks.equal([record.offset for record, _ in background.wait_for(3)], [0, 1, 2])
    background.close()
    producer.close()


def slow_follower(address):
    """The follower is 0.7 seconds behind."""
    create(address)
    producer = KafkaProducer(bootstrap_servers=address, acks="all")
    producer.partitions_for(TOPIC)
    sent = time.monotonic()
    checks.equal(producer.send(TOPIC, b"value", partition=0).get(10).offset, 0)
    checks.within(time.monotonic() - sent, 0.7, 2.7)
    producer.close()

    # This client gives up at the same time as the broker does.
    impatient = KafkaProducer(
        bootstrap_servers=address,
        acks="all",
        enable_idempotence=False,
        retries=0,
        request_timeout_ms=200,
        delivery_timeout_ms=5000,
    )
    try:
        impatient.send(TOPIC, b"value", partition=0).get(10)
    except (RequestTimedOutError, KafkaTimeoutError):
        pass
    except KafkaError as error:
        raise SystemExit(f"not a time-out: {error!r}")
    else:
        raise SystemExit("no time-out")
    impatient.close()


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
        "any_partition": any_partition,
        "expiry": expiry,
        "min_bytes": min_bytes,
        "slow_follower": slow_follower,
        "administration": administration,
    }
)
