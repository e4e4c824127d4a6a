"""What administrators do with groups: CLIENT ADDRESS CHECK."""

import sys
import time

import checks

GROUP, TOPIC = "g", "t"


def confluent_kafka(address):
    from confluent_kafka import Consumer, ConsumerGroupState, ConsumerGroupTopicPartitions
    from confluent_kafka import KafkaError, KafkaException, Producer, TopicPartition
    from confluent_kafka.admin import AdminClient

    producer = Producer({"bootstrap.servers": address})
    for _ in range(5):
        producer.produce(TOPIC, b"value", partition=0)
    producer.flush(20)
    admin = AdminClient({"bootstrap.servers": address})

    def listed(**wanted):
        found = admin.list_consumer_groups(**wanted).result()
        checks.equal(found.errors, [])
        return [(group.group_id, group.state) for group in found.valid]

    def describe():
        return admin.describe_consumer_groups([GROUP])[GROUP].result()

    def offsets():
        asked = ConsumerGroupTopicPartitions(GROUP)
        found = admin.list_consumer_group_offsets([asked])[GROUP].result().topic_partitions
        return [(found.partition, found.offset) for found in found]

    def refused(futures, code):
        try:
            futures[GROUP].result()
        except KafkaException as error:
            checks.equal(error.args[0].code(), code)
        else:
            sys.exit("not refused")

    checks.equal(listed(), [])
    consumer = Consumer(
        {"bootstrap.servers": address, "group.id": GROUP, "auto.offset.reset": "earliest", "client.id": "me"}
    )
    consumer.subscribe([TOPIC])
    checks.eventually(lambda: consumer.poll(1), bool)
    consumer.commit(asynchronous=False)
    checks.equal(listed(), [(GROUP, ConsumerGroupState.STABLE)])
    checks.equal(listed(states={ConsumerGroupState.EMPTY}), [])
    described = describe()
    checks.equal(described.state, ConsumerGroupState.STABLE)
    checks.equal(described.partition_assignor, "range")
    checks.equal(described.coordinator.id, 1)
    (member,) = described.members
    checks.equal((member.client_id, member.host), ("me", "/127.0.0.1"))
    assigned = [(found.topic, found.partition) for found in member.assignment.topic_partitions]
    checks.equal(assigned, [(TOPIC, 0)])
    checks.equal(offsets(), [(0, 1)])
    refused(admin.delete_consumer_groups([GROUP]), KafkaError.NON_EMPTY_GROUP)
    consumer.close()
    checks.equal(listed(), [(GROUP, ConsumerGroupState.EMPTY)])
    # Moved by hand: the next consumer starts there.
    moved = ConsumerGroupTopicPartitions(GROUP, [TopicPartition(TOPIC, 0, 3)])
    admin.alter_consumer_group_offsets([moved])[GROUP].result()
    checks.equal(offsets(), [(0, 3)])
    admin.delete_consumer_groups([GROUP])[GROUP].result()
    checks.equal(listed(), [])
    refused(admin.delete_consumer_groups([GROUP]), KafkaError.GROUP_ID_NOT_FOUND)
    checks.equal(describe().state, ConsumerGroupState.DEAD)


def kafka_python(address):
    from kafka import KafkaConsumer, KafkaProducer, TopicPartition
    from kafka.admin import KafkaAdminClient
    from kafka.errors import GroupIdNotFoundError, NonEmptyGroupError
    from kafka.structs import OffsetAndMetadata

    producer = KafkaProducer(bootstrap_servers=address)
    for _ in range(5):
        producer.send(TOPIC, b"value", partition=0)
    producer.flush()
    producer.close()
    admin = KafkaAdminClient(bootstrap_servers=address)

    def listed():
        return [(group["group_id"], group["group_state"]) for group in admin.list_groups()]

    def offsets():
        found = admin.list_group_offsets({GROUP: None})[GROUP]
        return [(partition.partition, found.offset) for partition, found in found.items()]

    checks.equal(listed(), [])
    consumer = KafkaConsumer(
        TOPIC, bootstrap_servers=address, group_id=GROUP, auto_offset_reset="earliest", max_poll_records=1, client_id="me"
    )
    checks.eventually(lambda: consumer.poll(timeout_ms=1000), bool)
    consumer.commit()
    checks.equal(listed(), [(GROUP, "Stable")])
    described = admin.describe_groups([GROUP])[GROUP]
    checks.equal(described["group_state"], "Stable")
    (member,) = described["members"]
    checks.equal((member["client_id"], member["client_host"]), ("me", "/127.0.0.1"))
    checks.equal(offsets(), [(0, 1)])
    refused(admin, NonEmptyGroupError)
    consumer.close()
    checks.equal(listed(), [(GROUP, "Empty")])
    admin.alter_group_offsets(GROUP, {TopicPartition(TOPIC, 0): OffsetAndMetadata(3, "", -1)})
    checks.equal(offsets(), [(0, 3)])
    print(admin.delete_group_offsets(GROUP, [TopicPartition(TOPIC, 0)]))
    checks.equal(offsets(), [])
    admin.delete_groups([GROUP])
    checks.equal(listed(), [])
    refused(admin, GroupIdNotFoundError)
    admin.close()


def refused(admin, error):
    """Deletes the group, in vain."""
    try:
        results = admin.delete_groups([GROUP])
    except error:
        return
    checks.equal(error.__name__ in str(results) or error.message in str(results), True)


checks.run({"confluent_kafka": confluent_kafka, "kafka_python": kafka_python})
