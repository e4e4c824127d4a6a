//! The alarm: the tick until which the thread that drives the timer sleeps.
//!
//! That thread is the reaper, or a reactor of the user's. A thread that creates an earlier deadline sets the alarm to
//! it. If it found a later tick there, it must wake the sleeping thread.
//!
//! A thread that moves the alarm later [resets](Alarm::reset) it first, then reads the deadlines under their locks, and
//! sets the alarm to the earliest. A deadline that is created meanwhile is set either before the reset, and then that
//! reading sees it, or after the reset, and then its thread finds a later tick and wakes the sleeping thread. Both are
//! read-modify-writes of one word, so one of them comes first. A thread whose deadline is not the earliest of its shard
//! sets nothing: the thread with the earlier one does, and from there on the alarm is set again after each pass.
//!
//! An ending leaves the alarm as it is, which costs the ending nothing. So the sleeping thread may wake once for a
//! deadline that is gone. Then it sets the alarm to the next one.

use crate::scheme::Tick;
use crate::sync::{AtomicU64, Ordering};
use crate::time::ticks::NEVER;

pub(crate) struct Alarm(AtomicU64);

impl Alarm {
    pub(crate) fn new() -> Self {
        Self(AtomicU64::new(NEVER))
    }

    /// Sets the alarm to `deadline`, unless it is earlier already. Returns whether it was later, so that the sleeping
    /// thread must be woken.
    #[must_use]
    pub(crate) fn set(&self, deadline: Tick) -> bool {
        // ORDERING: Release pairs with the Acquire in `reset`: the thread that takes this deadline away sees all writes
        // before it was set. The other half is not needed.
        self.0.fetch_min(deadline, Ordering::AcqRel) > deadline
    }

    /// Forgets all deadlines that were set. Returns the earliest of them. The caller reads all deadlines after this.
    pub(crate) fn reset(&self) -> Tick {
        // ORDERING: Acquire, see `set`; a swap, so that no deadline set before is overwritten unseen.
        self.0.swap(NEVER, Ordering::AcqRel)
    }

    /// The tick of the alarm; [`NEVER`] if it is not set.
    pub(crate) fn time(&self) -> Tick {
        // ORDERING: Relaxed: a deadline set later than this is followed by a wake-up, which is not lost.
        self.0.load(Ordering::Relaxed)
    }
}

#[cfg(all(test, not(request_purgatory_loom)))]
mod tests {
    use super::*;

    #[test]
    fn g07_an_alarm_keeps_the_earlier_time_and_tells_who_must_wake() {
        let alarm = Alarm::new();
        assert_eq!(alarm.time(), NEVER);
        assert!(alarm.set(5), "the reaper counts on none");
        assert!(!alarm.set(9), "the alarm is earlier");
        assert!(!alarm.set(5), "and at that time");
        assert_eq!(alarm.time(), 5);
        assert!(alarm.set(4));
        assert_eq!(alarm.reset(), 4);
        assert_eq!(alarm.time(), NEVER);
        assert!(alarm.set(9));
    }
}
