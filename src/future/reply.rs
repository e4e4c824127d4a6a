//! The two ends of what is awaited: the parked operation holds one, the future the other.
//!
//! Whatever becomes of the operation, the future learns it: if the operation's end is dropped, that tells so. Whatever
//! becomes of the future, the operation does: dropping the future's end cancels it.

use crate::hash::KeyHasher;
use crate::operation::DelayedOperation;
use crate::promise::Promise;
use crate::purgatory::{Admission, Handle};
use crate::sync::Arc;
use std::error::Error;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::task::{Context, Poll};

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
            Self::Cancelled => "it was cancelled",
            Self::Panicked => "it panicked when it was asked whether it can complete",
        })
    }
}

impl Error for CompletionError {}

/// The operation's end.
pub(super) struct Reply<T, E: From<CompletionError>> {
    /// Until it is told.
    promise: Option<Arc<Promise<Result<T, E>>>>,
    /// The user's code is running; if it is not any more, it panicked.
    asking: bool,
}

impl<T, E: From<CompletionError>> Reply<T, E> {
    pub(super) fn new() -> (Self, Arc<Promise<Result<T, E>>>) {
        let promise = Arc::new(Promise::new());
        let reply = Self {
            promise: Some(promise.clone()),
            asking: false,
        };
        (reply, promise)
    }

    /// Asks the user's code. If that panics, so it will be told.
    pub(super) fn asking<R>(&mut self, ask: impl FnOnce() -> R) -> R {
        self.asking = true;
        let answer = ask();
        self.asking = false;
        answer
    }

    /// Tells the future, and wakes it. If nobody awaits it any more, what was to be told is dropped.
    pub(super) fn tell(mut self, result: Result<T, E>) {
        if let Some(promise) = self.promise.take() {
            drop(promise.keep(result));
        }
    }
}

impl<T, E: From<CompletionError>> Drop for Reply<T, E> {
    fn drop(&mut self) {
        let Some(promise) = self.promise.take() else {
            return;
        };
        let lost = match self.asking {
            true => CompletionError::Panicked,
            false => CompletionError::Cancelled,
        };
        // This may run while another destructor of the user's unwinds: a waker that panics too must not abort.
        let _ = catch_unwind(AssertUnwindSafe(|| drop(promise.keep(Err(lost.into())))));
    }
}

/// The future's end.
pub(super) struct Awaiting<T, E, Op: DelayedOperation, S: KeyHasher> {
    promise: Arc<Promise<Result<T, E>>>,
    /// What to cancel, until the end is known.
    handle: Option<Handle<Op, S>>,
}

impl<T, E, Op: DelayedOperation, S: KeyHasher> Awaiting<T, E, Op, S> {
    pub(super) fn new(promise: Arc<Promise<Result<T, E>>>, watch: Admission<Op, S>) -> Self {
        Self {
            promise,
            handle: watch.into_handle(),
        }
    }

    pub(super) fn handle(&self) -> Option<&Handle<Op, S>> {
        self.handle.as_ref()
    }

    pub(super) fn poll(&mut self, cx: &Context<'_>) -> Poll<Result<T, E>> {
        let poll = self.promise.poll(cx);
        if poll.is_ready() {
            self.handle = None;
        }
        poll
    }
}

impl<T, E, Op: DelayedOperation, S: KeyHasher> Drop for Awaiting<T, E, Op, S> {
    fn drop(&mut self) {
        // First, so that the cancelled operation wakes nobody. A thread that is just examining it may keep it a
        // little longer, but not the waker nor what it finds.
        self.promise.forget();
        if let Some(handle) = self.handle.take() {
            drop(handle.cancel());
        }
    }
}
