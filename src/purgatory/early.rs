//! Timers filed before the deadlines of their operations, for wake-ups before the deadline.
//!
//! A listener with rechecks has one timer, as every operation has, filed at the next recheck or at the deadline,
//! whichever comes first. If that is a recheck, the deadline is kept here.

use crate::cell::address::Address;
use crate::scheme::Tick;
use crate::sync::{AtomicU64, Mutex, Ordering};
use std::collections::HashMap;
use std::time::Duration;

/// The times of an operation whose timer may fire before the deadline.
///
/// INVARIANT: the timer is filed at the earlier of the two times, unless it has fired and a thread is handling that.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Early {
    pub(crate) deadline: Tick,
    /// The next time to wake the operation, or `NEVER`.
    pub(crate) wake: Tick,
    /// Whether the operation may end at the wake-up.
    pub(crate) last: bool,
    /// The number of the crowd: the operations that are woken together.
    pub(crate) crowd: u64,
}

impl Early {
    pub(crate) fn filed(self) -> Tick {
        self.deadline.min(self.wake)
    }
}

/// About how many operations are woken in one tick: as many as a thread can wake in less than a millisecond.
const CROWD: u64 = 1_000;

/// The early timers, as they are kept under the lock.
#[derive(Default)]
pub(crate) struct Entries {
    pub(crate) by_address: HashMap<Address, Early>,
    /// The number of operations ever added, from which crowds are numbered.
    total: u64,
}

impl Entries {
    /// The crowd for one more operation. A thousand operations that come one after another are in the same crowd, and
    /// there are as many crowds as there are thousands.
    pub(crate) fn next_crowd(&mut self) -> u64 {
        let crowds = self.by_address.len() as u64 / CROWD + 1;
        let crowd = self.total / CROWD % crowds;
        self.total += 1;
        crowd
    }
}

/// The moment to wake an operation that is due at `due`, or up to a `part` earlier, by a clock with this `tick`. All
/// operations of one crowd that are woken within one part share a wake-up of the thread. Each crowd has a tick of its
/// own, so that deadlines in between are not late.
pub(crate) fn shared_moment(due: Duration, part: Duration, crowd: u64, tick: Duration) -> Duration {
    let part = part.as_nanos().max(1);
    let own = u128::from(crowd) * tick.as_nanos() % part;
    let into_part = due.as_nanos() % part;
    // The time since the last moment of this crowd, less than a part, which is at most a tenth of a `Duration`.
    let early = (into_part + part - own) % part;
    let secs = (early / 1_000_000_000) as u64;
    due - Duration::new(secs, (early % 1_000_000_000) as u32)
}

/// The early timers, by the address of the operation. An entry is removed when its listener is dropped; until then, an
/// entry of an ended operation names no operation.
///
/// The lock is taken before the lock of a timer shard.
#[derive(Default)]
pub(crate) struct EarlyTimers {
    count: AtomicU64,
    entries: Mutex<Entries>,
}

impl EarlyTimers {
    /// The number of entries, or one more. Only for an operation that this thread holds because its timer has fired, or
    /// for a call that may come before a concurrent recheck.
    #[inline]
    pub(crate) fn count(&self) -> u64 {
        // ORDERING: Relaxed. An entry is counted before its timer is filed under the lock of the shard. The thread that
        // took the timer out has taken that lock since, so it sees the count.
        self.count.load(Ordering::Relaxed)
    }

    pub(crate) fn change<R>(&self, change: impl FnOnce(&mut Entries) -> R) -> R {
        let mut entries = self.entries.lock();
        // ORDERING: Relaxed, see `count`. Count one more meanwhile, because `change` may add an entry and file its
        // timer.
        self.count
            .store(entries.by_address.len() as u64 + 1, Ordering::Relaxed);
        let answer = change(&mut entries);
        // ORDERING: Relaxed, as above.
        self.count
            .store(entries.by_address.len() as u64, Ordering::Relaxed);
        answer
    }

    /// The deadline of an operation whose timer may be filed earlier.
    pub(crate) fn deadline(&self, at: Address) -> Option<Tick> {
        if self.count() == 0 {
            return None;
        }
        self.change(|entries| entries.by_address.get(&at).map(|early| early.deadline))
    }

    /// Removes the entries of ended operations, and gives memory back.
    pub(crate) fn forget(&self, is_parked: impl Fn(Address) -> bool) {
        if self.count() > 0 {
            self.change(|entries| {
                let by_address = &mut entries.by_address;
                by_address.retain(|at, _| is_parked(*at));
                if by_address.is_empty() {
                    *by_address = HashMap::new();
                }
            });
        }
    }
}
