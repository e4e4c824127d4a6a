//! What every implementation must offer to enter a workload.

use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::Duration;

use crate::request::Request;

/// A place where requests wait for one of their keys or for their timeout.
///
/// Ground rules, the same for all: the deadline comes from a clock read in [`park`](Self::park);
/// any key of a request can complete it; a request that ends leaves nothing behind under its other
/// keys (at once, or by [`settle`](Self::settle) where the design cleans up late); its timer fires
/// without anyone's help. `self_check` holds each candidate to them before it is measured.
///
/// No operation is inlined into the loop that measures it, which would flatter the candidates that inline well: each is
/// `inline(never)`, and called from several places, as in a user's program.
pub(crate) trait Candidate: Sized + Sync {
    /// Its name in the tables and for `--candidates`.
    const NAME: &'static str;

    /// Whether an unanswered request ends by itself. Only the floor may say no.
    const EXPIRES: bool = true;

    /// Whether a request is ended by an executor on the thread that parked it, so that this thread must stay.
    const HAS_EXECUTOR: bool = false;

    /// Whether other threads end a request, some time after the check that completes it.
    const ENDS_LATER: bool = false;

    fn new() -> Self;

    /// The key with this number.
    ///
    /// Keys lie anywhere. The hash of consecutive keys names the shards of a map in a regular order, which depends on its
    /// seed: two threads in step meet at each shard or at none, and the processor foresees the next one or does not.
    ///
    /// This is the finalizer of SplitMix64 (Steele, Lea and Flood, 2014): one to one.
    #[inline(always)]
    fn key(number: usize) -> u64 {
        let key = number as u64;
        let key = (key ^ key >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let key = (key ^ key >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        key ^ key >> 31
    }

    /// Completes the request at once, which returns `true`, or parks it under `keys`.
    fn park(&self, request: Request, keys: &[u64]) -> bool;

    /// Tries every request that watches `key`; returns how many it completed.
    fn check(&self, key: u64) -> usize;

    /// Requests waiting now.
    fn parked(&self) -> usize;

    /// Entries under all keys now. Never called in a timed section.
    fn watched(&self) -> usize;

    /// Does the cleaning that the design puts off. Never called in a timed section.
    fn settle(&self) {}

    /// Lets work run that the candidate left to an executor on the calling thread. Called inside
    /// timed sections after every [`BURST`] steps: deferred work is still work.
    fn turn(&self) -> impl Future<Output = ()> {
        std::future::ready(())
    }

    /// Waits until all that the calling thread has completed has ended.
    fn finish(&self) -> impl Future<Output = ()> {
        self.turn()
    }

    /// Lets `span` pass, in which an executor on the calling thread works.
    fn rest(&self, span: Duration) -> impl Future<Output = ()> {
        thread::sleep(span);
        std::future::ready(())
    }

    /// Runs `body`, which calls the candidate, where its callers would run. Threads that do so at
    /// the same time do not wait for each other.
    fn drive<T>(&self, body: impl Future<Output = T>) -> T {
        poll_once(body)
    }
}

/// A candidate whose requests can be completed without a look at their keys.
pub(crate) trait ByHandle: Candidate {
    type Handle: Send;

    /// As [`park`](Candidate::park); `None` if the request completed at once.
    fn park_for_handle(&self, request: Request, keys: &[u64]) -> Option<Self::Handle>;

    /// Completes the request, whether it can complete or not; `false` if it has ended.
    fn force_complete(&self, handle: Self::Handle) -> bool;
}

/// Steps between two calls of [`Candidate::turn`].
///
/// A step of W1 leaves a tokio task to start and another to finish, and tokio's scheduler looks at
/// its driver after 61 polls: a longer burst would leave it ever further behind.
pub(crate) const BURST: usize = 28;

/// Runs a future that never waits, as those of candidates without an executor do not.
pub(crate) fn poll_once<T>(body: impl Future<Output = T>) -> T {
    match pin!(body).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => value,
        Poll::Pending => panic!("a candidate whose `turn` waits must have its own `drive`"),
    }
}
