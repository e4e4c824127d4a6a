//! Statistics: [`Stats`].

// Counters belong to a timer shard, so that no cache line is written by every thread. One set of `Counters` is written
// under the shard's lock, one without it by the thread that has the shard's number (adding is a plain store in both),
// and one by all other threads, by atomic addition. Readers add up all of them.

use crate::sync::{AtomicU64, CachePadded, Ordering};
use std::time::Duration;

/// How an operation ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ending {
    Satisfied,
    Forced,
    Expired,
    Cancelled,
    ShutDown,
    /// Its `try_complete` panicked, or one of its keys while they were being watched.
    Aborted,
}

impl Ending {
    const COUNT: usize = Self::Aborted as usize + 1;
}

/// A counter.
#[derive(Debug, Default)]
pub(crate) struct Count(AtomicU64);

// ORDERING: Relaxed throughout: counters are compared at quiescent moments, which some other synchronisation (a join, a
// lock, a channel) has made. Where a drain or a shutdown waits for one, fences order what lies around it:
// `Passes::begin`, `completions_have_run`.
impl Count {
    pub(crate) fn read(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// For any thread.
    #[inline]
    pub(crate) fn add(&self, n: u64) {
        self.0.fetch_add(n, Ordering::Relaxed);
    }

    /// As [`add`](Self::add), and returns the count that this makes.
    #[inline]
    pub(crate) fn add_and_read(&self, n: u64) -> u64 {
        self.0.fetch_add(n, Ordering::Relaxed) + n
    }

    /// For the one thread that has the lock of this counter.
    #[inline]
    pub(crate) fn add_exclusively(&self, n: u64) {
        self.0.store(
            self.0.load(Ordering::Relaxed).wrapping_add(n),
            Ordering::Relaxed,
        );
    }

    /// For sums that may exceed a counter: they stop at its maximum.
    pub(crate) fn add_saturating(&self, n: u64) {
        let sum = |count: u64| Some(count.saturating_add(n));
        let (set, fetch) = (Ordering::Relaxed, Ordering::Relaxed);
        // A closure that always has a next value never fails.
        let _ = self.0.fetch_update(set, fetch, sum);
    }

    pub(crate) fn raise_to(&self, n: u64) {
        self.0.fetch_max(n, Ordering::Relaxed);
    }
}

/// Arrivals and departures.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) admitted: Count,
    pub(crate) watches_added: Count,
    pub(crate) watches_removed: Count,
    /// By [`Ending`].
    ended: [Count; Ending::COUNT],
}

impl Counters {
    #[inline(always)]
    pub(crate) fn ended(&self, ending: Ending) -> &Count {
        &self.ended[ending as usize]
    }
}

/// Events that are counted outside of any lock.
#[derive(Debug, Default)]
pub(crate) struct Events {
    pub(crate) completed_at_once: Count,
    pub(crate) rejected: Count,
    pub(crate) vain_checks: Count,
    pub(crate) missed_checks: Count,
    pub(crate) panics: Count,
    pub(crate) lateness_total: Count,
    pub(crate) lateness_max: Count,
    /// Completions that were handed to another thread, or to the end of an outermost call.
    pub(crate) handed_over: Count,
    /// Those of them that have run.
    pub(crate) delivered: Count,
}

/// The counters of one thread, or of several that share them.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub(crate) counters: Counters,
    pub(crate) events: Events,
}

/// What threads count without a lock, in a timer shard.
///
/// A thread whose number is that of the shard is the only one that writes to the shard's own counters, so it needs no
/// locked instruction. Threads with higher numbers, of which several may come to one shard, share counters.
#[derive(Debug, Default)]
pub(crate) struct Tallies {
    own: CachePadded<Tally>,
    /// Also for counters that several threads write in any case.
    pub(crate) shared: CachePadded<Tally>,
}

impl Tallies {
    /// `is_owner` tells whether the calling thread has the number of the shard.
    ///
    /// INVARIANT: no two threads have one number at the same time, and a thread that gets the number of one that has
    /// ended sees all that the other counted (`src/sync/thread_numbers.rs`).
    #[inline]
    pub(crate) fn count(&self, is_owner: bool, which: impl FnOnce(&Tally) -> &Count, n: u64) {
        if is_owner {
            which(&self.own).add_exclusively(n);
        } else {
            which(&self.shared).add(n);
        }
    }

    pub(crate) fn all(&self) -> [&Tally; 2] {
        [&self.own, &self.shared]
    }
}

/// Counts of a purgatory, timer or tracker, since it was built. Exact when no call is in progress; an event during the
/// reading may be counted in one field and not yet in another.
///
/// Every operation that was parked is counted in just one of `completed`, `expired`, `cancelled`, `shut_down` and
/// `aborted` once it has ended, and in `parked` before.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Operations parked now.
    pub parked: usize,
    /// Watch entries now: the sum of the keys of all parked operations. After many have expired at once, their entries
    /// count until they are reclaimed.
    pub watched: usize,
    /// Operations that have ended and whose `on_complete` has not run to its end yet: it was handed to the completion
    /// thread, to an executor, or to the outermost call on its thread. (One that is run by the very call that ended the
    /// operation is over when that call returns, and is not counted.) With a slow `on_complete` this grows, and with it
    /// memory, unless [`max_parked`](crate::purgatory::Builder::max_parked) bounds both together.
    pub completions_pending: usize,
    /// Operations that could complete at once, and never parked.
    pub completed_at_once: u64,
    /// Parked operations that were satisfied or forced.
    pub completed: u64,
    /// Parked operations whose timeout fired.
    pub expired: u64,
    /// Parked operations that were cancelled.
    pub cancelled: u64,
    /// Parked operations that the shutdown ended.
    pub shut_down: u64,
    /// Operations that ended because their `try_complete` panicked, or one of their keys while they were being parked.
    /// (While they are being parked, they are returned; later, they are dropped.)
    pub aborted: u64,
    /// Panics caught in user code: in hooks and callbacks, in destructors of operations, in executors, in keys and the
    /// clock while an operation is parked or ends, in a reactor's wake function, in metrics recorders and tracing
    /// subscribers. Not counted are panics that go through to the caller of a method, those of a clock that the reaper
    /// reads, and those of the waker of a future whose operation or request is dropped.
    pub panicked: u64,
    /// Operations that were refused: their park returned an error.
    pub rejected: u64,
    /// Examinations of parked operations by checks, whether they found the operation satisfied or not.
    pub checks: u64,
    /// Operations that expired although `try_complete` said yes at the deadline: the event had happened, and no check
    /// of the key was made. (An operation whose check is in progress at the deadline may be counted.)
    /// Also calls of [`Listener::until`](crate::future::Listener::until) whose condition was true at the deadline, and
    /// listeners that found out by a [recheck](crate::future::Listener::recheck_every).
    pub missed_checks: u64,
    /// Sum over expired operations of the time from the deadline, rounded up to the tick, to the expiry. (Not included,
    /// here and in `missed_checks`, are operations that another thread was examining at the deadline, and ended.)
    /// Saturates, not before 584 years.
    pub lateness_total: Duration,
    /// The longest of these.
    pub lateness_max: Duration,
}

impl Stats {
    /// Adds up `all`.
    pub(crate) fn add_counters<'a>(&mut self, all: impl Iterator<Item = &'a Counters> + Clone) {
        // Departures are read before arrivals, so there are never more departures than arrivals.
        let (mut ended, mut unwatched) = (0, 0);
        for counters in all.clone() {
            let read = counters.ended.each_ref().map(Count::read);
            let [satisfied, forced, expired, cancelled, shut_down, aborted] = read;
            self.checks += satisfied;
            self.completed += satisfied + forced;
            self.expired += expired;
            self.cancelled += cancelled;
            self.shut_down += shut_down;
            self.aborted += aborted;
            ended += read.iter().sum::<u64>();
            unwatched += counters.watches_removed.read();
        }
        for counters in all {
            self.parked += counters.admitted.read() as usize;
            self.watched += counters.watches_added.read() as usize;
        }
        self.parked = self.parked.saturating_sub(ended as usize);
        self.watched = self.watched.saturating_sub(unwatched as usize);
    }

    /// Adds up `all`.
    pub(crate) fn add_events<'a>(&mut self, all: impl Iterator<Item = &'a Events> + Clone) {
        // As above.
        let delivered: u64 = all.clone().map(|events| events.delivered.read()).sum();
        let mut handed_over = 0;
        for events in all {
            handed_over += events.handed_over.read();
            self.completed_at_once += events.completed_at_once.read();
            self.rejected += events.rejected.read();
            self.checks += events.vain_checks.read();
            self.missed_checks += events.missed_checks.read();
            self.panicked += events.panics.read();
            self.lateness_total += Duration::from_nanos(events.lateness_total.read());
            let max = Duration::from_nanos(events.lateness_max.read());
            self.lateness_max = self.lateness_max.max(max);
        }
        self.completions_pending = handed_over.saturating_sub(delivered) as usize;
    }
}
