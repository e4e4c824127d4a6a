//! Timers that are filed earlier than the deadlines of their operations, to wake these before.
//!
//! A listener with rechecks has one timer, as every operation has: it is filed at the next recheck or at the deadline,
//! whichever is earlier. Where the next recheck is, the deadline stands here.

use crate::address::Address;
use crate::scheme::Tick;
use crate::sync::{AtomicU64, Mutex, Ordering};
use std::collections::HashMap;
use std::time::Duration;

/// What the timer of an operation is filed for.
///
/// INVARIANT: the timer is filed at the earlier of the two, unless it has fired and a thread is at work on that.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Early {
    pub(crate) deadline: Tick,
    /// The next time to wake the operation, or `NEVER`.
    pub(crate) wake: Tick,
    /// Whether the operation may end when it is woken.
    pub(crate) last: bool,
    /// Which crowd it is woken with.
    pub(crate) crowd: u64,
}

impl Early {
    pub(crate) fn filed(self) -> Tick {
        self.deadline.min(self.wake)
    }
}

/// About how many operations are woken in one tick: as many as a thread wakes in less than a millisecond.
const CROWD: u64 = 1_000;

/// What stands under the lock.
#[derive(Default)]
pub(crate) struct Entries {
    pub(crate) by_address: HashMap<Address, Early>,
    /// How many there have been.
    total: u64,
}

impl Entries {
    /// The crowd for one more: a thousand that come one after the other are in the same, and there are as many crowds as
    /// there are thousands.
    pub(crate) fn next_crowd(&mut self) -> u64 {
        let crowds = self.by_address.len() as u64 / CROWD + 1;
        let crowd = self.total / CROWD % crowds;
        self.total += 1;
        crowd
    }
}

/// When to wake an operation that is to be woken at `due`, or up to a `part` earlier, with ticks of this length. All of
/// one crowd that are woken within one part share a wake-up of the thread. Each crowd has a tick of its own, so that
/// deadlines in between are not late.
pub(crate) fn shared_moment(due: Duration, part: Duration, crowd: u64, tick: Duration) -> Duration {
    let part = part.as_nanos().max(1);
    let own = u128::from(crowd) * tick.as_nanos() % part;
    let into_part = due.as_nanos() % part;
    // Since the last moment of this crowd. (Less than a part, which is at most a tenth of a `Duration`.)
    let early = (into_part + part - own) % part;
    let secs = (early / 1_000_000_000) as u64;
    due - Duration::new(secs, (early % 1_000_000_000) as u32)
}

/// By the address of the operation. An entry goes when its listener is dropped; until then one of an operation that has
/// ended names nothing.
///
/// The lock is taken before that of a timer shard.
#[derive(Default)]
pub(crate) struct EarlyTimers {
    count: AtomicU64,
    entries: Mutex<Entries>,
}

impl EarlyTimers {
    /// How many there are, or one more. To be asked for an operation that this thread holds because its timer has fired,
    /// or by a call that may come before a recheck that is set at the same time.
    #[inline]
    pub(crate) fn count(&self) -> u64 {
        // ORDERING: Relaxed. A timer is filed, under the lock of its shard, after the entry was counted; the thread that
        // took the timer out has taken that lock since.
        self.count.load(Ordering::Relaxed)
    }

    pub(crate) fn change<R>(&self, change: impl FnOnce(&mut Entries) -> R) -> R {
        let mut entries = self.entries.lock();
        // ORDERING: Relaxed, see `count`. Meanwhile one more is counted: `change` may add it and file its timer.
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

    /// Forgets operations that have ended, and gives memory back.
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
