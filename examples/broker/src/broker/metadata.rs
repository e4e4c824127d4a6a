//! Requests about the cluster and its topics: ApiVersions, Metadata, ListOffsets.

use crate::broker::topics::{Topic, Topics};
use crate::exchange::{Answer, Caller, NODE, Reply};
use crate::messages::*;
use crate::wire::apis::APIS;
use std::collections::BTreeSet;
use std::convert::identity;
use std::sync::Arc;

/// Half of what is told of a topic (without its name) and of a partition takes in memory, as read and as encoded.
const TOPIC: usize = 128;
const PARTITION: usize = 128;

const CLUSTER: StrBytes = StrBytes::from_static_str("request-purgatory");

/// The versions handled here. Told also to a client that asked in a version which is not one of them, with that error.
pub(crate) fn api_versions(error: Option<ResponseError>) -> ApiVersionsResponse {
    let api_keys = APIS.iter().map(|(key, versions, _)| {
        ApiVersion::default()
            .with_api_key(*key as i16)
            .with_min_version(*versions.start())
            .with_max_version(*versions.end())
    });
    ApiVersionsResponse::default()
        .with_error_code(error.map_or(0, |error| error.code()))
        .with_api_keys(api_keys.collect())
}

/// Describes topics, creating missing ones if the client lets it, and says where clients connect to: where this one did.
pub(crate) fn metadata(request: MetadataRequest, topics: &Topics, caller: &Caller) -> Reply {
    let find = |name: TopicName| {
        let found = match request.allow_auto_topic_creation {
            true => topics.find_or_create(&name),
            false => topics.topic(&name),
        };
        found.map_err(|error| {
            let missing = MetadataResponseTopic::default().with_error_code(error.code());
            missing.with_name(Some(name))
        })
    };
    let found: Vec<Result<Arc<Topic>, MetadataResponseTopic>> = match request.topics {
        // In version 0 no topics means all.
        Some(asked) if caller.version > 0 || !asked.is_empty() => {
            // An answer is as long as the topics in it, so each is in it once.
            let names = asked.into_iter().filter_map(|topic| topic.name);
            let names = names.collect::<BTreeSet<_>>();
            names.into_iter().map(find).collect()
        }
        _ => topics.all().into_iter().map(Ok).collect(),
    };
    let broker = MetadataResponseBroker::default()
        .with_node_id(NODE)
        .with_host(StrBytes::from_string(caller.address.ip().to_string()))
        .with_port(i32::from(caller.address.port()));
    // (The names of others are those of the request.)
    let found_size = |topic: &Arc<Topic>| topic.name.len() + PARTITION * topic.partitions.len();
    let size = found.iter().flatten().map(found_size).sum::<usize>();
    let size = size + TOPIC * found.len();
    Answer::unread(size, move || {
        let found = found.into_iter();
        let told = found.map(|found| found.map_or_else(identity, |topic| describe(&topic)));
        MetadataResponse::default()
            .with_brokers(vec![broker])
            .with_cluster_id(Some(CLUSTER))
            .with_controller_id(NODE)
            .with_topics(told.collect())
    })
    .into()
}

/// The follower inside this process is no broker that clients could talk to, so it is not listed.
fn describe(topic: &Topic) -> MetadataResponseTopic {
    let partitions = topic.partitions.iter().map(|partition| {
        MetadataResponsePartition::default()
            .with_partition_index(partition.key.partition)
            .with_leader_id(NODE)
            .with_replica_nodes(vec![NODE])
            .with_isr_nodes(vec![NODE])
    });
    MetadataResponseTopic::default()
        .with_name(Some(TopicName(text(&topic.name))))
        .with_partitions(partitions.collect())
}

/// Finds offsets by time, or by the two names that negative times stand for.
pub(crate) fn list_offsets(request: ListOffsetsRequest, topics: &Topics) -> ListOffsetsResponse {
    let responses = request.topics.into_iter().map(|topic| {
        let find = |asked: &ListOffsetsPartition| {
            let response =
                ListOffsetsPartitionResponse::default().with_partition_index(asked.partition_index);
            let partition = topics.partition(&topic.name, asked.partition_index);
            match partition.and_then(|partition| partition.find_timestamp(asked.timestamp)) {
                Ok((timestamp, offset)) => response.with_timestamp(timestamp).with_offset(offset),
                Err(error) => response.with_error_code(error.code()),
            }
        };
        ListOffsetsTopicResponse::default()
            .with_partitions(topic.partitions.iter().map(find).collect())
            .with_name(topic.name)
    });
    ListOffsetsResponse::default().with_topics(responses.collect())
}
