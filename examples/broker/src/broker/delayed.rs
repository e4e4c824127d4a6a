//! The requests that wait, and the two purgatories in which they do.

use crate::broker::fetch::Fetch;
use crate::broker::partition::TopicPartition;
use crate::broker::produce::Produced;
use crate::exchange::{Answer, Reply, Waiting};
use request_purgatory::purgatory::{Admission, BuildError};
use request_purgatory::{Completion, DelayedOperation, Purgatory, Watch};
use std::time::Duration;
use tokio::sync::oneshot;

/// A fetch request that waits for data: until its partitions have `min_bytes` between them, or for its `max_wait`.
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
        // The receiver is dropped if the client has left.
        let _ = self.answer.send(self.fetch.into());
    }
}

/// A produce request that waits for its replicas: until they have everything that it appended, or for its timeout.
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
        // The receiver is dropped if the client has left.
        let _ = self.answer.send(self.produced.response().into());
    }
}

/// Longest wait granted, whatever a client asks for.
const MAX_WAIT: Duration = Duration::from_secs(300);

/// Most requests parked in either purgatory. Past it they are answered at once, with what is there.
const MAX_PARKED: usize = 1_000_000;

/// The purgatories of the broker. A clone is another handle on the same two.
#[derive(Clone)]
pub(crate) struct Purgatories {
    pub(crate) fetch: Purgatory<DelayedFetch>,
    pub(crate) produce: Purgatory<DelayedProduce>,
}

impl Purgatories {
    pub(crate) fn new() -> Result<Self, BuildError> {
        Ok(Self {
            fetch: Purgatory::builder("fetch")
                .max_timeout(MAX_WAIT)
                .max_parked(MAX_PARKED)
                .build()?,
            produce: Purgatory::builder("produce")
                .max_timeout(MAX_WAIT)
                .max_parked(MAX_PARKED)
                .build()?,
        })
    }
}

/// Parks the request that `delayed` makes of where its answer goes, until one of `watches` is checked and completes it.
/// A client that goes away takes it out again.
pub(crate) fn park<'a, Op>(
    purgatory: &Purgatory<Op>,
    watches: impl Iterator<Item = Watch<'a, Op::Key>>,
    delayed: impl FnOnce(oneshot::Sender<Answer>) -> Op,
) -> Reply
where
    Op: DelayedOperation + Send + 'static,
{
    let (sender, receiver) = oneshot::channel();
    let waiting = Waiting::new(receiver);
    match purgatory.try_complete_else_watch(delayed(sender), watches) {
        Ok(Admission::Parked(handle)) => {
            return Reply::Later(waiting.or_leave(move || drop(handle.cancel())));
        }
        Ok(Admission::Ended) => {}
        // No partitions to wait on, no room to wait in, or shutting down: it is answered with what is there.
        Err(rejected) => rejected.into_inner().on_complete(Completion::Expired),
    }
    Reply::Later(waiting)
}
