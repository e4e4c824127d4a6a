//! A pass: one round of expiry. It ends the payloads whose deadline has passed, runs the user's code for them, and
//! reclaims their slots and watches.
//!
//! A payload that has expired has ended, and no thread can claim it any more. But its slot and its entries in the watch
//! lists are still there, and reclaiming them takes longer than the rest of the pass. So the order of the steps depends
//! on whether there is a *storm*, in which many payloads expire at once. A timer shard counts as being in one if 64 of
//! its payloads (a slice) or more have expired together, or more of its timers may be due, or slots and watches still
//! wait in the reclaim queue.
//!
//! * In a storm, the user's code runs first. Slots and watches go to the reclaim queue, and a part of the queue is
//!   reclaimed after each pass.
//! * Otherwise, and always with the setting `reclaim_first`, slots and watches are reclaimed first, so that the user's
//!   code finds no watch of the expired payloads.
//!
//! Reclaiming costs cache misses, because the slots and lists of a million payloads lie far apart. So each slice of
//! them is prefetched before it is reclaimed: in a loop that only loads, the processor overlaps many loads.

use super::Engine;
use super::deliver::{deliver_all, hand_over};
use super::handler::Handler;
use super::shard::Shard;
use crate::callbacks::examining::{Examination, Examining};
use crate::callbacks::trampoline::Trampoline;
use crate::cell::state::Mark;
use crate::scheme::{Scheme, Tick};
use crate::stats::Ending;
use crate::sync::{Arc, SLICE};
use std::time::Duration;

/// At most this many payloads of a timer shard expire before their completions run. They are reclaimed together.
const BATCH: usize = 8 * SLICE;

/// Makes the deferred checks, and expires every payload whose deadline has passed. Returns how many payloads expired.
///
/// If a check was deferred before the deadline of a payload, the check is made before the payload expires. Deferred
/// checks do not delay timers: when a tick has passed, all due timers fire before the next deferred check, or before
/// the next slice of a long check.
pub(super) fn pass<H: Handler>(handler: &Arc<H>) -> usize {
    let trampoline = Trampoline::enter();
    let examination = Examining::current();
    // This thread may be examining an operation at its deadline, and the operation's `try_complete` may drive the
    // timer. If this call then examined the next due operation, passes would nest, one for each due operation. So leave
    // the due operations to the pass that has found the first one.
    if examination.is_some_and(Examination::is_in_expiry) {
        return 0;
    }
    let underway = handler.engine().underway.begin();
    let mut now = handler.engine().now();
    // Begin the pass in all timer shards before any timer fires: timers that user code starts from here on, in any
    // shard, wait for the next pass.
    let begin = |now| {
        let shards = handler.engine().shards.iter();
        let begun = shards.map(|shard| (shard, shard.begin_pass(now)));
        begun.collect::<Vec<_>>()
    };
    let expire = |begun: Vec<(_, usize)>, now| {
        let each = |(shard, timers)| expire_in(handler, &trampoline, shard, timers, now);
        begun.into_iter().map(each).sum::<usize>()
    };
    // The timers that this pass has yet to fire. `None` once the closure `expire_meanwhile` below has begun a later
    // pass, because a deferred check (a check that was left to this thread) has taken longer than a tick. The later
    // pass fires these timers too, and also due timers that user code has started during the check.
    let mut begun = Some(begin(now));
    let mut expired = 0;
    // If this thread is inside a `try_complete`, it holds an operation, and a deferred check on this thread could not
    // examine that operation. So leave the deferred checks to the next pass.
    let deferred = examination.map_or_else(|| handler.deferred(), |_| 0);
    let mut expire_meanwhile = || {
        // The clock may be user code. If it panics, fire no timer now. This closure is called again after each slice
        // (at most 64 operations) of a deferred check, and after each deferred check.
        let later = handler.engine().guarded(|| handler.engine().now()).ok();
        if let Some(later) = later.filter(|later| *later > now) {
            now = later;
            begun = None;
            expired += expire(begin(now), now);
        }
    };
    for _ in 0..deferred {
        handler.run_deferred(&mut expire_meanwhile);
        expire_meanwhile();
    }
    expired += begun.map_or(0, |begun| expire(begun, now));
    // From here on, do not count this pass as under way. The call of `leave` below runs user code that was queued
    // during the pass. That code may shut the handler down, and a shutdown is over only when no pass is under way.
    drop(underway);
    // A panic of a queued call is counted, and does not leave this function: the caller must still reclaim the expired
    // payloads, and set the alarm.
    handler.engine().leave(trampoline);
    expired
}

/// Expires the due payloads of one timer shard, batch by batch. Returns how many payloads expired. Fires at most
/// `timers_left` timers: without that limit, user code that starts timers with near deadlines could make the pass
/// endless.
fn expire_in<H: Handler>(
    handler: &Arc<H>,
    trampoline: &Trampoline,
    shard: &Shard<H::Payload, H::Scheme>,
    mut timers_left: usize,
    now: Tick,
) -> usize {
    let engine = handler.engine();
    let mut expired = 0;
    // Whether more timers may be due.
    let mut more = timers_left > 0;
    let mut fired = Vec::new();
    while more {
        // `all` collects the payloads that have ended, `unreclaimed` their slots and watches, and `deadlines` the
        // deadlines of the payloads that have expired.
        let (mut all, mut unreclaimed, mut deadlines) = (Vec::new(), Vec::new(), Vec::new());
        let began_at = engine.guarded(|| engine.now()).ok();
        while more && all.len() <= BATCH - SLICE {
            more = shard.fire(now, &mut fired) && timers_left > fired.len();
            timers_left = timers_left.saturating_sub(fired.len());
            // If no timer has fired, this call of `fire` has only moved timers to a finer level of the wheel. Then end
            // the batch, so that its completions do not wait for more such moves.
            if fired.is_empty() {
                break;
            }
            for (at, deadline) in fired.drain(..) {
                // If another thread holds the payload, `held` is `None`: that thread finds the mark, and ends the
                // payload.
                let held = engine.claim_or_mark(at, Mark::Expire);
                if let Some(expired) = held.and_then(|held| handler.expire(held, now)) {
                    let mut ended = expired.ended;
                    // Hand this payload over now: the examination of the next payload runs user code, which may drop
                    // the future that awaits this payload.
                    hand_over(&**handler, &mut ended);
                    if ended.ending == Ending::Expired {
                        deadlines.push(expired.deadline.unwrap_or(deadline));
                    }
                    all.push(ended);
                    unreclaimed.push(expired.rest);
                }
            }
            // If a tick has passed since the batch began, for example in a slow `try_complete`, deliver what has
            // expired so far. The clock may be user code, and may panic.
            if engine.guarded(|| engine.now()).ok() != began_at {
                break;
            }
        }
        // Count the endings before the completions run, so that each completion finds its own ending in the statistics.
        expired += deadlines.len();
        engine.count_ended(Ending::Expired, deadlines.len());
        engine.count_ended(Ending::Aborted, all.len() - deadlines.len());
        count_lateness(engine, shard, &deadlines);
        // A storm (very many payloads expire at once) sends slots and watches to the reclaim queue, but not with
        // `reclaim_first`. With that setting, the bounds on parked operations and on watchers of a key are exact: user
        // code that hears of an ending may park again at once, and must find the place free.
        let storm = !engine.reclaim_first && (more || all.len() >= SLICE);
        if !all.is_empty() && (storm || !handler.reclaim_queue().is_empty()) {
            handler.reclaim_queue().add(unreclaimed);
        } else {
            handler.reclaim(unreclaimed);
        }
        // Payloads whose `try_complete` panicked are dropped on this thread. Completions of expired payloads run where
        // the builder's `Dispatch` says.
        deliver_all(handler, trampoline, all);
    }
    expired
}

/// Reclaims a part of the reclaim queue: the slots and watches of expired payloads. `false` if the queue was empty.
pub(super) fn reclaim<H: Handler>(handler: &Arc<H>) -> bool {
    let trampoline = Trampoline::enter();
    let batch = handler.reclaim_queue().take();
    if batch.is_empty() {
        return false;
    }
    handler.reclaim(batch);
    handler.engine().leave(trampoline);
    true
}

/// Adds the lateness of payloads with these deadlines to the statistics: the time from each deadline to now.
fn count_lateness<P, W: Scheme>(engine: &Engine<P, W>, shard: &Shard<P, W>, deadlines: &[Tick]) {
    // The clock may be user code. If it panics, the lateness is not counted.
    if let (false, Ok(now)) = (deadlines.is_empty(), engine.guarded(|| engine.clock.now())) {
        let (mut total, mut max) = (0_u64, 0);
        // Compute the lateness once for each run of equal deadlines: most deadlines in one bucket of the wheel are
        // equal.
        for same in deadlines.chunk_by(|one, next| one == next) {
            let late = now.nanos_since(engine.scale.timestamp(same[0]));
            total = total.saturating_add(late.saturating_mul(same.len() as u64));
            max = late.max(max);
            for _ in same {
                engine.observe(|observer| observer.late(Duration::from_nanos(late)));
            }
        }
        shard.counters.lateness_total.add_saturating(total);
        shard.counters.lateness_max.raise_to(max);
    }
}
