//! Rechecks: wake-ups of a listener after an interval, without a check.
//!
//! They need no timer of their own: that of the listener's operation is filed at the next recheck, if that comes before
//! the deadline (`src/purgatory/deadline.rs`). The next recheck is set when the waiter has received the last one, so a
//! slow waiter is not woken twice. While no listener has rechecks, nothing ticks for them.

use super::further::OwnFurther;
use super::operation::{Listening, WaitOperation};
use super::signal::Found;
use crate::hash::{Key, KeyHasher};
use crate::purgatory::Handle;
use std::time::Duration;

/// A check that comes within this time after a recheck has found the event was late, not missed.
const LATE: Duration = Duration::from_millis(100);

/// In how many parts an interval is divided: all rechecks that are due within one part share a wake-up of the thread.
const PARTS: u32 = 10;

/// The rechecks of one listener. To be dropped after its operation has ended.
pub(super) struct Recheck<K: Key, S: KeyHasher> {
    handle: Handle<WaitOperation<K>, S>,
    interval: Duration,
    /// Whether the last wake-up of the waiter was a recheck and no check.
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

    /// Begins an interval of this length, also if another one is running.
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

    /// The condition was true after a recheck. The operation stays parked for the [grace](LATE); if no check comes
    /// meanwhile, it was missed.
    #[cold]
    #[inline(never)]
    pub(super) fn find(self, listening: Listening<K, S>, further: OwnFurther<K, S>) {
        let (signal, handle) = (listening.shared().clone(), self.handle.clone());
        let counting = handle.clone();
        signal.keep(Box::new(Found {
            count_missed: Some(Box::new(move || counting.count_missed_check())),
            // In this order: first the operation ends.
            kept: Box::new((listening, further, self)),
        }));
        if !handle.recheck_last(LATE) {
            // It has ended, or is about to: no check is noted any more.
            signal.count_if_missed();
            signal.forget_found();
        }
    }
}

impl<K: Key, S: KeyHasher> Drop for Recheck<K, S> {
    fn drop(&mut self) {
        self.handle.forget_rechecks();
    }
}
