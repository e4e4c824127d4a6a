//! Futures that resolve when an operation of the user's own type ends.

use super::reply::{HandedOver, Outcome, Reply};
use super::wait::WaitFuture;
use crate::callbacks::promise::{Promise, Untold};
use crate::error::Rejected;
use crate::hash::KeyHasher;
use crate::operation::{Cause, Completion, DelayedOperation, Internal};
use crate::purgatory::{Purgatory, Watch};
use crate::sync::Arc;
use crate::time::{Deadline, Timestamp};
use std::mem;
use std::time::Duration;

/// Wraps an operation, so that a task can await its end. A `Purgatory<Awaited<Op>>` parks the operation by
/// [`completion`](Purgatory::completion), which returns a [`Future`] that resolves to the operation and its
/// [`Completion`] (how it ended).
///
/// Whether `on_complete` is called depends on how the operation was parked. One purgatory can hold operations of both
/// kinds.
///
/// * By `completion`: the future receives the operation, and `on_complete` is not called, even if the future is
///   dropped.
/// * By [`try_complete_else_watch`](Purgatory::try_complete_else_watch), after [`new`](Self::new): no future awaits the
///   operation, and its `on_complete` is called.
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
/// use request_purgatory::future::block_on; // or any executor
/// let (fetch, completion) = block_on(fetch)?;
/// assert_eq!((fetch.offset, completion), (10, Completion::Satisfied));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Awaited<Op: 'static>(State<Op>);

enum State<Op: 'static> {
    Waiting {
        op: Op,
        reply: Option<Reply<Outcome<(Op, Completion)>>>,
    },
    /// The operation has ended, and lies in the promise that it shares with its future.
    HandedOver(HandedOver),
    /// A placeholder while `hand_over` moves the operation.
    Spent,
}

/// An operation that has ended, while it lies in the promise.
struct Ended<Op: 'static> {
    op: Op,
    /// `None` if `try_complete` has panicked.
    completion: Option<Completion>,
    reply: Reply<Outcome<(Op, Completion)>>,
}

impl<Op: Send> Untold for Ended<Op> {
    fn tell(self: Box<Self>) {
        let Self {
            op,
            completion,
            reply,
        } = *self;
        // If `try_complete` has panicked, there is no completion, and `map` drops the operation. The result is then the
        // error that `Reply::running` has noted.
        let found = completion.map(|completion| (op, completion));
        reply.answer(found);
    }
}

impl<Op: 'static> Awaited<Op> {
    /// Wraps an operation that no task awaits, for [`Purgatory::try_complete_else_watch`].
    pub fn new(op: Op) -> Self {
        Self(State::Waiting { op, reply: None })
    }

    /// Returns the wrapped operation, for instance after a cancel. If a future awaits this operation, the future
    /// resolves to [`WaitError::Cancelled`](crate::WaitError::Cancelled).
    pub fn into_operation(self) -> Op {
        match self.0 {
            State::Waiting { op, .. } => op,
            State::HandedOver(_) | State::Spent => gone(),
        }
    }

    fn op(&self) -> &Op {
        match &self.0 {
            State::Waiting { op, .. } => op,
            State::HandedOver(_) | State::Spent => gone(),
        }
    }
}

#[cold]
fn gone() -> ! {
    unreachable!("an operation that lies with its future is completed next, and is not given out")
}

impl<Op: DelayedOperation> DelayedOperation for Awaited<Op> {
    type Key = Op::Key;

    fn timeout(&self) -> Duration {
        self.op().timeout()
    }

    fn deadline(&self) -> Deadline {
        self.op().deadline()
    }

    fn weight(&self) -> usize {
        self.op().weight()
    }

    fn arrival(&self) -> Option<Timestamp> {
        self.op().arrival()
    }

    fn try_complete(&mut self) -> bool {
        self.try_complete_for(Cause::NONE)
    }

    fn try_complete_for(&mut self, cause: Cause<'_, Op::Key>) -> bool {
        match &mut self.0 {
            State::Waiting {
                op,
                reply: Some(reply),
            } => reply.running(|_| op.try_complete_for(cause)),
            State::Waiting { op, reply: None } => op.try_complete_for(cause),
            State::HandedOver(_) | State::Spent => gone(),
        }
    }

    fn on_complete(self, completion: Completion) {
        match self.0 {
            State::Waiting {
                op,
                reply: Some(reply),
            } => reply.answer(Some((op, completion))),
            State::Waiting { op, reply: None } => op.on_complete(completion),
            State::HandedOver(handed_over) => drop(handed_over),
            State::Spent => {}
        }
    }

    #[cold]
    #[inline(never)]
    fn hand_over(&mut self, completion: Option<Completion>, _: Internal) -> bool {
        match mem::replace(&mut self.0, State::Spent) {
            State::Waiting {
                op,
                reply: Some(reply),
            } => {
                let promise = reply.recipient.clone();
                let ended = Ended {
                    op,
                    completion,
                    reply,
                };
                match HandedOver::new(promise, Box::new(ended)) {
                    Ok(handed_over) => self.0 = State::HandedOver(handed_over),
                    Err(ended) => {
                        let Ended { op, reply, .. } = *ended;
                        let reply = Some(reply);
                        self.0 = State::Waiting { op, reply };
                        return false;
                    }
                }
            }
            state => self.0 = state,
        }
        true
    }

    const BELONGS_TO_A_WAIT: bool = Op::BELONGS_TO_A_WAIT;
}

debug_fields!([Op: std::fmt::Debug + 'static] Awaited<Op>, "Awaited", |it| operation: it.op());

impl<Op: DelayedOperation, S: KeyHasher> Purgatory<Awaited<Op>, S> {
    /// Parks `op`, unless it can complete at once. Returns a future that resolves to the operation and its
    /// [`Completion`] (how it ended). This call examines the operation, takes locks and rejects operations in the same
    /// way as [`try_complete_else_watch`](Self::try_complete_else_watch).
    ///
    /// The wait begins with this call, even if the future is never polled: a check after the call is not missed, and
    /// the timeout runs. `try_complete` and `timeout` never run in a poll. The thread on which `on_complete` would run
    /// wakes the task that polled the future last.
    ///
    /// # Errors
    /// If the purgatory rejects the operation, a [`Rejected`] returns the operation and the reason.
    pub fn completion<'a>(
        &self,
        op: Op,
        keys: impl IntoIterator<Item = impl Into<Watch<'a, Op::Key>>>,
    ) -> Result<WaitFuture<Awaited<Op>, (Op, Completion), S>, Rejected<Op>> {
        let promise = Arc::new(Promise::new());
        let reply = Some(Reply::new(promise.clone()));
        let op = Awaited(State::Waiting { op, reply });
        match self.try_complete_else_watch(op, keys) {
            Ok(admission) => Ok(WaitFuture::awaiting(promise, admission)),
            Err(rejected) => Err(rejected.map(Awaited::into_operation)),
        }
    }
}
