//! Rechecks: wake-ups of a listener after an interval, without a check.
//!
//! A recheck needs no timer of its own. The timer of the listener's operation is filed at the next recheck or at the
//! deadline, whichever comes first (`src/purgatory/deadline.rs`). The next interval begins when the waiter has received
//! the previous recheck, so a slow waiter is not woken twice. While no listener has rechecks, no thread wakes for them.

use super::further::OwnFurther;
use super::operation::{Listening, WaitOperation};
use crate::callbacks::panics::Panics;
use crate::hash::{Key, KeyHasher};
use crate::purgatory::Handle;
use std::time::Duration;

/// The grace: how long, after a recheck has found the event, a check may still announce this event. Such a check was
/// late, not missed.
const LATE: Duration = Duration::from_millis(100);

/// The interval between two rechecks (wake-ups without a check) is divided into this many parts. A recheck may come up
/// to one part early, so that rechecks that are due within one part can share one wake-up of the thread that drives the
/// timer.
const PARTS: u32 = 10;

/// The rechecks of one listener. Must be dropped after the listener's operation has ended, because the destructor
/// removes the operation's entry in `Inner::early`. The entry says that the timer may fire before the deadline, for a
/// recheck. If such a timer fired when the entry was gone, the library would take the recheck for the deadline, and the
/// operation would expire too early. One exception: a listener that has expired drops its rechecks first, and then ends
/// its operation as expired.
pub(super) struct Recheck<K: Key, S: KeyHasher> {
    handle: Handle<WaitOperation<K>, S>,
    interval: Duration,
    /// Whether the waiter's last wake-up reported a recheck only, and no check.
    pub(super) woke: bool,
}

impl<K: Key, S: KeyHasher> Recheck<K, S> {
    /// `None` if the listener's operation is not parked: the purgatory rejected it, or it ended while it was still
    /// being parked.
    pub(super) fn new(listening: &Listening<K, S>) -> Option<Self> {
        Some(Self {
            handle: listening.handle()?.clone(),
            interval: Duration::MAX,
            woke: false,
        })
    }

    /// Begins an interval of this length, in place of the running interval.
    pub(super) fn begin(&mut self, interval: Duration) {
        self.interval = interval.max(Duration::from_millis(1));
        self.begin_next();
    }

    /// Begins another interval of the same length.
    #[cold]
    #[inline(never)]
    pub(super) fn begin_next(&mut self) {
        self.handle.recheck(self.interval, self.interval / PARTS);
    }

    /// Called when a recheck (a wake-up without a check) has found the condition true. Ends the listener, but keeps its
    /// operation parked for the [grace](LATE), so that a late check still reaches it. If none comes within the grace, a
    /// missed check is counted in the statistics.
    #[cold]
    #[inline(never)]
    pub(super) fn find(self, listening: Listening<K, S>, further: OwnFurther<K, S>) {
        let (signal, handle) = (listening.shared().clone(), self.handle.clone());
        // The parts of a tuple are dropped in order: first `Satisfied`, which ends the operation, and last `self`, which
        // must be dropped after the operation has ended.
        signal.keep(Box::new((Satisfied(listening), further, self)));
        // `recheck_last` begins the grace: from now on, the operation's timer fires when `LATE` has passed.
        // `recheck_last` reads the clock, which may be user code. If the clock panics, `forget_kept` below drops what
        // `keep` has stored, and this drop ends the operation. Without the drop, the operation would stay parked until
        // its deadline.
        let mut panics = Panics::default();
        if panics.catch(|| handle.recheck_last(LATE)) != Some(true) {
            // There is no grace (time in which a late check may still come), for one of these reasons:
            //
            // * The operation has ended or is about to end, so no later check can be noted.
            // * The system refuses the reaper's thread, so nothing would end the grace.
            // * The clock has panicked.
            //
            // So `Inner::due`, which counts a missed check when the grace is over, never counts one for this operation.
            if signal.has_missed_check() {
                handle.count_missed_check();
            }
            signal.forget_kept();
        }
        panics.resume();
    }
}

/// The operation of a listener that was satisfied. The destructor completes the operation, unless it has ended.
struct Satisfied<K: Key, S: KeyHasher>(Listening<K, S>);

impl<K: Key, S: KeyHasher> Drop for Satisfied<K, S> {
    fn drop(&mut self) {
        self.0.end(Handle::force_complete);
    }
}

impl<K: Key, S: KeyHasher> Drop for Recheck<K, S> {
    fn drop(&mut self) {
        self.handle.forget_early(false);
    }
}
