//! Delayed operations, the causes for which they are examined, and their endings.

use crate::hash::Key;
use crate::time::{Deadline, Timestamp};
use std::any::Any;
use std::task::Waker;
use std::time::Duration;

/// A request that cannot be answered yet: a type of your own.
///
/// Implement this trait if the request has state, completes by a callback, or moves its own deadline. For a condition
/// that a task awaits, [`Waits`](crate::Waits) needs no type.
///
/// ```
/// use request_purgatory::{Completion, DelayedOperation, Purgatory};
/// use std::sync::atomic::{AtomicU64, Ordering};
/// use std::sync::{Arc, mpsc};
/// use std::time::Duration;
///
/// /// A record that two of three replicas must have before its producer gets an answer.
/// struct Produce {
///     offset: u64,
///     replicas: Arc<[AtomicU64; 3]>,
///     producer: mpsc::Sender<Completion>,
/// }
///
/// impl DelayedOperation for Produce {
///     type Key = u32; // the number of the partition
///
///     fn timeout(&self) -> Duration {
///         Duration::from_secs(30)
///     }
///
///     fn try_complete(&mut self) -> bool {
///         let has_record = |end: &&AtomicU64| end.load(Ordering::Acquire) > self.offset;
///         self.replicas.iter().filter(has_record).count() >= 2
///     }
///
///     fn on_complete(self, completion: Completion) {
///         let _ = self.producer.send(completion); // an error means that the producer has gone
///     }
/// }
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let replicas = Arc::new([const { AtomicU64::new(10) }; 3]);
/// let (producer, answer) = mpsc::channel();
/// let produces = Purgatory::new("produce");
/// let produce = Produce { offset: 10, replicas: replicas.clone(), producer };
/// produces.try_complete_else_watch(produce, [7])?;
///
/// for (replica, completed) in [(0, 0), (2, 1)] {
///     replicas[replica].store(11, Ordering::Release); // first the change,
///     assert_eq!(produces.check_and_complete(&7), completed); // then the check
/// }
/// assert_eq!(answer.recv()?, Completion::Satisfied);
/// # Ok(())
/// # }
/// ```
///
/// The purgatory owns the operation while it waits, and promises:
///
/// * `try_complete` and `on_complete` of one operation never overlap. The library guards each operation by an atomic
///   word, never by a lock of yours.
/// * No lock of the library is held while one of the methods runs, so each may call the purgatory again.
/// * Each operation has exactly one ending: either `on_complete` is called once, or the caller that cancelled the
///   operation gets the operation back. A panic of `try_complete` is an ending too: the operation is dropped, and the
///   panic is counted in [`Stats::panicked`](crate::purgatory::Stats::panicked), or passed on to the caller of the park
///   in which it happened.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not an operation that a purgatory can park",
    label = "does not implement `DelayedOperation`",
    note = "implement `DelayedOperation` for it; or use `Waits`, whose operations are closures"
)]
pub trait DelayedOperation: Send + 'static {
    /// The name of something that operations wait for: a partition, a group member, a request id.
    ///
    /// `Hash`, `Eq` and `Clone` (and `Equivalent`, if a check names the key in a borrowed form) run under a lock of the
    /// library: that of a map shard, of the queue of [`check_later`](crate::Purgatory::check_later), or of the keys
    /// that are [added](crate::Listener::also) to a listener. These methods must not call the library: a debug build
    /// panics with the name of the call, a release build may hang.
    type Key: Key;

    /// The longest time that the operation may stay parked. With [`Duration::MAX`] it never expires.
    ///
    /// Called once, when the operation parks, on the parking thread.
    fn timeout(&self) -> Duration;

    /// The time until which the operation may stay parked. By default this is the [`timeout`](Self::timeout), counted
    /// from the [`arrival`](Self::arrival). Implement this method for an operation whose deadline is a point in time,
    /// for example because it parks several times for one request. The library then does not call `timeout`.
    ///
    /// Called once, when the operation parks, on the parking thread.
    #[inline(always)]
    fn deadline(&self) -> Deadline {
        Deadline::After(self.timeout())
    }

    /// The weight of the operation, for example the number of bytes that it keeps. The builder's
    /// [`max_weight`](crate::purgatory::Builder::max_weight) bounds the sum of all weights. By default 1. Every
    /// [wait](crate::Waits) weighs 1.
    ///
    /// Called once, when the operation parks, on the parking thread. Later changes of the weight do not count.
    #[inline(always)]
    fn weight(&self) -> usize {
        1
    }

    /// When the request arrived, if the caller has already read the purgatory's clock; `None` to count from the park.
    /// With an arrival, the park does not read the clock, and the timeout counts from the arrival. If the timeout has
    /// passed before the operation parks, the operation expires when the timer is next driven. An arrival in the future
    /// makes the deadline later, even later than [`max_timeout`](crate::purgatory::Builder::max_timeout) allows, and
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
    /// * the parking thread: once before the keys are watched, and once after that, so that no event in between is
    ///   missed;
    /// * every thread that checks one of the keys;
    /// * the thread that drives the timer: for deferred checks, and once when the deadline has passed. If another
    ///   thread is examining the operation when the deadline passes, that thread also runs the examination at the
    ///   deadline.
    ///
    /// The answer at the deadline does not change the ending. A yes at the deadline is counted in
    /// [`Stats::missed_checks`](crate::purgatory::Stats::missed_checks), if the thread that drives the timer has made
    /// this examination.
    ///
    /// Keep the method short: it delays the caller of the check.
    ///
    /// A check made in this method returns 0. The library queues the check, and makes it before the outermost library
    /// call on this thread returns. If the operation checks the same key again within that outermost call, there are
    /// three cases:
    ///
    /// * The first check is still queued. Then the two checks are merged.
    /// * The first check has been made, and the second check comes from a `try_complete` that no queued check has
    ///   called. Then the second check is queued too.
    /// * The first check has been made, and the second check comes from a `try_complete` that a queued check has
    ///   called. Then the second check is ignored: otherwise operations that check one another's keys would go on for
    ///   ever. But if this `try_complete` runs because another thread has asked for one more examination of the
    ///   operation, the second check is deferred to the thread that drives the timer.
    fn try_complete(&mut self) -> bool;

    /// Whether the operation can complete now; [`cause`](Cause) says why it is examined. The library always calls this
    /// method, whose default calls [`try_complete`](Self::try_complete). What is said of `try_complete` (its threads,
    /// its duties) applies to both methods.
    ///
    /// Implement this method for an operation that *takes* something when it completes, and that watches several keys.
    /// When the cause names a key, the operation must take only what belongs to that key. A [bounded
    /// check](crate::Purgatory::check_and_complete_with) of the key counts every operation that answers yes. If one of
    /// these operations took an item of another key, the check would stop too early, and an item of the checked key
    /// would be left.
    fn try_complete_for(&mut self, cause: Cause<'_, Self::Key>) -> bool {
        let _ = cause;
        self.try_complete()
    }

    /// Ends the operation.
    ///
    /// Runs on one of these threads, depending on how the operation ended:
    ///
    /// * [`Satisfied`](Completion::Satisfied): the thread whose check or forced completion has ended the operation. If
    ///   another thread was examining the operation during that call: the examining thread, before its outermost call
    ///   returns.
    /// * [`Expired`](Completion::Expired), and a completion by a deferred check
    ///   ([`check_later`](crate::Purgatory::check_later)): the thread that
    ///   [`Builder::dispatch`](crate::purgatory::Builder::dispatch) chooses.
    /// * [`Cancelled`](Completion::Cancelled): the thread that was examining the operation when it was cancelled.
    /// * [`ShutDown`](Completion::ShutDown): the thread that shuts the purgatory down, or a thread that is examining
    ///   the operation.
    ///
    /// Completions never nest: a completion that a callback causes runs after that callback, before the outermost call
    /// of the library on that thread returns. Exception: on a thread that is ending, completions may nest.
    fn on_complete(self, completion: Completion);

    /// Called for an operation that has ended, before the library runs user code that could delay the operation's
    /// `on_complete`. If a future awaits the operation's end, moves the operation's closure and its result, which are
    /// values of the user's types, into the state that the operation shares with the future. So if the future is
    /// dropped before `on_complete` runs, the drop of the future drops these values too.
    ///
    /// The argument is the completion, or `None` if `try_complete` has panicked. Returns `false` if the future was
    /// dropped before this call: the values then stay in the operation, and the library drops them soon, not after the
    /// completions of other operations. Runs no user code.
    #[doc(hidden)]
    #[inline(always)]
    fn hand_over(&mut self, _: Option<Completion>, _: Internal) -> bool {
        true
    }

    /// Whether every operation of this type belongs to a future, callback or listener, so that only the calls that make
    /// those may park it.
    #[doc(hidden)]
    const BELONGS_TO_A_WAIT: bool = false;
}

/// A type that only the library can name, so that users can neither call nor implement the methods that take it.
#[derive(Debug, Clone, Copy)]
pub struct Internal;

/// Why an operation is examined: the argument of [`try_complete_for`](DelayedOperation::try_complete_for).
///
/// | the operation is examined because | [`key`](Self::key) | |
/// |---|---|---|
/// | it is being parked | `None` | [`is_parking`](Self::is_parking) |
/// | a call checks one of its keys | that key | |
/// | its deadline has passed | `None` | [`is_deadline`](Self::is_deadline) |
/// | another thread checked it while this thread was examining it | `None` | |
/// | several keys are checked as one event | `None` | |
/// | a [handle](crate::Handle::check) or a [waker](Self::waker) asks for an examination | `None` | |
///
/// In the last three rows, one examination may answer several checks, of different keys. So the cause names no key. An
/// operation that takes an item when it completes may then take an item of any of its keys.
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
    /// The operation's access to its own waker and deadline. `None` for a recheck (a wake-up of a listener without a
    /// check), and if the user calls `try_complete`.
    reach: Option<&'a dyn Reach>,
}

enum Kind<'a, K> {
    Parking,
    /// Finds the checked key among the keys of the operation.
    Key(&'a dyn Fn() -> Option<&'a K>),
    Deadline,
    /// The timer of a listener's operation has fired before the deadline, because the listener has asked for a recheck.
    Recheck {
        /// `false`: the operation wakes the listener, and stays parked. `true`: an earlier recheck has found the
        /// listener's condition true, and the operation ends now.
        last: bool,
    },
    Other,
}

/// An operation's access to its own waker and deadline, during an examination.
pub(crate) trait Reach {
    /// Makes a waker whose wake-up causes another examination of the operation.
    fn waker(&self) -> Waker;

    /// Asks for `deadline` as the operation's new deadline. The deadline moves after the examination, if the answer was
    /// no. A timeout counts from the end of the examination.
    fn reschedule(&self, deadline: Deadline);

    /// The `Inner` of the purgatory that examines the operation. This is the state that all clones of the purgatory
    /// share.
    fn purgatory(&self) -> &dyn Any;

    /// Used in the examination at the deadline: keeps the operation parked for another `time`.
    fn linger(&self, time: Duration);
}

impl<'a, K> Cause<'a, K> {
    /// The cause if the user, and not the library, calls the operation's `try_complete`.
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

    /// The cause when a key is checked. `find` looks for the checked key among the keys of the operation. `find`
    /// returns `None` only if the `Eq` of the keys contradicts itself.
    #[inline(always)]
    pub(crate) fn of_key(find: &'a dyn Fn() -> Option<&'a K>, reach: &'a dyn Reach) -> Self {
        Self::reaching(Kind::Key(find), reach)
    }

    /// The cause when a listener's operation is woken before its deadline. With `last` false, the wake-up is a
    /// [recheck](crate::Listener::recheck_every): the listener evaluates its condition, although no key was checked.
    /// With `last` true, an earlier recheck has found the condition true. Since then the operation has stayed parked
    /// for another 100 ms, in case a check was only late, and this time is over.
    pub(crate) fn recheck(last: bool) -> Self {
        Self {
            kind: Kind::Recheck { last },
            reach: None,
        }
    }

    /// The key that was checked, as the operation knows it: the one of its own keys that is equal to the checked key.
    /// `None` if the operation is examined for another reason, or if one examination answers several checks.
    ///
    /// Compares the operation's keys with the checked key (by `Eq` or `Equivalent`) until one is equal. If the
    /// operation watches a key by a [`ResolvedKey`](crate::ResolvedKey), and the caller of the check has passed a key
    /// and no `ResolvedKey`, the comparison takes the lock of the key's list for an instant.
    pub fn key(&self) -> Option<&'a K> {
        match self.kind {
            Kind::Key(find) => find(),
            Kind::Parking | Kind::Deadline | Kind::Recheck { .. } | Kind::Other => None,
        }
    }

    /// A waker of this operation, with which the operation can own a future and poll it in every examination. A wake-up
    /// makes the thread that drives the timer examine this operation, as [`check_later`](crate::Purgatory::check_later)
    /// makes that thread check a whole key.
    ///
    /// Properties of the waker:
    ///
    /// * It may be woken on any thread, any number of times, also while you hold locks: `wake` runs no user code except
    ///   a reactor's wake function.
    /// * Each wake-up before the end of the operation, even a wake-up before the park, is followed by an examination
    ///   that begins after the wake-up, unless the operation ends first. One examination may follow several wake-ups.
    /// * A wake-up during the examination at the deadline comes too late: the operation expires after this examination.
    ///   If the operation still waits for something, it asks for [more time](Self::reschedule) in this examination.
    /// * After the end of the operation, a wake-up does nothing.
    /// * The waker keeps neither the operation nor the purgatory alive.
    ///
    /// A call may allocate. Each waker is valid for the whole life of the operation, so one call is enough: keep the
    /// waker. If your own code calls `try_complete_for` directly, the waker does nothing.
    pub fn waker(&self) -> Waker {
        let reach = self.reach;
        reach.map_or_else(|| Waker::noop().clone(), Reach::waker)
    }

    /// Moves the deadline to `timeout` from the end of this examination, or to a [point in time](Deadline) (`None`:
    /// never). Does nothing if this examination answers yes. If one examination calls this method several times, the
    /// last call counts.
    ///
    /// The deadline moves when the examination has returned, as by a call of
    /// [`Handle::reschedule`](crate::Handle::reschedule). If the old deadline has passed before the examination
    /// returns, the old deadline stays, and the examination at the deadline follows.
    ///
    /// In the examination at the deadline ([`is_deadline`](Self::is_deadline)), this call asks for more time: the
    /// operation stays parked, for at least one tick, and is examined again at the new deadline. Each such extension is
    /// counted in [`Stats::extended`](crate::purgatory::Stats::extended).
    ///
    /// If the system refuses the reaper's thread, a park whose first examination makes this call is rejected. After
    /// every other examination the deadline moves all the same. An operation whose new deadline passes while there is
    /// no thread expires once a later call has started the thread, or in the next
    /// [`advance`](crate::Purgatory::advance).
    ///
    /// The new deadline is at most [`max_timeout`](crate::purgatory::Builder::max_timeout) after the operation's
    /// arrival. Without a `max_timeout`, an operation that calls this method in *every* examination never expires. For
    /// a call of [`Handle::reschedule`](crate::Handle::reschedule), `max_timeout` counts from that call instead.
    ///
    /// When the examination has returned, the library reads the clock and takes the lock of a timer shard and, in a
    /// purgatory with [listeners](crate::Listener), the lock of the times at which they are woken. A panic of the clock
    /// counts as a panic of the examination. After the examination at the deadline, such a panic lets the operation
    /// expire.
    #[doc(alias = "linger")]
    #[doc(alias = "debounce")]
    #[doc(alias = "batch")]
    pub fn reschedule(&self, timeout: impl Into<Deadline>) {
        if let Some(reach) = self.reach {
            reach.reschedule(timeout.into());
        }
    }

    /// Called in the examination of a listener's operation at its deadline. Keeps the operation parked longer, for
    /// `time` from now, even beyond [`max_timeout`](crate::purgatory::Builder::max_timeout). So checks still reach the
    /// listener while it evaluates its condition for the last time.
    pub(crate) fn linger(&self, time: Duration) {
        if let Some(reach) = self.reach {
            reach.linger(time);
        }
    }

    /// Whether the operation is being parked. A park examines it twice: before its keys are watched, and after that.
    pub fn is_parking(&self) -> bool {
        matches!(self.kind, Kind::Parking)
    }

    /// Whether the cause is a check, made by this thread or by another one: of a key, of several keys, by a handle, or
    /// by a [waker](Self::waker). For example, an operation that is to expire one second after its last check calls
    /// [`reschedule`](Self::reschedule) in every examination for which this is `true`, and in no other.
    pub fn is_check(&self) -> bool {
        matches!(self.kind, Kind::Key(_) | Kind::Other)
    }

    /// Whether this is the examination at the deadline. In this examination the operation may search more thoroughly
    /// than in a check. A yes does not change the ending: the operation expires, and the yes is counted in
    /// [`Stats::missed_checks`](crate::purgatory::Stats::missed_checks), as
    /// [`try_complete`](DelayedOperation::try_complete) says. After a no the operation expires too, unless it has asked
    /// for [more time](Self::reschedule).
    pub fn is_deadline(&self) -> bool {
        matches!(self.kind, Kind::Deadline)
    }

    /// The `Inner` of the purgatory that examines the operation. `None` for a recheck, and if the user calls
    /// `try_complete`.
    pub(crate) fn purgatory(&self) -> Option<&'a dyn Any> {
        self.reach.map(Reach::purgatory)
    }

    /// If a listener's operation is woken before its deadline: whether the operation ends now (`last` of
    /// `Kind::Recheck`). `None` for every other cause.
    pub(crate) fn as_recheck(&self) -> Option<bool> {
        match self.kind {
            Kind::Recheck { last } => Some(last),
            _ => None,
        }
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
    /// The operation was cancelled while it was being examined. The cancel did not wait: it returned without the
    /// operation, and the examining thread ended the operation. A cancel that returns the operation causes no
    /// completion. If a panic of a key interrupts `cancel_for_key`, the operations that this call has already ended are
    /// completed as cancelled.
    Cancelled,
    /// The purgatory was shut down.
    ShutDown,
}
