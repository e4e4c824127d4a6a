//! Early timers: the timers of operations that may fire before the deadline, to wake a listener.
//!
//! An operation has only one timer. If the operation belongs to a listener with rechecks (wake-ups after an interval,
//! without a check), the timer is filed at the next recheck or at the deadline, whichever comes first. The slot of the
//! operation knows only the time at which the timer is filed, so an entry here keeps the deadline.

use crate::cell::address::Address;
use crate::scheme::Tick;
use crate::sync::{AtomicU64, Mutex, Ordering};
use std::collections::HashMap;
use std::time::Duration;

/// The times of an operation whose timer may fire before the deadline.
///
/// INVARIANT: the timer is filed at the tick that [`filed`](Self::filed) returns, except in two cases, in which a
/// thread is about to file it there:
///
/// * The timer has fired, and a thread is handling that.
/// * A call is moving the deadline.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Early {
    pub(crate) deadline: Tick,
    /// The tick of the next wake-up before the deadline, or `NEVER`.
    pub(crate) wake: Tick,
    /// Whether the operation ends at the wake-up, because its listener has already found the event.
    pub(crate) last: bool,
    /// Whether the deadline has come, and the operation stays parked until the wake-up, while its listener evaluates
    /// its condition once more.
    pub(crate) lingers: bool,
    /// The number of the operation's crowd, a group of about [`CROWD`] operations that are woken together.
    pub(crate) crowd: u64,
}

impl Early {
    /// The tick at which the timer is filed: the deadline or the wake-up, whichever comes first; if the operation
    /// lingers, the wake-up.
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
    /// The number of operations ever added. The crowd of the next operation is computed from this number.
    total: u64,
}

impl Entries {
    /// Counts one more operation, and returns the number of its crowd (a group that is woken in one tick). [`CROWD`]
    /// operations that are added one after another share a crowd. There is one crowd for each full [`CROWD`] of present
    /// entries, and one more.
    pub(crate) fn next_crowd(&mut self) -> u64 {
        let crowds = self.by_address.len() as u64 / CROWD + 1;
        let crowd = self.total / CROWD % crowds;
        self.total += 1;
        crowd
    }
}

/// Returns the moment to wake an operation that is due at `due`: up to one `part` earlier. Time is divided into parts
/// of this length, and the operations into crowds (groups of about [`CROWD`] each). Operations of one crowd that are
/// due within the same part get the same moment, so they share one wake-up of the thread that drives the timer. The
/// moments of successive crowds are a `tick` apart: if all crowds were woken in one tick, that thread would handle
/// other deadlines late.
pub(crate) fn shared_moment(due: Duration, part: Duration, crowd: u64, tick: Duration) -> Duration {
    let part = part.as_nanos().max(1);
    let own = u128::from(crowd) * tick.as_nanos() % part;
    let into_part = due.as_nanos() % part;
    // How long before `due` this crowd is woken: less than one part. `due` counts from the clock's origin and is at
    // least ten parts, because callers pass at most a tenth of their interval as `part`. So the subtraction below does
    // not underflow.
    let early = (into_part + part - own) % part;
    let secs = (early / 1_000_000_000) as u64;
    due - Duration::new(secs, (early % 1_000_000_000) as u32)
}

/// The early timers, by the address of the operation. An entry is removed when its listener is dropped. If the
/// operation ends before that, the entry stays until then, and its address is stale.
///
/// Lock order: a thread takes the lock of `entries` before the lock of a timer shard. In the other order two threads
/// could deadlock.
#[derive(Default)]
pub(crate) struct EarlyTimers {
    count: AtomicU64,
    entries: Mutex<Entries>,
}

impl EarlyTimers {
    /// The number of entries, or a higher number while a change is in progress.
    ///
    /// If this thread holds an operation because its timer has fired, the number includes the entry of that operation.
    /// For any other operation, the number may lack an entry that another thread is just adding.
    #[inline]
    pub(crate) fn count(&self) -> u64 {
        // ORDERING: Relaxed. Only a thread that holds an operation because its timer has fired relies on the count.
        // `change` stores the count, and then files the entry's timer under the lock of the timer shard. The thread
        // that takes the timer out of the wheel locks the shard later. If that thread leaves a mark, the holder
        // acquires the mark. So in both cases the store of the count happens before this load.
        self.count.load(Ordering::Relaxed)
    }

    pub(crate) fn change<R>(&self, change: impl FnOnce(&mut Entries) -> R) -> R {
        let mut entries = self.entries.lock();
        // ORDERING: Relaxed: the lock of the timer shard orders this store before the load in `count` (see there). The
        // stored count is one too high, because `change` may add an entry and file its timer before the next store.
        self.count
            .store(entries.by_address.len() as u64 + 1, Ordering::Relaxed);
        let answer = change(&mut entries);
        // ORDERING: Relaxed: a thread that still reads the count of the first store gets a number that is too high,
        // which costs it only a look at the map.
        self.count
            .store(entries.by_address.len() as u64, Ordering::Relaxed);
        answer
    }

    /// The deadline of the operation at `at`, from its entry. `None` if the operation has no entry: then its timer is
    /// filed at the deadline.
    pub(crate) fn deadline(&self, at: Address) -> Option<Tick> {
        if self.count() == 0 {
            return None;
        }
        self.change(|entries| entries.by_address.get(&at).map(|early| early.deadline))
    }

    /// Removes the entries of operations that have ended (for which `is_parked` returns `false`). Frees the memory of
    /// the map if no entry is left.
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
