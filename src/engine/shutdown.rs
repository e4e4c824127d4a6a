//! Drain and shutdown of a handler (the inside of a purgatory or timer).

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

/// The first and the longest pause between two evaluations in [`wait`].
const FIRST_PAUSE: Duration = Duration::from_micros(50);
const LAST_PAUSE: Duration = Duration::from_millis(5);

/// Ends every payload and the engine's own threads; only the first call does so. Waits for the threads, unless the
/// caller is a callback. Returns whether this call did the shutdown.
pub(crate) fn shut_down<H: Handler>(handler: &Arc<H>) -> bool {
    let closed = close(handler, CLOSED);
    if closed {
        handler.engine().stop_threads(None);
    }
    closed
}

/// [Shuts down](shut_down) because the last clone is dropped. Waits for each thread for at most [`GRACE`].
pub(crate) fn shut_down_on_drop<H: Handler>(handler: &Arc<H>) {
    close(handler, CLOSED);
    {
        let _trampoline = Trampoline::enter();
        handler.on_dropped();
    }
    let engine = handler.engine();
    // Join the threads even if an earlier call has shut the handler down: that call may have been made in a callback,
    // and then did not join them. A shutdown in the background joins the threads itself.
    if engine.phase.now() != CLOSED_IN_BACKGROUND {
        engine.stop_threads(Some(GRACE));
    }
}

/// Whether the shutdown has ended every payload, the completions that were not handed over have run, and the handler's
/// own threads have ended. Completions that were handed to an executor or to a shared thread may still run.
pub(crate) fn is_over<H: Handler>(handler: &Arc<H>) -> bool {
    let engine = handler.engine();
    // Check `underway` twice. The first check shows that the shutdown has ended or marked every payload. After that
    // check, a holder may end a payload that the shutdown has marked. If `parked` does not count this payload any more,
    // the second check finds its ending under way, until its completion is handed over or has run.
    engine.phase.is_closed()
        && engine.underway.is_over()
        && engine.stats().parked == 0
        && engine.underway.is_over()
        && engine.threads.running().is_empty()
}

/// Starts a thread that shuts the handler down, unless an earlier call has started it. The promise `done`, if given, is
/// kept when the shutdown is over.
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
                // Another thread is closing the handler, or has closed it. Wait until that is done.
                wait(Duration::MAX, || engine.underway.is_over());
            }
            // Stop the engine's threads even if another thread has closed the handler: if it did so in a callback, it
            // does not wait for them. If another thread is joining them already, the `wait` below waits for their end.
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

/// Keeps the promises of a shutdown that is over.
fn keep_promises<H: Handler>(handler: &Arc<H>) {
    let engine = handler.engine();
    for done in engine.background.finish() {
        // A waker is user code.
        let _ = engine.guarded(|| done.keep(()));
    }
}

/// [Shuts down](shut_down) on a background thread. The future is ready when the shutdown is over.
pub(crate) fn shut_down_async<H: Handler>(
    handler: &Arc<H>,
) -> io::Result<impl Future<Output = ()> + Unpin + use<H>> {
    let done = Arc::new(Promise::new());
    shut_down_in_background(handler, Some(&done))?;
    Ok(poll_fn(move |cx| done.poll(cx)))
}

/// Shuts down on a background thread, and waits for at most `limit` until the shutdown is over.
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

/// Ends every payload because of the shutdown. Returns whether this call did the shutdown.
pub(crate) fn close_now<H: Handler>(handler: &Arc<H>) -> bool {
    close(handler, CLOSED)
}

/// [Shuts down](shut_down), if nothing is parked. Returns whether this call did the shutdown.
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

/// Enters `phase`, one of the closed phases, and ends every payload. Does nothing if the handler is closed already.
/// Returns whether this call entered the phase.
fn close<H: Handler>(handler: &Arc<H>, phase: u32) -> bool {
    close_by(handler, || handler.engine().phase.enter(phase))
}

/// [Closes](close) the handler, if `enter` reports that it has entered the phase.
fn close_by<H: Handler>(handler: &Arc<H>, enter: impl FnOnce() -> bool) -> bool {
    let engine = handler.engine();
    // Count this shutdown as under way before the phase is entered. Then a thread that finds the phase closed also
    // finds this shutdown under way, or over.
    let _underway = engine.underway.begin();
    if !enter() {
        return false;
    }
    let trampoline = Trampoline::enter();
    for shard in engine.shards.settled() {
        // After this call no payload gets a slot in this shard. A payload that has a slot but is still being parked has
        // a holder, and the holder will find the mark.
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
    // A destructor's panic must not be passed on here: the threads would not be stopped.
    engine.leave(trampoline);
    true
}

/// Rejects every payload from now on, and waits for at most `limit` until all parked payloads have ended and been
/// completed. Returns how many are still parked.
pub(crate) fn drain<H: Handler>(handler: &Arc<H>, limit: Duration) -> usize {
    let engine = handler.engine();
    engine.begin_drain();
    wait(limit, || {
        // If no thread of the library drives the timer, this thread does.
        if !engine.threads.has_reaper() || !engine.threads.reaper_is_started() {
            advance(handler);
        }
        // Read `parked` before `completions_have_run`. If this read finds that a payload has expired, its completion is
        // under way or handed over until it has run. In both states, `completions_have_run` returns `false`. The drain
        // does not wait for a completion that runs inside the check that has satisfied the payload.
        engine.stats().parked == 0 && completions_have_run(handler)
    });
    engine.stats().parked
}

/// Returns whether the completions have run, for the payloads that had ended when this thread last read `stats`. A
/// completion that runs in the call that ended its payload is not included, unless the payload has expired.
fn completions_have_run<H: Handler>(handler: &Arc<H>) -> bool {
    let engine = handler.engine();
    // ORDERING: the Acquire fence in `Stats::of` pairs with the Release fence after each completion in
    // `Delivery::drop`. So this thread sees the effects of the completions that it finds delivered.
    engine.underway.is_over() && engine.stats().completions_pending == 0
}

/// Evaluates `is_done` repeatedly until it returns `true` or `limit` has passed. Returns the last answer. In a
/// callback, `is_done` is evaluated once: the awaited work may have to be done by this very thread.
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
