//! Rechecks: wake-ups of a listener after an interval, without a check.
//!
//! A recheck needs no timer of its own. The timer of the listener's operation is filed at the next recheck or at the
//! deadline, whichever comes first (`src/purgatory/deadline.rs`). The next recheck is set when the waiter has received
//! the previous one, so a slow waiter is not woken twice. While no listener has rechecks, no thread wakes for them.

use super::further::OwnFurther;
use super::operation::{Listening, WaitOperation};
use super::signal::Found;
use crate::hash::{Key, KeyHasher};
use crate::purgatory::Handle;
use std::time::Duration;

/// The grace: the time for a late check after a recheck has found the event. A check within the grace was late, not
/// missed.
const LATE: Duration = Duration::from_millis(100);

/// An interval has this many parts. Rechecks that are due within one part may share one wake-up of the thread.
const PARTS: u32 = 10;

/// The rechecks of one listener. Must be dropped after the listener's operation has ended.
pub(super) struct Recheck<K: Key, S: KeyHasher> {
    handle: Handle<WaitOperation<K>, S>,
    interval: Duration,
    /// Whether the last wake-up of the waiter came from a recheck alone, without a check.
    pub(super) woke: bool,
}

impl<K: Key, S: KeyHasher> Recheck<K, S> {
    /// `None` if the purgatory rejected the listener.
    pub(super) fn new(listening: &Listening<K, S>) -> Option<Self> {
        Some(Self {
            handle: listening.handle()?.clone(),
            interval: Duration::MAX,
            woke: false,
        })
    }

    /// Begins an interval of this length. It replaces an interval that is running.
    pub(super) fn begin(&mut self, interval: Duration) {
        self.interval = interval.max(Duration::from_millis(1));
        self.begin_next();
    }

    /// Begins the next interval.
    #[cold]
    #[inline(never)]
    pub(super) fn begin_next(&mut self) {
        self.handle.recheck(self.interval, self.interval / PARTS);
    }

    /// Called when the condition was true after a recheck. The operation stays parked for the [grace](LATE). If no
    /// check comes within the grace, a missed check is counted.
    #[cold]
    #[inline(never)]
    pub(super) fn find(self, listening: Listening<K, S>, further: OwnFurther<K, S>) {
        let (signal, handle) = (listening.shared().clone(), self.handle.clone());
        let counting = handle.clone();
        signal.keep(Box::new(Found {
            count_missed: Some(Box::new(move || counting.count_missed_check())),
            // The parts are dropped in this order, so that the operation ends first.
            kept: Box::new((listening, further, self)),
        }));
        if !handle.recheck_last(LATE) {
            // The operation has ended, or is about to end, so no later check can be noted.
            signal.count_if_missed();
            signal.forget_found();
        }
    }
}

/// When a listener ends, in whatever way: removes the early timer with which its operation stays parked at the deadline.
pub(super) struct ForgetsLinger<K: Key, S: KeyHasher>(pub(super) Handle<WaitOperation<K>, S>);

impl<K: Key, S: KeyHasher> Drop for ForgetsLinger<K, S> {
    fn drop(&mut self) {
        self.0.forget_linger();
    }
}

impl<K: Key, S: KeyHasher> Drop for Recheck<K, S> {
    fn drop(&mut self) {
        self.handle.forget_rechecks();
    }
}
