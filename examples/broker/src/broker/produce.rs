//! Produce requests: the append, the follower that gets what was appended, and the answer.

use crate::broker::delayed::Request;
use crate::broker::partition::{Appended, Partition};
use crate::broker::topics::Topics;
use crate::exchange::{Answer, Outcome, ensure};
use crate::messages::*;
use crate::storage::batch::{Batch, MAX_UNPACKED, is_packed};
use std::sync::Arc;
use std::time::Duration;

/// Whom a producer wants to wait for, if not for the leader alone (1): for no one, not even for an answer.
pub(crate) const ACKS_NONE: i16 = 0;
pub(crate) const ACKS_ALL: i16 = -1;

/// What became of a produce request, partition by partition.
pub(crate) struct Produced {
    acks: i16,
    topics: Vec<(TopicName, Vec<(i32, Part)>)>,
}

/// Whether it brings a batch that is packed, which takes long to count.
pub(crate) fn has_packed(request: &ProduceRequest) -> bool {
    let topics = request.topic_data.iter();
    let mut partitions = topics.flat_map(|topic| &topic.partition_data);
    partitions.any(|data| data.records.as_deref().is_some_and(is_packed))
}

type Part = Outcome<(Appended, Arc<Partition>)>;

impl Produced {
    /// Appends everything that `request` brings, if its acks are known. Each partition succeeds or fails by itself.
    pub(crate) fn append(request: ProduceRequest, topics: &Topics) -> Self {
        let acks = request.acks;
        let mut unpacked_left = MAX_UNPACKED;
        let topics = request.topic_data.into_iter().map(|topic| {
            let mut outcome = |data: &PartitionProduceData| {
                ensure((ACKS_ALL..=1).contains(&acks), Code::InvalidRequiredAcks)?;
                let partition = topics.partition(&topic.name, data.index)?;
                let records = data.records.as_ref();
                let records = records.ok_or(Code::InvalidRecord)?;
                let batch = Batch::from_request(records, &mut unpacked_left)?;
                Ok((partition.append(&batch)?, partition))
            };
            let partition = |data: &PartitionProduceData| (data.index, outcome(data));
            let partitions = topic.partition_data.iter().map(partition).collect();
            // Its own, so that what waits for replicas does not keep the whole request.
            (TopicName(text(&topic.name)), partitions)
        });
        let topics = topics.collect();
        Self { acks, topics }
    }

    fn outcomes(&self) -> impl Iterator<Item = &Part> {
        let partitions = self.topics.iter().flat_map(|(_, partitions)| partitions);
        partitions.map(|(_, outcome)| outcome)
    }

    pub(crate) fn error(&self) -> Option<Code> {
        self.outcomes().find_map(|it| it.as_ref().err()).copied()
    }

    /// The partitions that were appended to, and the offsets that their high watermarks have to reach.
    pub(crate) fn required(&self) -> Vec<(Arc<Partition>, i64)> {
        let required = self.outcomes().flatten();
        let required = required.map(|(to, partition)| (Arc::clone(partition), to.end_offset));
        required.collect()
    }
}

impl Request for Produced {
    /// Whether every high watermark has reached what was appended, or never will.
    fn is_satisfied(&self) -> bool {
        let mut appended = self.outcomes().flatten();
        appended.all(|(to, partition)| partition.has_replicated(to.end_offset).is_some())
    }

    /// The offsets. Partitions whose replicas did not make it in time get REQUEST_TIMED_OUT, and their records stay in the
    /// log: the producer cannot know whether they will be replicated, and is told so.
    fn answer(self: Box<Self>) -> Answer {
        let responses = self.topics.into_iter().map(|(name, partitions)| {
            let partitions = partitions.into_iter();
            let responses = partitions.map(|(index, outcome)| response(index, outcome, self.acks));
            TopicProduceResponse::default()
                .with_name(name)
                .with_partition_responses(responses.collect())
        });
        let responses = responses.collect();
        ProduceResponse::default().with_responses(responses).into()
    }
}

fn response(index: i32, outcome: Part, acks: i16) -> PartitionProduceResponse {
    let outcome = outcome.and_then(|(appended, partition)| match acks {
        ACKS_ALL => {
            let replicated = partition.has_replicated(appended.end_offset);
            let replicated = replicated.unwrap_or(Err(Code::RequestTimedOut));
            replicated.map(|()| appended)
        }
        _ => Ok(appended),
    });
    let response = PartitionProduceResponse::default().with_index(index);
    match outcome {
        Ok(appended) => response
            .with_base_offset(appended.base_offset)
            .with_log_start_offset(appended.log_start_offset),
        Err(error) => response.with_error_code(error.code()).with_base_offset(-1),
    }
}

/// The other replica of every partition: it lives in this process, and "fetches" what was appended, `lag` later.
pub(crate) fn follow(appended: Vec<(Arc<Partition>, i64)>, lag: Duration) {
    tokio::spawn(async move {
        // (A sleep of no time takes some.)
        if !lag.is_zero() {
            tokio::time::sleep(lag).await;
        }
        for (partition, end_offset) in appended {
            // No lock is held here: the checks below run other requests' code.
            partition.replicated_up_to(end_offset);
        }
    });
}
