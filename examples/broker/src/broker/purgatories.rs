//! The two places where requests wait.

use crate::broker::delayed_fetch::DelayedFetch;
use crate::broker::delayed_produce::DelayedProduce;
use crate::exchange::{Answer, Reply, Waiting};
use request_purgatory::purgatory::{Admission, BuildError};
use request_purgatory::{DelayedOperation, Purgatory, Watch};
use std::time::Duration;
use tokio::sync::oneshot;

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

/// A delayed request.
pub(crate) trait DelayedRequest: DelayedOperation + Sized {
    /// Answers without any wait, with what is there.
    fn answer_now(self);
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
    Op: DelayedRequest + Send + 'static,
{
    let (sender, receiver) = oneshot::channel();
    let waiting = Waiting::new(receiver);
    match purgatory.try_complete_else_watch(delayed(sender), watches) {
        Ok(Admission::Parked(handle)) => {
            return Reply::Later(waiting.or_leave(move || drop(handle.cancel())));
        }
        Ok(Admission::Ended) => {}
        // No partitions to wait on, no room to wait in, or shutting down.
        Err(rejected) => rejected.into_inner().answer_now(),
    }
    Reply::Later(waiting)
}
