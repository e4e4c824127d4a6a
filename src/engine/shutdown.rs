//! The drain and the shutdown of a handler (the inside of a purgatory or timer).

use super::deliver::Outbox;
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

/// [`wait`] pauses between two evaluations of its condition: at first this long, at most as long as [`LAST_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_micros(50);
const LAST_PAUSE: Duration = Duration::from_millis(5);

/// Ends every payload, and then the engine's own threads. Waits for these threads, unless the caller is a callback.
/// Returns `true` if this call did the shutdown. If an earlier call did, does nothing and returns `false`.
pub(crate) fn shut_down<H: Handler>(handler: &Arc<H>) -> bool {
    let closed = close(handler, CLOSED);
    if closed {
        handler.engine().stop_threads(None);
    }
    closed
}

/// [Shuts down](shut_down) the handler because its last clone was dropped. Waits for each thread for at most [`GRACE`].
pub(crate) fn shut_down_on_drop<H: Handler>(handler: &Arc<H>) {
    close(handler, CLOSED);
    let engine = handler.engine();
    let trampoline = Trampoline::enter();
    handler.on_dropped();
    engine.leave(trampoline);
    // Join the threads even if an earlier call has shut the handler down. If the earlier call was made in a callback,
    // it did not wait for the threads, and has not joined them. But if a background thread does the shutdown, the
    // background thread joins them.
    if engine.phase.now() != CLOSED_IN_BACKGROUND {
        engine.stop_threads(Some(GRACE));
    }
}

/// Whether the shutdown is over: it has ended every payload, the completions that were not handed over have run, and
/// the engine's own threads have ended. Completions that were handed to an executor or to a shared thread may still
/// run.
pub(crate) fn is_over<H: Handler>(handler: &Arc<H>) -> bool {
    let engine = handler.engine();
    // Check `underway` (the endings whose completions were neither run nor handed over) before and after `parked` is
    // read. The shutdown itself counts as under way until it has reached every payload: has ended the payload, or has
    // left a mark by which the payload's holder ends it. So the first check shows that every payload has ended or has a
    // mark. A holder may end its payload after the first check. Then `parked` may no longer count the payload, but the
    // second check finds this ending under way, until its completion is handed over or has run.
    engine.phase.is_closed()
        && engine.underway.is_over()
        && engine.stats().parked == 0
        && engine.underway.is_over()
        && engine.threads.running().is_empty()
}

/// Starts a background thread that shuts the handler down, unless an earlier call has started it. When the shutdown is
/// over, the promise `done`, if given, is fulfilled, which wakes the future that awaits it. `Err` if the system refuses
/// the thread.
fn shut_down_in_background<H: Handler>(
    handler: &Arc<H>,
    done: Option<&Arc<Promise<()>>>,
) -> io::Result<()> {
    let engine = handler.engine();
    let was_over = engine.background.begin(done, || {
        // This shutdown counts as under way from the moment at which the phase may be entered until the thread ends the
        // payloads. If an earlier call has shut the handler down, this call does not, and a caller who asks whether the
        // shutdown is over need not wait for the thread.
        let underway = (!engine.phase.is_closed()).then(|| engine.underway.begin());
        let handler = handler.clone();
        Worker::default().start(&engine.name, "shutdown", move || {
            let engine = handler.engine();
            // The caller enters the phase below, perhaps before this thread does. No other thread enters this phase.
            let closed = close_by(&handler, || {
                engine.phase.enter(CLOSED_IN_BACKGROUND);
                engine.phase.now() == CLOSED_IN_BACKGROUND
            });
            drop(underway);
            if !closed {
                // Another thread is shutting the handler down, or has done so. Wait until that thread has ended the
                // payloads.
                wait(Duration::MAX, || engine.underway.is_over());
            }
            // Stop the engine's threads even if another thread has done the shutdown. A shutdown in a callback has not
            // joined the engine's threads, because the callback may run on one of them. A shutdown elsewhere may still
            // be joining them: the `wait` below waits until they have ended.
            engine.stop_threads(None);
            wait(Duration::MAX, || is_over(&handler));
            keep_promises(&handler);
        })?;
        // From now on parks are rejected, and neither `shutdown` nor the drop of the last clone ends the payloads on its
        // own thread.
        engine.phase.enter(CLOSED_IN_BACKGROUND);
        Ok(())
    })?;
    if was_over {
        keep_promises(handler);
    }
    Ok(())
}

/// Keeps the promises that wake the callers who await the shutdown. Called when the shutdown is over.
fn keep_promises<H: Handler>(handler: &Arc<H>) {
    let engine = handler.engine();
    for done in engine.background.finish() {
        // Keeping a promise calls a waker, which is user code and may panic.
        let _ = engine.guarded(|| done.keep(()));
    }
}

/// [Shuts down](shut_down) on a background thread. The future is ready when the shutdown is over. `Err` if the system
/// refuses the thread.
pub(crate) fn shut_down_async<H: Handler>(
    handler: &Arc<H>,
) -> io::Result<impl Future<Output = ()> + Unpin + use<H>> {
    let done = Arc::new(Promise::new());
    shut_down_in_background(handler, Some(&done))?;
    Ok(poll_fn(move |cx| done.poll(cx)))
}

/// [Shuts down](shut_down) on a background thread. Waits for at most `limit` until the shutdown is over and all
/// completions have run. `Err` if the limit passes before that, or if the system refuses the thread.
pub(crate) fn shut_down_within<H: Handler>(
    handler: &Arc<H>,
    limit: Duration,
) -> Result<(), ShutdownError> {
    shut_down_in_background(handler, None).map_err(ShutdownError::Thread)?;
    let engine = handler.engine();
    // If the background thread does the shutdown, it joins the engine's threads, and notes its end after that.
    let is_joined = || engine.phase.now() != CLOSED_IN_BACKGROUND || engine.background.is_over();
    let is_done = || is_over(handler) && is_joined() && completions_have_run(handler);
    if wait(limit, is_done) {
        return Ok(());
    }
    let stats = engine.stats();
    Err(ShutdownError::TimedOut {
        parked: stats.parked,
        completions_pending: stats.completions_pending,
        threads: engine.threads.running(),
    })
}

/// Ends every payload because of the shutdown, but does not end the threads. Returns whether this call did the
/// shutdown.
pub(crate) fn close_now<H: Handler>(handler: &Arc<H>) -> bool {
    close(handler, CLOSED)
}

/// [Shuts down](shut_down) if no payload is parked. Returns whether this call did the shutdown.
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

/// Enters `phase`, one of the closed phases, and ends every payload. Returns whether this call did so; `false` if an
/// earlier call has entered a closed phase.
fn close<H: Handler>(handler: &Arc<H>, phase: u32) -> bool {
    close_by(handler, || handler.engine().phase.enter(phase))
}

/// Shuts the engine down, unless an earlier call has done so. `enter` tries to put the engine into a closed phase, in
/// which it rejects every payload. If `enter` returns `true`, this call has entered the phase, and ends every payload.
/// If `enter` returns `false`, does nothing. Returns what `enter` returns.
fn close_by<H: Handler>(handler: &Arc<H>, enter: impl FnOnce() -> bool) -> bool {
    let engine = handler.engine();
    // Count this shutdown as under way before the phase is entered. Otherwise a thread that finds the phase closed
    // could believe that the shutdown is over.
    let _underway = engine.underway.begin();
    if !enter() {
        return false;
    }
    let trampoline = Trampoline::enter();
    for shard in engine.shards.settled() {
        // After this call no payload gets a slot in this shard. A payload that has a slot already, but is still being
        // parked, is held by its parking thread. That thread finds the mark that `claim_or_mark` leaves below.
        shard.close_with(RejectReason::ShutDown);
        let mut endings = Outbox::new(handler, &trampoline);
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
    // `leave` runs the user code that waits in the trampoline's queue, and catches its panics. None is passed on,
    // because the caller has still to stop the threads.
    engine.leave(trampoline);
    true
}

/// Begins a drain: rejects every payload from now on. Waits for at most `limit` until all parked payloads have ended
/// and their completions have run. Returns how many payloads are still parked.
pub(crate) fn drain<H: Handler>(handler: &Arc<H>, limit: Duration) -> usize {
    let engine = handler.engine();
    engine.begin_drain();
    wait(limit, || {
        // If no reaper drives the timer, this thread drives it.
        if !engine.threads.has_reaper() || !engine.threads.reaper_is_started() {
            advance(handler);
        }
        // Read `parked` before `completions_have_run` is called. If `parked` no longer counts an expired payload, the
        // payload's completion is in one of three states: it has run, it is under way (the thread that has ended the
        // payload still has it), or it was handed over to another thread. As long as it has not run,
        // `completions_have_run` returns `false`, and this thread waits.
        //
        // This thread does not wait for the completion of a payload that a check, for example, has satisfied, if the
        // check runs the completion itself.
        engine.stats().parked == 0 && completions_have_run(handler)
    });
    engine.stats().parked
}

/// Whether the completions have run of all payloads that had ended when the calling thread last read the statistics.
/// One kind of completion is not covered: that of a payload that was satisfied or forced, if the call that has ended
/// the payload (a check, a force or a park) runs the completion itself before it returns.
fn completions_have_run<H: Handler>(handler: &Arc<H>) -> bool {
    let engine = handler.engine();
    // ORDERING: the Acquire fence in `Stats::of` pairs with the Release fence after each completion in
    // `Delivery::drop`. So this thread sees the effects of every completion that it finds counted as delivered.
    engine.underway.is_over() && engine.stats().completions_pending == 0
}

/// Evaluates `is_done` until it returns `true`, or until `limit` has passed, with pauses in between. Returns the last
/// answer. In a callback, evaluates `is_done` only once: perhaps this very thread has to do the awaited work.
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
