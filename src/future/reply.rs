//! The two sides of an awaited result. The parked operation owns one side ([`Reply`]), the future or listener owns the
//! other ([`Awaiting`]). Both sides refer to one shared state, into which the operation's side writes the result.
//!
//! The drop of one side affects the other: the drop of the operation's side stores an error as the result, and the drop
//! of the future's side cancels the operation.
//!
//! The completion of an ended operation may have to wait: in the queue of a thread, in a job of an executor, or behind
//! other endings of the same call. During this time the user's values (the predicate, and the value that it has found)
//! lie in the shared state ([`Reply::hand_over`]). So the drop of the future can drop these values, and need not wait
//! for the completion.

use super::wait_error::WaitError;
use crate::callbacks::panics::Panics;
use crate::callbacks::promise::{Before, Promise, Promised};
use crate::callbacks::trampoline::{Trampoline, drop_user_value};
use crate::error::Rejected;
use crate::hash::KeyHasher;
use crate::operation::{Completion, DelayedOperation};
use crate::purgatory::{Admission, Handle};
use crate::sync::Arc;
use std::task::{Context, Poll, Waker};

/// The state that a parked operation shares with the future or listener that awaits its result: a promise of the result
/// or, for a listener, a [`Signal`](super::signal::Signal).
pub(crate) trait Between {
    /// A result that is stored, and that the future has not received.
    type Unreceived: 'static;

    /// Stores the error `lost` as the result, because the operation has ended without a result. A result that is stored
    /// already stays.
    fn lose(&self, lost: WaitError);

    /// Called when the future is dropped. From now on no user value is stored and no task is woken. Returns the stored
    /// result and the waker: their destructors may be user code, which must run with no lock held.
    fn close(&self) -> (Option<Self::Unreceived>, Option<Waker>);
}

impl<T: 'static> Between for Promise<Result<T, WaitError>> {
    type Unreceived = Promised<Result<T, WaitError>>;

    fn lose(&self, lost: WaitError) {
        // `keep` returns the error if the promise has a result already, or if the future was dropped.
        drop(self.keep(Err(lost)));
    }

    #[inline]
    fn close(&self) -> (Option<Self::Unreceived>, Option<Waker>) {
        match self.close_promised() {
            (Promised::Open | Promised::Spent, waker) => (None, waker),
            (unreceived, waker) => (Some(unreceived), waker),
        }
    }
}

/// The operation's side after a [hand-over](Reply::hand_over): the result lies in the promise, but the future does not
/// see it yet. The destructor makes the result visible to the future, and wakes the task.
pub(crate) struct HandedOver(Arc<dyn Tell>);

trait Tell: Send + Sync {
    fn tell(&self);
}

impl<T: Send + 'static> Tell for Promise<Result<T, WaitError>> {
    fn tell(&self) {
        self.tell();
    }
}

impl Drop for HandedOver {
    fn drop(&mut self) {
        let _trampoline = Trampoline::enter();
        self.0.tell();
    }
}

/// The operation's side of an awaited result. Its destructor stores the error `lost`, if no result was stored before.
pub(crate) struct Reply<M: Between> {
    shared: Arc<M>,
    /// The error that the future gets if this side is dropped. `None` once a result was stored.
    lost: Option<WaitError>,
}

impl<M: Between> Reply<M> {
    pub(crate) fn new(shared: Arc<M>, lost: WaitError) -> Self {
        Self {
            shared,
            lost: Some(lost),
        }
    }

    /// Calls `run`, which may run user code. If `run` panics, the destructor of this value stores
    /// [`WaitError::Panicked`] as the result.
    pub(super) fn running<R>(&mut self, run: impl FnOnce(&M) -> R) -> R {
        let lost = self.lost.replace(WaitError::Panicked);
        let answer = run(&self.shared);
        self.lost = lost;
        answer
    }

    /// Calls `tell`, which stores the result in the shared state. The destructor of this value then stores no error.
    pub(super) fn tell(mut self, tell: impl FnOnce(&M)) {
        self.lost = None;
        tell(&self.shared);
    }
}

impl<T: Send + 'static> Reply<Promise<Result<T, WaitError>>> {
    /// Moves the result into the promise, where the future does not see it yet. The drop of the returned [`HandedOver`]
    /// makes the result visible to the future. If the future was dropped before, returns `source` as `Err`.
    ///
    /// * `source` owns the [`Reply`], and what the result is made from.
    /// * `reply` borrows the `Reply` from `source`.
    /// * `make` turns `source` into the result, and the values that must be dropped before the task is woken. Its
    ///   second argument is the [`WaitError`] that is the result if the operation has found no value.
    pub(super) fn hand_over<S>(
        mut source: S,
        reply: impl Fn(&mut S) -> &mut Self,
        completion: Option<Completion>,
        make: impl FnOnce(S, WaitError) -> (Result<T, WaitError>, Before),
    ) -> Result<HandedOver, S> {
        let shared = reply(&mut source).shared.clone();
        // There is no completion if `try_complete` has panicked.
        let lost = completion.map_or(WaitError::Panicked, WaitError::from);
        shared.hand_over(source, |mut source| {
            // The promise has the result now, so the destructor of this `Reply` must not store an error.
            reply(&mut source).lost = None;
            make(source, lost)
        })?;
        Ok(HandedOver(shared))
    }
}

impl<T: 'static> Reply<Promise<Result<T, WaitError>>> {
    /// Stores the result for the future, and wakes the task. If the future was dropped, the result is dropped too.
    pub(crate) fn answer(self, result: Result<T, WaitError>) {
        // `drop_user_value` must run inside a call of the library. This method may run outside: user code that owns an
        // operation can call its `on_complete` directly. So begin a call here.
        let _trampoline = Trampoline::enter();
        self.tell(|promise| drop_user_value(promise.keep(result).err()));
    }
}

impl<M: Between> Drop for Reply<M> {
    fn drop(&mut self) {
        if let Some(lost) = self.lost {
            // Contain a panic of the waker: other destructors may follow this one, or the thread may be unwinding
            // already, and a second panic would abort the process. The panic hook has reported the panic.
            Panics::contain(|| self.shared.lose(lost));
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
    shared: Arc<M>,
    /// The handle of the operation, by which the destructor cancels it. `None` if the operation did not park, or once
    /// the future knows how it ended.
    handle: Option<Handle<Op, S>>,
}

impl<M: Between, Op: DelayedOperation, S: KeyHasher> Awaiting<M, Op, S> {
    /// Makes the future's side of an operation whose park returned `parked`. If the park was rejected, stores the
    /// reason as the result.
    #[inline(always)]
    pub(super) fn new(shared: Arc<M>, parked: Result<Admission<Op, S>, Rejected<Op>>) -> Self {
        // Store the reason before the rejected operation is dropped. Otherwise the destructor of the operation would
        // store a cancel as the result.
        let parked = parked.inspect_err(|rejected| shared.lose(WaitError::of(rejected)));
        let handle = parked.ok().and_then(Admission::into_handle);
        Self { shared, handle }
    }

    pub(super) fn handle(&self) -> Option<&Handle<Op, S>> {
        self.handle.as_ref()
    }

    pub(super) fn shared(&self) -> &Arc<M> {
        &self.shared
    }

    /// Closes the shared state, so that no value is stored there any more and no task is woken. Then
    /// [ends](end_awaited) the operation by calling `end`. `end` is not called if no operation is parked: the operation
    /// did not park, or the future knows already how it ended.
    pub(super) fn end<R: 'static>(&mut self, end: impl FnOnce(&Handle<Op, S>) -> R) {
        end_awaited(&*self.shared, || {
            self.handle.take().map(|handle| end(&handle))
        });
    }
}

impl<T: 'static, Op: DelayedOperation, S: KeyHasher>
    Awaiting<Promise<Result<T, WaitError>>, Op, S>
{
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
