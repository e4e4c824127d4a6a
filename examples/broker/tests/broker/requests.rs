//! The requests that tests make most.

use super::*;
use bytes::{Bytes, BytesMut};
use kafka_protocol::indexmap::IndexMap;
use kafka_protocol::records::*;

pub(crate) const UNKNOWN_TOPIC_OR_PARTITION: i16 = 3;

pub(crate) fn topic_name(name: &str) -> TopicName {
    TopicName(text(name))
}

/// A fetch from the start of the first `partitions` of a topic, which waits `max_wait` milliseconds for the first byte.
pub(crate) fn fetch(topic: &str, partitions: i32, max_wait: i32) -> FetchRequest {
    fetch_from(topic, &vec![0; partitions as usize], max_wait)
}

/// A fetch from these offsets of a topic's first partitions.
pub(crate) fn fetch_from(topic: &str, offsets: &[i64], max_wait: i32) -> FetchRequest {
    let partitions = (0..).zip(offsets).map(|(index, offset)| {
        FetchPartition::default()
            .with_partition(index)
            .with_fetch_offset(*offset)
            .with_partition_max_bytes(i32::MAX)
    });
    let topic = FetchTopic::default()
        .with_topic(topic_name(topic))
        .with_partitions(partitions.collect());
    FetchRequest::default()
        .with_max_wait_ms(max_wait)
        .with_min_bytes(1)
        .with_max_bytes(i32::MAX)
        .with_topics(vec![topic])
}

/// The version that tests fetch in.
pub(crate) const FETCH: i16 = 11;

/// The partitions in the answer to a fetch that was sent.
pub(crate) fn receive_fetched(client: &mut Client, correlation: i32) -> Vec<PartitionData> {
    let answer = client.receive::<FetchRequest>(FETCH, correlation);
    assert_eq!(answer.error_code, 0);
    let topics = answer.responses.into_iter();
    let fetched = topics.flat_map(|topic| topic.partitions);
    // Without transactions, what is replicated is stable. With an error there is no offset.
    let checked = fetched.inspect(|found| {
        assert_eq!(found.last_stable_offset, found.high_watermark);
        assert_eq!(found.log_start_offset >= 0, found.error_code == 0);
    });
    checked.collect()
}

/// Fetches, and returns what came of each partition.
pub(crate) fn run(client: &mut Client, fetch: &FetchRequest) -> Vec<PartitionData> {
    let sent = client.send(FETCH, fetch);
    receive_fetched(client, sent)
}

/// The bytes of records in what was fetched.
pub(crate) fn records(data: &PartitionData) -> &[u8] {
    data.records.as_ref().expect("empty rather than null")
}

/// Fetches, and returns how many bytes of records came of each partition.
pub(crate) fn lengths(client: &mut Client, fetch: &FetchRequest) -> Vec<usize> {
    let fetched = run(client, fetch).into_iter();
    fetched.map(|data| records(&data).len()).collect()
}

/// A produce request for partitions of one topic; `None` sends null for records.
pub(crate) fn produce_request(
    acks: i16,
    timeout: i32,
    topic: &str,
    partitions: &[(i32, Option<&[u8]>)],
) -> ProduceRequest {
    let data = partitions.iter().map(|(index, records)| {
        PartitionProduceData::default()
            .with_index(*index)
            .with_records(records.map(Bytes::copy_from_slice))
    });
    let topic = TopicProduceData::default()
        .with_name(topic_name(topic))
        .with_partition_data(data.collect());
    ProduceRequest::default()
        .with_acks(acks)
        .with_timeout_ms(timeout)
        .with_topic_data(vec![topic])
}

/// The version that tests produce in.
pub(crate) const PRODUCE: i16 = 8;

/// Error and first offset of each partition.
pub(crate) fn produced(answer: ProduceResponse) -> Vec<(i16, i64)> {
    let topics = answer.responses.into_iter();
    let partitions = topics.flat_map(|topic| topic.partition_responses);
    let outcomes = partitions.map(|partition| {
        let error = partition.error_code;
        assert_eq!(partition.log_start_offset >= 0, error == 0);
        (error, partition.base_offset)
    });
    outcomes.collect()
}

pub(crate) fn produce_to(
    client: &mut Client,
    acks: i16,
    topic: &str,
    partition: i32,
    records: &[u8],
) -> (i16, i64) {
    let request = produce_request(acks, 10_000, topic, &[(partition, Some(records))]);
    produced(client.request(PRODUCE, &request))[0]
}

/// Produces one record to partition 0, waiting for the replicas; returns its offset.
pub(crate) fn produce(client: &mut Client, topic: &str, value: &[u8]) -> i64 {
    let (error, offset) = produce_to(client, -1, topic, 0, &batch(&[value]));
    assert_eq!(error, 0);
    offset
}

pub(crate) fn create_request(topics: &[(&str, i32)]) -> CreateTopicsRequest {
    let topics = topics.iter().map(|(name, partitions)| {
        CreatableTopic::default()
            .with_name(topic_name(name))
            .with_num_partitions(*partitions)
            .with_replication_factor(1)
    });
    CreateTopicsRequest::default().with_topics(topics.collect())
}

pub(crate) fn create_topic(client: &mut Client, name: &str, partitions: i32) {
    let answer = client.request(4, &create_request(&[(name, partitions)]));
    assert_eq!(answer.topics[0].error_code, 0);
}

pub(crate) fn delete_topics_request(names: &[&str]) -> DeleteTopicsRequest {
    let names = names.iter().map(|name| topic_name(name));
    DeleteTopicsRequest::default().with_topic_names(names.collect())
}

/// Deletes topics, and returns the error of each.
pub(crate) fn delete_topics(client: &mut Client, names: &[&str]) -> Vec<i16> {
    let answer = client.request(5, &delete_topics_request(names));
    let responses = answer.responses.into_iter();
    responses.map(|topic| topic.error_code).collect()
}

pub(crate) fn metadata_request(topics: &[&str]) -> MetadataRequest {
    let topic = |name: &&str| MetadataRequestTopic::default().with_name(Some(topic_name(name)));
    let topics = topics.iter().map(topic).collect();
    MetadataRequest::default().with_topics(Some(topics))
}

/// Asks for topics, creating missing ones or not: error and number of partitions of each.
pub(crate) fn metadata(client: &mut Client, topics: &[&str], create: bool) -> Vec<(i16, usize)> {
    let request = metadata_request(topics).with_allow_auto_topic_creation(create);
    let topics = client.request(8, &request).topics.into_iter();
    let found = topics.map(|topic| (topic.error_code, topic.partitions.len()));
    found.collect()
}

pub(crate) fn list_offsets_request(topic: &str, timestamp: i64) -> ListOffsetsRequest {
    let partition = ListOffsetsPartition::default().with_timestamp(timestamp);
    let topic = ListOffsetsTopic::default()
        .with_name(topic_name(topic))
        .with_partitions(vec![partition]);
    ListOffsetsRequest::default().with_topics(vec![topic])
}

/// Error and offset of partition 0 at a time; -1 is the latest, -2 the earliest.
pub(crate) fn offset_at(client: &mut Client, topic: &str, timestamp: i64) -> (i16, i64) {
    let answer = client.request(5, &list_offsets_request(topic, timestamp));
    let found = &answer.topics[0].partitions[0];
    (found.error_code, found.offset)
}

/// A consumer joins the group "g".
pub(crate) fn join_request(rebalance_timeout_ms: i32) -> JoinGroupRequest {
    let protocol = JoinGroupRequestProtocol::default()
        .with_name(text("range"))
        .with_metadata(Bytes::from_static(b"metadata"));
    JoinGroupRequest::default()
        .with_group_id(GroupId(text("g")))
        .with_session_timeout_ms(10_000)
        .with_rebalance_timeout_ms(rebalance_timeout_ms)
        .with_protocol_type(text("consumer"))
        .with_protocols(vec![protocol])
}

/// A record batch of one record per value.
pub(crate) fn batch(values: &[&[u8]]) -> Vec<u8> {
    batch_from(-1, -1, -1, values)
}

/// A record batch of an idempotent producer.
pub(crate) fn batch_from(id: i64, epoch: i16, sequence: i32, values: &[&[u8]]) -> Vec<u8> {
    let records = (0..).zip(values).map(|(offset, value)| Record {
        transactional: false,
        control: false,
        delete_horizon: false,
        partition_leader_epoch: 0,
        producer_id: id,
        producer_epoch: epoch,
        timestamp_type: TimestampType::Creation,
        offset,
        sequence: sequence.wrapping_add(offset as i32),
        timestamp: 1_000,
        key: None,
        value: Some(Bytes::copy_from_slice(value)),
        headers: IndexMap::new(),
    });
    let options = RecordEncodeOptions {
        version: 2,
        compression: Compression::None,
    };
    let mut bytes = BytesMut::new();
    let records: Vec<_> = records.collect();
    RecordBatchEncoder::encode(&mut bytes, &records, &options).expect("a batch");
    bytes.to_vec()
}

/// The batch with `bytes` in place of what is at `at`, under a checksum that is right.
pub(crate) fn patched(batch: &[u8], at: usize, bytes: &[u8]) -> Vec<u8> {
    let mut batch = batch.to_vec();
    batch[at..at + bytes.len()].copy_from_slice(bytes);
    let checksum = crc32c::crc32c(&batch[21..]);
    batch[17..21].copy_from_slice(&checksum.to_be_bytes());
    batch
}
