//! The requests that tests make most, and what they read from the answers. For the unit tests as well.

use crate::messages::*;
use bytes::{Bytes, BytesMut};
use kafka_protocol::indexmap::IndexMap;
use kafka_protocol::protocol::{Request, encode_request_header_into_buffer};
use kafka_protocol::records::*;

pub(crate) const UNKNOWN_TOPIC_OR_PARTITION: i16 = 3;

pub(crate) fn topic_name(name: &str) -> TopicName {
    TopicName(text(name))
}

/// A fetch from the start of the first `partitions` of a topic, which waits `max_wait` milliseconds for the first byte.
pub(crate) fn fetch(topic: &str, partitions: i32, max_wait: i32) -> FetchRequest {
    let partitions: Vec<_> = (0..partitions).map(|index| (index, 0)).collect();
    fetch_from(topic, &partitions, max_wait)
}

pub(crate) fn fetch_from(topic: &str, from: &[(i32, i64)], max_wait: i32) -> FetchRequest {
    let partitions = from.iter().map(|(index, offset)| {
        FetchPartition::default()
            .with_partition(*index)
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

pub(crate) fn records(data: &PartitionData) -> &[u8] {
    data.records.as_ref().expect("empty rather than null")
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

pub(crate) fn create_request(topics: &[(&str, i32)]) -> CreateTopicsRequest {
    let topics = topics.iter().map(|(name, partitions)| {
        CreatableTopic::default()
            .with_name(topic_name(name))
            .with_num_partitions(*partitions)
            .with_replication_factor(1)
    });
    CreateTopicsRequest::default().with_topics(topics.collect())
}

pub(crate) fn delete_topics_request(names: &[&str]) -> DeleteTopicsRequest {
    let names = names.iter().map(|name| topic_name(name));
    DeleteTopicsRequest::default().with_topic_names(names.collect())
}

pub(crate) fn metadata_request(topics: &[impl AsRef<str>]) -> MetadataRequest {
    let names = topics.iter().map(|name| topic_name(name.as_ref()));
    let topics = names.map(|name| MetadataRequestTopic::default().with_name(Some(name)));
    MetadataRequest::default().with_topics(Some(topics.collect()))
}

pub(crate) fn list_offsets_request(topic: &str, timestamp: i64) -> ListOffsetsRequest {
    let partition = ListOffsetsPartition::default().with_timestamp(timestamp);
    let topic = ListOffsetsTopic::default()
        .with_name(topic_name(topic))
        .with_partitions(vec![partition]);
    ListOffsetsRequest::default().with_topics(vec![topic])
}

/// Requests of groups are about this one, and about offsets in a topic "t".
pub(crate) const GROUP: &str = "g";

pub(crate) fn group(id: &str) -> GroupId {
    GroupId(text(id))
}

/// A join with the usual timeouts, with the protocols "range" and "roundrobin".
pub(crate) fn join_request(member: &str) -> JoinGroupRequest {
    JoinGroupRequest::default()
        .with_group_id(group(GROUP))
        .with_session_timeout_ms(10_000)
        .with_rebalance_timeout_ms(30_000)
        .with_member_id(text(member))
        .with_protocol_type(text("consumer"))
        .with_protocols(protocols(&["range", "roundrobin"]))
}

pub(crate) fn protocols(names: &[&str]) -> Vec<JoinGroupRequestProtocol> {
    let protocol = |name: &&str| {
        JoinGroupRequestProtocol::default()
            .with_name(text(name))
            .with_metadata(Bytes::from(format!("about {name}")))
    };
    names.iter().map(protocol).collect()
}

pub(crate) fn heartbeat_request(member: &str, generation: i32) -> HeartbeatRequest {
    HeartbeatRequest::default()
        .with_group_id(group(GROUP))
        .with_generation_id(generation)
        .with_member_id(text(member))
}

/// A commit by a member, or by none, for partitions of "t", with offsets as epoch and metadata, the first this long.
pub(crate) fn commit_request(
    (group, member, generation): (&str, &str, i32),
    offsets: &[(i32, i64)],
    length: usize,
) -> OffsetCommitRequest {
    let partitions = offsets.iter().map(|(index, offset)| {
        let length = length * usize::from(*index == offsets[0].0);
        OffsetCommitRequestPartition::default()
            .with_partition_index(*index)
            .with_committed_offset(*offset)
            .with_committed_leader_epoch(*offset as i32)
            .with_committed_metadata(Some(text(&format!("{offset:length$}"))))
    });
    let topic = OffsetCommitRequestTopic::default()
        .with_name(topic_name("t"))
        .with_partitions(partitions.collect());
    OffsetCommitRequest::default()
        .with_group_id(self::group(group))
        .with_member_id(text(member))
        .with_generation_id_or_member_epoch(generation)
        .with_topics(vec![topic])
}

pub(crate) fn commit_errors(answer: &OffsetCommitResponse) -> Vec<i16> {
    let partitions = answer.topics[0].partitions.iter();
    partitions.map(|partition| partition.error_code).collect()
}

pub(crate) fn offsets_request(group: &str) -> OffsetFetchRequest {
    let request = OffsetFetchRequest::default().with_topics(None);
    request.with_group_id(self::group(group))
}

/// Asks what was committed for partitions of these topics.
pub(crate) fn offsets_of(group: &str, topics: &[(&str, &[i32])]) -> OffsetFetchRequest {
    let topics = topics.iter().map(|(name, indexes)| {
        let topic = OffsetFetchRequestTopic::default().with_name(topic_name(name));
        topic.with_partition_indexes(indexes.to_vec())
    });
    offsets_request(group).with_topics(Some(topics.collect()))
}

/// As it is asked for from version 8 on: partitions 1 and 0 of "t".
pub(crate) fn offsets_in_group(id: &str) -> OffsetFetchRequestGroup {
    let topic = OffsetFetchRequestTopics::default().with_name(topic_name("t"));
    OffsetFetchRequestGroup::default()
        .with_group_id(group(id))
        .with_topics(Some(vec![topic.with_partition_indexes(vec![1, 0])]))
}

/// Partition and offset of all that was committed by [`commit_request`]s.
pub(crate) fn offsets(answer: OffsetFetchResponse) -> Vec<(i32, i64)> {
    let partitions = answer.topics.into_iter().flat_map(|topic| topic.partitions);
    let offsets = partitions.map(|found| {
        let metadata = found.metadata.expect("empty rather than null");
        assert_eq!(metadata.trim(), found.committed_offset.to_string());
        assert_eq!(metadata.trim(), found.committed_leader_epoch.to_string());
        (found.partition_index, found.committed_offset)
    });
    offsets.collect()
}

/// Asks a group to forget what it has committed for a partition of the topic "t".
pub(crate) fn forget_request(group: &str, partition: i32) -> OffsetDeleteRequest {
    let partition = OffsetDeleteRequestPartition::default().with_partition_index(partition);
    let topic = OffsetDeleteRequestTopic::default()
        .with_name(topic_name("t"))
        .with_partitions(vec![partition]);
    OffsetDeleteRequest::default()
        .with_group_id(self::group(group))
        .with_topics(vec![topic])
}

pub(crate) fn batch(values: &[&[u8]]) -> Vec<u8> {
    batch_from(-1, -1, -1, values)
}

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

pub(crate) fn frame<R: Request>(version: i16, correlation: i32, request: &R) -> Vec<u8> {
    let header = RequestHeader::default()
        .with_request_api_key(R::KEY)
        .with_request_api_version(version)
        .with_correlation_id(correlation)
        .with_client_id(Some(StrBytes::from_static_str("test")));
    let mut bytes = BytesMut::new();
    encode_request_header_into_buffer(&mut bytes, &header).expect("encode the header");
    request.encode(&mut bytes, version).expect("a request");
    framed(&bytes)
}

/// Bytes behind their length.
pub(crate) fn framed(bytes: &[u8]) -> Vec<u8> {
    [&(bytes.len() as i32).to_be_bytes()[..], bytes].concat()
}
