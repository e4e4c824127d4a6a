//! Requests about the cluster and its topics: ApiVersions, Metadata, ListOffsets; and those of administrators:
//! CreateTopics, DeleteTopics, DescribeConfigs.

use crate::broker::topics::{Topic, Topics};
use crate::exchange::{Answer, Caller, NODE, Outcome, Reply, code};
use crate::groups::Coordinator;
use crate::messages::*;
use crate::storage::{batch::MAX_BATCH, log::RETENTION};
use crate::wire::{frame::MAX_FRAME, outline::APIS};
use std::collections::{BTreeSet, HashMap};
use std::convert::identity;
use std::sync::Arc;

const CLUSTER: StrBytes = StrBytes::from_static_str("request-purgatory");

/// The versions handled here. Told also to a client that asked in a version which is not one of them, with that error.
pub(crate) fn api_versions(error: Option<Code>) -> ApiVersionsResponse {
    let api_keys = APIS.iter().map(|(key, versions, _)| {
        let oldest = match key {
            // For a broker without it an older librdkafka (2.0.2, say) compresses nothing. It sends a newer one. Kafka
            // 4 does so.
            ApiKey::Produce => 0,
            _ => *versions.start(),
        };
        ApiVersion::default()
            .with_api_key(*key as i16)
            .with_min_version(oldest)
            .with_max_version(*versions.end())
    });
    ApiVersionsResponse::default()
        .with_error_code(error.map_or(0, |error| error.code()))
        .with_api_keys(api_keys.collect())
}

/// Describes topics, creating missing ones if the client lets it, and says where clients connect to: where this one did.
pub(crate) fn metadata(request: MetadataRequest, topics: &Topics, caller: &Caller) -> Reply {
    // Half of what is told of a topic (without its name) and of a partition takes in memory, as read and as encoded.
    const TOPIC: usize = 128;
    const PARTITION: usize = 128;
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
    Answer::unread(size + TOPIC * found.len(), move || {
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

/// Creates topics. Each succeeds or fails by itself.
pub(crate) fn create_topics(request: CreateTopicsRequest, topics: &Topics) -> CreateTopicsResponse {
    let mut named = HashMap::<TopicName, usize>::new();
    for topic in &request.topics {
        *named.entry(topic.name.clone()).or_default() += 1;
    }
    let create = |topic: CreatableTopic| {
        let partitions = match topic.num_partitions {
            -1 => topics.default_partitions,
            partitions => partitions,
        };
        let created = match topic.replication_factor {
            _ if named[&topic.name] > 1 => Err(Code::InvalidRequest),
            _ if !topic.configs.iter().all(holds) => Err(Code::InvalidConfig),
            _ if !topic.assignments.is_empty() => Err(Code::InvalidReplicaAssignment),
            -1 | 1 if request.validate_only => topics.check_create(&topic.name, partitions),
            -1 | 1 => topics.create(&topic.name, partitions).map(|_| ()),
            _ => Err(Code::InvalidReplicationFactor),
        };
        CreatableTopicResult::default()
            .with_name(topic.name)
            .with_error_code(code(&created))
            .with_num_partitions(created.map_or(-1, |()| partitions))
            .with_replication_factor(created.map_or(-1, |()| 1))
    };
    CreateTopicsResponse::default().with_topics(request.topics.into_iter().map(create).collect())
}

/// Deletes topics, each by itself. What waits for one is told that there is none, and groups forget their offsets in it.
pub(crate) fn delete_topics(
    request: DeleteTopicsRequest,
    topics: &Topics,
    groups: &Coordinator,
) -> DeleteTopicsResponse {
    let delete = |name: TopicName| {
        let deleted = groups.forget_topic(&name, || topics.delete(&name));
        let partitions = deleted.iter().flat_map(|topic| &topic.partitions);
        partitions.for_each(|it| it.check_up_to(u64::MAX));
        DeletableTopicResult::default()
            .with_name(Some(name))
            .with_error_code(code(&deleted))
    };
    let responses = request.topic_names.into_iter().map(delete);
    DeleteTopicsResponse::default().with_responses(responses.collect())
}

/// A setting under Kafka's name for it, which cannot be changed.
type Config = (&'static str, String);

fn topic_configs() -> Vec<Config> {
    vec![
        ("cleanup.policy", "delete".to_owned()),
        ("compression.type", "producer".to_owned()),
        ("max.message.bytes", MAX_BATCH.to_string()),
        ("message.timestamp.type", "CreateTime".to_owned()),
        ("min.insync.replicas", 1.to_string()),
        ("retention.bytes", RETENTION.to_string()),
        ("retention.ms", (-1).to_string()),
    ]
}

fn broker_configs(topics: &Topics) -> Vec<Config> {
    vec![
        ("auto.create.topics.enable", true.to_string()),
        ("default.replication.factor", 1.to_string()),
        ("log.retention.bytes", RETENTION.to_string()),
        ("message.max.bytes", MAX_BATCH.to_string()),
        ("num.partitions", topics.default_partitions.to_string()),
        ("socket.request.max.bytes", MAX_FRAME.to_string()),
    ]
}

fn holds(asked: &CreatableTopicConfig) -> bool {
    let is = |value: &str| asked.value.as_ref().is_none_or(|asked| **asked == *value);
    let mut configs = topic_configs().into_iter();
    configs.any(|(name, value)| name == &*asked.name && is(&value))
}

pub(crate) fn describe_configs(request: DescribeConfigsRequest, topics: &Arc<Topics>) -> Reply {
    const DEFAULT: i8 = 5;
    // Half of what is told of each resource that is there takes in memory, as read and as encoded.
    const RESOURCE: usize = 1_024;
    let is_there = |asked: &&DescribeConfigsResource| configs_of(asked, topics).is_ok();
    let size = RESOURCE * request.resources.iter().filter(is_there).count();
    let topics = Arc::clone(topics);
    let describe = move |asked: DescribeConfigsResource| {
        let found = configs_of(&asked, &topics);
        let wanted = |(name, _): &Config| match &asked.configuration_keys {
            Some(names) => names.iter().any(|wanted| **wanted == **name),
            None => true,
        };
        let error = code(&found);
        let configs = found.into_iter().flatten().filter(wanted);
        let configs = configs.map(|(name, value)| {
            DescribeConfigsResourceResult::default()
                .with_name(StrBytes::from_static_str(name))
                .with_value(Some(StrBytes::from_string(value)))
                .with_read_only(true)
                .with_config_source(DEFAULT)
        });
        DescribeConfigsResult::default()
            .with_configs(configs.collect())
            .with_error_code(error)
            .with_resource_type(asked.resource_type)
            .with_resource_name(asked.resource_name)
    };
    let describe_all = move || {
        let results = request.resources.into_iter().map(describe).collect();
        DescribeConfigsResponse::default().with_results(results)
    };
    Answer::unread(size, describe_all).into()
}

fn configs_of(asked: &DescribeConfigsResource, topics: &Topics) -> Outcome<Vec<Config>> {
    const TOPIC: i8 = 2;
    const BROKER: i8 = 4;
    match asked.resource_type {
        TOPIC => topics.topic(&asked.resource_name).map(|_| topic_configs()),
        // No name stands for what holds for all brokers.
        BROKER if asked.resource_name.is_empty() || *asked.resource_name == *NODE.to_string() => {
            Ok(broker_configs(topics))
        }
        _ => Err(Code::InvalidRequest),
    }
}
