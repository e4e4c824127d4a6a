//! The requests that wait, and the two purgatories in which they do.

use crate::exchange::{Answer, Caller, Waiter, Waiting, answered_later};
use request_purgatory::purgatory::{Admission, BuildError};
use request_purgatory::{Completion, DelayedOperation, Purgatory, Watch};
use std::sync::Arc;
use std::time::Duration;

/// What delayed requests are keyed by.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct TopicPartition {
    pub(crate) topic: Arc<str>,
    pub(crate) partition: i32,
}

/// May have to wait: a [`Fetch`](super::fetch::Fetch) for data, a [`Produced`](super::produce::Produced) for replicas.
pub(crate) trait Request: Send {
    fn is_satisfied(&self) -> bool;

    /// The answer as of now, however the wait ended: with all that was waited for, with a part of it, or with none.
    fn answer(self: Box<Self>) -> Answer;
}

/// A request that waits until it is satisfied, or for as long as it wants: Kafka's `DelayedFetch` and `DelayedProduce`.
///
/// It is parked under each of its partitions (a produce at the offset that it needs there), and the thread that moves
/// the high watermark of one of them checks that key.
pub(crate) struct Delayed {
    request: Box<dyn Request>,
    timeout: Duration,
    /// What it keeps, in bytes.
    weight: usize,
    waiter: Waiter,
}

impl DelayedOperation for Delayed {
    type Key = TopicPartition;

    fn timeout(&self) -> Duration {
        self.timeout
    }

    fn weight(&self) -> usize {
        self.weight
    }

    fn try_complete(&mut self) -> bool {
        self.request.is_satisfied()
    }

    fn on_complete(self, _: Completion) {
        self.waiter.answer(self.request.answer());
    }
}

/// Longest wait granted, whatever a client asks for.
const MAX_WAIT: Duration = Duration::from_secs(300);

/// Most requests parked in either purgatory, and most bytes of the longer ones. Past it they are answered at once, with
/// what is there: what a produce waits for has timed out.
const MAX_PARKED: usize = 1_000_000;
const MAX_WEIGHT: usize = 32 << 20;

/// The purgatories of the broker. A clone is another handle on the same two.
#[derive(Clone)]
pub(crate) struct Purgatories {
    pub(crate) fetch: Purgatory<Delayed>,
    pub(crate) produce: Purgatory<Delayed>,
}

impl Purgatories {
    pub(crate) fn new() -> Result<Self, BuildError> {
        let purgatory = |name: &'static str| {
            let builder = Purgatory::builder(name).max_timeout(MAX_WAIT);
            let builder = builder.max_parked(MAX_PARKED);
            builder.max_weight(MAX_WEIGHT).build()
        };
        Ok(Self {
            fetch: purgatory("fetch")?,
            produce: purgatory("produce")?,
        })
    }
}

/// Parks a request until one of `watches` is checked and completes it, or its client goes away.
pub(crate) fn park<'a>(
    purgatory: &Purgatory<Delayed>,
    watches: impl Iterator<Item = Watch<'a, TopicPartition>>,
    request: Box<dyn Request>,
    timeout: Duration,
    caller: &Caller,
) -> Waiting {
    let (waiter, mut waiting) = answered_later();
    let delayed = Delayed {
        request,
        timeout,
        weight: caller.weight,
        waiter,
    };
    match purgatory.try_complete_else_watch(delayed, watches) {
        Ok(Admission::Parked(handle)) => {
            // If it is ending at this moment, it is answered all the same.
            waiting.leave = Some(Box::new(move || _ = handle.force_complete()));
        }
        Ok(Admission::Ended) => {}
        // No partitions to wait on, no room to wait in, or shutting down: it is answered with what is there.
        Err(rejected) => rejected.into_inner().on_complete(Completion::Expired),
    }
    waiting
}
