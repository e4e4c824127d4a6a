//! The alarm: the tick until which the thread that drives the timer sleeps.
//!
//! That thread is the reaper, or the user's reactor. A thread that creates an earlier deadline lowers the alarm to that
//! deadline. If the alarm was later before, the thread must wake the sleeping thread.
//!
//! A thread that moves the alarm later [resets](Alarm::reset) it first, then reads the deadlines under their locks, and
//! sets the alarm to the earliest. No deadline that is created meanwhile is lost, because reset and set are
//! read-modify-writes of one word, and one of them comes first:
//!
//! * The deadline is set before the reset: the reading of the deadlines sees it.
//! * The deadline is set after the reset: its thread finds a later tick, and wakes the sleeping thread.
//!
//! A thread whose deadline is not the earliest of its shard does not set the alarm. The thread with the earlier
//! deadline sets it, and from there on the alarm is set again after each pass.
//!
//! An ending does not change the alarm, and costs nothing here. So the sleeping thread may wake once for the deadline
//! of an ended payload, and then sets the alarm to the next deadline.

use crate::scheme::Tick;
use crate::sync::{AtomicU64, Ordering};
use crate::time::ticks::NEVER;

pub(crate) struct Alarm(AtomicU64);

impl Alarm {
    pub(crate) fn new() -> Self {
        Self(AtomicU64::new(NEVER))
    }

    /// Lowers the alarm to `deadline`, unless it is earlier already. Returns whether it was later, so that the sleeping
    /// thread must be woken.
    #[must_use]
    pub(crate) fn set(&self, deadline: Tick) -> bool {
        // ORDERING: Release pairs with the Acquire in `reset`: the thread that takes this deadline away sees all writes
        // before it was set. The Acquire half is not needed.
        self.0.fetch_min(deadline, Ordering::AcqRel) > deadline
    }

    /// Clears the alarm. Returns the tick that it was set to. The caller reads all deadlines after this.
    pub(crate) fn reset(&self) -> Tick {
        // ORDERING: Acquire, see `set`. A swap, so that no deadline set before is overwritten unseen.
        self.0.swap(NEVER, Ordering::AcqRel)
    }

    /// The tick of the alarm; [`NEVER`] if it is not set.
    pub(crate) fn time(&self) -> Tick {
        // ORDERING: Relaxed: a deadline set after this load is followed by a wake-up, which is not lost.
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
