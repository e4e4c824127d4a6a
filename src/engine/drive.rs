//! Drives a handler (the inside of a purgatory or timer): expires payloads whose deadline has passed, and sets the
//! alarm (the tick until which the reaper sleeps) to the next deadline.

use super::expire::{pass, reclaim};
use super::handler::Handler;
use super::shard::Shard;
use crate::callbacks::trampoline::Driving;
use crate::scheme::Tick;
use crate::sync::Arc;
use crate::threads::reaper::Driven;
use crate::time::Timestamp;
use crate::time::ticks::NEVER;
use std::time::Duration;

/// Drives the handler once, for a caller that is not the reaper. Expires payloads, makes the deferred checks (checks
/// that are left to the thread that drives the timer), and reclaims slots and watches. Returns how many payloads
/// expired.
///
/// A timer that user code starts during this call waits for the next call, however near its deadline is. Otherwise user
/// code that keeps starting timers could keep this call from returning. One exception: if a tick passes during a
/// deferred check, all timers that are due after the check expire, including timers that user code has just started.
/// This call returns even so, because it makes only the checks that were deferred before it began.
pub(crate) fn advance<H: Handler>(handler: &Arc<H>) -> usize {
    let _driving = Driving::enter();
    let expired = pass(handler);
    while reclaim(handler) {}
    if rearm_for_caller(&**handler) == NEVER {
        idle(&**handler);
    }
    expired
}

/// Releases memory that is not needed any more. Called when no deadline is left.
fn idle<H: Handler>(handler: &H) {
    handler.on_idle();
    shrink(handler);
}

/// Releases the unused memory of the handler and of every timer shard.
pub(crate) fn shrink<H: Handler>(handler: &H) {
    handler.shrink();
    handler.engine().shards.iter().for_each(Shard::shrink);
}

/// Lowers the alarm to the tick of the next work: tick 0 if a check is deferred, otherwise the earliest deadline.
/// Returns that tick ([`NEVER`] if there is no work), and whether the alarm was later. If it was, the caller must wake
/// the thread that sleeps until the alarm.
fn set_alarm<H: Handler>(handler: &H) -> (Tick, bool) {
    let engine = handler.engine();
    let deferred = (handler.deferred() > 0).then_some(0);
    let buckets = engine.shards.iter().filter_map(Shard::next_deadline);
    let next = deferred.into_iter().chain(buckets).min().unwrap_or(NEVER);
    (next, engine.alarm.set(next))
}

/// Sets the alarm to the tick of the next work (a deadline or a deferred check). The alarm may become later:
/// `set_alarm` only lowers it, so this function first resets it to [`NEVER`]. Called by the thread that sleeps until
/// the alarm, or by a caller that acts for that thread. Returns the tick of the next work, and the tick of the alarm
/// before the reset.
fn rearm<H: Handler>(handler: &H) -> (Tick, Tick) {
    let alarm = &handler.engine().alarm;
    let before = alarm.reset();
    let (next, _) = set_alarm(handler);
    // After the reset, other threads may have set the alarm to deadlines that `set_alarm` has not found. So return
    // `next` or the tick of the alarm, whichever is earlier.
    (next.min(alarm.time()), before)
}

/// The time of the next deadline or deferred check, for a caller that drives the timer itself. `None` if there is
/// neither.
pub(crate) fn next_deadline<H: Handler>(handler: &H) -> Option<Timestamp> {
    let next = rearm_for_caller(handler);
    (next != NEVER).then(|| handler.engine().scale.timestamp(next))
}

/// Sets the alarm (the tick until which the reaper sleeps). Called when a caller that is not the reaper has driven the
/// handler, or asks when to drive it. Returns the tick of the next deadline or deferred check; [`NEVER`] if there is
/// neither.
fn rearm_for_caller<H: Handler>(handler: &H) -> Tick {
    let engine = handler.engine();
    let (next, tell) = if engine.threads.has_reaper() {
        // The reaper sleeps until the alarm, and this caller is not the reaper. So this caller does not reset the
        // alarm: if the scheduler stopped this caller right after a reset, a reaper that wakes then would find no
        // alarm, and miss its deadlines. An alarm that is too early costs the reaper one wake-up.
        set_alarm(handler)
    } else {
        // Without a reaper, callers drive the engine, for example the user's reactor (an event loop), which sleeps
        // until the alarm. `rearm` resets the alarm to `NEVER` for a moment, and returns as `before` the tick of the
        // alarm before the reset.
        //
        // Only one caller at a time calls `rearm`. Otherwise a second caller could get `NEVER` as `before`. The next
        // work, if there is any, is earlier than `NEVER`, so the second caller would wake the reactor in vain.
        let _alone = engine.rearming.lock();
        let (next, before) = rearm(handler);
        // Wake the reactor if the next work is earlier than `before`, the tick until which the reactor sleeps: this
        // caller may be another thread than the reactor. The thread that has added the earlier work does not always
        // wake the reactor: it does so only if it lowers the alarm itself, and this caller may have set the alarm to
        // that tick first.
        (next, next < before)
    };
    if tell {
        engine.wake();
    }
    next
}

impl<H: Handler> Driven for H {
    fn drive(self: Arc<Self>) -> Option<Duration> {
        let _driving = Driving::enter();
        let engine = self.engine();
        if engine.phase.is_closed() {
            while reclaim(&self) {}
            return None;
        }
        let mut next = engine.alarm.time();
        let is_due = next != NEVER && next <= engine.now();
        if is_due {
            pass(&self);
            (next, _) = rearm(&*self);
        }
        // After many payloads have expired at once, `reclaim` reclaims only a part of their slots and watches. Return
        // then, so that this thread looks at the alarm before the next part, and due timers do not wait.
        let has_reclaimed = reclaim(&self);
        if has_reclaimed && !self.reclaim_queue().is_empty() {
            return Some(Duration::ZERO);
        }
        // Destructors of reclaimed keys are user code, which may have set the alarm to an earlier deadline.
        next = next.min(engine.alarm.time());
        if next == NEVER {
            // A shared reaper drives all its handlers whenever one of them has work. Releasing memory takes the locks
            // of all timer shards, so do it only if this handler has had work itself.
            if is_due || has_reclaimed {
                idle(&*self);
            }
            return Some(Duration::MAX);
        }
        let time = engine.clock.time_until(engine.scale.timestamp(next));
        Some(time.unwrap_or(Duration::MAX))
    }
}
