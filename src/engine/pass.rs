//! One pass of the time: ending what is due, telling whoever waits for it, and clearing away what is left.
//!
//! In a storm the order counts. An operation that has expired has ended, and nobody finds it any more; but its entries
//! in the watch lists and its slot are still there, and to clear them away takes longer than all the rest. So with more
//! due than a slice, whoever waits hears of it first; what is left goes on a heap, which is cleared away, a batch at a
//! time, while nothing is due. A few are cleared away before their completions run: then no watch is left of what these
//! speak of.
//!
//! All of it is a matter of memory: a million slots and lists lie anywhere in it. They are looked at by slices, in loops
//! that only load, so that many loads are under way together; then they are worked on.

use super::deliver::{Ready, Site, deliver};
use super::drive::Facility;
use super::home::Home;
use super::{Engine, Vacated};
use crate::cell::slab::SlotRef;
use crate::cell::state::Mark;
use crate::scheme::{Scheme, Tick};
use crate::stats::Ending;
use crate::sync::{Arc, Mutex, SLICE};
use crate::turn::Turn;
use std::time::Duration;

/// Up to so many are ended before anybody hears of it, and cleared away together.
const BATCH: usize = 8 * SLICE;

/// Of a heap of so many batches, two are cleared away before anything else is done.
const LONG: usize = 256;

/// One that has ended at its deadline, and is still to be cleared away.
pub(crate) struct Gone<T> {
    pub(crate) vacated: Vacated,
    /// Or it panicked when it was asked once more, and was aborted.
    pub(crate) expired: bool,
    /// Watch entries among its traces.
    pub(crate) watches: usize,
    pub(crate) trace: T,
}

/// What is left of a storm, by batches.
pub(crate) struct Heap<T>(Mutex<Vec<Vec<Gone<T>>>>);

impl<T> Heap<T> {
    pub(crate) fn new() -> Self {
        Self(Mutex::new(Vec::new()))
    }

    fn is_empty(&self) -> bool {
        self.0.lock().is_empty()
    }

    pub(super) fn add(&self, batch: Vec<Gone<T>>) {
        self.0.lock().push(batch);
    }

    /// The batches to be cleared away next: the more, the longer the heap is. So it stops growing, however long more
    /// expire than can be cleared away beside that.
    pub(super) fn take(&self) -> Vec<Vec<Gone<T>>> {
        let mut heap = self.0.lock();
        let rest = heap.len().saturating_sub(1 + heap.len() / LONG);
        let part = heap.split_off(rest);
        if heap.is_empty() {
            // A storm's memory is not kept.
            *heap = Vec::new();
        }
        part
    }
}

/// Ends everything that is due now. Returns how many expired.
pub(super) fn pass<F: Facility>(facility: &Arc<F>) -> usize {
    let turn = Turn::enter();
    facility.catch_up();
    let engine = facility.engine();
    let now = engine.now();
    let homes = engine.homes.iter();
    homes
        .map(|home| pass_over(facility, &turn, home, now))
        .sum()
}

/// Ends what is due in one home, batch by batch.
fn pass_over<F: Facility>(
    facility: &Arc<F>,
    turn: &Turn,
    home: &Home<F::Payload, F::Scheme>,
    now: Tick,
) -> usize {
    let engine = facility.engine();
    let mut expired = 0;
    let mut left = home.begin_pass(now);
    let mut more = left > 0;
    let mut fired = Vec::new();
    while more {
        let mut batch = Batch::new();
        let begun = engine.guarded(|| engine.now()).ok();
        while more && batch.gone.len() <= BATCH - SLICE {
            more = home.drain(now, &mut fired) && left > fired.len();
            left = left.saturating_sub(fired.len());
            // Timers that only move closer are no reason to let anybody wait.
            if fired.is_empty() {
                break;
            }
            batch.end(facility, home, &mut fired);
            // Where operations take their time when they are asked, those that have ended do not wait for the others.
            // (The clock may be the user's.)
            if engine.guarded(|| engine.now()).ok() != begun {
                break;
            }
        }
        expired += batch.deadlines.len();
        batch.finish(facility, turn, home, more);
    }
    expired
}

/// What has been ended together.
struct Batch<F: Facility> {
    gone: Vec<Gone<F::Trace>>,
    /// Of those that have expired.
    deadlines: Vec<Tick>,
    ready: Ready<F::Ended>,
}

impl<F: Facility> Batch<F> {
    fn new() -> Self {
        Self {
            gone: Vec::new(),
            deadlines: Vec::new(),
            ready: Ready::new(),
        }
    }

    /// Ends those whose timers have fired.
    fn end(
        &mut self,
        facility: &Arc<F>,
        home: &Home<F::Payload, F::Scheme>,
        fired: &mut Vec<(SlotRef, Tick)>,
    ) {
        self.gone.reserve(fired.len());
        for (at, deadline) in fired.drain(..) {
            // One in the hands of another thread is ended by that.
            let Some(tenant) = facility.engine().begin(home.address(at), Mark::Expire) else {
                continue;
            };
            let ended = facility.expire(tenant, &mut self.ready);
            if ended.expired {
                self.deadlines.push(deadline);
            }
            self.gone.push(ended);
        }
    }

    /// Books them, clears a few away and leaves many for later, and runs the completions.
    fn finish(
        self,
        facility: &Arc<F>,
        turn: &Turn,
        home: &Home<F::Payload, F::Scheme>,
        more: bool,
    ) {
        let engine = facility.engine();
        // Whoever hears of an ending finds it in the books.
        let (ended, expired) = (self.gone.len(), self.deadlines.len());
        home.book(Ending::Expired, expired);
        home.book(Ending::Aborted, ended - expired);
        book_lateness(engine, home, &self.deadlines);
        // (A place under a limit is free when the books say so: nobody who may take it waits for a heap.)
        let storm = !engine.is_limited() && (more || ended >= SLICE);
        if ended > 0 && (storm || !facility.gone().is_empty()) {
            facility.gone().add(self.gone);
        } else {
            clear(facility, self.gone);
        }
        deliver(facility, turn, self.ready, Site::Here);
    }
}

/// Clears away a part of the heap. `false` if there was nothing.
pub(super) fn clear_away<F: Facility>(facility: &Arc<F>) -> bool {
    let part = facility.gone().take();
    let some = !part.is_empty();
    part.into_iter().for_each(|batch| clear(facility, batch));
    some
}

/// Traces first: while they are there, the slots must not have other tenants.
fn clear<F: Facility>(facility: &Arc<F>, gone: Vec<Gone<F::Trace>>) {
    let engine = facility.engine();
    facility.clear(&gone);
    let mut traces = Vec::new();
    engine.give_back_booked(gone.into_iter().map(|ended| {
        if std::mem::needs_drop::<F::Trace>() {
            traces.push(ended.trace);
        }
        (ended.vacated, ended.watches)
    }));
    for trace in traces {
        // What is the user's in it may panic.
        let _ = engine.guarded(|| drop(trace));
    }
}

/// Books how late those with these deadlines were ended: all of them by now.
fn book_lateness<P, W: Scheme>(engine: &Engine<P, W>, home: &Home<P, W>, deadlines: &[Tick]) {
    // (The clock may be the user's. If it panics, nothing is booked.)
    if let (false, Ok(now)) = (deadlines.is_empty(), engine.guarded(|| engine.clock.now())) {
        let (mut total, mut max) = (0_u64, 0);
        // (Most of a bucket's are the same.)
        for same in deadlines.chunk_by(|one, next| one == next) {
            let late = now.saturating_since(engine.timestamp(same[0]));
            let late = u64::try_from(late.as_nanos()).unwrap_or(u64::MAX);
            total = total.saturating_add(late.saturating_mul(same.len() as u64));
            max = late.max(max);
            for _ in same {
                engine.observe(|observer| observer.late(Duration::from_nanos(late)));
            }
        }
        home.events.lateness_total.add_saturating(total);
        home.events.lateness_max.raise_to(max);
    }
}
