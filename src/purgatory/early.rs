//! Early timers: the timers of operations that may fire before the deadline, to wake a listener.
//!
//! An operation has only one timer. If the operation belongs to a listener with rechecks (wake-ups after an interval,
//! without a check), the timer is filed at the next recheck or at the deadline, whichever comes first. The slot of the
//! operation knows only the time at which the timer is filed, so an entry here keeps the deadline.

use crate::cell::address::Address;
use crate::scheme::Tick;
use crate::sync::{AtomicU64, Mutex, Ordering, SLICE};
use crate::time::Timestamp;
use std::collections::BTreeMap;
use std::ops::Bound;
use std::time::Duration;

/// The times of an operation whose timer may fire before the deadline, to wake a listener.
///
/// INVARIANT: the timer is filed in the wheel at the tick that [`filed`](Self::filed) returns. In two cases it is not,
/// but a thread is about to file it at this tick:
///
/// * The timer has fired, and a thread is handling that.
/// * A call is moving the deadline.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Early {
    pub(crate) deadline: Tick,
    /// The tick of the next wake-up before the deadline, or `NEVER`.
    pub(crate) wake: Tick,
    /// Whether the operation ends at the wake-up. Then a recheck has shown the listener that its condition is true, and
    /// the operation stays parked until the wake-up only so that a late check is still noticed.
    pub(crate) last: bool,
    /// Whether the deadline has come, and the operation stays parked until the wake-up, while its listener evaluates
    /// its condition once more.
    pub(crate) lingers: bool,
    /// The number of the operation's crowd, a group of about [`CROWD`] operations that are woken together.
    pub(crate) crowd: u64,
}

impl Early {
    /// The tick at which the timer is filed: the deadline or the wake-up, whichever comes first. If
    /// [`lingers`](Self::lingers) says that the operation stays parked beyond its deadline, it is the wake-up.
    pub(crate) fn filed(self) -> Tick {
        match self.lingers {
            true => self.wake,
            false => self.deadline.min(self.wake),
        }
    }
}

/// About how many operations are woken in one tick: as many as a thread can wake in less than a millisecond.
const CROWD: u64 = 1_000;

/// The contents of [`EarlyTimers`], under its lock.
#[derive(Default)]
pub(crate) struct Entries {
    /// A tree grows and shrinks by a node at a time, however many entries it has. A hash table moves all of them when
    /// it grows. Meanwhile these threads would have to wait for the lock: each thread that asks for a deadline or moves
    /// one, and the thread that drives the timer.
    pub(crate) by_address: BTreeMap<Address, Early>,
    /// The number of operations ever added. From this number, the crowd of the next operation is computed: the group of
    /// operations that are woken in one tick.
    total: u64,
}

impl Entries {
    /// Counts one more operation, and returns the number of its crowd (a group that is woken in one tick). [`CROWD`]
    /// operations that are added one after another share a crowd. The number of crowds is the number of present entries
    /// divided by [`CROWD`], rounded down, plus one.
    pub(crate) fn next_crowd(&mut self) -> u64 {
        let crowds = self.by_address.len() as u64 / CROWD + 1;
        let crowd = self.total / CROWD % crowds;
        self.total += 1;
        crowd
    }

    /// Looks at the entries of the next slice of operations, those whose addresses come after `after`. Removes the
    /// entries of operations that have ended (for which `is_parked` returns `false`). Returns the bound after which the
    /// next slice begins.
    fn forget_slice(
        &mut self,
        mut after: Bound<Address>,
        is_parked: impl Fn(Address) -> bool,
    ) -> Bound<Address> {
        for _ in 0..SLICE {
            let mut next = self.by_address.range((after, Bound::Unbounded));
            let Some((&at, _)) = next.next() else {
                break;
            };
            if !is_parked(at) {
                self.by_address.remove(&at);
            }
            after = Bound::Excluded(at);
        }
        after
    }
}

/// Returns the time at which to wake an operation whose wake-up is due at `due`: up to one `part` earlier. Operations
/// that are due at nearly the same time are woken together, and so share a wake-up of the thread that drives the timer.
/// But if the thread woke all of them in one tick, it would handle other deadlines late. So the operations are divided
/// into crowds (groups of about [`CROWD`] each), and a crowd is woken a `tick` after the crowd before. The times at
/// which one crowd is woken lie one `part` apart. The result is the last of these times up to `due`, for this `crowd`.
pub(crate) fn shared_moment(
    due: Timestamp,
    part: Duration,
    crowd: u64,
    tick: Duration,
) -> Timestamp {
    if due == Timestamp::LAST {
        // The wake-up never comes.
        return due;
    }
    let part = part.as_nanos().max(1);
    let own = u128::from(crowd) * tick.as_nanos() % part;
    let due = due.since_origin().as_nanos();
    // How long before `due` the operation is woken, together with the other operations of its crowd: less than one
    // `part`. `due` counts from the clock's origin and is at least ten parts, because callers pass at most a tenth of
    // their interval as `part`. So the subtraction below does not underflow.
    let early = (due % part + part - own) % part;
    Timestamp::from_nanos((due - early) as u64)
}

/// The early timers (those that may fire before the deadline, to wake a listener), by the address of the operation. An
/// entry is removed when the deadline has come, or when its listener is dropped. If the operation ends earlier, the
/// entry stays, under a stale address, until the listener is dropped or the purgatory is idle.
///
/// Lock order: a thread takes the lock of `entries` before the lock of a timer shard. In the other order two threads
/// could deadlock.
#[derive(Default)]
pub(crate) struct EarlyTimers {
    count: AtomicU64,
    entries: Mutex<Entries>,
}

impl EarlyTimers {
    /// The number of entries. While another thread adds or removes entries, this number may be too high or too low.
    ///
    /// But if this thread holds an operation because its timer has fired, and the operation has an entry, the number
    /// includes that entry.
    #[inline]
    pub(crate) fn count(&self) -> u64 {
        // ORDERING: Relaxed. The count must include an entry only for a thread that holds the entry's operation because
        // the operation's timer has fired. `change` stores the count, and then calls a closure that files this timer,
        // under the lock of the timer shard. The thread that takes the timer out of the wheel locks the shard later.
        // Either that thread holds the operation, or it leaves a mark (a bit in the operation's state word) for the
        // holder, which acquires the mark. So in both cases the store of the count happens before this load.
        self.count.load(Ordering::Relaxed)
    }

    pub(crate) fn change<R>(&self, change: impl FnOnce(&mut Entries) -> R) -> R {
        let mut entries = self.entries.lock();
        // ORDERING: Relaxed. The closure `change` may add an entry, and file its timer under the lock of the timer
        // shard. The thread that handles this timer must find the entry counted. The lock orders this store, but not
        // the one after the closure, before the load in `count` by that thread. So store one more than the present
        // number here, before the entry is added.
        self.count
            .store(entries.by_address.len() as u64 + 1, Ordering::Relaxed);
        let answer = change(&mut entries);
        // ORDERING: Relaxed: a thread that does not see this store yet reads the number that was stored above, before
        // `change`. That number is not too low. If it is too high, the thread looks at the map in vain.
        self.count
            .store(entries.by_address.len() as u64, Ordering::Relaxed);
        answer
    }

    /// The deadline of the operation at `at`, from the operation's entry among the early timers. `None` if the
    /// operation has no entry: then its timer fires only at the deadline, and is filed there.
    pub(crate) fn deadline(&self, at: Address) -> Option<Tick> {
        if self.count() == 0 {
            return None;
        }
        self.change(|entries| entries.by_address.get(&at).map(|early| early.deadline))
    }

    /// Removes the entries of operations that have ended (for which `is_parked` returns `false`). Looks at a slice of
    /// entries in each hold of the lock. Looks at about as many entries as there are when the call begins, so the call
    /// ends even if other threads keep adding entries.
    pub(crate) fn forget(&self, is_parked: impl Fn(Address) -> bool) {
        let mut after = Bound::Unbounded;
        for _ in (0..self.count()).step_by(SLICE) {
            after = self.change(|entries| entries.forget_slice(after, &is_parked));
        }
    }
}

#[cfg(all(test, not(request_purgatory_loom)))]
mod tests {
    use super::*;
    use std::cell::RefCell;
    use std::collections::HashMap;

    /// Many operations have ended, and every other one of those that have an entry here. When their entries are
    /// removed, each hold of the lock looks at no more than a slice of the entries. The entries of parked operations
    /// stay.
    #[test]
    fn g20_one_hold_of_the_lock_forgets_one_slice() {
        let entries = 10 * SLICE as u32;
        let early = EarlyTimers::default();
        let at = |index| Address::new(0, index, 0);
        let entry = Early {
            deadline: 9,
            wake: 5,
            last: false,
            lingers: false,
            crowd: 0,
        };
        early.change(|all| {
            let added = (0..entries).map(|index| (at(index), entry));
            all.by_address.extend(added);
        });
        // `count` stays the same as long as one thread has the lock. Each hold below removes entries, so it differs
        // from one hold to the next.
        let looks = RefCell::new(HashMap::new());
        let is_parked = |at: Address| at.index() % 2 == 0;
        early.forget(|at| {
            *looks.borrow_mut().entry(early.count()).or_insert(0) += 1;
            is_parked(at)
        });
        let looks = looks.into_inner();
        assert_eq!(looks.values().sum::<usize>(), 10 * SLICE);
        let most = looks.values().max();
        assert!(most <= Some(&SLICE), "{most:?} in one hold");
        early.change(|left| {
            assert_eq!(left.by_address.len(), 5 * SLICE);
            assert!(left.by_address.keys().all(|at| is_parked(*at)));
        });
    }
}
