//! Drives a handler: expires what is due, and sets the handler's alarm to the next deadline.

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
/// sleeping thread. Returns how many payloads expired.
///
/// Timers that user code starts during this call are left for the next call, however near their deadlines are, so that
/// this call ends. One exception: between two deferred checks, timers due by then expire too; that ends with the last
/// of these checks.
pub(crate) fn advance<H: Handler>(handler: &Arc<H>) -> usize {
    let expired = pass(handler);
    while reclaim(handler) {}
    if rearm_for_caller(&**handler) == NEVER {
        idle(&**handler);
    }
    expired
}

/// No deadline is left: gives memory back.
fn idle<H: Handler>(handler: &H) {
    handler.on_idle();
    shrink(handler);
}

/// Gives back the memory that no payload needs.
pub(crate) fn shrink<H: Handler>(handler: &H) {
    handler.shrink();
    handler.engine().shards.iter().for_each(Shard::shrink);
}

/// Sets the alarm to the next thing to do, if that is earlier. Returns its tick, and whether the alarm was later, so
/// that the reaper has to be woken.
fn set_alarm<H: Handler>(handler: &H) -> (Tick, bool) {
    let engine = handler.engine();
    let deferred = (handler.deferred() > 0).then_some(0);
    let buckets = engine.shards.iter().filter_map(Shard::next_deadline);
    let next = deferred.into_iter().chain(buckets).min().unwrap_or(NEVER);
    (next, engine.alarm.set(next))
}

/// Sets the alarm anew, for the thread that sleeps until it. Returns the tick of the next work, and the tick that the
/// alarm was set to before.
fn rearm<H: Handler>(handler: &H) -> (Tick, Tick) {
    let alarm = &handler.engine().alarm;
    let before = alarm.reset();
    let (next, _) = set_alarm(handler);
    // Other threads may have set the alarm to deadlines of their own: the earliest tick counts.
    (next.min(alarm.time()), before)
}

/// The time of the next work, for a caller that asks.
pub(crate) fn next_deadline<H: Handler>(handler: &H) -> Option<Timestamp> {
    let next = rearm_for_caller(handler);
    (next != NEVER).then(|| handler.engine().scale.timestamp(next))
}

/// Sets the alarm for a caller that has driven the handler, or that asks when to drive it.
fn rearm_for_caller<H: Handler>(handler: &H) -> Tick {
    let engine = handler.engine();
    let (next, tell) = if engine.threads.has_reaper() {
        // The caller is not the sleeping thread, so it does not reset the alarm: if the scheduler stopped the caller
        // right after a reset, a reaper that woke would find no alarm and sleep without end. An alarm that is too early
        // costs one wake-up.
        set_alarm(handler)
    } else {
        // One caller at a time: of two callers, neither would know which alarm the reactor was told of.
        let _alone = engine.rearming.lock();
        let (next, before) = rearm(handler);
        // Wake the reactor here, because this caller may not be the reactor. If this caller finds a deadline before it
        // is announced by the thread that filed it, that thread will find the alarm set, and wake no thread.
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
        // After a storm: reclaim a part of what expired payloads left, then look at the alarm again.
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
