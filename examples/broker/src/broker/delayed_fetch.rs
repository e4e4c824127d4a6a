//! A fetch request that waits for data.

use crate::broker::fetch::Fetch;
use crate::broker::partition::TopicPartition;
use crate::broker::purgatories::DelayedRequest;
use crate::exchange::Answer;
use request_purgatory::{Completion, DelayedOperation};
use std::time::Duration;
use tokio::sync::oneshot;

/// Waits until its partitions have `min_bytes` between them, or for its `max_wait`.
///
/// It is parked under every partition that it asks for, and the thread that moves the high watermark of one of them
/// checks that key.
#[derive(Debug)]
pub(crate) struct DelayedFetch {
    pub(crate) fetch: Fetch,
    pub(crate) max_wait: Duration,
    pub(crate) answer: oneshot::Sender<Answer>,
}

impl DelayedOperation for DelayedFetch {
    type Key = TopicPartition;

    fn timeout(&self) -> Duration {
        self.max_wait
    }

    fn try_complete(&mut self) -> bool {
        self.fetch.is_satisfied()
    }

    /// Has what is there read, however the wait ended: enough, too little, or nothing.
    fn on_complete(self, _: Completion) {
        self.answer_now();
    }
}

impl DelayedRequest for DelayedFetch {
    fn answer_now(self) {
        // The receiver is dropped if the client has left.
        let _ = self.answer.send(self.fetch.into());
    }
}
