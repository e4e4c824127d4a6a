//! Waiting until a predicate finds a value.

use super::operation::WaitOperation;
use super::reply::Awaiting;
use super::wait_error::WaitError;
use crate::callbacks::promise::Promise;
use crate::hash::{Key, KeyHasher, RandomState};
use crate::operation::{Cause, DelayedOperation};
use crate::purgatory::{Handle, Purgatory, Watch};
use crate::sync::Arc;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

/// A purgatory to [wait](Purgatory::wait) in. Its operations are closures, and each caller that waits gets a
/// [`Future`].
///
/// Built like every other purgatory, with all other methods of [`Purgatory`]: checks, cancels, statistics, bounds,
/// clocks. Which call to choose:
///
/// | | |
/// |---|---|
/// | [`wait`](Purgatory::wait) | the condition is quick to evaluate, from shared state |
/// | [`listen`](Purgatory::listen) | the condition awaits something, or borrows |
/// | [`take`](Purgatory::take) | workers compete for what they take |
///
/// ```
/// use request_purgatory::future::{WaitError, Waits, block_on};
/// use std::sync::{Arc, Mutex};
/// use std::thread;
/// use std::time::Duration;
///
/// let topics = Waits::<String>::new("topics");
/// let messages = Arc::new(Mutex::new(Vec::new()));
///
/// let first = topics.wait(["news".to_owned()], Duration::from_secs(30), {
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
/// assert_eq!(block_on(first), Ok("hello")); // or any executor
///
/// let never = topics.wait(["quiet".to_owned()], Duration::from_millis(5), || None::<()>);
/// assert_eq!(block_on(never), Err(WaitError::Expired));
/// ```
pub type Waits<K, S = RandomState> = Purgatory<WaitOperation<K>, S>;

impl<K: Key, S: KeyHasher> Purgatory<WaitOperation<K>, S> {
    /// Waits until `predicate` finds a value, for at most `timeout` from this call on (`None`: without end). The
    /// predicate is called at once, whenever one of `keys` is checked, and a last time when the timeout has passed,
    /// unless another thread is calling it at that moment.
    ///
    /// The wait begins with this call, not with the first poll: an event after the call is not missed if one of the
    /// keys is checked after the event, whether the future was polled by then or not. If the predicate finds a value at
    /// once, no operation is parked.
    ///
    /// The predicate has the duties of [`try_complete`](crate::DelayedOperation::try_complete), and runs on the same
    /// threads: on this thread before the call returns, then on each thread that checks one of the keys. No poll runs
    /// it.
    ///
    /// * Keep the predicate short.
    /// * Call neither `wait` nor a check under a lock that the predicate takes.
    /// * When the predicate has found a value, or the timeout has passed, the predicate is dropped and the future is
    ///   woken, on the thread on which [`on_complete`](crate::DelayedOperation::on_complete) would run.
    ///
    /// Each call may have its own type of value. The future does not keep the purgatory alive: the wait ends with
    /// [`WaitError::ShutDown`] when the last clone of the purgatory is dropped.
    ///
    /// # Errors
    /// The future resolves to a [`WaitError`], among others if the purgatory rejects the operation. If the last call of
    /// the predicate, at the timeout, finds a value, the future resolves to that value, and the wait counts as expired
    /// and as a missed check.
    pub fn wait<'a, T: Send + 'static>(
        &self,
        keys: impl IntoIterator<Item = impl Into<Watch<'a, K>>>,
        timeout: impl Into<Option<Duration>>,
        mut predicate: impl FnMut() -> Option<T> + Send + 'static,
    ) -> WaitFuture<WaitOperation<K>, T, S> {
        self.wait_for(keys, timeout, move |_| predicate())
    }

    /// As [`wait`](Self::wait), with a predicate that gets the cause of its call.
    pub(super) fn wait_for<'a, T: Send + 'static>(
        &self,
        keys: impl IntoIterator<Item = impl Into<Watch<'a, K>>>,
        timeout: impl Into<Option<Duration>>,
        predicate: impl FnMut(Cause<'_, K>) -> Option<T> + Send + 'static,
    ) -> WaitFuture<WaitOperation<K>, T, S> {
        let promise = Arc::new(Promise::new());
        let timeout = timeout.into().unwrap_or(Duration::MAX);
        let waiter = WaitOperation::predicate(timeout, predicate, promise.clone());
        let parked = self.try_complete_else_watch(waiter, keys);
        WaitFuture(Awaiting::new(promise, parked))
    }
}

/// A [`Future`] of the result of a [wait](Purgatory::wait), a [take](Purgatory::take) or a
/// [completion](Purgatory::completion), or of why it ended without a result.
///
/// Any executor may poll the future, and so may several, one after another: the task that polled last is woken. After
/// the future has resolved, every poll is pending. The future does not keep the purgatory alive.
///
/// Dropping the future cancels the operation: when `drop` returns, predicate, watches and timer are removed, and
/// `on_complete` is not called. If another thread is examining the operation at that moment, `drop` does not wait, and
/// that thread removes them when it is done.
///
/// A value that was found and not polled yet is dropped with the future, so a predicate that takes its value from a
/// queue loses the value. What a [`take`](Purgatory::take) has taken goes back. To get an operation of your own back,
/// use [`handle`](Self::handle) and [`Handle::cancel`].
#[must_use = "a wait that is dropped is cancelled"]
pub struct WaitFuture<Op: DelayedOperation, T: 'static, S: KeyHasher = RandomState>(
    pub(super) Awaiting<Promise<Result<T, WaitError>>, Op, S>,
);

impl<Op: DelayedOperation, T: 'static, S: KeyHasher> WaitFuture<Op, T, S> {
    /// The handle of the parked operation, for instance to read or change its deadline. `None` if the operation ended
    /// before it was parked, or the future has resolved.
    pub fn handle(&self) -> Option<&Handle<Op, S>> {
        self.0.handle()
    }
}

impl<Op: DelayedOperation, T: 'static, S: KeyHasher> Future for WaitFuture<Op, T, S> {
    type Output = Result<T, WaitError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.get_mut().0.poll(cx)
    }
}

/// No field is ever pinned.
impl<Op: DelayedOperation, T: 'static, S: KeyHasher> Unpin for WaitFuture<Op, T, S> {}

debug_fields!(
    [Op: DelayedOperation, T: 'static, S: KeyHasher] WaitFuture<Op, T, S>, "WaitFuture",
    |it| handle: it.handle()
);
