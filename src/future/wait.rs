//! Waiting for what a predicate finds.

use super::operation::WaitOperation;
use super::reply::Awaiting;
use super::wait_error::WaitError;
use crate::error::Rejected;
use crate::hash::KeyHasher;
use crate::hash::RandomState;
use crate::promise::{Promise, block_on};
use crate::purgatory::{Admission, Handle, Purgatory, Watch};
use crate::sync::Arc;
use crate::tracker::TrackedKey;
use crate::trampoline::Trampoline;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

/// A purgatory to [wait](Purgatory::wait) in: its operations are closures, and whoever waits holds a [`Future`].
///
/// It is built like every other, and everything else of [`Purgatory`] works as ever: checks, cancels, statistics,
/// bounds, clocks. Which call fits:
///
/// | | |
/// |---|---|
/// | [`wait`](Purgatory::wait) | the condition is a quick look at shared state |
/// | [`listen`](Purgatory::listen), [`wait_until`](Purgatory::wait_until) | the condition awaits something, or borrows |
/// | [`take`](Purgatory::take) | workers compete for what they take |
///
/// ```
/// use request_purgatory::future::{WaitError, Waits};
/// use std::sync::{Arc, Mutex};
/// use std::thread;
/// use std::time::Duration;
///
/// let topics = Waits::<&'static str>::new("topics");
/// let messages = Arc::new(Mutex::new(Vec::new()));
///
/// let first = topics.wait(["news"], Duration::from_secs(30), {
///     let messages = messages.clone();
///     move || messages.lock().unwrap().first().cloned()
/// });
/// thread::spawn({
///     let topics = topics.clone();
///     move || {
///         messages.lock().unwrap().push("hello");
///         topics.check_and_complete("news"); // after every change, without the lock
///     }
/// });
/// # use futures::executor::block_on; // any executor
/// assert_eq!(block_on(first), Ok("hello"));
///
/// let never = topics.wait_blocking(["quiet"], Duration::from_millis(5), || None::<()>);
/// assert_eq!(never, Err(WaitError::Expired));
/// ```
pub type Waits<K, S = RandomState> = Purgatory<WaitOperation<K>, S>;

impl<K: TrackedKey, S: KeyHasher> Purgatory<WaitOperation<K>, S> {
    /// Waits until `predicate` finds a value, for at most `timeout` from this call on ([`Duration::MAX`]: for ever). It
    /// is asked at once, when any of `keys` is checked, and last when the timeout has passed (unless another thread is
    /// just asking it).
    ///
    /// The wait begins with this call, not with the first poll: an event after the call is not missed if one of the
    /// keys is checked after it, whether the future was polled by then or not. If the predicate finds something at
    /// once, nothing is parked.
    ///
    /// The predicate has the duties of [`try_complete`](crate::DelayedOperation::try_complete), and runs where that runs: on
    /// this thread before the call returns, then on each thread that checks one of the keys. Keep it short, and hold
    /// no lock here or there that it takes. It is never run by a poll. Once it has found something it is dropped, and
    /// the future is woken by the thread that asked it; at the timeout by that of
    /// [`Builder::dispatch`](crate::Builder::dispatch).
    ///
    /// Values may be of another type in each call. Does not keep the purgatory alive: the wait ends with
    /// [`WaitError::ShutDown`] when the last face of that is dropped.
    ///
    /// # Errors
    /// The future resolves to a [`WaitError`], also where the purgatory refuses it from the start.
    pub fn wait<T: Send + 'static>(
        &self,
        keys: impl IntoIterator<Item = K>,
        timeout: Duration,
        predicate: impl FnMut() -> Option<T> + Send + 'static,
    ) -> WaitFuture<K, T, S> {
        begin(timeout, predicate, |waiter| {
            self.try_complete_else_watch(waiter, keys)
        })
    }

    /// The same with watches of all kinds: plain and [resolved](Self::resolve) keys, and any of them
    /// [at a rank](Watch::at_rank), such as the offset that is waited for.
    ///
    /// # Errors
    /// As for [`wait`](Self::wait).
    pub fn wait_on<'a, T: Send + 'static>(
        &self,
        watches: impl IntoIterator<Item = Watch<'a, WaitOperation<K>, S>>,
        timeout: Duration,
        predicate: impl FnMut() -> Option<T> + Send + 'static,
    ) -> WaitFuture<K, T, S> {
        begin(timeout, predicate, |waiter| {
            self.try_complete_else_watch_on(waiter, watches)
        })
    }

    /// As [`wait`](Self::wait), on this thread, which sleeps meanwhile.
    ///
    /// # Errors
    /// The same.
    ///
    /// # Panics
    /// If it is called from a callback of the library (a predicate, `try_complete`, `on_complete`): what ends the wait
    /// may be due on the very thread that sleeps.
    pub fn wait_blocking<T: Send + 'static>(
        &self,
        keys: impl IntoIterator<Item = K>,
        timeout: Duration,
        predicate: impl FnMut() -> Option<T> + Send + 'static,
    ) -> Result<T, WaitError> {
        assert!(
            !Trampoline::in_progress(),
            "a callback of the purgatory must not block in wait_blocking"
        );
        block_on(self.wait(keys, timeout, predicate))
    }
}

/// Parks a predicate, and makes the future of what it finds.
fn begin<K: TrackedKey, T: Send + 'static, S: KeyHasher>(
    timeout: Duration,
    predicate: impl FnMut() -> Option<T> + Send + 'static,
    park: impl FnOnce(
        WaitOperation<K>,
    ) -> Result<Admission<WaitOperation<K>, S>, Rejected<WaitOperation<K>>>,
) -> WaitFuture<K, T, S> {
    let promise = Arc::new(Promise::new());
    let waiter = WaitOperation::predicate(timeout, predicate, promise.clone());
    let admission = park(waiter).unwrap_or_else(|rejected| {
        // Before the waiter is dropped, which would only say that it is lost.
        let _ = promise.keep(Err(WaitError::of(&rejected)));
        Admission::Completed
    });
    WaitFuture(Awaiting::new(promise, admission))
}

/// A wait in [`Waits`]: a [`Future`] of what the predicate finds, or of why it found nothing.
///
/// Any executor will do, also more than one after the other: the last that polled is woken. Once it has resolved, it is
/// pending for ever.
///
/// Dropping it cancels the wait: predicate, watches and timer are gone when `drop` returns. (If another thread is
/// asking the predicate in that very moment, `drop` does not wait for it; that thread removes them when the predicate
/// returns.) A value that was found but not polled yet is dropped with the future: a predicate that takes what it finds,
/// from a queue for instance, loses it then. [`take`](Purgatory::take) gives it back.
#[must_use = "a wait that is dropped is cancelled"]
pub struct WaitFuture<K: TrackedKey, T, S: KeyHasher = RandomState>(
    Awaiting<Promise<Result<T, WaitError>>, WaitOperation<K>, S>,
);

impl<K: TrackedKey, T, S: KeyHasher> WaitFuture<K, T, S> {
    /// The handle of what is parked, to look at the deadline or to move it. `None` if the wait ended before it was
    /// parked, or has resolved.
    pub fn handle(&self) -> Option<&Handle<WaitOperation<K>, S>> {
        self.0.handle()
    }
}

impl<K: TrackedKey, T, S: KeyHasher> Future for WaitFuture<K, T, S> {
    type Output = Result<T, WaitError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.get_mut().0.poll(cx)
    }
}

/// Nothing in it is ever pinned.
impl<K: TrackedKey, T, S: KeyHasher> Unpin for WaitFuture<K, T, S> {}

impl<K: TrackedKey, T, S: KeyHasher> fmt::Debug for WaitFuture<K, T, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WaitFuture")
            .field("handle", &self.handle())
            .finish_non_exhaustive()
    }
}
