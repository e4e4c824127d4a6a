//! The alarm: the tick until which the thread that drives the timer sleeps.
//!
//! That thread is the reaper, or the user's reactor. A thread that files a deadline earlier than the alarm lowers the
//! alarm to that deadline, and wakes the sleeping thread.
//!
//! To move the alarm later, a thread [resets](Alarm::reset) it, then reads the deadlines under the locks of the timer
//! shards, and then sets the alarm to the earliest. A deadline that another thread files during these steps is not
//! lost. Reset and set are read-modify-writes of one word, so the set for that deadline comes before or after the
//! reset:
//!
//! * If the set comes before the reset, the thread that resets the alarm finds the deadline when it reads the
//!   deadlines.
//! * If the set comes after the reset, the thread that sets finds a later tick in the alarm, and wakes the sleeping
//!   thread. There is one exception: since the reset, the alarm has been set to this deadline or an earlier one. Then
//!   the sleeping thread wakes in time without this set.
//!
//! A thread whose deadline is not the earliest of its shard does not set the alarm. The thread with the earlier
//! deadline sets it, and each later pass sets the alarm to the next deadline.
//!
//! An ending does not touch the alarm. So the sleeping thread may wake once for the deadline of an ended payload, and
//! then sets the alarm to the next deadline.

use crate::scheme::Tick;
use crate::sync::{AtomicU64, Ordering};
use crate::time::ticks::NEVER;

pub(crate) struct Alarm(AtomicU64);

impl Alarm {
    pub(crate) fn new() -> Self {
        Self(AtomicU64::new(NEVER))
    }

    /// Lowers the alarm to `deadline`, if the alarm is later. Returns whether it was later: then the sleeping thread
    /// must be woken.
    #[must_use]
    pub(crate) fn set(&self, deadline: Tick) -> bool {
        // ORDERING: Release pairs with the Acquire in `reset`: what this thread did before this call happens before the
        // reads that follow the reset.
        //
        // The Acquire half is not needed: Release alone would suffice.
        self.0.fetch_min(deadline, Ordering::AcqRel) > deadline
    }

    /// Clears the alarm, and returns its last tick. The caller reads all deadlines after this.
    pub(crate) fn reset(&self) -> Tick {
        // ORDERING: Acquire pairs with the Release in `set`. A swap, not a store: a store could overwrite a deadline
        // without acquiring the writes of the thread that has set it.
        self.0.swap(NEVER, Ordering::AcqRel)
    }

    /// The tick of the alarm; [`NEVER`] if it is not set.
    pub(crate) fn time(&self) -> Tick {
        // ORDERING: Relaxed: a deadline that is set after this load is followed by a wake-up, and no wake-up is lost.
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
