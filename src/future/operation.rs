//! The operation of [`Waits`](super::Waits): a predicate with its future or callback, or one of the operations of a
//! listener.

use super::reply::{Awaiting, HandedOver, Recipient, Reply};
use super::signal::Signal;
use super::wait_error::WaitError;
use crate::callbacks::panics::Panics;
use crate::callbacks::promise::Untold;
use crate::hash::{Key, KeyHasher};
use crate::operation::{Cause, Completion, DelayedOperation, Internal};
use crate::purgatory::{Handle, Inner, RecycledWeak};
use crate::sync::Arc;
use crate::time::Deadline;
use std::mem;
use std::time::Duration;

/// The operation parked in [`Waits`](super::Waits): a predicate whose result goes to a future or a callback, or one of
/// the operations of a listener (its own, and one for each added key).
///
/// Made by [`Purgatory::wait`](crate::Purgatory::wait), `listen`, `take` and `wait_then`. A cancel by key or handle
/// returns the operation. The drop of the returned operation reports the cancel to the future, callback or listener.
///
/// The returned operation still belongs to its future, callback or listener, and cannot be parked again: for this type,
/// a call of [`try_complete_else_watch`](crate::Purgatory::try_complete_else_watch) does not compile.
///
/// ```compile_fail,E0080
/// let waits = request_purgatory::Waits::<u32>::new("jobs");
/// drop(waits.wait([7], None, || None::<()>));
/// for operation in waits.cancel_for_key(&7) {
///     waits.try_complete_else_watch(operation, [7]);
/// }
/// ```
pub struct WaitOperation<K> {
    deadline: Deadline,
    role: Role<K>,
}

/// The inner state of a purgatory of waits.
pub(super) type Waiting<K, S> = Inner<WaitOperation<K>, S>;

/// Runs `user_code`. Catches its panic, and counts it, unless the purgatory `waits` has been shut down.
#[inline(always)]
pub(super) fn contain_and_count<K: Key, S: KeyHasher>(
    waits: RecycledWeak,
    user_code: impl FnOnce(),
) {
    if Panics::contain(user_code).is_none() {
        waits.with(|waits: &Arc<Waiting<K, S>>| waits.engine.count_panic());
    }
}

/// What a listener keeps for each of its operations: the signal that the listener and its operations share, and the
/// operation's handle. The drop of this value cancels the operation.
pub(super) type Listening<K, S> = Awaiting<Arc<Signal>, WaitOperation<K>, S>;

/// When the deadline of a listener's operation has come, the operation may stay parked, for example while the condition
/// is evaluated for the last time. Meanwhile an entry in `Inner::early` keeps the deadline. The destructor of this value
/// removes the entry. Must be dropped after the operation has ended.
pub(super) struct ForgetsLinger<K: Key, S: KeyHasher>(pub(super) Handle<WaitOperation<K>, S>);

impl<K: Key, S: KeyHasher> Drop for ForgetsLinger<K, S> {
    fn drop(&mut self) {
        self.0.forget_early(true);
    }
}

/// The longest time that a listener's operation stays parked after its deadline, while the listener evaluates its
/// condition once more.
const LINGER: Duration = Duration::from_secs(1);

pub(super) enum Role<K> {
    Predicate(Box<dyn Condition<K>>),
    Listener {
        reply: Reply<Arc<Signal>>,
        /// Whether the operation has had its deadline, and was asked whether it stays parked for the listener.
        has_lingered: bool,
    },
    /// The operation has ended. Its predicate and the value that the predicate has found lie in the promise that the
    /// operation shares with its future.
    HandedOver(HandedOver),
    /// A placeholder while `hand_over` replaces the role.
    Spent,
}

impl<K: Key> WaitOperation<K> {
    pub(super) fn predicate<R: Recipient<Found: Send> + Send + 'static>(
        deadline: Deadline,
        predicate: impl FnMut(Cause<'_, K>) -> Option<R::Found> + Send + 'static,
        recipient: R,
    ) -> Self {
        let condition = Predicate {
            predicate,
            found: Found(None),
            reply: Reply::new(recipient),
        };
        Self {
            deadline,
            role: Role::Predicate(Box::new(condition)),
        }
    }

    /// Ends the wait. The future or callback gets the value that the predicate has found. If the predicate has found
    /// none, the future or callback gets the error `lost`. A listener has no value, so `lost` is always the reason for
    /// its end.
    #[inline]
    pub(super) fn end(self, lost: WaitError) {
        match self.role {
            Role::Predicate(condition) => condition.end(lost),
            Role::Listener { mut reply, .. } => {
                reply.ends_as(lost);
                reply.answer(None);
            }
            // The error `lost` was noted before the hand-over.
            Role::HandedOver(handed_over) => drop(handed_over),
            Role::Spent => {}
        }
    }

    pub(super) fn listener(deadline: Deadline, signal: Arc<Signal>) -> Self {
        Self {
            deadline,
            role: Role::Listener {
                reply: Reply::new(signal),
                has_lingered: false,
            },
        }
    }
}

/// A predicate, the value that it has found, and the future or callback that gets the value. As a trait object, so that
/// the types of predicate and value do not appear in [`WaitOperation`].
pub(super) trait Condition<K>: Send {
    fn holds(&mut self, cause: Cause<'_, K>) -> bool;
    /// Passes the value that the predicate has found, or else the error `lost`, to the future or callback.
    fn end(self: Box<Self>, lost: WaitError);
    /// Notes `lost`, the error for [`end`](Self::end), and moves the condition into the promise of the future. If the
    /// result goes to a callback, the condition stays in the operation. Returns what the operation consists of from now
    /// on (its new [`Role`]), and what [`DelayedOperation::hand_over`] returns: `false` if the future was dropped.
    fn hand_over(self: Box<Self>, lost: WaitError) -> (Role<K>, bool);
}

/// The fields are dropped in this order, so the predicate is gone when the destructor of the reply wakes the task.
struct Predicate<P, R: Recipient> {
    predicate: P,
    found: Found<R::Found>,
    reply: Reply<R>,
}

/// What a predicate has found.
struct Found<T>(Option<T>);

impl<T> Drop for Found<T> {
    /// Discards a panic if the thread is unwinding already, because the destructor of the predicate has panicked: a
    /// second panic would abort the process.
    fn drop(&mut self) {
        if self.0.is_some() {
            Panics::for_each(self.0.take(), drop);
        }
    }
}

impl<K, P, R> Condition<K> for Predicate<P, R>
where
    P: FnMut(Cause<'_, K>) -> Option<R::Found> + Send + 'static,
    R: Recipient<Found: Send> + Send + 'static,
{
    fn holds(&mut self, cause: Cause<'_, K>) -> bool {
        self.found.0 = self.reply.running(|_| (self.predicate)(cause));
        self.found.0.is_some()
    }

    fn end(mut self: Box<Self>, lost: WaitError) {
        self.reply.ends_as(lost);
        self.tell();
    }

    fn hand_over(mut self: Box<Self>, lost: WaitError) -> (Role<K>, bool) {
        self.reply.ends_as(lost);
        let Some(promise) = self.reply.recipient.outcome().cloned() else {
            return (Role::Predicate(self), true);
        };
        match HandedOver::new(promise, self) {
            Ok(handed_over) => (Role::HandedOver(handed_over), true),
            Err(condition) => (Role::Predicate(condition), false),
        }
    }
}

impl<P, R> Untold for Predicate<P, R>
where
    P: Send,
    R: Recipient<Found: Send> + Send,
{
    fn tell(self: Box<Self>) {
        let mut condition = *self;
        let mut panics = Panics::default();
        // Drop the predicate before the result is passed on: when the result wakes the task, the predicate is gone
        // already. The result is passed on even if the predicate's destructor panics.
        panics.catch(|| drop(condition.predicate));
        // If the predicate has found a value, the value is the result, even if the operation has expired: the
        // examination at the deadline may have found it.
        panics.catch(|| condition.reply.answer(condition.found.0.take()));
        panics.resume();
    }
}

/// Examines a listener's operation whose timer has fired, at its deadline or for a recheck (a wake-up after an
/// interval, without a check). Returns whether a check was missed, as [`Signal::recheck`] does: whether the operation
/// ends is not for the listener to say, but depends on what its timer was filed for.
#[cold]
#[inline(never)]
fn timer_has_fired<K>(
    reply: &mut Reply<Arc<Signal>>,
    has_lingered: &mut bool,
    cause: Cause<'_, K>,
) -> bool {
    if cause.is_deadline() {
        let has_lingered = mem::replace(has_lingered, true);
        if reply.running(|signal| signal.expire(has_lingered)) {
            cause.linger(LINGER);
        }
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
            Role::Listener {
                reply,
                has_lingered,
            } => {
                // During the park, do not signal the listener: it evaluates its condition after the park, and so sees
                // every event that came before. Later, `Signal::check` wakes the task by its waker, which is user code
                // and may panic. If it does, `running` makes sure that the listener ends with `WaitError::Panicked`.
                if cause.is_check() {
                    reply.running(|signal| signal.check());
                    return false;
                }
                !cause.is_parking() && timer_has_fired(reply, has_lingered, cause)
            }
            Role::HandedOver(_) | Role::Spent => false,
        }
    }

    #[inline]
    fn on_complete(self, completion: Completion) {
        self.end(completion.into());
    }

    #[cold]
    #[inline(never)]
    fn hand_over(&mut self, completion: Option<Completion>, _: Internal) -> bool {
        let (rest, is_awaited) = match mem::replace(&mut self.role, Role::Spent) {
            // There is no completion if `try_complete` has panicked.
            Role::Predicate(condition) => {
                condition.hand_over(completion.map_or(WaitError::Panicked, WaitError::from))
            }
            // A listener's operation has neither a predicate nor a found value. Nothing moves into a promise, so the
            // role stays. `true`: the library need not drop the operation before its turn to be completed.
            role => (role, true),
        };
        self.role = rest;
        is_awaited
    }

    const BELONGS_TO_A_WAIT: bool = true;
}

debug_fields!([K] WaitOperation<K>, "WaitOperation", |it| deadline: it.deadline);
