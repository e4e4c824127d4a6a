//! A produce request that waits for its replicas.

use crate::broker::answer::Answer;
use crate::broker::partition::{Partition, TopicPartition};
use crate::broker::produce::Produced;
use crate::figures::metrics::Metrics;
use crate::wire::response::Response;
use kafka_protocol::ResponseError;
use request_purgatory::{Completion, DelayedOperation};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

/// Waits until the replicas have everything that the request appended, or for its timeout.
///
/// It is parked under every partition that it wrote to, at the offset that it needs there, and the thread that moves
/// the high watermark of one of them checks that key up to it.
#[derive(Debug)]
pub(crate) struct DelayedProduce {
    pub(crate) produced: Produced,
    pub(crate) arrived: Instant,
    pub(crate) timeout: Duration,
    pub(crate) answer: oneshot::Sender<Answer>,
    pub(crate) metrics: Arc<Metrics>,
}

/// The offset that the high watermark of a partition has to reach.
#[derive(Debug, Clone)]
pub(crate) struct Required {
    pub(crate) partition: Arc<Partition>,
    pub(crate) offset: i64,
}

impl Required {
    /// `None` as long as it is not reached; an error if it never will be.
    pub(crate) fn outcome(&self) -> Option<Result<(), ResponseError>> {
        self.partition.has_replicated(self.offset)
    }
}

impl DelayedOperation for DelayedProduce {
    type Key = TopicPartition;

    fn timeout(&self) -> Duration {
        self.timeout
    }

    fn try_complete(&mut self) -> bool {
        self.produced
            .required()
            .all(|required| required.outcome().is_some())
    }

    /// Answers with the offsets; partitions whose replicas did not make it in time get REQUEST_TIMED_OUT. Their
    /// records stay in the log: the producer cannot know whether they will be replicated, and is told so.
    fn on_complete(self, completion: Completion) {
        if completion == Completion::Expired {
            let waited = self.arrived.elapsed();
            let lateness = waited.saturating_sub(self.timeout);
            self.metrics.lateness.record(lateness);
        }
        self.answer_now();
    }
}

impl DelayedProduce {
    /// What to wait on.
    pub(crate) fn required(&self) -> Vec<Required> {
        self.produced.required().cloned().collect()
    }

    /// Answers without any wait.
    pub(crate) fn answer_now(self) {
        // The receiver is dropped if the client has left.
        let response = Response::Produce(self.produced.response());
        let _ = self.answer.send(response.into());
    }
}
