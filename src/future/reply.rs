//! The two sides of an awaited result. The parked operation owns one side ([`Reply`]), the future or listener owns the
//! other ([`Awaiting`]). Both sides refer to one shared state, into which the operation's side writes the result.
//!
//! The drop of one side affects the other: the drop of the operation's side stores an error as the result, and the drop
//! of the future's side cancels the operation.
//!
//! The completion of an ended operation may have to wait: in the queue of a thread, in a job of an executor, or behind
//! other endings of the same call. During this time the user's values (the predicate, and the value that it has found)
//! lie in the shared state ([`HandedOver`]). So the drop of the future can drop these values, and need not wait for the
//! completion.

use super::wait_error::WaitError;
use crate::callbacks::panics::Panics;
use crate::callbacks::promise::{Promise, Promised, Untold};
use crate::callbacks::trampoline::{Trampoline, UserValue, drop_user_value};
use crate::error::Rejected;
use crate::hash::KeyHasher;
use crate::operation::DelayedOperation;
use crate::purgatory::{Admission, Handle};
use crate::sync::Arc;
use std::task::{Context, Poll, Waker};

/// The promise that a parked operation and its future share. Its value is the future's result.
pub(crate) type Outcome<T> = Arc<Promise<Result<T, WaitError>>>;

/// Where the result of a wait goes: to a future ([`Outcome`]), to a listener (a [`Signal`](super::signal::Signal)), or
/// to a callback.
pub(crate) trait Recipient {
    /// What the predicate finds.
    type Found;

    /// Passes the result on. After the first result, every further one is dropped.
    fn receive(&self, result: Result<Self::Found, WaitError>);

    /// Passes on `lost`, the reason why an operation is dropped without a result. Contains every panic: other
    /// destructors may follow, or the thread may be unwinding already, and a second panic would abort the process.
    fn lose(&self, lost: WaitError) {
        Panics::contain(|| self.receive(Err(lost)));
    }

    /// The promise into which the result is [handed over](HandedOver). `None` if there is no future.
    fn outcome(&self) -> Option<&Outcome<Self::Found>> {
        None
    }
}

/// The state that a parked operation shares with the future or listener that awaits its result: a promise of the result
/// or, for a listener, a [`Signal`](super::signal::Signal).
pub(crate) trait Between: Recipient {
    /// A result that is stored, and that the future has not received.
    type Unreceived: 'static;

    /// Called when the future is dropped. From now on no user value is stored and no task is woken. Returns the stored
    /// result and the waker: their destructors may be user code, which must run with no lock held.
    fn close(&self) -> (Option<Self::Unreceived>, Option<Waker>);
}

impl<T: 'static> Recipient for Outcome<T> {
    type Found = T;

    fn receive(&self, result: Result<T, WaitError>) {
        // `keep` returns the result if the promise has one already, or if the future was dropped.
        if let Err(Ok(found)) = self.keep(result) {
            drop(UserValue(Some(found)));
        }
    }

    fn outcome(&self) -> Option<&Self> {
        Some(self)
    }
}

impl<T: 'static> Between for Outcome<T> {
    type Unreceived = Promised<Result<T, WaitError>>;

    #[inline]
    fn close(&self) -> (Option<Self::Unreceived>, Option<Waker>) {
        match self.close_promised() {
            (Promised::Open | Promised::Spent, waker) => (None, waker),
            (unreceived, waker) => (Some(unreceived), waker),
        }
    }
}

/// The operation's side after a hand-over: the ended wait lies in the promise, and the future does not see the result
/// yet. The destructor takes the wait back, and passes the result to the future, which wakes the task.
pub(crate) struct HandedOver(Arc<dyn TakeBack>);

trait TakeBack: Send + Sync {
    fn take_back(&self) -> Option<Box<dyn Untold>>;
}

impl<T: Send> TakeBack for Promise<T> {
    fn take_back(&self) -> Option<Box<dyn Untold>> {
        self.take_back()
    }
}

impl HandedOver {
    /// Moves an ended wait into the promise. If the future was dropped before, returns the wait as `Err`.
    pub(crate) fn new<T: Send + 'static, W: Untold + 'static>(
        promise: Arc<Promise<T>>,
        wait: Box<W>,
    ) -> Result<Self, Box<W>> {
        promise.hand_over(wait)?;
        Ok(Self(promise))
    }
}

impl Drop for HandedOver {
    fn drop(&mut self) {
        if let Some(untold) = self.0.take_back() {
            untold.tell();
        }
    }
}

/// The operation's side of an awaited result. Its destructor passes on the error `lost`, if no result was passed on
/// before.
pub(crate) struct Reply<R: Recipient> {
    pub(super) recipient: R,
    /// The error that is the result if nothing was found. `None` once a result was passed on.
    lost: Option<WaitError>,
}

impl<R: Recipient> Reply<R> {
    pub(crate) fn new(recipient: R) -> Self {
        Self {
            recipient,
            lost: Some(WaitError::Cancelled),
        }
    }

    /// Calls `run`, which may run user code. If `run` panics, the result is [`WaitError::Panicked`].
    pub(super) fn running<T>(&mut self, run: impl FnOnce(&R) -> T) -> T {
        let lost = self.lost.replace(WaitError::Panicked);
        let answer = run(&self.recipient);
        self.lost = lost;
        answer
    }

    /// Notes `lost`, the error that is the result if nothing was found.
    pub(super) fn ends_as(&mut self, lost: WaitError) {
        self.lost = Some(lost);
    }

    /// Passes on what was found, or the error that was noted. The destructor of this value then passes nothing on.
    #[inline]
    pub(super) fn answer(mut self, found: Option<R::Found>) {
        if let Some(lost) = self.lost.take() {
            self.recipient.receive(found.ok_or(lost));
        }
    }
}

impl<R: Recipient> Drop for Reply<R> {
    #[inline]
    fn drop(&mut self) {
        if let Some(lost) = self.lost {
            self.recipient.lose(lost);
        }
    }
}

/// Closes the state that an awaited operation shares with its future, so that no result is stored there any more. Then
/// ends the operation by calling `end`. When this function returns, the operation, the waker and a found value have
/// been dropped, with two exceptions:
///
/// * If another thread is examining the operation, that thread drops the operation after the examination. It also drops
///   a value that the examination finds.
/// * If this call is made inside another destructor that the library has called, the values are dropped when the
///   outermost call of the library on this thread returns. So a long chain of futures, in which the predicate of each
///   operation owns the next future, needs no deep stack.
pub(crate) fn end_awaited<M: Between, R: 'static>(shared: &M, end: impl FnOnce() -> R) {
    // Close the shared state before the operation ends, so that the ending wakes no task.
    let (unreceived, waker) = shared.close();
    let mut panics = Panics::default();
    // Call `end` before `Trampoline::enter`: inside a call of the library, a completion that `end` causes would wait in
    // a queue until that call returns.
    let ended = panics.catch(end);
    let _trampoline = Trampoline::enter();
    // Run the user's destructors after the operation has ended. Each of them runs even if another one panics.
    panics.catch(|| drop_user_value(ended));
    if let Some(unreceived) = unreceived {
        panics.catch(|| drop_user_value(unreceived));
    }
    panics.catch(|| drop_user_value(waker));
    panics.resume();
}

/// The future's side of an awaited result. Its destructor cancels the operation.
pub(super) struct Awaiting<M: Between, Op: DelayedOperation, S: KeyHasher> {
    shared: M,
    /// The handle of the operation, by which the destructor cancels it. `None` if the operation did not park, or once
    /// the future knows how it ended.
    handle: Option<Handle<Op, S>>,
}

impl<M: Between, Op: DelayedOperation, S: KeyHasher> Awaiting<M, Op, S> {
    /// Makes the future's side of an operation whose park returned `parked`. If the park was rejected, stores the
    /// reason as the result.
    #[inline(always)]
    pub(super) fn new(shared: M, parked: Result<Admission<Op, S>, Rejected<Op>>) -> Self {
        // Store the reason before the rejected operation is dropped. Otherwise the destructor of the operation would
        // store a cancel as the result.
        if let Err(rejected) = &parked {
            shared.receive(Err(WaitError::of(rejected)));
        }
        let handle = parked.ok().and_then(Admission::into_handle);
        Self { shared, handle }
    }

    pub(super) fn handle(&self) -> Option<&Handle<Op, S>> {
        self.handle.as_ref()
    }

    pub(super) fn shared(&self) -> &M {
        &self.shared
    }

    /// Closes the shared state, so that no value is stored there any more and no task is woken. Then
    /// [ends](end_awaited) the operation by calling `end`. `end` is not called if no operation is parked: the operation
    /// did not park, or the future knows already how it ended.
    pub(super) fn end<R: 'static>(&mut self, end: impl FnOnce(&Handle<Op, S>) -> R) {
        end_awaited(&self.shared, || {
            self.handle.take().map(|handle| end(&handle))
        });
    }
}

impl<T: 'static, Op: DelayedOperation, S: KeyHasher> Awaiting<Outcome<T>, Op, S> {
    pub(super) fn poll(&mut self, cx: &Context<'_>) -> Poll<Result<T, WaitError>> {
        let poll = self.shared.poll(cx);
        if poll.is_ready() {
            self.handle = None;
        }
        poll
    }
}

impl<M: Between, Op: DelayedOperation, S: KeyHasher> Drop for Awaiting<M, Op, S> {
    fn drop(&mut self) {
        self.end(Handle::cancel);
    }
}
