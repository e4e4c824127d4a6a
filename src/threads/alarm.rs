//! The alarm: the tick until which the thread that drives the timer sleeps. That thread is the reaper, or the user's
//! reactor.
//!
//! A thread that files a deadline earlier than the alarm lowers the alarm to that deadline, and wakes the sleeping
//! thread.
//!
//! To move the alarm later, a thread takes three steps. It [resets](Alarm::reset) the alarm, then reads the deadlines
//! under the locks of the timer shards, and then sets the alarm to the earliest. A deadline that another thread files
//! during these steps is not lost. Reset and set are read-modify-writes of one word, so the set for that deadline comes
//! before or after the reset:
//!
//! * The set comes before the reset. Then the thread that resets the alarm finds the deadline when it reads the
//!   deadlines.
//! * The set comes after the reset, and finds the alarm later than the deadline. Then the filing thread lowers the
//!   alarm, and wakes the sleeping thread.
//! * The set comes after the reset, and finds the alarm at the deadline or earlier. Then a thread has set the alarm to
//!   that tick after the reset. If another filing thread has set the alarm, that thread has woken the sleeping thread,
//!   or is about to. If the resetting thread has set the alarm, the sleeping thread sleeps until that tick at most.
//!
//! A thread whose deadline is not the earliest of its timer shard does not set the alarm. The alarm is set for the
//! earliest deadline of the shard, and each later pass sets it to the next deadline.
//!
//! When a payload ends, the alarm stays as it is. So the sleeping thread may wake once for the deadline of a payload
//! that has ended. It then sets the alarm to the next deadline.

use crate::scheme::Tick;
use crate::sync::{AtomicU64, Ordering};
use crate::time::ticks::NEVER;

pub(crate) struct Alarm(AtomicU64);

impl Alarm {
    pub(crate) fn new() -> Self {
        Self(AtomicU64::new(NEVER))
    }

    /// Lowers the alarm to `deadline`, if the alarm is later. Returns `true` if it was later: the caller must then wake
    /// the sleeping thread.
    #[must_use]
    pub(crate) fn set(&self, deadline: Tick) -> bool {
        // ORDERING: Release pairs with the Acquire in `reset`: what this thread did before this call, such as filing
        // `deadline`, happens before the resetting thread reads the deadlines. This holds also if another thread sets
        // the alarm in between: its set is a read-modify-write too, and so passes on what this thread has released.
        self.0.fetch_min(deadline, Ordering::Release) > deadline
    }

    /// Clears the alarm: sets it to [`NEVER`], and returns its last tick. After this call the caller reads the
    /// deadlines of all timer shards.
    pub(crate) fn reset(&self) -> Tick {
        // ORDERING: Acquire pairs with the Release in `set`: what a thread did before it set the alarm happens before
        // this thread reads the deadlines. A swap, not a store: a store would overwrite a tick without acquiring the
        // writes of the thread that has set it, and this thread could miss the deadline.
        self.0.swap(NEVER, Ordering::Acquire)
    }

    /// The tick of the alarm; [`NEVER`] if no alarm is set.
    pub(crate) fn time(&self) -> Tick {
        // ORDERING: Relaxed: this load may miss a tick that another thread sets. That thread then wakes the sleeping
        // thread, and a wake-up that comes before the sleep is not lost.
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
