//! Delayed operations, the causes for which they are examined, and their endings.

use crate::hash::Key;
use crate::time::{Deadline, Timestamp};
use std::any::Any;
use std::task::Waker;
use std::time::Duration;

/// A request that cannot be answered yet.
///
/// The purgatory owns the operation while it waits, and promises:
///
/// * `try_complete` and `on_complete` of one operation never overlap. The library guards each operation by an atomic
///   word of its own, never by a lock of yours.
/// * No lock of the library is held while one of the methods runs, so each may call the purgatory again.
/// * Exactly one ending: either `on_complete` is called once, or the caller that cancelled the operation gets it back.
///   A `try_complete` that panics ends its operation too: the operation is dropped, and the panic is counted in
///   [`Stats::panicked`](crate::purgatory::Stats::panicked).
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not an operation that a purgatory can park",
    label = "does not implement `DelayedOperation`",
    note = "implement `DelayedOperation` for it; or use `Waits`, whose operations are closures"
)]
pub trait DelayedOperation: Send + 'static {
    /// The name of something that operations wait for: a partition, a group member, a request id.
    ///
    /// `Hash`, `Eq` and `Clone` (and `Equivalent`, if a check names the key in a borrowed form) run under locks of the
    /// library: the lock of a map shard, or of the checks that [`check_later`](crate::Purgatory::check_later) defers.
    /// They must not call the library: a debug build panics with the name of the call, a release build may hang.
    type Key: Key;

    /// The longest time that the operation may stay parked. [`Duration::MAX`] never expires.
    ///
    /// Called once, when the operation parks, on the parking thread.
    fn timeout(&self) -> Duration;

    /// Until when the operation may stay parked, read once when it parks. By default its [`timeout`](Self::timeout) from
    /// its [`arrival`](Self::arrival). An operation that has a point in time, because it parks again and again for one
    /// request, implements this instead, and its `timeout` is not called.
    ///
    /// Runs on the parking thread.
    #[inline(always)]
    fn deadline(&self) -> Deadline {
        Deadline::After(self.timeout())
    }

    /// What the operation weighs under [`max_weight`](crate::purgatory::Builder::max_weight): the bytes that it keeps, for
    /// instance. By default 1, as all [waits](crate::Waits) weigh.
    ///
    /// Read once, on the parking thread, when the operation parks: what changes later does not count.
    #[inline(always)]
    fn weight(&self) -> usize {
        1
    }

    /// When the request arrived, if the caller has read the purgatory's clock already: then parking does not read it.
    /// The timeout counts from that reading. If it has passed, the operation expires with the next tick; a reading of the
    /// future makes the deadline later, also past [`max_timeout`](crate::purgatory::Builder::max_timeout), and
    /// changes nothing else.
    ///
    /// Called once, on the parking thread.
    fn arrival(&self) -> Option<Timestamp> {
        None
    }

    /// Whether the operation can complete now.
    ///
    /// Runs on these threads:
    ///
    /// * the parking thread, once before parking and once after it, so that no event in between is missed;
    /// * every thread that checks one of the keys;
    /// * the thread that drives the timer, for deferred checks, and once when the deadline has passed. If another
    ///   thread is examining the operation at the deadline, that thread runs the examination at the deadline instead.
    ///
    /// The answer at the deadline does not change the ending; a yes is counted in
    /// [`Stats::missed_checks`](crate::purgatory::Stats::missed_checks).
    ///
    /// Keep it short: it delays the caller of the check.
    ///
    /// Checks made in here are queued, return 0, and run before the outermost library call on this thread returns. A
    /// check of the same key that the operation repeats within that call is
    ///
    /// * merged with the queued one, while that one waits;
    /// * ignored, if the examination that repeats it comes from such a queued check;
    /// * deferred to the thread that drives the timer instead, if another thread has asked for that examination.
    ///
    /// See [`Purgatory`](crate::Purgatory).
    fn try_complete(&mut self) -> bool;

    /// Whether the operation can complete now; [`cause`](Cause) says why it is examined. The library calls only this
    /// method. By default it calls [`try_complete`](Self::try_complete), and it has the same duties.
    ///
    /// Implement it for an operation that *takes* something when it completes, and watches several keys: examined for
    /// one key, it must take only what belongs to that key. Otherwise a [bounded
    /// check](crate::Purgatory::check_and_complete_with) of one key would be used up by an operation that takes from
    /// another key.
    fn try_complete_for(&mut self, cause: Cause<'_, Self::Key>) -> bool {
        let _ = cause;
        self.try_complete()
    }

    /// Ends the operation.
    ///
    /// The thread depends on the reason:
    ///
    /// * [`Satisfied`](Completion::Satisfied): the thread whose call found the operation satisfied or forced it, or the
    ///   thread that was examining it, before its outermost call returns.
    /// * [`Expired`](Completion::Expired), and a completion by a deferred check
    ///   ([`check_later`](crate::Purgatory::check_later)): the thread that
    ///   [`Builder::dispatch`](crate::purgatory::Builder::dispatch) chooses.
    /// * [`Cancelled`](Completion::Cancelled): the thread that was examining the operation.
    /// * [`ShutDown`](Completion::ShutDown): the thread that shuts the purgatory down, or a thread that is examining
    ///   the operation.
    ///
    /// Completions never nest: a completion caused inside a callback runs after that callback, before the outermost
    /// call of the library on that thread returns. The exception is a thread that is ending, where they nest.
    fn on_complete(self, completion: Completion);

    /// The operation has ended so (`None`: a hook has panicked), and other code of users' may run before it is completed or
    /// dropped. An operation of a future leaves with that what it holds of the user's. `false` if the future is gone:
    /// then the operation is not to wait for others. Runs no code of the user's.
    #[doc(hidden)]
    #[inline(always)]
    fn hand_over(&mut self, _: Option<Completion>, _: Internal) -> bool {
        true
    }
}

/// What only the library can name: an argument of methods that users neither call nor implement.
#[derive(Debug, Clone, Copy)]
pub struct Internal;

/// For what an operation is examined: see [`try_complete_for`](DelayedOperation::try_complete_for).
///
/// | it is examined because | [`key`](Self::key) | |
/// |---|---|---|
/// | it is being parked | `None` | [`is_parking`](Self::is_parking) |
/// | a call checks one of its keys | that key | |
/// | its deadline has passed | `None` | [`is_deadline`](Self::is_deadline) |
/// | another thread checked while this one was examining it; several keys are checked as one event; a [handle](crate::Handle::check) | `None` | |
///
/// In the last row one examination may answer several checks, so no key is named, and the operation may take from any
/// of its keys.
///
/// Only the library makes a cause. To test your own `try_complete_for`, use a purgatory without a thread:
///
/// ```
/// use request_purgatory::purgatory::Cause;
/// use request_purgatory::threads::Reaper;
/// use request_purgatory::time::ManualClock;
/// use request_purgatory::{Completion, DelayedOperation, Purgatory};
/// use std::sync::mpsc::{Sender, channel};
/// use std::time::Duration;
///
/// struct Pop(Sender<String>);
///
/// impl DelayedOperation for Pop {
///     type Key = u32;
///     fn timeout(&self) -> Duration { Duration::from_secs(1) }
///     fn try_complete(&mut self) -> bool { false }
///     fn try_complete_for(&mut self, cause: Cause<'_, u32>) -> bool {
///         let other = if cause.is_deadline() { "deadline" } else { "any" };
///         let asked = cause.key().map_or(other.to_owned(), u32::to_string);
///         self.0.send(asked).is_err()
///     }
///     fn on_complete(self, _: Completion) {}
/// }
///
/// let (clock, (asked, causes)) = (ManualClock::new(), channel());
/// let pops = Purgatory::<Pop>::builder("test").clock(clock.clone()).reaper(Reaper::Manual).build()?;
/// let handle = pops.try_complete_else_watch(Pop(asked), [1, 2])?.into_handle();
/// pops.check_and_complete(&2); // one key
/// handle.expect("it is parked").check(); // no key
/// clock.advance(Duration::from_secs(1));
/// pops.advance(); // the deadline
/// let causes = causes.iter().collect::<Vec<_>>(); // twice while it was parked
/// assert_eq!(causes, ["any", "any", "2", "any", "deadline"]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Cause<'a, K> {
    kind: Kind<'a, K>,
    /// The operation's access to its own waker and deadline.
    reach: Option<&'a dyn Reach>,
}

enum Kind<'a, K> {
    Parking,
    /// Finds the key among those of the operation.
    Key(&'a dyn Fn() -> Option<&'a K>),
    Deadline,
    /// A wake-up before the deadline, which the listener has asked for.
    Recheck {
        /// Whether the listener's operation may end now.
        last: bool,
    },
    Other,
}

/// An operation's access to its own waker and deadline, during an examination.
pub(crate) trait Reach {
    /// Makes a waker that has the operation examined.
    fn waker(&self) -> Waker;

    /// Lets the operation expire then instead; a timeout counts from the end of the examination.
    fn reschedule(&self, deadline: Deadline);

    /// What examines it: an `Inner` of a purgatory.
    fn purgatory(&self) -> &dyn Any;

    /// Keeps an operation that is examined for its deadline parked for `time` more.
    fn linger(&self, _time: Duration) {}
}

impl<'a, K> Cause<'a, K> {
    /// The cause for a method that is called by hand.
    pub(crate) const NONE: Self = Self {
        kind: Kind::Other,
        reach: None,
    };

    #[inline(always)]
    fn reaching(kind: Kind<'a, K>, reach: &'a dyn Reach) -> Self {
        Self {
            kind,
            reach: Some(reach),
        }
    }

    #[inline(always)]
    pub(crate) fn parking(reach: &'a dyn Reach) -> Self {
        Self::reaching(Kind::Parking, reach)
    }

    pub(crate) fn deadline(reach: &'a dyn Reach) -> Self {
        Self::reaching(Kind::Deadline, reach)
    }

    #[inline(always)]
    pub(crate) fn other(reach: &'a dyn Reach) -> Self {
        Self::reaching(Kind::Other, reach)
    }

    /// The check of a key. `find` finds that key among the keys of the operation; its `None` means that `Eq`
    /// contradicts itself.
    #[inline(always)]
    pub(crate) fn of_key(find: &'a dyn Fn() -> Option<&'a K>, reach: &'a dyn Reach) -> Self {
        Self::reaching(Kind::Key(find), reach)
    }

    /// The cause of a wake-up of a listener with rechecks.
    pub(crate) fn recheck(last: bool) -> Self {
        Self {
            kind: Kind::Recheck { last },
            reach: None,
        }
    }

    /// The checked key, as the operation's own value of it. `None` if the operation is examined for another reason, or
    /// if one examination answers several checks.
    ///
    /// Compares keys of the operation with the checked key (`Eq`, or `Equivalent`), until one is equal. For a resolved
    /// key that was checked by the plain key, takes the lock of the key's list for an instant.
    pub fn key(&self) -> Option<&'a K> {
        match self.kind {
            Kind::Key(find) => find(),
            Kind::Parking | Kind::Deadline | Kind::Recheck { .. } | Kind::Other => None,
        }
    }

    /// A waker of this operation. A wake-up has the operation examined again, by the thread that drives the timer, as
    /// [`check_later`](crate::Purgatory::check_later) of one of its keys would, but only this operation. So an
    /// operation can own a future, and poll it in every examination.
    ///
    /// Properties of the waker:
    ///
    /// * It may be woken on any thread, any number of times, also under locks of yours: `wake` runs no user code except
    ///   a reactor's wake function.
    /// * A wake-up before the operation ends, even before it has parked, is followed by an examination that begins
    ///   after the wake-up, unless the operation ends first. Wake-ups before that examination begins are merged.
    /// * A wake-up during the examination at the deadline finds an operation that is about to expire. An operation that
    ///   waits for something asks for [more time](Self::reschedule) in that examination.
    /// * After the end of the operation, a wake-up does nothing.
    /// * The waker keeps neither the operation nor the purgatory alive.
    ///
    /// Every call allocates a new waker, and each waker is valid for the whole life of the operation: call this once,
    /// and keep the waker. If you call `try_complete_for` by hand, the waker does nothing.
    pub fn waker(&self) -> Waker {
        let reach = self.reach;
        reach.map_or_else(|| Waker::noop().clone(), Reach::waker)
    }

    /// Lets the operation expire `timeout` from now instead, or at a [point in time](Deadline) (`None`: never), unless this
    /// examination completes it. Of several calls in one examination the last counts.
    ///
    /// The new deadline takes effect when the examination returns, as [`Handle::reschedule`](crate::Handle::reschedule)
    /// would at that moment: not if the old deadline has come meanwhile, in which case the examination at the deadline
    /// follows.
    ///
    /// In the examination at the deadline ([`is_deadline`](Self::is_deadline)), the call asks for more time: the
    /// operation stays parked, for at least one tick, and is examined again at the new deadline. Each such extension is
    /// counted in [`Stats::extended`](crate::purgatory::Stats::extended). An operation that calls this in *every*
    /// examination never expires.
    ///
    /// An operation can move its own deadline at most to [`max_timeout`](crate::purgatory::Builder::max_timeout) after
    /// its arrival, and expires then. For a handle, the bound counts from its call instead.
    ///
    /// Reads the clock and takes the lock of a timer shard, after the examination. If the clock panics, that counts as
    /// a panic of the examination; in the examination at the deadline, the operation expires.
    #[doc(alias = "linger")]
    #[doc(alias = "debounce")]
    #[doc(alias = "batch")]
    pub fn reschedule(&self, timeout: impl Into<Deadline>) {
        if let Some(reach) = self.reach {
            reach.reschedule(timeout.into());
        }
    }

    /// For the operation of a listener, examined for the deadline that it has told the listener of: it stays parked for
    /// `time` more, also past [`max_timeout`](crate::purgatory::Builder::max_timeout), so that checks reach it until
    /// the listener has evaluated its condition.
    pub(crate) fn linger(&self, time: Duration) {
        if let Some(reach) = self.reach {
            reach.linger(time);
        }
    }

    /// Whether the operation is being parked: in the examination before its keys are watched, or in the one after.
    pub fn is_parking(&self) -> bool {
        matches!(self.kind, Kind::Parking)
    }

    /// Whether the deadline has passed. In this examination the operation may search more thoroughly than in a check.
    /// The answer does not change the ending, and a yes is counted in
    /// [`Stats::missed_checks`](crate::purgatory::Stats::missed_checks). The operation expires, unless it answers no
    /// and has asked for [more time](Self::reschedule).
    pub fn is_deadline(&self) -> bool {
        matches!(self.kind, Kind::Deadline)
    }

    /// What examines the operation: an `Inner` of a purgatory. `None` if the method is called by hand.
    pub(crate) fn purgatory(&self) -> Option<&'a dyn Any> {
        self.reach.map(Reach::purgatory)
    }

    /// Whether a listener's operation is woken before its deadline, and if so, whether it may end now.
    pub(crate) fn as_recheck(&self) -> Option<bool> {
        match self.kind {
            Kind::Recheck { last } => Some(last),
            _ => None,
        }
    }

    /// Whether a key or a handle was checked, by this thread or by another one.
    pub(crate) fn is_check(&self) -> bool {
        matches!(self.kind, Kind::Key(_) | Kind::Other)
    }
}

impl<K> Clone for Kind<'_, K> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<K> Copy for Kind<'_, K> {}

impl<K> Clone for Cause<'_, K> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<K> Copy for Cause<'_, K> {}

debug_fields!(
    [K] Cause<'_, K>, "Cause",
    |it| is_parking: it.is_parking(), is_check: it.is_check(), is_deadline: it.is_deadline()
);

/// How an operation ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Completion {
    /// `try_complete` said yes, or the operation was forced to complete.
    Satisfied,
    /// The timeout passed first.
    Expired,
    /// The operation was cancelled while it was being examined. A cancel does not wait: its caller got `None`, and the
    /// examining thread ended the operation. A cancel that returns the operation causes no completion. If a key's panic
    /// interrupts `cancel_for_key`, the operations that it had taken back are completed as cancelled.
    Cancelled,
    /// The purgatory was shut down.
    ShutDown,
}
