//! Requests of administrators: CreateTopics, DeleteTopics, DescribeConfigs.

use crate::broker::configs::{self, Config};
use crate::broker::metadata::NODE;
use crate::broker::topics::{DEFAULT_PARTITIONS, Topics};
use kafka_protocol::ResponseError;
use kafka_protocol::messages::create_topics_request::{CreatableTopic, CreateTopicsRequest};
use kafka_protocol::messages::create_topics_response::{
    CreatableTopicResult, CreateTopicsResponse,
};
use kafka_protocol::messages::delete_topics_response::DeletableTopicResult;
use kafka_protocol::messages::describe_configs_request::DescribeConfigsResource;
use kafka_protocol::messages::describe_configs_response::{
    DescribeConfigsResourceResult, DescribeConfigsResult,
};
use kafka_protocol::messages::{
    DeleteTopicsRequest, DeleteTopicsResponse, DescribeConfigsRequest, DescribeConfigsResponse,
    TopicName,
};
use kafka_protocol::protocol::StrBytes;
use std::collections::HashMap;

/// Creates topics. Each succeeds or fails by itself.
pub(crate) fn create_topics(request: CreateTopicsRequest, topics: &Topics) -> CreateTopicsResponse {
    let mut named = HashMap::<TopicName, usize>::new();
    for topic in &request.topics {
        *named.entry(topic.name.clone()).or_default() += 1;
    }
    let create = |topic: CreatableTopic| {
        let partitions = match topic.num_partitions {
            -1 => DEFAULT_PARTITIONS,
            partitions => partitions,
        };
        let created = match topic.replication_factor {
            _ if named[&topic.name] > 1 => Err(ResponseError::InvalidRequest),
            _ if topic
                .configs
                .iter()
                .any(|config| !configs::holds(&config.name, config.value.as_deref())) =>
            {
                Err(ResponseError::InvalidConfig)
            }
            _ if !topic.assignments.is_empty() => Err(ResponseError::InvalidReplicaAssignment),
            -1 | 1 if request.validate_only => topics.check_create(&topic.name, partitions),
            -1 | 1 => topics.create(&topic.name, partitions).map(|_| ()),
            _ => Err(ResponseError::InvalidReplicationFactor),
        };
        let result = CreatableTopicResult::default()
            .with_name(topic.name)
            .with_configs(Some(Vec::new()));
        match created {
            Ok(()) => result
                .with_error_message(None)
                .with_num_partitions(partitions)
                .with_replication_factor(1),
            Err(error) => result
                .with_error_code(error.code())
                .with_error_message(Some(StrBytes::from_string(error.to_string()))),
        }
    };
    CreateTopicsResponse::default().with_topics(request.topics.into_iter().map(create).collect())
}

/// Deletes topics. Each succeeds or fails by itself; what waits for one is answered that there is no such topic.
pub(crate) fn delete_topics(request: DeleteTopicsRequest, topics: &Topics) -> DeleteTopicsResponse {
    let delete = |name: TopicName| {
        let error = topics.delete(&name).err();
        DeletableTopicResult::default()
            .with_name(Some(name))
            .with_error_code(error.map_or(0, |error| error.code()))
            .with_error_message(error.map(message))
    };
    let responses = request.topic_names.into_iter().map(delete);
    DeleteTopicsResponse::default().with_responses(responses.collect())
}

/// Tells what topics and this broker are configured to. Nothing of it can be changed.
pub(crate) fn describe_configs(
    request: DescribeConfigsRequest,
    topics: &Topics,
) -> DescribeConfigsResponse {
    let describe = |asked: DescribeConfigsResource| {
        let found = configs_of(&asked, topics);
        let result = DescribeConfigsResult::default()
            .with_resource_type(asked.resource_type)
            .with_resource_name(asked.resource_name);
        match found {
            Ok(configs) => {
                let wanted = |config: &&Config| match &asked.configuration_keys {
                    Some(names) => names.iter().any(|name| **name == *config.name),
                    None => true,
                };
                let configs = configs.iter().filter(wanted).map(describe_config);
                result
                    .with_error_message(None)
                    .with_configs(configs.collect())
            }
            Err(error) => result
                .with_error_code(error.code())
                .with_error_message(Some(message(error))),
        }
    };
    let results = request.resources.into_iter().map(describe);
    DescribeConfigsResponse::default().with_results(results.collect())
}

fn configs_of(
    asked: &DescribeConfigsResource,
    topics: &Topics,
) -> Result<&'static [Config], ResponseError> {
    const TOPIC: i8 = 2;
    const BROKER: i8 = 4;
    match asked.resource_type {
        TOPIC if topics.topic(&asked.resource_name).is_some() => Ok(configs::TOPIC),
        TOPIC => Err(ResponseError::UnknownTopicOrPartition),
        // No name stands for what holds for all brokers.
        BROKER if asked.resource_name.is_empty() || *asked.resource_name == *NODE.to_string() => {
            Ok(configs::BROKER)
        }
        _ => Err(ResponseError::InvalidRequest),
    }
}

fn describe_config(config: &Config) -> DescribeConfigsResourceResult {
    const DEFAULT: i8 = 5;
    DescribeConfigsResourceResult::default()
        .with_name(StrBytes::from_static_str(config.name))
        .with_value(Some(StrBytes::from_string(config.value.to_string())))
        .with_read_only(true)
        .with_config_source(DEFAULT)
        .with_config_type(config.value.kind())
        .with_documentation(Some(StrBytes::from_static_str(config.documentation)))
}

fn message(error: ResponseError) -> StrBytes {
    StrBytes::from_string(error.to_string())
}
