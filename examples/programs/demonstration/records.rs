//! What is counted and measured while the load runs.

use hdrhistogram::Histogram;
use request_purgatory::Completion;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

#[derive(Clone, Copy)]
pub(crate) enum Kind {
    Fetch,
    Produce,
}

/// Threads that record without waiting for each other.
const SHARDS: usize = 16;

static NEXT_THREAD: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    static SHARD: usize = NEXT_THREAD.fetch_add(1, Relaxed) % SHARDS;
}

/// A minute. Longer times are counted as one.
const LONGEST: u64 = 60_000_000_000;

fn empty() -> Histogram<u64> {
    Histogram::new_with_bounds(1, LONGEST, 3).expect("bounds and a precision of three digits")
}

/// Nanoseconds.
struct Times([Mutex<Histogram<u64>>; SHARDS]);

impl Times {
    fn new() -> Self {
        Self(std::array::from_fn(|_| Mutex::new(empty())))
    }

    fn record(&self, nanoseconds: u64) {
        let shard = SHARD.with(|shard| *shard);
        self.0[shard].lock().unwrap().saturating_record(nanoseconds);
    }

    fn merged(&self) -> Histogram<u64> {
        let mut merged = empty();
        for shard in &self.0 {
            merged += &*shard.lock().unwrap();
        }
        merged
    }
}

/// The requests of one kind.
#[derive(Default)]
pub(crate) struct Tally {
    pub(crate) requests: AtomicU64,
    pub(crate) satisfied: AtomicU64,
    pub(crate) expired: AtomicU64,
    pub(crate) cancelled: AtomicU64,
}

pub(crate) struct Records {
    tallies: [Tally; 2],
    wake_up: Times,
    lateness: Times,
    /// Leave out one ending.
    miscount: AtomicBool,
}

impl Records {
    pub(crate) fn new(miscount: bool) -> Self {
        Self {
            tallies: Default::default(),
            wake_up: Times::new(),
            lateness: Times::new(),
            miscount: AtomicBool::new(miscount),
        }
    }

    pub(crate) fn tally(&self, kind: Kind) -> &Tally {
        &self.tallies[kind as usize]
    }

    pub(crate) fn count(&self, kind: Kind, completion: Completion) {
        let tally = self.tally(kind);
        let ending = match completion {
            Completion::Satisfied if self.miscount.swap(false, Relaxed) => return,
            Completion::Satisfied => &tally.satisfied,
            Completion::Expired => &tally.expired,
            _ => &tally.cancelled,
        };
        ending.fetch_add(1, Relaxed);
    }

    pub(crate) fn woke_up(&self, nanoseconds: u64) {
        self.wake_up.record(nanoseconds);
    }

    pub(crate) fn expired(&self, late: Duration) {
        self.lateness.record(late.as_nanos() as u64);
    }

    pub(crate) fn wake_ups(&self) -> Histogram<u64> {
        self.wake_up.merged()
    }

    pub(crate) fn lateness(&self) -> Histogram<u64> {
        self.lateness.merged()
    }
}
