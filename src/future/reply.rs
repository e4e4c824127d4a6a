//! The two ends of what is awaited: the parked operation holds one, the future the other, and what lies between them
//! is shared.
//!
//! Each end tells the other when it is dropped: the operation's end sets an error, the future's end cancels the
//! operation. Where an operation has ended and its completion waits for others (in the queue of a thread, in a job of an
//! executor, behind other endings of one call), what it holds of the user's lies between the two ends meanwhile
//! ([`Reply::hand_over`]): so a future that is dropped takes it out there, and does not wait for that queue.

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

/// What lies between the two ends.
pub(crate) trait Between {
    /// What it may hold that was not handed out.
    type Unreceived: 'static;

    /// The operation was dropped without a result.
    fn lose(&self, lost: WaitError);

    /// The future was dropped: no result is kept and no task is woken from now on. Returns what was kept, because its
    /// destructors may be the user's.
    fn close(&self) -> (Option<Self::Unreceived>, Option<Waker>);
}

impl<T: 'static> Between for Promise<Result<T, WaitError>> {
    type Unreceived = Promised<Result<T, WaitError>>;

    fn lose(&self, lost: WaitError) {
        // If the future was dropped, this returns the error.
        drop(self.keep(Err(lost)));
    }

    #[inline]
    fn close(&self) -> (Option<Self::Unreceived>, Option<Waker>) {
        match self.close() {
            (Promised::Open | Promised::Spent, waker) => (None, waker),
            (unreceived, waker) => (Some(unreceived), waker),
        }
    }
}

/// The end of an operation that has been [handed over](Reply::hand_over): tells the future when it is dropped.
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

/// The operation's end.
pub(crate) struct Reply<M: Between> {
    shared: Arc<M>,
    /// What the future is told if this is dropped. `None` once it was told its end.
    lost: Option<WaitError>,
}

impl<M: Between> Reply<M> {
    pub(crate) fn new(shared: Arc<M>, lost: WaitError) -> Self {
        Self {
            shared,
            lost: Some(lost),
        }
    }

    /// Runs code of the user's. If that panics, the future will be told so.
    pub(super) fn running<R>(&mut self, run: impl FnOnce(&M) -> R) -> R {
        let lost = self.lost.replace(WaitError::Panicked);
        let answer = run(&self.shared);
        self.lost = lost;
        answer
    }

    /// Tells the future the end.
    pub(super) fn tell(mut self, tell: impl FnOnce(&M)) {
        self.lost = None;
        tell(&self.shared);
    }
}

impl<T: Send + 'static> Reply<Promise<Result<T, WaitError>>> {
    /// Leaves the result with the future until what this returns is dropped. `reply` finds this end in `source`, of which
    /// `make` makes the result (by the error that the future is told if there is no other), and what is to be dropped before
    /// the future is told. `source` comes back if the future is gone.
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
            // It tells nothing any more.
            reply(&mut source).lost = None;
            make(source, lost)
        })?;
        Ok(HandedOver(shared))
    }
}

impl<T: 'static> Reply<Promise<Result<T, WaitError>>> {
    /// Tells the future the result. If that was dropped, so is the result.
    pub(crate) fn answer(self, result: Result<T, WaitError>) {
        // The user may end an operation by hand, in no call of the library.
        let _trampoline = Trampoline::enter();
        self.tell(|promise| drop_user_value(promise.keep(result).err()));
    }
}

impl<M: Between> Drop for Reply<M> {
    fn drop(&mut self) {
        if let Some(lost) = self.lost {
            // Other destructors may follow this one, or unwind already: a waker that panics must not keep them from
            // running, nor abort. The panic hook has reported it.
            Panics::contain(|| self.shared.lose(lost));
        }
    }
}

/// Ends what is awaited by `end`, and closes the future's side. Nothing is left of both when this returns, with two
/// exceptions. Another thread that is just examining the operation may keep it a little longer, but not the waker nor
/// what it finds. And inside another destructor that the library has called, the values are dropped when the outermost
/// call returns: so a chain of futures, each owned by the predicate of another, needs no stack.
pub(crate) fn end_awaited<M: Between, R: 'static>(shared: &M, end: impl FnOnce() -> R) {
    // First, so that the end of the operation wakes no task.
    let (unreceived, waker) = shared.close();
    let mut panics = Panics::default();
    // A call by itself: it need not queue the completion.
    let ended = panics.catch(end);
    let _trampoline = Trampoline::enter();
    // Destructors of the user's, once the operation has ended, whatever they do.
    panics.catch(|| drop_user_value(ended));
    if let Some(unreceived) = unreceived {
        panics.catch(|| drop_user_value(unreceived));
    }
    panics.catch(|| drop_user_value(waker));
    panics.resume();
}

/// The future's end.
pub(super) struct Awaiting<M: Between, Op: DelayedOperation, S: KeyHasher> {
    shared: Arc<M>,
    /// What to cancel, until the end is known.
    handle: Option<Handle<Op, S>>,
}

impl<M: Between, Op: DelayedOperation, S: KeyHasher> Awaiting<M, Op, S> {
    /// Tells why, if the operation was not `parked`.
    #[inline(always)]
    pub(super) fn new(shared: Arc<M>, parked: Result<Admission<Op, S>, Rejected<Op>>) -> Self {
        // Before the operation is dropped: its destructor would say that it was cancelled.
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

    /// [Ends](end_awaited) the operation by `end`, unless its end is known.
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
