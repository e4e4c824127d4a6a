//! A fetch request that waits for data.

use crate::broker::answer::Answer;
use crate::broker::fetch::Fetch;
use crate::broker::partition::TopicPartition;
use crate::figures::metrics::Metrics;
use request_purgatory::{Completion, DelayedOperation};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

/// Waits until its partitions have `min_bytes` between them, or for its `max_wait`.
///
/// It is parked under every partition that it asks for, and the thread that moves the high watermark of one of them
/// checks that key.
#[derive(Debug)]
pub(crate) struct DelayedFetch {
    pub(crate) fetch: Fetch,
    pub(crate) arrived: Instant,
    pub(crate) max_wait: Duration,
    pub(crate) answer: oneshot::Sender<Answer>,
    pub(crate) metrics: Arc<Metrics>,
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
    fn on_complete(self, completion: Completion) {
        if completion == Completion::Expired {
            let waited = self.arrived.elapsed();
            let lateness = waited.saturating_sub(self.max_wait);
            self.metrics.lateness.record(lateness);
        }
        self.answer_now();
    }
}

impl DelayedFetch {
    /// Answers without any wait.
    pub(crate) fn answer_now(self) {
        // Data older than the request was no wake-up.
        let since = self.fetch.readable_since();
        if let Some(since) = since.filter(|since| *since > self.arrived) {
            self.metrics.wake_up.record(since.elapsed());
        }
        // The receiver is dropped if the client has left.
        let _ = self.answer.send(Answer::Fetch(self.fetch));
    }
}
