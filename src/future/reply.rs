//! The two ends of what is awaited: the parked operation holds one, the future the other, and what lies between them
//! is shared.
//!
//! Each end tells the other when it is dropped: the operation's end sets an error, the future's end cancels the
//! operation.

use crate::hash::KeyHasher;
use crate::operation::DelayedOperation;
use crate::panics::Panics;
use crate::promise::{Promise, State};
use crate::purgatory::{Admission, Handle};
use crate::sync::Arc;
use crate::trampoline::{Trampoline, drop_user_value};
use std::error::Error;
use std::fmt;
use std::task::{Context, Poll, Waker};

/// Why an awaited operation ended without a completion.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum CompletionError {
    /// It was taken back: by [`Purgatory::cancel_for_key`](crate::Purgatory::cancel_for_key) or
    /// [`Handle::cancel`].
    Cancelled,
    /// Its `try_complete` panicked, which drops it.
    Panicked,
}

impl fmt::Display for CompletionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Cancelled => "the operation was cancelled",
            Self::Panicked => "`try_complete` of the operation panicked",
        })
    }
}

impl Error for CompletionError {}

/// What lies between the two ends.
pub(super) trait Shared {
    /// What it may hold that was not handed out.
    type Unreceived: 'static;

    /// The operation was dropped without a result.
    fn lose(&self, lost: CompletionError);

    /// The future was dropped: no result is kept and no task is woken from now on. Returns what was kept, because its
    /// destructors may be the user's.
    fn close(&self) -> (Self::Unreceived, Option<Waker>);
}

impl<T: 'static, E: From<CompletionError> + 'static> Shared for Promise<Result<T, E>> {
    type Unreceived = State<Result<T, E>>;

    fn lose(&self, lost: CompletionError) {
        // If the future was dropped, this returns the error.
        drop(self.keep(Err(lost.into())));
    }

    fn close(&self) -> (Self::Unreceived, Option<Waker>) {
        self.close()
    }
}

/// The operation's end.
pub(super) struct Reply<M: Shared> {
    shared: Arc<M>,
    told: bool,
    /// The user's code is running; if it is not any more, it panicked.
    asking: bool,
}

impl<M: Shared> Reply<M> {
    pub(super) fn new(shared: Arc<M>) -> Self {
        Self {
            shared,
            told: false,
            asking: false,
        }
    }

    /// Runs code of the user's. If that panics, the future will be told so.
    pub(super) fn asking<R>(&mut self, ask: impl FnOnce(&M) -> R) -> R {
        self.asking = true;
        let answer = ask(&self.shared);
        self.asking = false;
        answer
    }

    /// Tells the future the end.
    pub(super) fn tell(mut self, tell: impl FnOnce(&M)) {
        self.told = true;
        tell(&self.shared);
    }
}

impl<M: Shared> Drop for Reply<M> {
    fn drop(&mut self) {
        if self.told {
            return;
        }
        let lost = match self.asking {
            true => CompletionError::Panicked,
            false => CompletionError::Cancelled,
        };
        // This may run while another destructor of the user's unwinds: a waker that panics too must not abort.
        Panics::contain(|| self.shared.lose(lost));
    }
}

/// The future's end.
pub(super) struct Awaiting<M: Shared, Op: DelayedOperation, S: KeyHasher> {
    shared: Arc<M>,
    /// What to cancel, until the end is known.
    handle: Option<Handle<Op, S>>,
}

impl<M: Shared, Op: DelayedOperation, S: KeyHasher> Awaiting<M, Op, S> {
    pub(super) fn new(shared: Arc<M>, admission: Admission<Op, S>) -> Self {
        Self {
            shared,
            handle: admission.into_handle(),
        }
    }

    pub(super) fn handle(&self) -> Option<&Handle<Op, S>> {
        self.handle.as_ref()
    }

    pub(super) fn shared(&self) -> &M {
        &self.shared
    }

    /// Ends the operation by `end`, and closes the future's side. Nothing is left of both when this returns, with two
    /// exceptions. Another thread that is just examining the operation may keep it a little longer, but not the waker
    /// nor what it finds. And inside another destructor that the library has called, the values are dropped when the
    /// outermost call returns: so a chain of futures, each owned by the predicate of another, needs no stack.
    pub(super) fn end<R: 'static>(&mut self, end: impl FnOnce(&Handle<Op, S>) -> R) {
        // First, so that the end of the operation wakes no task.
        let (unreceived, waker) = self.shared.close();
        let mut panics = Panics::default();
        // A call by itself: it need not queue the completion.
        let ended = panics.catch(|| self.handle.take().map(|handle| end(&handle)));
        let _trampoline = Trampoline::enter();
        // Destructors of the user's, once the operation has ended, whatever they do.
        panics.catch(|| drop_user_value(ended));
        panics.catch(|| drop_user_value(unreceived));
        panics.catch(|| drop_user_value(waker));
        panics.resume();
    }
}

impl<T, E, Op, S> Awaiting<Promise<Result<T, E>>, Op, S>
where
    T: 'static,
    E: From<CompletionError> + 'static,
    Op: DelayedOperation,
    S: KeyHasher,
{
    pub(super) fn poll(&mut self, cx: &Context<'_>) -> Poll<Result<T, E>> {
        let poll = self.shared.poll(cx);
        if poll.is_ready() {
            self.handle = None;
        }
        poll
    }
}

impl<M: Shared, Op: DelayedOperation, S: KeyHasher> Drop for Awaiting<M, Op, S> {
    fn drop(&mut self) {
        self.end(Handle::cancel);
    }
}
