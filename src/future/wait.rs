//! Waiting until a predicate finds a value.

use super::answer::Answer;
use super::operation::WaitOperation;
use super::reply::{Awaiting, Outcome};
use super::wait_error::WaitError;
use crate::callbacks::promise::Promise;
use crate::callbacks::trampoline::{Trampoline, UserValue, drop_user_value};
use crate::hash::{Key, KeyHasher, RandomState};
use crate::operation::{Cause, DelayedOperation};
use crate::purgatory::{Admission, Arrival, Arrived, Handle, Inner, Purgatory, Watch};
use crate::sync::{Arc, Exclusive};
use crate::time::Deadline;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

/// A purgatory to [wait](Purgatory::wait) in. Its operations are closures, and each caller that waits gets a
/// [`Future`].
///
/// A `Waits` is built like every other purgatory, and has all other methods of [`Purgatory`]: checks, cancels,
/// statistics, bounds, clocks. The calls that wait:
///
/// | call | use it if |
/// |---|---|
/// | [`wait`](Purgatory::wait) | the condition is quick to evaluate, from shared state |
/// | [`listen`](Purgatory::listen) | the condition awaits something, or borrows |
/// | [`take`](Purgatory::take) | workers compete for what they take |
/// | [`wait_then`](Purgatory::wait_then) | the answer goes out by a callback, and no task awaits it |
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
    /// Waits until `predicate` finds a value, for at most `timeout` from this call on, or until a [point in
    /// time](Deadline) (`None`: without end). The predicate is called at once, whenever one of `keys` is checked, and a
    /// last time when the timeout has passed.
    ///
    /// The wait begins with this call, not with the first poll. An event after the call is not missed if one of the
    /// keys is checked after the event, even if the future was never polled. If the predicate finds a value at once, no
    /// operation is parked.
    ///
    /// The predicate has the duties of [`try_complete`](crate::DelayedOperation::try_complete), and runs on the same
    /// threads: on this thread before the call returns, later on each thread that checks one of the keys, and at the
    /// deadline on the thread that drives the timer. It never runs in a poll.
    ///
    /// The predicate returns an `Option<T>`, or, if it can fail, a `Result<Option<T>, E>`: an error ends the wait, and
    /// the future resolves to the error (see [`Answer`]).
    ///
    /// Calls on one purgatory may wait for values of different types. The future does not keep the purgatory alive: the
    /// wait ends with [`WaitError::ShutDown`] when the last clone of the purgatory is dropped.
    ///
    /// # Errors
    /// If the wait ends without a value, or the purgatory rejects the operation, the future resolves to the
    /// [`WaitError`] that says why. If the last call of the predicate, at the deadline, finds a value, the future
    /// resolves to the value. The statistics then count the wait as expired, and count a missed check.
    pub fn wait<'a, A: Answer<Found: Send + 'static>>(
        &self,
        keys: impl IntoIterator<Item = impl Into<Watch<'a, K>>>,
        timeout: impl Into<Deadline>,
        mut predicate: impl FnMut() -> A + Send + 'static,
    ) -> Wait<K, A::Found, S> {
        self.wait_for(keys, timeout.into(), move |_| predicate().found())
    }

    /// Works as [`wait`](Self::wait), but the predicate gets the cause of each call.
    pub(super) fn wait_for<'a, T: Send + 'static>(
        &self,
        keys: impl IntoIterator<Item = impl Into<Watch<'a, K>>>,
        deadline: Deadline,
        predicate: impl FnMut(Cause<'_, K>) -> Option<T> + Send + 'static,
    ) -> WaitFuture<WaitOperation<K>, T, S> {
        let mut promise = None;
        let waiter = Waiter {
            deadline,
            predicate,
            found: None,
            promise: &mut promise,
        };
        let arrived = self.shared.inner.arrive(waiter, keys);
        let admission = match arrived {
            Ok(Arrived::AtOnce(found)) => return WaitFuture::known(Ok(found)),
            Ok(Arrived::Later(admission)) => admission,
            Err(rejected) => return WaitFuture::known(Err(WaitError::of(&rejected))),
        };
        let promise = promise.unwrap_or_else(|| unreachable!("an operation has its promise"));
        WaitFuture::awaiting(promise, admission)
    }
}

/// A wait before its first examination. If this examination finds the value, neither an operation nor a promise is
/// made.
struct Waiter<'p, T: 'static, P> {
    deadline: Deadline,
    predicate: P,
    found: Option<T>,
    /// The promise that the operation and the future share. `None` until the wait is made an operation that can be
    /// parked, because the first examination has found no value.
    promise: &'p mut Option<Outcome<T>>,
}

impl<K, T, P> Arrival<WaitOperation<K>> for Waiter<'_, T, P>
where
    K: Key,
    T: Send + 'static,
    P: FnMut(Cause<'_, K>) -> Option<T> + Send + 'static,
{
    type Answer = T;

    #[inline(always)]
    fn look(&mut self, cause: Cause<'_, K>) -> bool {
        self.found = (self.predicate)(cause);
        self.found.is_some()
    }

    #[inline(always)]
    fn answer<S: KeyHasher>(
        self,
        purgatory: &Arc<Inner<WaitOperation<K>, S>>,
        _: &Trampoline,
    ) -> T {
        let Self {
            predicate, found, ..
        } = self;
        let _ = purgatory.engine.guarded(|| drop_user_value(predicate));
        found.unwrap_or_else(|| unreachable!("the first examination has found it"))
    }

    fn into_operation(self) -> WaitOperation<K> {
        let promise = self.promise.insert(Arc::new(Promise::new()));
        WaitOperation::predicate(self.deadline, self.predicate, promise.clone())
    }
}

/// A short name for the future of a [wait](Purgatory::wait), for a field or the result of a function.
pub type Wait<K, T, S = RandomState> = WaitFuture<WaitOperation<K>, T, S>;

/// The [`Future`] of a [wait](Purgatory::wait), a [take](Purgatory::take) or a [completion](Purgatory::completion). It
/// resolves to the result, or to the [`WaitError`] that says why there is no result.
///
/// Any executor may poll the future, and several executors may poll it one after another: the task that polled last is
/// woken. After the future has resolved, every poll is pending. The future does not keep the purgatory alive.
///
/// Dropping the future cancels the operation: when `drop` returns, predicate, watches and timer are removed, and
/// `on_complete` is not called. This also holds for an operation that has ended, but whose completion still waits:
/// behind a slow completion on the completion thread, or in a job of an executor. Two exceptions:
///
/// * `drop` does not wait for another thread that is examining or completing the operation. That thread removes
///   predicate, watches and timer, after `drop` has returned.
/// * If the future is dropped inside another destructor that the library has called, the predicate is dropped when the
///   outermost call of the library on this thread returns.
///
/// A value that the predicate has found, and that no poll has returned yet, is dropped with the future. So a predicate
/// that takes its value from a queue loses the value, while a [`take`](Purgatory::take) gives it back. To get an
/// operation of your own back, use [`handle`](Self::handle) and [`Handle::cancel`].
#[must_use = "a wait that is dropped is cancelled"]
pub struct WaitFuture<Op: DelayedOperation, T: 'static, S: KeyHasher = RandomState>(
    Resolution<Op, T, S>,
);

enum Resolution<Op: DelayedOperation, T: 'static, S: KeyHasher> {
    /// The result was known when the call that made the future returned.
    Known(Known<Result<T, WaitError>>),
    Awaiting(Awaiting<Outcome<T>, Op, S>),
}

/// A result, until a poll returns it.
type Known<R> = Exclusive<UserValue<R>>;

impl<Op: DelayedOperation, T: 'static, S: KeyHasher> WaitFuture<Op, T, S> {
    fn known(result: Result<T, WaitError>) -> Self {
        Self(Resolution::Known(Exclusive::new(UserValue(Some(result)))))
    }

    pub(super) fn awaiting(promise: Outcome<T>, admission: Admission<Op, S>) -> Self {
        Self(Resolution::Awaiting(Awaiting::new(promise, Ok(admission))))
    }

    /// The handle of the parked operation, for example to read or change its deadline. `None` if no operation was
    /// parked, if the operation ended while it was still being parked, or if the future has resolved.
    pub fn handle(&self) -> Option<&Handle<Op, S>> {
        match &self.0 {
            Resolution::Known(_) => None,
            Resolution::Awaiting(awaiting) => awaiting.handle(),
        }
    }
}

impl<Op: DelayedOperation, T: 'static, S: KeyHasher> Future for WaitFuture<Op, T, S> {
    type Output = Result<T, WaitError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match &mut self.get_mut().0 {
            Resolution::Known(known) => match known.get_mut().0.take() {
                Some(result) => Poll::Ready(result),
                None => Poll::Pending,
            },
            Resolution::Awaiting(awaiting) => awaiting.poll(cx),
        }
    }
}

/// A poll pins no field, so the future may move between polls.
impl<Op: DelayedOperation, T: 'static, S: KeyHasher> Unpin for WaitFuture<Op, T, S> {}

debug_fields!(
    [Op: DelayedOperation, T: 'static, S: KeyHasher] WaitFuture<Op, T, S>, "WaitFuture",
    |it| handle: it.handle()
);
