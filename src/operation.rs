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
///   (A `try_complete` that panics ends its operation too: the operation is dropped, and the panic is counted in
///   [`Stats::panicked`](crate::purgatory::Stats::panicked).)
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not an operation that a purgatory can park",
    label = "does not implement `DelayedOperation`",
    note = "implement `DelayedOperation` for it; or use `Waits`, whose operations are closures"
)]
pub trait DelayedOperation: Send + 'static {
    /// The name of something that operations wait for: a partition, a group member, a request id.
    ///
    /// `Hash`, `Eq` and `Clone` (and `Equivalent`, where a check names the key in another form) run under locks of the
    /// library: that of a map shard, or of the checks that [`check_later`](crate::Purgatory::check_later) defers. They
    /// must not call the library: a debug build panics with the name of the call, a release build may hang.
    type Key: Key;

    /// The longest time the operation may stay parked, read once when it parks. [`Duration::MAX`] never expires.
    ///
    /// Runs on the parking thread.
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
    /// Read once, on the parking thread.
    fn arrival(&self) -> Option<Timestamp> {
        None
    }

    /// Whether the operation can complete now.
    ///
    /// Runs on the parking thread (once before parking and once after, so that no event is missed in between), on every
    /// thread that checks one of the keys, and on the thread that drives the timer: for deferred checks, and once when
    /// the deadline has passed (on another thread, if that is examining the operation). The answer at the deadline decides
    /// nothing; a yes is counted in [`Stats::missed_checks`](crate::purgatory::Stats::missed_checks).
    ///
    /// Keep it short: it delays the caller of the check. A check that it makes returns 0, and runs later: before the
    /// outermost call of the library on this thread returns. If the operation checks the same key again within that call,
    /// the second check is one with the first while that waits. A check that it makes when such a later check examines it
    /// is ignored, or, if another thread has asked for this examination, made by the thread that drives the timer. See
    /// [`Purgatory`](crate::Purgatory).
    fn try_complete(&mut self) -> bool;

    /// Whether the operation can complete now; `cause` says [for what](Cause) it is examined. The library calls this method
    /// only; by default it calls [`try_complete`](Self::try_complete), whose duties it has.
    ///
    /// An operation that *takes* something when it completes, and watches several keys, implements it: examined for one
    /// key, it takes only what belongs to that key. So a [bounded check](crate::Purgatory::check_and_complete_with) of
    /// that key is not used up by an operation that takes from another key.
    fn try_complete_for(&mut self, cause: Cause<'_, Self::Key>) -> bool {
        let _ = cause;
        self.try_complete()
    }

    /// Ends the operation.
    ///
    /// The thread depends on the reason:
    ///
    /// * [`Satisfied`](Completion::Satisfied): the thread whose call found it so or forced it, or that was examining it,
    ///   before its outermost call returns.
    /// * [`Expired`](Completion::Expired), and what a deferred check ([`check_later`](crate::Purgatory::check_later))
    ///   completes: the one that [`Builder::dispatch`](crate::purgatory::Builder::dispatch) chooses.
    /// * [`Cancelled`](Completion::Cancelled): the one that was examining the operation.
    /// * [`ShutDown`](Completion::ShutDown): the thread that shuts the purgatory down, or one that is examining the
    ///   operation.
    ///
    /// Completions never nest: one that is caused inside a callback runs after that callback, before the outermost call
    /// of the library on that thread returns. (On a thread that is just ending, they do.)
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
/// In the last row one examination may stand for several checks, so no key is named: an operation may take from any of
/// its keys then.
///
/// Only the library makes a cause. A test of your own `try_complete_for` lets it, with a purgatory that has no thread:
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
    /// What the operation can reach of itself.
    reach: Option<&'a dyn Reach>,
}

enum Kind<'a, K> {
    Parking,
    /// Finds the key among those of the operation.
    Key(&'a dyn Fn() -> Option<&'a K>),
    Deadline,
    /// A time for which a listener has asked has come, before the deadline.
    Recheck {
        /// The listener's operation may end now.
        last: bool,
    },
    Other,
}

/// What an operation can reach of itself while it is examined.
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
    /// The method of an operation is called by hand.
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

    /// The check of a key. `find` finds that key among the keys of the operation: `None` only if `Eq` contradicts itself.
    #[inline(always)]
    pub(crate) fn of_key(find: &'a dyn Fn() -> Option<&'a K>, reach: &'a dyn Reach) -> Self {
        Self::reaching(Kind::Key(find), reach)
    }

    /// For the operation of a listener with rechecks.
    pub(crate) fn recheck(last: bool) -> Self {
        Self {
            kind: Kind::Recheck { last },
            reach: None,
        }
    }

    /// The key that is checked, as the operation's own value of it. `None` if the operation is examined for another
    /// reason, or if one examination stands for several checks.
    ///
    /// Compares keys of the operation with the one that is checked (`Eq`, or `Equivalent`), until one is equal. For a
    /// resolved key that was checked by the plain one, it takes the lock of the key's list for an instant.
    pub fn key(&self) -> Option<&'a K> {
        match self.kind {
            Kind::Key(find) => find(),
            Kind::Parking | Kind::Deadline | Kind::Recheck { .. } | Kind::Other => None,
        }
    }

    /// A waker of this operation: to wake it has the operation examined again, by the thread that drives the timer, as
    /// [`check_later`](crate::Purgatory::check_later) of one of its keys would, but this operation alone. So an operation
    /// can own a future, and poll it in every examination.
    ///
    /// It may be woken on any thread, any number of times, also under locks of yours: no user code runs in `wake` but a
    /// reactor's wake function. Woken at any time before the operation ends, even before it has parked, it is followed by
    /// an examination that begins after the wake-up, unless the operation ends first. A wake-up during the examination for
    /// the deadline finds an operation that is about to expire: an operation that waits for something asks there for
    /// [more time](Self::reschedule). Woken after the end, the waker does nothing. Wake-ups that come before that
    /// examination begins are merged. The waker keeps neither the operation nor the purgatory alive.
    ///
    /// Every call makes a new waker, which is an allocation. Any of them is good for the whole life of the operation: ask
    /// once, and keep it. Where you call the method of an operation by hand, the waker does nothing.
    pub fn waker(&self) -> Waker {
        let reach = self.reach;
        reach.map_or_else(|| Waker::noop().clone(), Reach::waker)
    }

    /// Lets the operation expire `timeout` from now instead, or at a [point in time](Deadline) (`None`: never), unless this
    /// examination completes it. Of several calls in one examination the last counts.
    ///
    /// It takes effect when the examination returns, as [`Handle::reschedule`](crate::Handle::reschedule) would then: not
    /// if the deadline has come meanwhile. An examination for the deadline follows then.
    ///
    /// In the examination for the deadline ([`is_deadline`](Self::is_deadline)), the call asks for more time: the operation
    /// stays parked, for one tick at least, and is examined again at the new deadline. Each such extension is counted in
    /// [`Stats::extended`](crate::purgatory::Stats::extended). An operation that calls this in *every* examination never
    /// expires.
    ///
    /// Other than by a handle, an operation does not get beyond
    /// [`max_timeout`](crate::purgatory::Builder::max_timeout), counted from its arrival: there it expires.
    ///
    /// Reads the clock and takes the lock of a timer shard, after the examination. If the clock panics then, that is a
    /// panic of the examination; in the examination for the deadline, the operation expires.
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

    /// Whether the operation is being parked: the examination before it is watched, or the one after.
    pub fn is_parking(&self) -> bool {
        matches!(self.kind, Kind::Parking)
    }

    /// Whether the deadline has passed. The operation may look further then than it does in every check. The answer decides
    /// nothing, and a yes is counted in [`Stats::missed_checks`](crate::purgatory::Stats::missed_checks). After a no, the
    /// operation expires, unless it has asked for [more time](Self::reschedule).
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

    /// Whether a key or a handle was checked, by this thread or by another.
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
    /// The operation was cancelled while it was being examined. A cancel does not wait, so its caller got `None`, and the
    /// examining thread ended the operation. (Or `cancel_for_key` had taken the operation back, and then a key panicked.)
    /// A cancel that returns the operation causes no completion.
    Cancelled,
    /// The purgatory was shut down.
    ShutDown,
}
