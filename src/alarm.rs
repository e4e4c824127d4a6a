//! The alarm: when the sleeper must look again.
//!
//! A sleeper (the reaper, or a reactor that drives the purgatory by hand) sleeps until the tick that stands here. Who
//! creates an earlier deadline sets the alarm to it and, having found a later tick there, must wake the sleeper.
//!
//! Who moves the alarm later [resets](Alarm::reset) it first, then reads the deadlines under their locks, and sets it
//! to what was found. A deadline created meanwhile was either set before the reset, and then that reading sees it, or
//! is set after it, and then finds a later tick and wakes the sleeper: both are read-modify-writes of one word, so one
//! of them comes first.

use crate::sync::{AtomicU64, Ordering};
use crate::time::ticks::{NEVER, Tick};

#[derive(Debug)]
pub(crate) struct Alarm(AtomicU64);

impl Alarm {
    pub(crate) fn new() -> Self {
        Self(AtomicU64::new(NEVER))
    }

    /// Makes sure that the alarm goes off at `deadline` or before. Returns whether the sleeper counts on a later
    /// one, and must be woken.
    #[must_use]
    pub(crate) fn set(&self, deadline: Tick) -> bool {
        // ORDERING: Release pairs with the Acquire in `reset`: the thread that takes this deadline away again sees what
        // was done before it was set. (Every deadline, and every deferred check, is also written and read under a lock:
        // a reading that misses it released the lock before, so its `reset` came before this. Relaxed would be the same
        // program as long as that is so, and no model kills it.)
        self.0.fetch_min(deadline, Ordering::AcqRel) > deadline
    }

    /// Before looking: forgets all deadlines that were set. Returns when it would have gone off.
    pub(crate) fn reset(&self) -> Tick {
        // ORDERING: Acquire, see `set`; a swap, so that no deadline set before is overwritten unseen.
        self.0.swap(NEVER, Ordering::AcqRel)
    }

    /// When the alarm goes off; [`NEVER`] if it is not set.
    pub(crate) fn time(&self) -> Tick {
        // ORDERING: Relaxed: a deadline set later than this is followed by a wake-up, which is not lost.
        self.0.load(Ordering::Relaxed)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn g07_an_alarm_keeps_the_earlier_time_and_tells_who_must_wake() {
        let alarm = Alarm::new();
        assert_eq!(alarm.time(), NEVER);
        assert!(alarm.set(5), "the sleeper counts on none");
        assert!(!alarm.set(9), "it looks again before");
        assert!(!alarm.set(5), "and at that time");
        assert_eq!(alarm.time(), 5);
        assert!(alarm.set(4));
        assert_eq!(alarm.reset(), 4);
        assert_eq!(alarm.time(), NEVER);
        assert!(alarm.set(9));
    }
}
