//! A straight port of Kafka's purgatory (`DelayedOperationPurgatory`, `SystemTimer`,
//! `TimingWheel`, `TimerTaskList` of Kafka 4.0), structure by structure, in safe Rust.
//!
//! Kept: an operation on the heap with a lock of its own; watcher lists per key in a concurrent
//! map with its default hasher; a wheel of 20 slots per level and 1 ms ticks behind a
//! reader-writer lock, its buckets linked lists with a lock each, queued by deadline; one global
//! counter of tasks and one of operations; ended operations left in the lists of their other keys
//! until those are checked, or until more than 1,000 have gathered and the reaper purges all keys;
//! expired operations ended by a thread of their own.
//!
//! The purge visits every key, beside the measured thread, whenever 1,000 operations have ended: as
//! often as the reaper gets to it. That is Kafka's way, meant for few keys with many operations;
//! with the million keys of W1 it can more than double a life. [`UnpurgedPort`] is the same code
//! without it, which W1 can afford because it checks every key in turn. Beating the port by a
//! margin means little unless this one is beaten too.
//!
//! Changed, where Rust has no such thing or the port would deadlock: the 512 locked maps are a
//! `DashMap`; a list is copied before its operations are tried, as Java's concurrent queue can be
//! walked while it changes; an operation is moved out under its lock and ended after it, where
//! Kafka ends it under a reentrant one.

mod manual_timer;
mod operation;
mod system_timer;
mod timing_wheel;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use dashmap::DashMap;
use parking_lot::Mutex;
use smallvec::SmallVec;

pub(crate) use self::manual_timer::ManualTimer;
use self::operation::Operation;
use self::system_timer::SystemTimer;
use crate::candidate::{ByHandle, Candidate};
use crate::request::{Ending, Request};

pub(crate) type KafkaPort = StraightPort<1000>;
pub(crate) type UnpurgedPort = StraightPort<NEVER>;

const NEVER: usize = usize::MAX / 2;

/// The longest that the reaper waits for a bucket before it looks at the purge.
const REAPER_WAIT: Duration = Duration::from_millis(200);

/// The parameter is Kafka's `purgeInterval`.
pub(crate) struct StraightPort<const PURGE_INTERVAL: usize> {
    purgatory: Arc<Purgatory>,
    reaper: Option<JoinHandle<()>>,
}

struct Purgatory {
    watchers: DashMap<u64, Arc<Watchers>>,
    timer: SystemTimer,
    purge_interval: usize,
    estimated_total: AtomicUsize,
    stopping: AtomicBool,
}

/// The operations that watch one key, ended ones among them.
#[derive(Default)]
struct Watchers(Mutex<Vec<Arc<Operation>>>);

impl Watchers {
    fn try_complete_watched(&self) -> usize {
        let watched: SmallVec<[Arc<Operation>; 4]> = self.0.lock().iter().cloned().collect();
        watched
            .iter()
            .filter(|operation| operation.safe_try_complete())
            .count()
    }

    /// Whether the list is empty afterwards.
    fn purge_completed(&self) -> bool {
        let mut operations = self.0.lock();
        operations.retain(|operation| !operation.is_completed());
        operations.is_empty()
    }
}

impl Purgatory {
    fn watch_for_operation(&self, key: u64, operation: &Arc<Operation>) {
        // Under the shard's lock, so that `remove_key_if_empty` cannot come between.
        self.watchers
            .entry(key)
            .or_default()
            .0
            .lock()
            .push(Arc::clone(operation));
    }

    fn remove_key_if_empty(&self, key: u64, emptied: &Arc<Watchers>) {
        self.watchers.remove_if(&key, |_, watchers| {
            Arc::ptr_eq(watchers, emptied) && watchers.0.lock().is_empty()
        });
    }

    /// Returns the operation if it waits.
    #[inline(never)]
    fn try_complete_else_watch(&self, request: Request, keys: &[u64]) -> Option<Arc<Operation>> {
        let operation = Arc::new(Operation::new(request));
        let completed = operation.safe_try_complete_or_else(|| {
            for &key in keys {
                self.watch_for_operation(key, &operation);
            }
            self.estimated_total.fetch_add(1, Ordering::Relaxed);
        });
        if completed {
            return None;
        }
        if !operation.is_completed() {
            self.timer.add(&operation);
            // A check may have completed it before there was an entry to cancel.
            if operation.is_completed() {
                operation.cancel_timer();
            }
        }
        Some(operation)
    }

    #[inline(never)]
    fn check_and_complete(&self, key: u64) -> usize {
        let Some(watchers) = self
            .watchers
            .get(&key)
            .map(|watchers| Arc::clone(&watchers))
        else {
            return 0;
        };
        let completed = watchers.try_complete_watched();
        if watchers.purge_completed() {
            self.remove_key_if_empty(key, &watchers);
        }
        completed
    }

    /// `ExpiredOperationReaper.doWork`.
    fn advance_clock(&self) {
        self.timer.advance_clock(REAPER_WAIT);
        let delayed = self.timer.len();
        if self.estimated_total.load(Ordering::Relaxed) > delayed + self.purge_interval {
            // Set before the purge, so that operations added during it are counted once more
            // rather than not at all.
            self.estimated_total.store(delayed, Ordering::Relaxed);
            self.purge_completed();
        }
    }

    fn purge_completed(&self) {
        // The keys first, so that no shard is locked while the lists are walked.
        let keys: Vec<u64> = self.watchers.iter().map(|entry| *entry.key()).collect();
        for key in keys {
            let found = self.watchers.get(&key).map(|entry| Arc::clone(&entry));
            let Some(watchers) = found else { continue };
            if watchers.purge_completed() {
                self.remove_key_if_empty(key, &watchers);
            }
        }
    }
}

impl<const PURGE_INTERVAL: usize> Candidate for StraightPort<PURGE_INTERVAL> {
    const NAME: &'static str = if PURGE_INTERVAL == NEVER {
        "unpurged_port"
    } else {
        "straight_port"
    };

    fn new() -> Self {
        let purgatory = Arc::new(Purgatory {
            watchers: DashMap::new(),
            timer: SystemTimer::new(Instant::now(), |operation| {
                operation.force_complete(Ending::Expired);
            }),
            purge_interval: PURGE_INTERVAL,
            estimated_total: AtomicUsize::new(0),
            stopping: AtomicBool::new(false),
        });
        let body = {
            let purgatory = Arc::clone(&purgatory);
            move || {
                while !purgatory.stopping.load(Ordering::Relaxed) {
                    purgatory.advance_clock();
                }
            }
        };
        let reaper = thread::Builder::new().name("reaper".to_owned()).spawn(body);
        let reaper = reaper.expect("a thread can start");
        Self {
            purgatory,
            reaper: Some(reaper),
        }
    }

    #[inline(always)]
    fn park(&self, request: Request, keys: &[u64]) -> bool {
        self.park_for_handle(request, keys).is_none()
    }

    #[inline(always)]
    fn check(&self, key: u64) -> usize {
        self.purgatory.check_and_complete(key)
    }

    fn parked(&self) -> usize {
        self.purgatory.timer.len()
    }

    fn watched(&self) -> usize {
        self.purgatory
            .watchers
            .iter()
            .map(|watchers| watchers.0.lock().len())
            .sum()
    }

    fn settle(&self) {
        self.purgatory.purge_completed();
    }
}

impl<const PURGE_INTERVAL: usize> ByHandle for StraightPort<PURGE_INTERVAL> {
    type Handle = Arc<Operation>;

    #[inline(always)]
    fn park_for_handle(&self, request: Request, keys: &[u64]) -> Option<Arc<Operation>> {
        self.purgatory.try_complete_else_watch(request, keys)
    }

    #[inline(never)]
    fn force_complete(&self, operation: Arc<Operation>) -> bool {
        operation.force_complete(Ending::Satisfied)
    }
}

impl<const PURGE_INTERVAL: usize> Drop for StraightPort<PURGE_INTERVAL> {
    fn drop(&mut self) {
        self.purgatory.stopping.store(true, Ordering::Relaxed);
        if let Some(reaper) = self.reaper.take() {
            reaper.join().expect("the reaper ends without a panic");
        }
    }
}
