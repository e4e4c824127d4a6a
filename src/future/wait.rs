//! Waiting for what a predicate finds.

use super::reply::{Awaiting, CompletionError, Reply};
use crate::error::{RejectReason, Rejected};
use crate::hash::KeyHasher;
use crate::hash::RandomState;
use crate::operation::{Completion, DelayedOperation};
use crate::promise::block_on;
use crate::purgatory::{Admission, Handle, Purgatory, Watch};
use crate::tracker::TrackedKey;
use crate::trampoline::Trampoline;
use std::error::Error;
use std::fmt;
use std::future::Future;
use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

/// A purgatory to [wait](Purgatory::wait) in: its operations are closures, and whoever waits holds a [`Future`].
///
/// It is built like every other, and everything else of [`Purgatory`] works as ever: checks, cancels, statistics,
/// bounds, clocks.
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

/// Why a wait ended without a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum WaitError {
    /// The timeout passed first.
    Expired,
    /// The purgatory was shut down, or dropped.
    ShutDown,
    /// [`Builder::max_parked`](crate::Builder::max_parked) operations are parked already. It never waited.
    Full,
    /// There was no key to watch. The predicate was not asked.
    NoKeys,
    /// The predicate panicked (or `Hash` or `Clone` of a key, or the clock, while it was being parked).
    Panicked,
    /// It was forced to end, by key or handle, without a value: the leader is lost, the topic deleted.
    Forced,
    /// It was cancelled, by key or handle.
    Cancelled,
    /// It was begun inside a predicate, inside another, and so on: more than eight deep. It never waited.
    Nested,
}

impl fmt::Display for WaitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Expired => "nothing was found within the timeout",
            Self::ShutDown => "shut down before anything was found",
            Self::Full => "the limit of parked operations (`max_parked`) is reached",
            Self::Nested => "more than eight waits are nested in one another's predicates",
            Self::NoKeys => "a wait needs at least one key to watch",
            Self::Panicked => "the predicate panicked",
            Self::Forced => "forced to end before anything was found",
            Self::Cancelled => "cancelled before anything was found",
        })
    }
}

impl Error for WaitError {}

impl From<CompletionError> for WaitError {
    fn from(lost: CompletionError) -> Self {
        match lost {
            CompletionError::Cancelled => Self::Cancelled,
            CompletionError::Panicked => Self::Panicked,
        }
    }
}

impl WaitError {
    fn of<Op>(rejected: &Rejected<Op>) -> Self {
        match rejected.reason() {
            RejectReason::NoKeys => Self::NoKeys,
            // (The wheel of a purgatory takes every timeout, and every key any number of times.)
            RejectReason::Full
            | RejectReason::KeyFull
            | RejectReason::TooLong
            | RejectReason::Duplicate
            | RejectReason::StaleToken => Self::Full,
            RejectReason::ShutDown | RejectReason::Draining => Self::ShutDown,
            RejectReason::Panicked => Self::Panicked,
            RejectReason::Nested => Self::Nested,
        }
    }
}

/// What is parked in [`Waits`]: a predicate, and the way to whoever waits for it.
///
/// Only [`Purgatory::wait`] and its kin make one. It comes out when it is cancelled by key or handle; dropped, it tells
/// its [`WaitFuture`] so.
pub struct WaitOperation<K> {
    timeout: Duration,
    question: Box<dyn Question>,
    key: PhantomData<fn() -> K>,
}

/// A predicate of any type, for a value of any type.
trait Question: Send {
    fn ask(&mut self) -> bool;
    fn end(self: Box<Self>, completion: Completion);
}

struct Asked<T, P> {
    predicate: P,
    found: Option<T>,
    reply: Reply<T, WaitError>,
}

impl<T, P> Question for Asked<T, P>
where
    T: Send,
    P: FnMut() -> Option<T> + Send,
{
    fn ask(&mut self) -> bool {
        self.found = self.reply.asking(&mut self.predicate);
        self.found.is_some()
    }

    fn end(self: Box<Self>, completion: Completion) {
        let Self {
            predicate,
            found,
            reply,
        } = *self;
        // What was found is never thrown away, also if that was the look at the deadline.
        let result = found.ok_or(match completion {
            Completion::Satisfied => WaitError::Forced,
            Completion::Expired => WaitError::Expired,
            Completion::Cancelled => WaitError::Cancelled,
            Completion::ShutDown => WaitError::ShutDown,
        });
        // Gone before anybody hears of the end; and if its destructor panics, everybody still does.
        let dropped = catch_unwind(AssertUnwindSafe(|| drop(predicate)));
        reply.tell(result);
        if let Err(panic) = dropped {
            resume_unwind(panic);
        }
    }
}

impl<K: TrackedKey> DelayedOperation for WaitOperation<K> {
    type Key = K;

    fn timeout(&self) -> Duration {
        self.timeout
    }

    fn try_complete(&mut self) -> bool {
        self.question.ask()
    }

    fn on_complete(self, completion: Completion) {
        self.question.end(completion);
    }
}

impl<K> fmt::Debug for WaitOperation<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WaitOperation")
            .field("timeout", &self.timeout)
            .finish_non_exhaustive()
    }
}

impl<K: TrackedKey, S: KeyHasher> Purgatory<WaitOperation<K>, S> {
    /// Waits until `predicate` finds a value, for at most `timeout` from this call on ([`Duration::MAX`]: for ever). It
    /// is asked at once, when any of `keys` is checked, and last when the timeout has passed (unless another thread is
    /// just asking it).
    ///
    /// The wait begins with this call, not with the first poll: an event after the call is not missed if one of the
    /// keys is checked after it, whether the future was polled by then or not. If the predicate finds something at
    /// once, nothing is parked.
    ///
    /// The predicate has the duties of [`try_complete`](DelayedOperation::try_complete), and runs where that runs: on
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
    let (reply, promise) = Reply::new();
    let waiter = WaitOperation {
        timeout,
        question: Box::new(Asked {
            predicate,
            found: None,
            reply,
        }),
        key: PhantomData,
    };
    let watch = park(waiter).unwrap_or_else(|rejected| {
        // Before the waiter is dropped, which would only say that it is lost.
        let _ = promise.keep(Err(WaitError::of(&rejected)));
        Admission::Completed
    });
    WaitFuture(Awaiting::new(promise, watch))
}

/// A wait in [`Waits`]: a [`Future`] of what the predicate finds, or of why it found nothing.
///
/// Any executor will do, also more than one after the other: the last that polled is woken. Once it has resolved, it is
/// pending for ever.
///
/// Dropping it cancels the wait: predicate, watches and timer are gone when `drop` returns. (If another thread is
/// asking the predicate in that very moment, nobody waits for that; it removes them when the predicate returns.) A
/// value that was found but not polled yet is dropped with the future: a predicate that takes what it finds, from a
/// queue for instance, should return a guard that puts it back.
#[must_use = "a wait that is dropped is cancelled"]
pub struct WaitFuture<K: TrackedKey, T, S: KeyHasher = RandomState>(
    Awaiting<T, WaitError, WaitOperation<K>, S>,
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
