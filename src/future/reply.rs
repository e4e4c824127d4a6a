//! The two sides of an awaited result: the parked operation owns one side, the future owns the other. Both sides share
//! a state, to which the operation's side writes the result.
//!
//! Each side tells the other when it is dropped: the operation's side sets an error, the future's side cancels the
//! operation. After an operation has ended, its completion may have to wait: in the queue of a thread, in a job of an
//! executor, or behind other endings of the same call. During that wait, the user values of the operation lie in the
//! shared state ([`Reply::hand_over`]). So the drop of the future can drop these values without waiting for the
//! completion.

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

/// The state that the two sides share.
pub(crate) trait Between {
    /// A stored value that the future has not received.
    type Unreceived: 'static;

    /// Stores `lost` as the result, because the operation has ended without one.
    fn lose(&self, lost: WaitError);

    /// Called when the future is dropped: from now on no result is stored and no task is woken. Returns the stored
    /// result and waker, because their destructors may be user code.
    fn close(&self) -> (Option<Self::Unreceived>, Option<Waker>);
}

impl<T: 'static> Between for Promise<Result<T, WaitError>> {
    type Unreceived = Promised<Result<T, WaitError>>;

    fn lose(&self, lost: WaitError) {
        // If the future was dropped, `keep` returns the error.
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

/// The operation's side after a [hand-over](Reply::hand_over). Its destructor tells the future the result.
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

/// The operation's side of an awaited result.
pub(crate) struct Reply<M: Between> {
    shared: Arc<M>,
    /// The error that the future gets if this side is dropped. `None` once the future has been told the result.
    lost: Option<WaitError>,
}

impl<M: Between> Reply<M> {
    pub(crate) fn new(shared: Arc<M>, lost: WaitError) -> Self {
        Self {
            shared,
            lost: Some(lost),
        }
    }

    /// Calls `run`, which may run user code. If `run` panics, the future gets [`WaitError::Panicked`].
    pub(super) fn running<R>(&mut self, run: impl FnOnce(&M) -> R) -> R {
        let lost = self.lost.replace(WaitError::Panicked);
        let answer = run(&self.shared);
        self.lost = lost;
        answer
    }

    /// Calls `tell`, which tells the future how the operation has ended.
    pub(super) fn tell(mut self, tell: impl FnOnce(&M)) {
        self.lost = None;
        tell(&self.shared);
    }
}

impl<T: Send + 'static> Reply<Promise<Result<T, WaitError>>> {
    /// Leaves the result in the shared state. The drop of the returned [`HandedOver`] tells the future the result. If
    /// the future itself has been dropped, returns `source` as the error.
    ///
    /// `source` owns this side, and `reply` finds this side in `source`. `make` turns `source` into the result, and the
    /// values that are dropped before the future is told. The [`WaitError`] that `make` gets is the result of an
    /// operation that has found no value.
    pub(super) fn hand_over<S>(
        mut source: S,
        reply: impl Fn(&mut S) -> &mut Self,
        completion: Option<Completion>,
        make: impl FnOnce(S, WaitError) -> (Result<T, WaitError>, Before),
    ) -> Result<HandedOver, S> {
        let shared = reply(&mut source).shared.clone();
        // After a panic the operation has no completion.
        let lost = completion.map_or(WaitError::Panicked, WaitError::from);
        shared.hand_over(source, |mut source| {
            // From here on, the drop of this side tells the future nothing.
            reply(&mut source).lost = None;
            make(source, lost)
        })?;
        Ok(HandedOver(shared))
    }
}

impl<T: 'static> Reply<Promise<Result<T, WaitError>>> {
    /// Tells the future the result. If the future was dropped, the result is dropped too.
    pub(crate) fn answer(self, result: Result<T, WaitError>) {
        // Enter the library: user code may end an operation that it owns, outside every call of the library.
        let _trampoline = Trampoline::enter();
        self.tell(|promise| drop_user_value(promise.keep(result).err()));
    }
}

impl<M: Between> Drop for Reply<M> {
    fn drop(&mut self) {
        if let Some(lost) = self.lost {
            // Contain the panic of a waker: other destructors may follow this one, or the thread may be unwinding, and
            // a second panic would abort. The panic hook has reported the panic.
            Panics::contain(|| self.shared.lose(lost));
        }
    }
}

/// Ends an awaited operation by `end`, and closes the future's side. When this returns, operation, waker and found
/// value have been dropped, with two exceptions:
///
/// * If another thread is examining the operation, that thread drops the operation afterwards, and with it a value that
///   the examination finds.
/// * If this call is made inside another destructor that the library has called, the values are dropped when the
///   outermost call returns. So a chain of futures, each owned by the predicate of another, needs no deep stack.
pub(crate) fn end_awaited<M: Between, R: 'static>(shared: &M, end: impl FnOnce() -> R) {
    // Close first, so that the end of the operation wakes no task.
    let (unreceived, waker) = shared.close();
    let mut panics = Panics::default();
    // Call `end` first: after `Trampoline::enter`, the completion would be queued.
    let ended = panics.catch(end);
    let _trampoline = Trampoline::enter();
    // Run the user's destructors when the operation has ended. Each destructor runs even if another panics.
    panics.catch(|| drop_user_value(ended));
    if let Some(unreceived) = unreceived {
        panics.catch(|| drop_user_value(unreceived));
    }
    panics.catch(|| drop_user_value(waker));
    panics.resume();
}

/// The future's side of an awaited result.
pub(super) struct Awaiting<M: Between, Op: DelayedOperation, S: KeyHasher> {
    shared: Arc<M>,
    /// The handle by which to cancel the operation. `None` if the operation did not park, or once its ending is known.
    handle: Option<Handle<Op, S>>,
}

impl<M: Between, Op: DelayedOperation, S: KeyHasher> Awaiting<M, Op, S> {
    /// If the operation was rejected, tells the future why.
    #[inline(always)]
    pub(super) fn new(shared: Arc<M>, parked: Result<Admission<Op, S>, Rejected<Op>>) -> Self {
        // Tell the future before the rejected operation is dropped: the operation's destructor would report a cancel.
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

    /// [Ends](end_awaited) the operation by `end`, unless the ending of the operation is already known.
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
