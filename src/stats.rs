//! Statistics: [`Stats`].

// Each timer shard (a part of the timer with its own lock) has its own counts, so that no cache line is written by
// every thread. A shard has three sets of counts:
//
// * one written under the shard's lock, by plain stores;
// * one written without the lock, by plain stores, by the thread whose number is the shard's number;
// * one written without the lock, by atomic addition, by all other threads.
//
// Readers add up all sets. The thread that takes a slot for an operation also counts the admission. The thread that
// ends an operation counts the ending and the removed watches when it gives the slot back. Expiries differ: the thread
// that drives the timer expires many operations, and counts their endings together, before their completions run. Their
// watches are counted as removed later, when their slots are freed.

use crate::sync::{AtomicU64, CachePadded, Ordering, fence};
use std::time::Duration;

/// How an operation ended, for the counts. `Ending::completion` in `src/purgatory/end.rs` says which
/// [`Completion`](crate::Completion) the operation gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ending {
    Satisfied,
    Forced,
    Expired,
    Cancelled,
    ShutDown,
    /// The operation's `try_complete` panicked, or its park panicked when the operation had a slot already.
    Aborted,
}

impl Ending {
    const COUNT: usize = Self::Aborted as usize + 1;
}

/// A counter.
#[derive(Debug, Default)]
pub(crate) struct Count(AtomicU64);

// ORDERING: Relaxed in all methods. A count needs to be exact only if no call is in progress. Then other
// synchronisation (a join, a lock, a channel) makes all earlier calls happen before the load in `read`. Where a drain
// or a shutdown waits for a count, fences order the accesses (`Underway::begin`, `completions_have_run`).
impl Count {
    pub(crate) fn read(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Adds `n`. Any thread may call this. Returns the new count.
    #[inline]
    pub(crate) fn add(&self, n: u64) -> u64 {
        self.0.fetch_add(n, Ordering::Relaxed) + n
    }

    /// Adds `n`, by a load and a store. Called only where no other thread can write this counter at the same time:
    /// otherwise one of the two additions would be lost.
    #[inline]
    pub(crate) fn add_exclusively(&self, n: usize) {
        let sum = self.0.load(Ordering::Relaxed).wrapping_add(n as u64);
        self.0.store(sum, Ordering::Relaxed);
    }

    /// Adds `n`; a sum that exceeds the range of a counter becomes `u64::MAX`.
    pub(crate) fn add_saturating(&self, n: u64) {
        let sum = |count: u64| Some(count.saturating_add(n));
        let (set, fetch) = (Ordering::Relaxed, Ordering::Relaxed);
        // This cannot fail, because `sum` always returns a value.
        let _ = self.0.fetch_update(set, fetch, sum);
    }

    pub(crate) fn raise_to(&self, n: u64) {
        self.0.fetch_max(n, Ordering::Relaxed);
    }
}

/// Events that are counted in addition to the [endings](Ending).
#[derive(Debug, Clone, Copy)]
pub(crate) enum Statistic {
    Admitted = Ending::COUNT as isize,
    Watched,
    Unwatched,
    CompletedAtOnce,
    Rejected,
    VainExamination,
    MissedCheck,
    Panic,
    /// A completion was handed over: to another thread, or to the end of this thread's outermost call of the library.
    HandedOver,
    /// A completion that was handed over has run.
    Delivered,
}

impl Statistic {
    const COUNT: usize = Self::Delivered as usize + 1;
}

/// A count for each [`Ending`] and each [`Statistic`].
#[derive(Debug, Default)]
pub(crate) struct Counts([Count; Statistic::COUNT]);

const _: () = assert!(
    size_of::<Counts>() == size_of::<CachePadded<Counts>>(),
    "the counts fill their cache lines, and leave no room unused"
);

impl Counts {
    #[inline]
    pub(crate) fn of(&self, event: Statistic) -> &Count {
        &self.0[event as usize]
    }

    #[inline(always)]
    pub(crate) fn ended(&self, ending: Ending) -> &Count {
        &self.0[ending as usize]
    }
}

/// The counts of a timer shard that threads write without the shard's lock.
///
/// Threads and shards are numbered. `own` is written only by the thread that has the same number as the shard, so it
/// needs no atomic read-modify-write. `shared` is written by threads whose numbers are higher than the number of every
/// shard. Several such threads may use one shard.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    own: CachePadded<Counts>,
    shared: CachePadded<Counts>,
    /// The time from the deadline to the expiry, in nanoseconds, summed over all expired operations. Written by several
    /// threads.
    pub(crate) lateness_total: Count,
    pub(crate) lateness_max: Count,
    /// How often an operation has asked for a later deadline when its deadline had passed.
    pub(crate) extensions: Count,
}

impl Counters {
    /// Adds `n` to a count, without the lock of the shard. `is_owner` says whether the number of the calling thread is
    /// the number of this shard. If it is, adds to `own`, otherwise to `shared`.
    ///
    /// INVARIANT: no two threads have one number at the same time, and a thread that gets the number of an ended thread
    /// sees everything that the ended thread has counted (`src/sync/numbers.rs`). So `own` has one writer at a time,
    /// and no addition is lost.
    #[inline]
    pub(crate) fn count(&self, is_owner: bool, which: impl FnOnce(&Counts) -> &Count, n: usize) {
        if is_owner {
            which(&self.own).add_exclusively(n);
        } else {
            which(&self.shared).add(n as u64);
        }
    }
}

/// Counts of a purgatory or timer, since it was built. Exact when no call is in progress; an event during the reading
/// may be counted in one field and not yet in another.
///
/// Every operation that was parked counts in `parked` until it ends, and from then on in exactly one of `completed`,
/// `expired`, `cancelled`, `shut_down` and `aborted`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Operations parked now.
    pub parked: usize,
    /// The weight of all operations that are parked, or whose `on_complete` has not returned.
    /// [`max_weight`](crate::purgatory::Builder::max_weight) bounds it. Without that bound it is 0, because nothing is
    /// weighed.
    pub weight: u64,
    /// The number of watches now: one for each key of each parked operation. After many operations have expired at
    /// once, their watches count until they are removed.
    pub watched: usize,
    /// Ended operations whose `on_complete` was handed over (to the completion thread, to an executor, or to the end of
    /// the outermost call on its thread) and has not returned. A completion that runs in the call that ended its
    /// operation is not counted. If `on_complete` is slow, this number grows, and memory with it, unless
    /// [`max_parked`](crate::purgatory::Builder::max_parked) bounds parked and ended operations together.
    pub completions_pending: usize,
    /// Operations that could complete at once, and were never parked.
    pub completed_at_once: u64,
    /// Parked operations that were satisfied or forced.
    pub completed: u64,
    /// Parked operations that expired.
    pub expired: u64,
    /// Parked operations that were cancelled, or rejected because a key is full. For a timer: payloads that were
    /// stopped.
    pub cancelled: u64,
    /// Parked operations that the shutdown ended.
    pub shut_down: u64,
    /// Operations that were dropped because of a panic: their `try_complete` panicked while they were parked, or user
    /// code panicked during their park, after they had been counted in `parked`. If user code panics earlier in a park,
    /// the operation counts nowhere.
    pub aborted: u64,
    /// Panics caught in user code: in hooks and callbacks, in destructors of operations, in executors, in methods of
    /// keys (`Hash`, `Eq`, `Clone`, the destructor) while an operation is examined or ends, in a reactor's wake
    /// function, in metrics recorders and tracing subscribers. Not counted:
    ///
    /// * panics that are passed on to the caller of a method;
    /// * panics of a clock that the reaper reads to find out whether a timer is due;
    /// * panics of a future's waker, if the waker is called because the future's operation or request was dropped;
    /// * panics of a subscriber when a span is closed.
    ///
    /// Several destructors that panic one after another, at the end of one call, count as one.
    pub panicked: u64,
    /// Operations that were rejected: their park returned an error.
    pub rejected: u64,
    /// The sum of two numbers:
    ///
    /// * how often a check has examined an operation and left it parked;
    /// * how many parked operations have ended because `try_complete` returned `true`.
    ///
    /// A check adds nothing for an operation that another thread is examining, because it leaves the examination to
    /// that thread.
    pub checks: u64,
    /// Operations that expired although `try_complete` returned `true` at the deadline: the event had happened, and no
    /// check of the key was made. An operation whose check is in progress at the deadline may be counted. Also counted:
    /// calls of [`Listener::until`](crate::future::Listener::until) whose condition was true at the deadline, and
    /// listeners that found the event by a [recheck](crate::future::Listener::recheck_every).
    pub missed_checks: u64,
    /// The time from the deadline (rounded up to the tick) to the expiry, summed over all operations that the thread
    /// that drives the timer has expired. The sum saturates, but not before 584 years. If another thread was examining
    /// an operation at its deadline, that thread lets the operation expire. Such an operation counts in `expired`, but
    /// neither here nor in `missed_checks`.
    pub lateness_total: Duration,
    /// The longest time in the sum of `lateness_total`.
    pub lateness_max: Duration,
    /// How often an operation has asked for a later deadline, with
    /// [`Cause::reschedule`](crate::purgatory::Cause::reschedule), when its deadline had passed. If this number grows
    /// and `expired` does not, some operation puts its deadline off for ever.
    pub extended: u64,
}

impl Stats {
    /// Adds up the counts of all shards.
    pub(crate) fn of<'a>(all: impl Iterator<Item = (&'a Counts, &'a Counters)> + Clone) -> Self {
        let sets = all
            .clone()
            .flat_map(|(locked, it)| [locked, &it.own, &it.shared]);
        let sum_of = |index: usize| sets.clone().map(|set| set.0[index].read()).sum::<u64>();
        let sum = |event| sum_of(event as usize);
        // Read departures (endings, removed watches, delivered completions) before arrivals, so that no departure is
        // read without its arrival. Otherwise arrivals minus departures would come out too small. While calls are in
        // progress, this can still happen on a processor on which two threads may see the stores of others in different
        // orders (neither x86-64 nor ARMv8 is one).
        let ended: [u64; Ending::COUNT] = std::array::from_fn(sum_of);
        let [satisfied, forced, expired, cancelled, shut_down, aborted] = ended;
        let (unwatched, delivered) = (sum(Statistic::Unwatched), sum(Statistic::Delivered));
        // ORDERING: this Acquire fence pairs with two Release fences:
        //
        // * With the one in `Delivery::drop`, which comes after a completion was counted as `HandedOver`, and before it
        //   is counted as `Delivered`. So if `delivered` above includes the completion, the sum of `HandedOver` below
        //   includes it too. Otherwise `completions_pending` would be too small, and would hide another completion that
        //   has still to run.
        // * With the one in `Underway::begin`, which a thread calls before it ends operations because they expire or
        //   because of a shutdown: if this thread has read the count of such an ending, its next call of
        //   `Underway::is_over` takes the ending into account.
        fence(Ordering::Acquire);
        let left = |arrived, gone| sum(arrived).saturating_sub(gone) as usize;
        let lateness = all.clone().map(|(_, it)| it.lateness_total.read());
        let longest = all.clone().map(|(_, it)| it.lateness_max.read()).max();
        Self {
            parked: left(Statistic::Admitted, ended.iter().sum()),
            // The shards do not count weights: `Engine::stats` sets this field.
            weight: 0,
            watched: left(Statistic::Watched, unwatched),
            completions_pending: left(Statistic::HandedOver, delivered),
            completed_at_once: sum(Statistic::CompletedAtOnce),
            completed: satisfied + forced,
            expired,
            cancelled,
            shut_down,
            aborted,
            panicked: sum(Statistic::Panic),
            rejected: sum(Statistic::Rejected),
            checks: satisfied + sum(Statistic::VainExamination),
            missed_checks: sum(Statistic::MissedCheck),
            lateness_total: lateness.map(Duration::from_nanos).sum(),
            lateness_max: Duration::from_nanos(longest.unwrap_or_default()),
            extended: all.map(|(_, it)| it.extensions.read()).sum(),
        }
    }
}

#[cfg(all(test, not(request_purgatory_loom)))]
mod tests {
    use super::*;

    /// Yields the counts of a single shard, and changes them while they are read: before each reading, it counts one
    /// more operation as parked, ended and handed over.
    #[derive(Clone)]
    struct Growing<'a>(Option<(&'a Counts, &'a Counters)>);

    impl<'a> Iterator for Growing<'a> {
        type Item = (&'a Counts, &'a Counters);

        fn next(&mut self) -> Option<Self::Item> {
            let next = self.0.take();
            if let Some((counts, _)) = next {
                counts.ended(Ending::Cancelled).add(1);
                for event in [
                    Statistic::Admitted,
                    Statistic::Watched,
                    Statistic::Unwatched,
                    Statistic::HandedOver,
                    Statistic::Delivered,
                ] {
                    counts.of(event).add(1);
                }
            }
            next
        }
    }

    /// An operation that stays is counted, whatever other operations come and go while the counts are read. The number
    /// of parked operations is arrivals minus departures. The departures are read first, so for each of them the
    /// arrival is read too.
    #[test]
    fn g16_what_comes_and_goes_hides_nothing_that_stays() {
        let (counts, counters) = (Counts::default(), Counters::default());
        for event in [
            Statistic::Admitted,
            Statistic::Watched,
            Statistic::HandedOver,
        ] {
            counts.of(event).add(1);
        }
        let stats = Stats::of(Growing(Some((&counts, &counters))));
        assert!(stats.parked >= 1 && stats.watched >= 1 && stats.completions_pending >= 1);
    }

    /// The longest lateness of all operations is reported, whichever shard has it.
    #[test]
    fn g16_the_longest_lateness_of_all_shards_is_told() {
        let shards: [(Counts, Counters); 3] = Default::default();
        for ((_, counters), late) in shards.iter().zip([2, 7, 1]) {
            counters.lateness_total.add_saturating(late);
            counters.lateness_max.raise_to(late);
        }
        let stats = Stats::of(shards.iter().map(|(counts, counters)| (counts, counters)));
        let [total, max] = [10, 7].map(Duration::from_nanos);
        assert_eq!((stats.lateness_total, stats.lateness_max), (total, max));
    }

    /// The sum of all lateness saturates in each shard separately, and not before 584 years (`u64::MAX` nanoseconds).
    #[test]
    fn g16_the_lateness_of_all_shards_saturates() {
        let shards: [(Counts, Counters); 2] = Default::default();
        for (_, counters) in &shards {
            (0..2).for_each(|_| counters.lateness_total.add_saturating(u64::MAX - 1));
        }
        let stats = Stats::of(shards.iter().map(|(counts, counters)| (counts, counters)));
        assert_eq!(stats.lateness_total, 2 * Duration::from_nanos(u64::MAX));
    }
}
