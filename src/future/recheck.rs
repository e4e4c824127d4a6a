//! Rechecks: evaluations of a listener's condition that no check asks for.
//!
//! A timer beside the purgatory ticks for every listener that has an interval, and wakes it. The thread that drives the
//! purgatory drives that timer as well; without such listeners there is none.

use super::operation::WaitOperation;
use super::reply::Awaiting;
use super::signal::Signal;
use crate::dispatch::Dispatch;
use crate::engine::companion::Companion;
use crate::hash::{Key, KeyHasher};
use crate::panics::Panics;
use crate::purgatory::Handle;
use crate::reaper::Reaper;
use crate::sync::Arc;
use crate::time::{Clock, Timestamp};
use crate::timer::{Timer, TimerId};
use std::any::Any;
use std::time::Duration;

/// A check this long after a recheck has found the event was only late.
const GRACE: Duration = Duration::from_millis(100);

/// Rechecks that are due within this part of their interval share one wake-up of the thread.
const PARTS: u32 = 10;

type Job = Box<dyn FnOnce() + Send>;

/// The timer of all rechecks of one purgatory.
struct Rechecks {
    timer: Timer<Job>,
    clock: Arc<dyn Clock>,
}

impl Rechecks {
    fn new(clock: &Arc<dyn Clock>) -> Self {
        let timer = Timer::<Job>::builder("rechecks")
            .clock(clock.clone())
            .reaper(Reaper::Manual)
            .dispatch(Dispatch::Inline)
            .build(|job: Job| job());
        Self {
            timer: timer.unwrap_or_else(|error| unreachable!("it asks for no thread: {error}")),
            clock: clock.clone(),
        }
    }

    /// Runs `job` in `interval` or up to a tenth of it earlier, together with others. Returns when.
    fn start(&self, interval: Duration, job: Job) -> Option<(TimerId, Timestamp)> {
        let now = self.clock.now();
        let due = now.saturating_add(interval).since_origin();
        let part = (interval / PARTS).as_nanos().max(1);
        let early = Duration::from_nanos((due.as_nanos() % part) as u64);
        // After a shutdown there are no rechecks.
        let id = self.timer.start(interval - early, job).ok()?;
        Some((id, Timestamp::from_origin(due - early)))
    }
}

impl Companion for Rechecks {
    fn advance(&self) {
        self.timer.advance();
    }

    fn next_deadline(&self) -> Option<Timestamp> {
        self.timer.next_deadline()
    }

    fn into_any(self: Arc<Self>) -> Arc<dyn Any + Send + Sync> {
        self
    }
}

/// The rechecks of one listener.
pub(super) struct Recheck {
    rechecks: Arc<Rechecks>,
    interval: Duration,
    next: Option<TimerId>,
    /// Whether the last wake-up was one.
    pub(super) woke: bool,
}

/// The waiter's end of a listener's operation.
pub(super) type Listening<K, S> = Awaiting<Signal, WaitOperation<K>, S>;

impl Recheck {
    /// `None` if the purgatory refused the listener, or is shut down.
    pub(super) fn new<K: Key, S: KeyHasher>(
        listening: &Listening<K, S>,
        interval: Duration,
    ) -> Option<Self> {
        let rechecks = listening.handle()?.companion(Rechecks::new)?;
        let mut recheck = Self {
            rechecks,
            interval: interval.max(Duration::from_millis(1)),
            next: None,
            woke: false,
        };
        recheck.arm(listening);
        Some(recheck)
    }

    /// Begins the next interval.
    pub(super) fn arm<K: Key, S: KeyHasher>(&mut self, listening: &Listening<K, S>) {
        let signal = listening.shared().clone();
        let tick = Box::new(move || {
            // A waker is the user's code. If it panics, the listener ends as it does in a check.
            if Panics::contain(|| signal.tick()).is_none() {
                Panics::contain(|| signal.end(super::WaitError::Panicked));
            }
        });
        self.next = self.start(listening, self.interval, tick);
    }

    fn start<K: Key, S: KeyHasher>(
        &self,
        listening: &Listening<K, S>,
        interval: Duration,
        job: Job,
    ) -> Option<TimerId> {
        let (id, deadline) = self.rechecks.start(interval, job)?;
        listening.handle()?.announce_companion(deadline);
        Some(id)
    }

    /// A recheck has found what no check announced. Unless a check comes soon, it was missed; until then the operation
    /// stays parked.
    pub(super) fn find<K: Key, S: KeyHasher>(
        &self,
        mut listening: Listening<K, S>,
        also: Vec<Listening<K, S>>,
    ) {
        let signal = listening.shared().clone();
        let Some(handle) = listening.handle().cloned() else {
            return;
        };
        let end = Box::new(move || {
            if !signal.was_checked() {
                if let Some(handle) = listening.handle() {
                    handle.count_missed_check();
                }
            }
            listening.end(Handle::force_complete);
            drop(also);
        });
        if let Some((_, deadline)) = self.rechecks.start(GRACE, end) {
            handle.announce_companion(deadline);
        }
    }
}

impl Drop for Recheck {
    fn drop(&mut self) {
        if let Some(id) = self.next {
            drop(self.rechecks.timer.stop(id));
        }
    }
}
