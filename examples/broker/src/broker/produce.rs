//! Produce requests: the append, and the answer.

use crate::broker::delayed_produce::Required;
use crate::broker::follower::Follower;
use crate::broker::partition::{Appended, Partition};
use crate::broker::topics::Topics;
use crate::figures::metrics::Counter;
use crate::storage::batch::Batch;
use bytes::Bytes;
use kafka_protocol::ResponseError;
use kafka_protocol::messages::produce_request::PartitionProduceData;
use kafka_protocol::messages::produce_response::{
    PartitionProduceResponse, ProduceResponse, TopicProduceResponse,
};
use kafka_protocol::messages::{
    InitProducerIdRequest, InitProducerIdResponse, ProduceRequest, ProducerId, TopicName,
};
use kafka_protocol::protocol::StrBytes;
use std::sync::Arc;

/// Whom the producer wants to wait for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Acks {
    /// None, and the producer gets no answer.
    None,
    Leader,
    All,
}

impl Acks {
    pub(crate) fn from_wire(acks: i16) -> Result<Self, ResponseError> {
        match acks {
            0 => Ok(Self::None),
            1 => Ok(Self::Leader),
            -1 => Ok(Self::All),
            _ => Err(ResponseError::InvalidRequiredAcks),
        }
    }
}

/// What became of a produce request, partition by partition.
#[derive(Debug)]
pub(crate) struct Produced {
    acks: Acks,
    topics: Vec<(TopicName, Vec<PartitionProduced>)>,
}

#[derive(Debug)]
struct PartitionProduced {
    index: i32,
    outcome: Result<(Appended, Required), ResponseError>,
}

impl Produced {
    /// Appends everything that `request` brings. Each partition succeeds or fails by itself.
    pub(crate) fn append(
        request: ProduceRequest,
        acks: Acks,
        topics: &Topics,
        follower: &Follower,
    ) -> Self {
        let append = |topic: &str, data: &PartitionProduceData| {
            let partition = topics.partition(topic, data.index)?;
            append(partition, data.records.as_ref(), follower)
        };
        Self::each(request, acks, append)
    }

    /// Refuses everything that `request` brings.
    pub(crate) fn refuse(request: ProduceRequest, error: ResponseError) -> Self {
        Self::each(request, Acks::Leader, |_, _| Err(error))
    }

    fn each(
        request: ProduceRequest,
        acks: Acks,
        append: impl Fn(&str, &PartitionProduceData) -> Result<(Appended, Required), ResponseError>,
    ) -> Self {
        let topics = request
            .topic_data
            .into_iter()
            .map(|topic| {
                let partition = |data: &PartitionProduceData| PartitionProduced {
                    index: data.index,
                    outcome: append(&topic.name, data),
                };
                let partitions = topic.partition_data.iter().map(partition).collect();
                // Its own, so that what waits for replicas does not keep the whole request.
                let name = TopicName(StrBytes::from_string(topic.name.to_string()));
                (name, partitions)
            })
            .collect();
        Self { acks, topics }
    }

    /// The first error, if any partition has one.
    pub(crate) fn error(&self) -> Option<ResponseError> {
        self.partitions()
            .find_map(|partition| partition.outcome.as_ref().err().copied())
    }

    /// How far which high watermarks have to come.
    pub(crate) fn required(&self) -> impl Iterator<Item = &Required> {
        self.partitions()
            .filter_map(|partition| partition.outcome.as_ref().ok())
            .map(|(_, required)| required)
    }

    /// The answer as of now.
    pub(crate) fn response(self) -> ProduceResponse {
        let acks = self.acks;
        let topic = |(name, partitions): (TopicName, Vec<PartitionProduced>)| {
            let responses = partitions
                .into_iter()
                .map(|partition| partition.response(acks))
                .collect();
            TopicProduceResponse::default()
                .with_name(name)
                .with_partition_responses(responses)
        };
        ProduceResponse::default().with_responses(self.topics.into_iter().map(topic).collect())
    }

    fn partitions(&self) -> impl Iterator<Item = &PartitionProduced> {
        self.topics.iter().flat_map(|(_, partitions)| partitions)
    }
}

impl PartitionProduced {
    fn response(self, acks: Acks) -> PartitionProduceResponse {
        let response = PartitionProduceResponse::default().with_index(self.index);
        let outcome = match self.outcome {
            Ok((appended, required)) if acks == Acks::All => {
                let replicated = required.outcome();
                let replicated = replicated.unwrap_or(Err(ResponseError::RequestTimedOut));
                replicated.map(|()| (appended, required))
            }
            outcome => outcome,
        };
        match outcome {
            Ok((appended, _)) => response
                .with_base_offset(appended.base_offset)
                .with_log_start_offset(appended.log_start_offset),
            Err(error) => response.with_error_code(error.code()).with_base_offset(-1),
        }
    }
}

/// Gives an idempotent producer its id. There are no transactions here.
pub(crate) fn init_producer_id(
    request: &InitProducerIdRequest,
    ids: &Counter,
) -> InitProducerIdResponse {
    let response = InitProducerIdResponse::default();
    match request.transactional_id {
        None => response
            .with_producer_id(ProducerId(ids.increase() as i64))
            .with_producer_epoch(0),
        Some(_) => response
            .with_error_code(ResponseError::TransactionalIdAuthorizationFailed.code())
            .with_producer_id(ProducerId(-1))
            .with_producer_epoch(-1),
    }
}

/// Appends one batch and tells the follower. The high watermark moves, and requests wake up, once it has it.
fn append(
    partition: Arc<Partition>,
    records: Option<&Bytes>,
    follower: &Follower,
) -> Result<(Appended, Required), ResponseError> {
    let records = records.ok_or(ResponseError::InvalidRecord)?;
    let appended = partition.append(&Batch::from_producer(records)?)?;
    follower.replicate(Arc::clone(&partition), appended.end_offset);
    let offset = appended.end_offset;
    Ok((appended, Required { partition, offset }))
}
