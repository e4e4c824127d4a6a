//! The end of a handler: drain and shutdown.

use super::deliver::{Outbox, RunOn};
use super::drive::advance;
use super::expire::reclaim;
use super::handler::Handler;
use super::phase::{CLOSED, CLOSED_IN_BACKGROUND};
use crate::callbacks::promise::Promise;
use crate::callbacks::trampoline::Trampoline;
use crate::cell::state::Mark;
use crate::error::{RejectReason, ShutdownError};
use crate::sync::{self, Arc};
use crate::threads::worker::{GRACE, Worker};
use std::future::{Future, poll_fn};
use std::io;
use std::time::{Duration, Instant};

/// The first and the longest pause between two evaluations of a thread that [waits](wait).
const FIRST_PAUSE: Duration = Duration::from_micros(50);
const LAST_PAUSE: Duration = Duration::from_millis(5);

/// Ends every payload and the threads, once, and waits for the threads unless this is called from a callback. Returns
/// whether this call did it.
pub(crate) fn shut_down<H: Handler>(handler: &Arc<H>) -> bool {
    let closed = close(handler, CLOSED);
    if closed {
        handler.engine().stop_threads(None);
    }
    closed
}

/// [Shuts down](shut_down) for the drop of the last clone, which waits for the threads for a moment only.
pub(crate) fn shut_down_on_drop<H: Handler>(handler: &Arc<H>) {
    close(handler, CLOSED);
    {
        let _trampoline = Trampoline::enter();
        handler.on_dropped();
    }
    let engine = handler.engine();
    // Where the shutdown came from a callback, no thread has joined the threads yet. One in the background joins them.
    if engine.phase.now() != CLOSED_IN_BACKGROUND {
        engine.stop_threads(Some(GRACE));
    }
}

/// Whether every payload has ended because of the shutdown and, but for jobs of an executor, been completed; and whether
/// the threads have ended.
pub(crate) fn is_over<H: Handler>(handler: &Arc<H>) -> bool {
    let engine = handler.engine();
    // When the shutdown itself is over, nothing more is parked. What it left to a thread that holds it is ended by that
    // one, which is under way meanwhile: so this is asked again.
    engine.phase.is_closed()
        && engine.underway.is_over()
        && engine.stats().parked == 0
        && engine.underway.is_over()
        && engine.threads.running().is_empty()
}

/// Lets a thread of its own shut the handler down, the same one whatever number of calls asks for it. `done`, if given,
/// is kept when the shutdown is over.
fn shut_down_in_background<H: Handler>(
    handler: &Arc<H>,
    done: Option<&Arc<Promise<()>>>,
) -> io::Result<()> {
    let engine = handler.engine();
    let was_over = engine.background.begin(done, || {
        let handler = handler.clone();
        Worker::default().start(&engine.name, "shutdown", move || {
            let engine = handler.engine();
            if !close(&handler, CLOSED_IN_BACKGROUND) {
                // Another thread closes it, and may be at that still.
                wait(Duration::MAX, || engine.underway.is_over());
            }
            // Also where another thread has closed it: that may have been a callback, which does not wait. If another
            // thread is joining them, this one waits as well.
            engine.stop_threads(None);
            wait(Duration::MAX, || is_over(&handler));
            keep_promises(&handler);
        })
    })?;
    if was_over {
        keep_promises(handler);
    }
    Ok(())
}

/// The shutdown is over.
fn keep_promises<H: Handler>(handler: &Arc<H>) {
    let engine = handler.engine();
    for done in engine.background.finish() {
        // A waker is the user's code.
        let _ = engine.guarded(|| done.keep(()));
    }
}

/// As [`shut_down`], on a thread of its own.
pub(crate) fn shut_down_async<H: Handler>(
    handler: &Arc<H>,
) -> io::Result<impl Future<Output = ()> + Unpin + use<H>> {
    let done = Arc::new(Promise::new());
    shut_down_in_background(handler, Some(&done))?;
    Ok(poll_fn(move |cx| done.poll(cx)))
}

/// Shuts down on a thread of its own, and waits for that thread for at most `limit`.
pub(crate) fn shut_down_within<H: Handler>(
    handler: &Arc<H>,
    limit: Duration,
) -> Result<(), ShutdownError> {
    shut_down_in_background(handler, None).map_err(ShutdownError::Thread)?;
    if wait(limit, || is_over(handler) && completions_have_run(handler)) {
        return Ok(());
    }
    let engine = handler.engine();
    let stats = engine.stats();
    Err(ShutdownError::TimedOut {
        parked: stats.parked,
        completions_pending: stats.completions_pending,
        threads: engine.threads.running(),
    })
}

/// Ends every payload because of the shutdown. Returns whether this call did it.
pub(crate) fn close_now<H: Handler>(handler: &Arc<H>) -> bool {
    close(handler, CLOSED)
}

/// [Shuts down](shut_down), if nothing is parked. Returns whether this call did it.
pub(crate) fn shut_down_if_idle<H: Handler>(handler: &Arc<H>) -> bool {
    let engine = handler.engine();
    let closed = close_by(handler, || {
        engine.shards.close_if_empty(|| engine.phase.enter(CLOSED))
    });
    if closed {
        engine.stop_threads(None);
    }
    closed
}

/// Ends every payload. Returns whether this call did it.
fn close<H: Handler>(handler: &Arc<H>, phase: u32) -> bool {
    close_by(handler, || handler.engine().phase.enter(phase))
}

/// [Closes](close), if `enter` enters the phase.
fn close_by<H: Handler>(handler: &Arc<H>, enter: impl FnOnce() -> bool) -> bool {
    let engine = handler.engine();
    // Before the phase is entered: a thread that finds that it is closed finds this pass, or finds it over.
    let _underway = engine.underway.begin();
    if !enter() {
        return false;
    }
    let trampoline = Trampoline::enter();
    for shard in engine.shards.settled() {
        // After this no payload gets a slot here. One that has a slot and is still being registered is held, and its
        // holder will find the mark.
        shard.close_with(RejectReason::ShutDown);
        let mut endings = Outbox::new(handler, &trampoline, RunOn::Caller);
        for at in shard.slab.occupants() {
            let held = engine.claim_or_mark(at, Mark::ShutDown);
            if let Some(ended) = held.and_then(|held| handler.on_shutdown(held)) {
                endings.push(ended);
                endings.hand_over_last();
            }
        }
    }
    handler.on_closed();
    while reclaim(handler) {}
    // A destructor's panic must not go on from here: the threads would not be stopped.
    engine.leave(trampoline);
    true
}

/// Rejects every payload from now on, and waits for at most `limit` until all parked ones have ended and been
/// completed. Returns how many are parked.
pub(crate) fn drain<H: Handler>(handler: &Arc<H>, limit: Duration) -> usize {
    let engine = handler.engine();
    engine.begin_drain();
    wait(limit, || {
        // Where no thread of the library drives the timer, this one does.
        if !engine.threads.has_reaper() || !engine.threads.reaper_is_started() {
            advance(handler);
        }
        // In this order: what is found to have ended is handed over by now, or its pass is in progress.
        engine.stats().parked == 0 && completions_have_run(handler)
    });
    engine.stats().parked
}

/// Whether the completions of payloads have run that were found to have ended: of the expired ones all; of the others
/// those that do not run in the call that ended the payload.
fn completions_have_run<H: Handler>(handler: &Arc<H>) -> bool {
    let engine = handler.engine();
    // ORDERING: by the Acquire fence of `Stats::of` this thread sees what the completions did that it finds delivered.
    engine.underway.is_over() && engine.stats().completions_pending == 0
}

/// Asks `is_done` now and then until it says so or `limit` has passed. Returns its last answer. From a callback it is
/// asked once: what it waits for may have to be done by this very thread.
pub(crate) fn wait(limit: Duration, mut is_done: impl FnMut() -> bool) -> bool {
    let begun = Instant::now();
    let mut pause = FIRST_PAUSE;
    while !is_done() {
        let left = limit.saturating_sub(begun.elapsed());
        if left.is_zero() || Trampoline::in_progress() {
            return false;
        }
        sync::pause(pause.min(left));
        pause = (2 * pause).min(LAST_PAUSE);
    }
    true
}
