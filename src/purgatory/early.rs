//! Early timers: timers that are filed before the deadlines of their operations, to wake the operations.
//!
//! An operation has one timer. If it belongs to a listener with rechecks (wake-ups after an interval, without a check),
//! the timer is filed at the next recheck or at the deadline, whichever comes first. So the deadline is kept here as
//! well.

use crate::cell::address::Address;
use crate::scheme::Tick;
use crate::sync::{AtomicU64, Mutex, Ordering};
use std::collections::HashMap;
use std::time::Duration;

/// The times of an operation whose timer may fire before the deadline.
///
/// INVARIANT: the timer is filed where [`filed`](Self::filed) says, unless it has fired and a thread is handling the
/// firing, or a call that moves the deadline is under way and will file it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Early {
    pub(crate) deadline: Tick,
    /// The next time to wake the operation before its deadline, or `NEVER`.
    pub(crate) wake: Tick,
    /// Whether the operation may end at the wake-up.
    pub(crate) last: bool,
    /// Whether the deadline has come, and the operation stays parked until the wake-up.
    pub(crate) lingers: bool,
    /// The number of the crowd: the operations that are woken together.
    pub(crate) crowd: u64,
}

impl Early {
    /// The tick at which the timer is filed: the earlier of the two times, or the wake-up if the deadline has come.
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
    pub(crate) by_address: HashMap<Address, Early>,
    /// The number of operations ever added, from which the crowd of the next one is computed.
    total: u64,
}

impl Entries {
    /// The crowd of one more operation. [`CROWD`] operations that are added one after another share a crowd. There is
    /// one crowd for each full [`CROWD`] of present entries, and one more.
    pub(crate) fn next_crowd(&mut self) -> u64 {
        let crowds = self.by_address.len() as u64 / CROWD + 1;
        let crowd = self.total / CROWD % crowds;
        self.total += 1;
        crowd
    }
}

/// The moment to wake an operation that is due at `due`: up to one `part` earlier. Operations of one crowd that are due
/// within the same part get the same moment, so one wake-up of the thread serves them all. The moments of successive
/// crowds are a `tick` apart, so that deadlines between them are not late.
pub(crate) fn shared_moment(due: Duration, part: Duration, crowd: u64, tick: Duration) -> Duration {
    let part = part.as_nanos().max(1);
    let own = u128::from(crowd) * tick.as_nanos() % part;
    let into_part = due.as_nanos() % part;
    // The time from the crowd's last moment to `due`. It is less than a part, and `due` is at least ten parts, so the
    // subtraction does not go below zero.
    let early = (into_part + part - own) % part;
    let secs = (early / 1_000_000_000) as u64;
    due - Duration::new(secs, (early % 1_000_000_000) as u32)
}

/// The early timers, by the address of the operation. An entry is removed when its listener is dropped. If the
/// operation ends before that, the address of the entry is stale.
///
/// Lock order: this lock is taken before the lock of a timer shard.
#[derive(Default)]
pub(crate) struct EarlyTimers {
    count: AtomicU64,
    entries: Mutex<Entries>,
}

impl EarlyTimers {
    /// The number of entries. While a change is in progress, the number is one too high. If this thread holds an
    /// operation because its timer has fired, the entry of that operation is counted. Any other caller may miss an
    /// entry that another thread is adding.
    #[inline]
    pub(crate) fn count(&self) -> u64 {
        // ORDERING: Relaxed. `change` counts an entry before it files the entry's timer under the lock of the timer
        // shard. The thread that takes the timer out locks that shard later. If that thread leaves a mark, the holder
        // acquires the mark. In both cases the store of the count happens before this load.
        self.count.load(Ordering::Relaxed)
    }

    pub(crate) fn change<R>(&self, change: impl FnOnce(&mut Entries) -> R) -> R {
        let mut entries = self.entries.lock();
        // ORDERING: Relaxed, as argued in `count`. The count is one too high during the change, because `change` may
        // add an entry and file its timer.
        self.count
            .store(entries.by_address.len() as u64 + 1, Ordering::Relaxed);
        let answer = change(&mut entries);
        // ORDERING: Relaxed, as argued in `count`.
        self.count
            .store(entries.by_address.len() as u64, Ordering::Relaxed);
        answer
    }

    /// The deadline of the operation. `None` if the operation has no early timer.
    pub(crate) fn deadline(&self, at: Address) -> Option<Tick> {
        if self.count() == 0 {
            return None;
        }
        self.change(|entries| entries.by_address.get(&at).map(|early| early.deadline))
    }

    /// Removes the entries of ended operations, and frees memory.
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
