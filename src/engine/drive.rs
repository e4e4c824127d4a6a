//! Driving a handler when time has passed, setting its alarm, and shutting it down.

use super::companion::Companion;
use super::dispatch::RunOn;
use super::endings::Endings;
use super::expire::{pass, reclaim};
use super::handler::Handler;
use super::shard::{Refusal, Shard};
use super::{CLOSED, CLOSED_IN_BACKGROUND};
use crate::cell::state::Mark;
use crate::promise::Promise;
use crate::reaper::{Driven, Rest};
use crate::scheme::Tick;
use crate::sync::{Arc, Weak};
use crate::time::ticks::NEVER;
use crate::trampoline::Trampoline;
use crate::worker::{GRACE, Worker};
use std::io;
use std::time::{Duration, Instant};

/// The first and the longest pause between two evaluations of a thread that [waits](wait).
const FIRST_PAUSE: Duration = Duration::from_micros(50);
const LAST_PAUSE: Duration = Duration::from_millis(5);

/// Lets the handler's reaper drive it from now on, and its clock wake the thread that does.
pub(super) fn start<H: Handler>(handler: &Arc<H>) {
    let driven: Weak<dyn Driven> = Arc::<H>::downgrade(handler);
    let engine = handler.engine();
    engine.threads.drive(driven, &*engine.clock);
}

/// Expires payloads, makes deferred calls and reclaims, by the time that it is now. Returns how many payloads expired.
///
/// Timers that user code starts meanwhile, however close, are left for the next call, so that this one ends.
pub(crate) fn advance<H: Handler>(handler: &Arc<H>) -> usize {
    let expired = pass(handler);
    while reclaim(handler) {}
    rearm_for_caller(&**handler);
    expired
}

/// Sets the alarm to the next thing to do, if that is earlier. Returns its tick, and whether it could be earlier than
/// the reaper knows.
fn set_alarm<H: Handler>(handler: &H) -> (Tick, bool) {
    let engine = handler.engine();
    let deferred = (handler.deferred() > 0).then_some(0);
    let buckets = engine.shards.iter().filter_map(Shard::next_deadline);
    let mut next = NEVER;
    let mut earlier = false;
    let companion = engine.companion.get().and_then(Companion::next_deadline);
    let companion = companion.map(|deadline| engine.scale.ceil(deadline));
    for deadline in deferred.into_iter().chain(companion).chain(buckets) {
        next = next.min(deadline);
        earlier |= engine.alarm.set(deadline);
    }
    (next, earlier)
}

/// Sets the alarm anew, for the thread that sleeps until it. Returns the tick of the next thing to do, and the tick that
/// the alarm was set to before.
fn rearm<H: Handler>(handler: &H) -> (Tick, Tick) {
    let alarm = &handler.engine().alarm;
    let before = alarm.reset();
    let (next, _) = set_alarm(handler);
    // Other threads may have set the alarm to deadlines of their own: the earlier one counts.
    (next.min(alarm.time()), before)
}

/// For a caller that has driven the handler, or asks when to.
pub(crate) fn rearm_for_caller<H: Handler>(handler: &H) -> Tick {
    let engine = handler.engine();
    let (next, tell) = if engine.threads.has_reaper() {
        // The caller is not the thread that sleeps, and leaves an alarm that is too early as it is: the scheduler may
        // stop the caller between a reset and what follows it, and a reaper that wakes then would find nothing to do,
        // nor to wait for.
        set_alarm(handler)
    } else {
        // One caller at a time, or they would not know whether the reactor knows of each other's alarms.
        let _alone = engine.rearming.lock();
        let (next, before) = rearm(handler);
        // Another thread than the reactor may call this, and the reactor knows only the deadlines that this call tells
        // it. A deadline may be in the wheel and not announced yet: the thread that announces it will find the alarm
        // set, and wake no thread. So an earlier deadline is told here.
        (next, next < before)
    };
    if tell {
        engine.wake();
    }
    next
}

/// Ends every payload and the threads, once, and waits for the threads unless this is called from a callback. Returns
/// whether this call did it.
pub(crate) fn shut_down<H: Handler>(handler: &Arc<H>) -> bool {
    let closed = close(handler, CLOSED);
    if closed {
        handler.engine().stop_threads(Worker::join);
    }
    closed
}

/// [Shuts down](shut_down) for the drop of the last handle, which waits for the threads for a moment only.
pub(crate) fn shut_down_on_drop<H: Handler>(handler: &Arc<H>) {
    close(handler, CLOSED);
    {
        let _trampoline = Trampoline::enter();
        handler.discard();
    }
    // Where the shutdown came from a callback, no thread has joined the threads yet.
    if !handler.engine().is_closed_in_background() {
        let engine = handler.engine();
        engine.stop_threads(|thread| thread.join_within(GRACE));
    }
}

/// Whether every payload has ended because of the shutdown and, but for jobs of an executor, been completed; and whether
/// the threads have ended.
pub(crate) fn is_over<H: Handler>(handler: &Arc<H>) -> bool {
    let engine = handler.engine();
    // A payload that another thread holds is ended by that one, which is a pass meanwhile.
    engine.is_emptied()
        && engine.stats().parked == 0
        && engine.passes.are_over()
        && engine.threads.running().is_empty()
}

/// Lets a thread of its own shut the handler down, the same one whatever number of calls asks for it. `done`, if given,
/// is kept when the shutdown is over.
pub(crate) fn shut_down_in_background<H: Handler>(
    handler: &Arc<H>,
    done: Option<&Arc<Promise<()>>>,
) -> io::Result<()> {
    let engine = handler.engine();
    engine.background.begin(done, || {
        let handler = handler.clone();
        Worker::spawn(&engine.name, "shutdown", move || {
            let engine = handler.engine();
            if !close(&handler, CLOSED_IN_BACKGROUND) {
                // Another thread closes it, and may be at that still.
                wait(Duration::MAX, || engine.is_emptied());
            }
            // Also where another thread has closed it: that may have been a callback, which does not wait. If another
            // thread is joining them, this one waits as well.
            engine.stop_threads(Worker::join);
            wait(Duration::MAX, || is_over(&handler));
            for done in engine.background.end() {
                // A waker is the user's code.
                let _ = engine.guarded(|| done.keep(()));
            }
        })?;
        Ok(())
    })
}

/// Ends every payload. Returns whether this call did it.
fn close<H: Handler>(handler: &Arc<H>, phase: u32) -> bool {
    let engine = handler.engine();
    if !engine.enter_phase(phase) {
        return false;
    }
    let _emptied = engine.emptied_on_drop();
    let trampoline = Trampoline::enter();
    for shard in engine.shards.settled() {
        // After this no payload gets a slot here. One that has a slot and is still being registered is held, and its
        // holder will find the mark.
        shard.refuse(Refusal::Closed);
        let mut endings = Endings::new(handler, &trampoline, RunOn::Caller);
        for at in shard.occupants() {
            if let Some(claim) = engine.claim(shard.address(at), Mark::ShutDown) {
                if let Some(ended) = handler.on_shutdown(claim) {
                    endings.push(ended);
                }
            }
        }
    }
    handler.on_closed();
    while reclaim(handler) {}
    // What a destructor's panic would keep from being stopped are the threads.
    engine.leave(trampoline);
    true
}

/// Refuses every payload from now on, and waits for at most `limit` until all parked ones have ended and been
/// completed. Returns how many are parked.
pub(crate) fn drain<H: Handler>(handler: &Arc<H>, limit: Duration) -> usize {
    let engine = handler.engine();
    engine.begin_drain();
    wait(limit, || {
        // Where no thread of the library drives the timer, this one does.
        if !engine.threads.is_driving() {
            advance(handler);
        }
        // In this order: what is found to have ended is handed over by now, or its pass is in progress.
        engine.is_closed() || (engine.stats().parked == 0 && completions_have_run(handler))
    });
    engine.stats().parked
}

/// Whether the completions of payloads have run that were found to have ended: of the expired ones all; of the others
/// those that do not run in the call that ended the payload.
pub(crate) fn completions_have_run<H: Handler>(handler: &Arc<H>) -> bool {
    let engine = handler.engine();
    engine.passes.are_over() && engine.stats().completions_pending == 0
}

/// Asks `is_done` now and then until it says so or `limit` has passed. Returns its last answer. From a callback it is
/// asked once: what it waits for may have to be done by this very thread.
pub(crate) fn wait(limit: Duration, mut is_done: impl FnMut() -> bool) -> bool {
    let begun = Instant::now();
    let mut pause = FIRST_PAUSE;
    while !is_done() {
        let left = limit.saturating_sub(begun.elapsed());
        if left.is_zero() || Trampoline::in_progress() {
            return is_done();
        }
        std::thread::sleep(pause.min(left));
        pause = (2 * pause).min(LAST_PAUSE);
    }
    true
}

impl<H: Handler> Driven for H {
    fn drive(self: Arc<Self>) -> Rest {
        let engine = self.engine();
        if engine.is_closed() {
            while reclaim(&self) {}
            return Rest::Done;
        }
        let mut next = engine.alarm.time();
        if next != NEVER && next <= engine.now() {
            pass(&self);
            (next, _) = rearm(&*self);
        }
        // Completions came first. Slots and watches of expired payloads are reclaimed while no timer is due.
        if reclaim(&self) {
            return Rest::For(Duration::ZERO);
        }
        // A deadline that no reading of the clock can reach never passes.
        if next == NEVER || !engine.scale.can_come(next) {
            return Rest::UntilWoken;
        }
        match engine.clock.time_until(engine.timestamp(next)) {
            Some(time) => Rest::For(time),
            None => Rest::UntilWoken,
        }
    }
}
