//! The operation of [`Waits`](super::Waits): a predicate with its future, or one of a listener's operations.

use super::reply::{Awaiting, HandedOver, Reply};
use super::signal::Signal;
use super::wait_error::WaitError;
use crate::callbacks::panics::Panics;
use crate::callbacks::promise::Promise;
use crate::hash::Key;
use crate::operation::{Cause, Completion, DelayedOperation, Internal};
use crate::sync::Arc;
use crate::time::Deadline;
use std::mem;
use std::time::Duration;

/// The operation parked in [`Waits`](super::Waits): a predicate whose result goes to a future or a callback, or one of
/// a listener's operations.
///
/// Made by [`Purgatory::wait`](crate::Purgatory::wait), `listen`, `take` and `wait_then`. A cancel by key or handle
/// returns the operation, and the destructor of the operation tells the future or listener of the cancel. Do not park
/// the operation again: its future would not cancel the second park, and checks of the second park would wake its
/// listener.
pub struct WaitOperation<K> {
    deadline: Deadline,
    role: Role<K>,
}

/// The waiter's side of one of a listener's operations.
pub(super) type Listening<K, S> = Awaiting<Signal, WaitOperation<K>, S>;

/// How long at most a listener's operation stays parked after its deadline, while the listener evaluates its condition
/// once more.
const LINGER: Duration = Duration::from_secs(1);

pub(super) enum Role<K> {
    Predicate(Box<dyn Condition<K>>),
    Listener(Reply<Signal>),
    /// The operation has ended, and its user values lie in the state that it shares with its future: see
    /// [`Reply::hand_over`].
    HandedOver {
        _end: HandedOver,
    },
    /// The role has been moved out.
    Spent,
}

impl<K: Key> WaitOperation<K> {
    pub(super) fn predicate<T: Send + 'static>(
        deadline: Deadline,
        predicate: impl FnMut(Cause<'_, K>) -> Option<T> + Send + 'static,
        promise: Arc<Promise<Result<T, WaitError>>>,
    ) -> Self {
        let condition = Predicate {
            predicate,
            found: None,
            reply: Reply::new(promise, WaitError::Cancelled),
        };
        Self::condition(deadline, condition)
    }

    pub(super) fn condition(deadline: Deadline, condition: impl Condition<K> + 'static) -> Self {
        Self {
            deadline,
            role: Role::Predicate(Box::new(condition)),
        }
    }

    /// Tells the future, callback or listener the value that was found, or else `lost`.
    pub(super) fn end(self, lost: WaitError) {
        match self.role {
            Role::Predicate(condition) => condition.end(lost),
            Role::Listener(reply) => reply.tell(|signal| signal.end(lost)),
            // The destructor of a `HandedOver` tells the future the result.
            Role::HandedOver { .. } | Role::Spent => {}
        }
    }

    pub(super) fn listener(deadline: Deadline, signal: Arc<Signal>) -> Self {
        Self {
            deadline,
            role: Role::Listener(Reply::new(signal, WaitError::Cancelled)),
        }
    }
}

/// A predicate whose type, and the type of whose value, are erased.
pub(super) trait Condition<K>: Send {
    fn holds(&mut self, cause: Cause<'_, K>) -> bool;
    /// Tells the future or the callback the value that was found, or else `lost`.
    fn end(self: Box<Self>, lost: WaitError);
    /// Moves the result to the future, if there is a future. Returns the new role of the operation, and the answer of
    /// [`DelayedOperation::hand_over`].
    fn hand_over(self: Box<Self>, completion: Option<Completion>) -> (Role<K>, bool);
}

struct Predicate<T: 'static, P> {
    predicate: P,
    found: Option<T>,
    reply: Reply<Promise<Result<T, WaitError>>>,
}

impl<K, T, P> Condition<K> for Predicate<T, P>
where
    T: Send + 'static,
    P: FnMut(Cause<'_, K>) -> Option<T> + Send + 'static,
{
    fn holds(&mut self, cause: Cause<'_, K>) -> bool {
        self.found = self.reply.running(|_| (self.predicate)(cause));
        self.found.is_some()
    }

    fn end(self: Box<Self>, lost: WaitError) {
        let condition = *self;
        // A value that was found goes to the future, even if the operation has expired: the examination at the deadline
        // may have found it.
        let result = condition.found.ok_or(lost);
        let mut panics = Panics::default();
        // Drop the predicate before the future is told. The future is told even if the predicate's destructor panics.
        panics.catch(|| drop(condition.predicate));
        panics.catch(|| condition.reply.answer(result));
        panics.resume();
    }

    fn hand_over(self: Box<Self>, completion: Option<Completion>) -> (Role<K>, bool) {
        let handed_over = Reply::hand_over(
            self,
            |condition| &mut condition.reply,
            completion,
            |mut condition, lost| (condition.found.take().ok_or(lost), Some(condition)),
        );
        match handed_over {
            Ok(end) => (Role::HandedOver { _end: end }, true),
            Err(condition) => (Role::Predicate(condition), false),
        }
    }
}

/// Handles an examination of a listener's operation at its deadline or for a recheck. Returns whether the operation is
/// satisfied.
#[cold]
#[inline(never)]
fn timer_has_fired<K>(reply: &mut Reply<Signal>, cause: Cause<'_, K>) -> bool {
    if cause.is_deadline() && reply.running(Signal::expire) {
        cause.linger(LINGER);
    }
    let recheck = cause.as_recheck();
    recheck.is_some_and(|last| reply.running(|signal| signal.recheck(last)))
}

impl<K: Key> DelayedOperation for WaitOperation<K> {
    type Key = K;

    /// Not called, because `deadline` is implemented.
    fn timeout(&self) -> Duration {
        Duration::MAX
    }

    fn deadline(&self) -> Deadline {
        self.deadline
    }

    fn try_complete(&mut self) -> bool {
        self.try_complete_for(Cause::NONE)
    }

    #[inline(always)]
    fn try_complete_for(&mut self, cause: Cause<'_, K>) -> bool {
        match &mut self.role {
            Role::Predicate(condition) => condition.holds(cause),
            Role::Listener(reply) => {
                // Do not signal the listener during its park: it evaluates its condition after the park, and sees every
                // event so far. `running` encloses the signal of a check, because the signal wakes the task, and a
                // waker is user code.
                if cause.is_check() {
                    reply.running(Signal::check);
                    return false;
                }
                !cause.is_parking() && timer_has_fired(reply, cause)
            }
            Role::HandedOver { .. } | Role::Spent => false,
        }
    }

    fn on_complete(self, completion: Completion) {
        self.end(completion.into());
    }

    #[cold]
    #[inline(never)]
    fn hand_over(&mut self, completion: Option<Completion>, _: Internal) -> bool {
        let (rest, is_awaited) = match mem::replace(&mut self.role, Role::Spent) {
            Role::Predicate(condition) => condition.hand_over(completion),
            // A listener's operation holds no user values.
            role => (role, true),
        };
        self.role = rest;
        is_awaited
    }
}

debug_fields!([K] WaitOperation<K>, "WaitOperation", |it| deadline: it.deadline);
