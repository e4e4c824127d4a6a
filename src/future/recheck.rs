//! Rechecks: wake-ups of a listener after an interval, without a check.
//!
//! They have a timer of their own beside that of the purgatory. It is made for the first listener that has rechecks, and
//! driven by the thread that drives the purgatory.

use super::operation::WaitOperation;
use super::reply::Awaiting;
use super::signal::Signal;
use crate::engine::thread_set::Companion;
use crate::hash::{Key, KeyHasher};
use crate::panics::Panics;
use crate::purgatory::Handle;
use crate::reaper::Reaper;
use crate::sync::Arc;
use crate::time::{Clock, Timestamp};
use crate::timer::{Timer, TimerId};
use std::any::Any;
use std::time::Duration;

/// A check that comes within this time after a recheck has found the event was late, not missed.
const LATE: Duration = Duration::from_millis(100);

/// In how many parts an interval is divided: all rechecks that are due within one part share a wake-up of the thread.
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
            .build(|job: Job| job());
        Self {
            timer: timer.unwrap_or_else(|error| unreachable!("it asks for no thread: {error}")),
            clock: clock.clone(),
        }
    }

    /// Runs `job` after `delay`, or up to a `part` earlier, together with others that are due within the same part.
    /// `handle` is of the purgatory that drives the timer. `None` if the timer is full.
    fn start<K: Key, S: KeyHasher>(
        &self,
        handle: &Handle<WaitOperation<K>, S>,
        delay: Duration,
        part: Duration,
        job: Job,
    ) -> Option<TimerId> {
        let now = self.clock.now();
        let due = now.saturating_add(delay).since_origin();
        let early = Duration::from_nanos((due.as_nanos() % part.as_nanos().max(1)) as u64);
        let id = self.timer.start(delay - early, job).ok()?;
        handle.announce_companion(Timestamp::from_origin(due - early));
        Some(id)
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
    /// Whether the last wake-up of the waiter was a recheck and no check.
    pub(super) woke: bool,
}

/// The waiter's end of a listener's operation.
pub(super) type Listening<K, S> = Awaiting<Signal, WaitOperation<K>, S>;

impl Recheck {
    /// `None` if the purgatory rejected the listener, or is shut down.
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

    /// Begins the next interval. (One may be running, since rechecks were asked for anew.)
    pub(super) fn arm<K: Key, S: KeyHasher>(&mut self, listening: &Listening<K, S>) {
        let (signal, handle) = (listening.shared().clone(), listening.handle().cloned());
        let tick = Box::new(move || {
            // A waker is the user's code. If it panics, the listener ends as it does in a check.
            if handle.is_some_and(|handle| handle.panics(|| signal.tick())) {
                Panics::contain(|| signal.end(super::WaitError::Panicked));
            }
        });
        self.disarm();
        let part = self.interval / PARTS;
        let start = |handle| self.rechecks.start(handle, self.interval, part, tick);
        self.next = listening.handle().and_then(start);
    }

    fn disarm(&mut self) {
        drop(self.next.take().map(|id| self.rechecks.timer.stop(id)));
    }

    /// The condition was true after a recheck. The operation stays parked for the [grace](LATE); if no check comes
    /// meanwhile, it was missed.
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
            let missed = listening.handle().filter(|_| !signal.was_checked());
            missed.inspect(|handle| handle.count_missed_check());
            listening.end(Handle::force_complete);
            drop(also);
        });
        // Not a moment earlier: a check that comes within the grace was not missed. (After a shutdown the job finds no
        // purgatory, if it runs at all.)
        let _ = self.rechecks.start(&handle, LATE, Duration::ZERO, end);
    }
}

impl Drop for Recheck {
    fn drop(&mut self) {
        self.disarm();
    }
}
