//! Waiting for the end of an operation.

use super::reply::{Awaiting, CompletionError, Reply};
use crate::error::Rejected;
use crate::hash::{KeyHasher, RandomState};
use crate::operation::{Cause, Completion, DelayedOperation};
use crate::promise::{Promise, block_on};
use crate::purgatory::{Admission, Handle, Purgatory, Watch};
use crate::sync::Arc;
use crate::trampoline::Trampoline;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

/// An operation whose end can be awaited: `Purgatory<Awaited<Op>>` parks it by
/// [`completion`](Purgatory::completion), which gives a [`Future`] of the operation and how it ended.
///
/// The result of the future takes the place of `on_complete`, which is not called for an operation that is awaited, nor
/// if the future is dropped. An operation that is made by [`new`](Self::new) and parked by
/// [`try_complete_else_watch`](Purgatory::try_complete_else_watch) is not awaited, and its `on_complete` is called. One
/// purgatory can hold both.
///
/// ```
/// use request_purgatory::future::Awaited;
/// use request_purgatory::{Completion, DelayedOperation, Purgatory};
/// use std::sync::{Arc, atomic::{AtomicU64, Ordering}};
/// use std::time::Duration;
///
/// struct DelayedFetch { end: Arc<AtomicU64>, offset: u64 }
///
/// impl DelayedOperation for DelayedFetch {
///     type Key = u32;
///     fn timeout(&self) -> Duration { Duration::from_secs(5) }
///     fn try_complete(&mut self) -> bool { self.end.load(Ordering::Acquire) >= self.offset }
///     fn on_complete(self, _: Completion) {} // awaited instead
/// }
///
/// let fetches = Purgatory::<Awaited<DelayedFetch>>::new("fetch");
/// let end = Arc::new(AtomicU64::new(0));
/// let fetch = fetches.completion(DelayedFetch { end: end.clone(), offset: 10 }, [7])?;
///
/// end.store(10, Ordering::Release);
/// fetches.check_and_complete(&7);
/// # use futures::executor::block_on; // any executor
/// let (fetch, completion) = block_on(fetch)?;
/// assert_eq!((fetch.offset, completion), (10, Completion::Satisfied));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Awaited<Op: 'static> {
    op: Op,
    reply: Option<Reply<End<Op>>>,
}

/// What an operation and its future share.
type End<Op> = Promise<Result<(Op, Completion), CompletionError>>;

impl<Op: 'static> Awaited<Op> {
    /// An operation that no task awaits, for [`Purgatory::try_complete_else_watch`].
    pub fn new(op: Op) -> Self {
        Self { op, reply: None }
    }

    /// The operation, for instance one that was cancelled. Its future, if there is one, resolves to
    /// [`CompletionError::Cancelled`].
    pub fn into_operation(self) -> Op {
        self.op
    }
}

impl<Op: DelayedOperation> DelayedOperation for Awaited<Op> {
    type Key = Op::Key;

    fn timeout(&self) -> Duration {
        self.op.timeout()
    }

    fn try_complete(&mut self) -> bool {
        self.try_complete_for(Cause::OTHER)
    }

    fn try_complete_for(&mut self, cause: Cause<'_, Op::Key>) -> bool {
        let Self { op, reply } = self;
        match reply {
            Some(reply) => reply.asking(|_| op.try_complete_for(cause)),
            None => op.try_complete_for(cause),
        }
    }

    fn on_complete(self, completion: Completion) {
        match self.reply {
            Some(reply) => reply.tell(|promise| drop(promise.keep(Ok((self.op, completion))))),
            None => self.op.on_complete(completion),
        }
    }
}

impl<Op: fmt::Debug + 'static> fmt::Debug for Awaited<Op> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Awaited")
            .field("operation", &self.op)
            .finish_non_exhaustive()
    }
}

impl<Op: DelayedOperation, S: KeyHasher> Purgatory<Awaited<Op>, S> {
    /// As [`try_complete_else_watch`](Self::try_complete_else_watch), and gives a future of the operation's end.
    ///
    /// The operation is parked when this returns, whether the future is polled or not: an event after the call is not
    /// missed, and the timeout runs. `try_complete` and `timeout` never run in a poll. The future is woken on the
    /// thread on which `on_complete` would run.
    ///
    /// # Errors
    /// The operation comes back in a [`Rejected`], as from `try_complete_else_watch`.
    pub fn completion<'a>(
        &self,
        op: Op,
        keys: impl IntoIterator<Item = impl Into<Watch<'a, Op::Key>>>,
    ) -> Result<CompletionFuture<Op, S>, Rejected<Op>> {
        begin(op, |awaited| self.try_complete_else_watch(awaited, keys))
    }
}

type Parked<Op, S> = Result<Admission<Awaited<Op>, S>, Rejected<Awaited<Op>>>;

/// Parks an operation, and makes the future of its end.
fn begin<Op: DelayedOperation, S: KeyHasher>(
    op: Op,
    park: impl FnOnce(Awaited<Op>) -> Parked<Op, S>,
) -> Result<CompletionFuture<Op, S>, Rejected<Op>> {
    let promise = Arc::new(Promise::new());
    let awaited = Awaited {
        op,
        reply: Some(Reply::new(promise.clone())),
    };
    match park(awaited) {
        Ok(admission) => Ok(CompletionFuture(Awaiting::new(promise, admission))),
        Err(rejected) => Err(rejected.map(Awaited::into_operation)),
    }
}

/// The end of an [`Awaited`] operation: a [`Future`] of the operation and its [`Completion`], which may be a timeout or
/// a shutdown.
///
/// Any executor may poll it, also several one after the other: the last task that polled is woken. After it has
/// resolved, every poll is pending. It does not keep the purgatory alive.
///
/// Dropping it cancels the operation, which is dropped without `on_complete`; watches and timer are removed when `drop`
/// returns. (If another thread is examining the operation at that moment, `drop` does not wait for it; that thread
/// removes them when `try_complete` returns.) To get the operation back, use [`handle`](Self::handle) and
/// [`Handle::cancel`].
#[must_use = "an operation whose end is not awaited is cancelled"]
pub struct CompletionFuture<Op: DelayedOperation, S: KeyHasher = RandomState>(
    Awaiting<End<Op>, Awaited<Op>, S>,
);

impl<Op: DelayedOperation, S: KeyHasher> CompletionFuture<Op, S> {
    /// The handle of the parked operation. `None` if it ended before it was parked, or the future has resolved.
    pub fn handle(&self) -> Option<&Handle<Awaited<Op>, S>> {
        self.0.handle()
    }

    /// Blocks this thread until the operation has ended.
    ///
    /// # Errors
    /// [`CompletionError`], if the operation was cancelled or panicked.
    ///
    /// # Panics
    /// If it is called from a callback of the library: the call that ends the operation may have to run on the thread
    /// that is blocked.
    pub fn wait_blocking(self) -> Result<(Op, Completion), CompletionError> {
        assert!(
            !Trampoline::in_progress(),
            "a callback of the purgatory must not block in `wait_blocking`"
        );
        block_on(self)
    }
}

impl<Op: DelayedOperation, S: KeyHasher> Future for CompletionFuture<Op, S> {
    type Output = Result<(Op, Completion), CompletionError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.get_mut().0.poll(cx)
    }
}

/// Nothing in it is ever pinned.
impl<Op: DelayedOperation, S: KeyHasher> Unpin for CompletionFuture<Op, S> {}

impl<Op: DelayedOperation, S: KeyHasher> fmt::Debug for CompletionFuture<Op, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CompletionFuture")
            .field("handle", &self.handle())
            .finish_non_exhaustive()
    }
}
