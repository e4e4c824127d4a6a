//! A produce request that waits for its replicas.

use crate::broker::partition::TopicPartition;
use crate::broker::produce::Produced;
use crate::broker::purgatories::DelayedRequest;
use crate::exchange::Answer;
use request_purgatory::{Completion, DelayedOperation};
use std::time::Duration;
use tokio::sync::oneshot;

/// Waits until the replicas have everything that the request appended, or for its timeout.
///
/// It is parked under every partition that it wrote to, at the offset that it needs there, and the thread that moves
/// the high watermark of one of them checks that key up to it.
#[derive(Debug)]
pub(crate) struct DelayedProduce {
    pub(crate) produced: Produced,
    pub(crate) timeout: Duration,
    pub(crate) answer: oneshot::Sender<Answer>,
}

impl DelayedOperation for DelayedProduce {
    type Key = TopicPartition;

    fn timeout(&self) -> Duration {
        self.timeout
    }

    fn try_complete(&mut self) -> bool {
        self.produced.is_replicated()
    }

    /// Answers with the offsets; partitions whose replicas did not make it in time get REQUEST_TIMED_OUT. Their
    /// records stay in the log: the producer cannot know whether they will be replicated, and is told so.
    fn on_complete(self, _: Completion) {
        self.answer_now();
    }
}

impl DelayedRequest for DelayedProduce {
    fn answer_now(self) {
        // The receiver is dropped if the client has left.
        let _ = self.answer.send(self.produced.response().into());
    }
}
