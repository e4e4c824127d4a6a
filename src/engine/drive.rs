//! Drives a handler (the inside of a purgatory or timer): expires what is due, and sets the alarm to the next deadline.

use super::expire::{pass, reclaim};
use super::handler::Handler;
use super::shard::Shard;
use crate::scheme::Tick;
use crate::sync::Arc;
use crate::threads::reaper::Driven;
use crate::time::Timestamp;
use crate::time::ticks::NEVER;
use std::time::Duration;

/// Expires payloads, makes deferred checks and reclaims, as [`Driven::drive`] does, for a caller that is not the
/// reaper. Returns how many payloads expired.
///
/// A timer that user code starts during this call waits for the next call, however near its deadline is, so that this
/// call ends. One exception: after each deferred check, all timers whose deadline has passed expire, including timers
/// that user code has just started. The exception does not keep this call from ending: the call makes only the checks
/// that were deferred before it began.
pub(crate) fn advance<H: Handler>(handler: &Arc<H>) -> usize {
    let expired = pass(handler);
    while reclaim(handler) {}
    if rearm_for_caller(&**handler) == NEVER {
        idle(&**handler);
    }
    expired
}

/// Releases memory. Called when no deadline is left.
fn idle<H: Handler>(handler: &H) {
    handler.on_idle();
    shrink(handler);
}

/// Releases the memory that no payload needs.
pub(crate) fn shrink<H: Handler>(handler: &H) {
    handler.shrink();
    handler.engine().shards.iter().for_each(Shard::shrink);
}

/// Lowers the alarm to the tick of the next work. Returns that tick, and whether the alarm was later than it. If so,
/// the sleeping thread has to be woken.
fn set_alarm<H: Handler>(handler: &H) -> (Tick, bool) {
    let engine = handler.engine();
    let deferred = (handler.deferred() > 0).then_some(0);
    let buckets = engine.shards.iter().filter_map(Shard::next_deadline);
    let next = deferred.into_iter().chain(buckets).min().unwrap_or(NEVER);
    (next, engine.alarm.set(next))
}

/// Resets the alarm, and sets it to the next work. Called by the thread that sleeps until the alarm, or by a caller
/// that acts for it. Returns the tick of the next work, and the tick of the alarm before the reset.
fn rearm<H: Handler>(handler: &H) -> (Tick, Tick) {
    let alarm = &handler.engine().alarm;
    let before = alarm.reset();
    let (next, _) = set_alarm(handler);
    // Since the reset, other threads may have set the alarm to deadlines of their own. The earliest tick counts.
    (next.min(alarm.time()), before)
}

/// The time of the next work, for a caller that drives the timer itself.
pub(crate) fn next_deadline<H: Handler>(handler: &H) -> Option<Timestamp> {
    let next = rearm_for_caller(handler);
    (next != NEVER).then(|| handler.engine().scale.timestamp(next))
}

/// Sets the alarm for a caller that has driven the handler, or asks when to drive it. Returns the tick of the next
/// work.
fn rearm_for_caller<H: Handler>(handler: &H) -> Tick {
    let engine = handler.engine();
    let (next, tell) = if engine.threads.has_reaper() {
        // The caller is not the sleeping thread, so it does not reset the alarm: if the scheduler stopped the caller
        // right after a reset, a reaper that woke would find no alarm and sleep without end. An alarm that is too early
        // costs one wake-up.
        set_alarm(handler)
    } else {
        // One caller at a time resets the alarm. Otherwise a second caller could read the `NEVER` of the first caller's
        // reset as `before`, instead of the tick for which the reactor was woken.
        let _alone = engine.rearming.lock();
        let (next, before) = rearm(handler);
        // Wake the reactor here, because this caller may not be the reactor. Another thread may have filed a deadline
        // and not announced it yet. If this caller finds that deadline first, the announcement finds the alarm set, and
        // wakes no thread.
        (next, next < before)
    };
    if tell {
        engine.wake();
    }
    next
}

impl<H: Handler> Driven for H {
    fn drive(self: Arc<Self>) -> Option<Duration> {
        let engine = self.engine();
        if engine.phase.is_closed() {
            while reclaim(&self) {}
            return None;
        }
        let mut next = engine.alarm.time();
        if next != NEVER && next <= engine.now() {
            pass(&self);
            (next, _) = rearm(&*self);
        }
        // After many payloads have expired at once, reclaim only a part of their slots and watches. Then look at the
        // alarm again.
        if reclaim(&self) {
            return Some(Duration::ZERO);
        }
        // A deadline beyond the last reading of the clock never passes.
        if next == NEVER || !engine.scale.can_come(next) {
            idle(&*self);
            return Some(Duration::MAX);
        }
        let time = engine.clock.time_until(engine.scale.timestamp(next));
        Some(time.unwrap_or(Duration::MAX))
    }
}
