//! One pass of the time: ending what is due, telling whoever waits for it, and clearing away what is left.
//!
//! In a storm the order counts. An operation that has expired has ended, and nobody finds it any more; but its entries
//! in the watch lists and its slot are still there, and to clear them away takes longer than all the rest. So with more
//! due than a slice, whoever waits hears of it first; what is left goes on a heap, which is cleared away, a part at a
//! time, while nothing is due. A few are cleared away before their completions run: then the books agree with what
//! these say.

use super::deliver::{Ready, Site, deliver};
use super::drive::Facility;
use super::home::Home;
use super::{Engine, Tenant, Vacated};
use crate::cell::state::Mark;
use crate::scheme::{Scheme, Tick};
use crate::stats::Ending;
use crate::sync::{Arc, Mutex, SLICE};
use crate::turn::Turn;
use std::time::Duration;

/// So many are cleared away together.
const PART: usize = 1 << 12;

/// One that has expired, and is still to be cleared away.
pub(crate) struct Gone<T> {
    pub(crate) vacated: Vacated,
    pub(crate) ending: Ending,
    /// Watch entries among its traces.
    pub(crate) watches: usize,
    pub(crate) trace: T,
}

/// What is left of a storm.
pub(crate) struct Heap<T>(Mutex<Vec<Gone<T>>>);

impl<T> Heap<T> {
    pub(crate) fn new() -> Self {
        Self(Mutex::new(Vec::new()))
    }

    fn is_empty(&self) -> bool {
        self.0.lock().is_empty()
    }

    fn add(&self, gone: &mut Vec<Gone<T>>) {
        self.0.lock().append(gone);
    }

    fn take(&self) -> Vec<Gone<T>> {
        let mut heap = self.0.lock();
        let rest = heap.len().saturating_sub(PART);
        let part = heap.split_off(rest);
        if rest == 0 {
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

/// Ends what is due in one home, slice by slice.
fn pass_over<F: Facility>(
    facility: &Arc<F>,
    turn: &Turn,
    home: &Home<F::Payload, F::Scheme>,
    now: Tick,
) -> usize {
    let engine = facility.engine();
    let mut expired = 0;
    let mut left = home.begin_pass(now);
    let (mut gone, mut deadlines) = (Vec::new(), Vec::new());
    while left > 0 {
        let due = home.drain(now);
        left = left.saturating_sub(due.fired.len());
        let mut ready = Ready::new();
        for (at, deadline) in due.fired {
            // One in the hands of another thread is ended by that.
            let Some(tenant) = engine.begin(home.address(at), Mark::Expire) else {
                continue;
            };
            let ended = facility.expire(tenant, &mut ready);
            if ended.ending == Ending::Expired {
                deadlines.push(deadline);
            }
            gone.push(ended);
        }
        expired += deadlines.len();
        book_lateness(engine, home, &deadlines);
        deadlines.clear();
        // (A place under a limit is free when the books say so: nobody who may take it waits for a heap.)
        let storm = !engine.is_limited() && (due.more || gone.len() == SLICE);
        if storm || !facility.gone().is_empty() {
            facility.gone().add(&mut gone);
        } else {
            clear(facility, std::mem::take(&mut gone));
        }
        deliver(facility, turn, ready, Site::Here);
        if !due.more {
            break;
        }
    }
    expired
}

/// Ends one whose time came while it was being started, and whoever found that left it to this thread.
pub(crate) fn expire_late<F: Facility>(
    facility: &Arc<F>,
    tenant: Tenant<'_, F::Payload, F::Scheme>,
) {
    let turn = Turn::enter();
    let mut ready = Ready::new();
    clear(facility, vec![facility.expire(tenant, &mut ready)]);
    deliver(facility, &turn, ready, Site::Here);
}

/// Clears away a part of the heap. `false` if there was nothing.
pub(super) fn clear_away<F: Facility>(facility: &Arc<F>) -> bool {
    let part = facility.gone().take();
    let some = !part.is_empty();
    if some {
        clear(facility, part);
    }
    some
}

/// Traces first: while they are there, the slots must not have other tenants.
fn clear<F: Facility>(facility: &Arc<F>, gone: Vec<Gone<F::Trace>>) {
    let engine = facility.engine();
    facility.clear(&gone);
    // They lie far apart. Loads that do not wait for one another bring them here together.
    gone.iter()
        .for_each(|ended| engine.approach(&ended.vacated));
    for ended in gone {
        engine.give_back(ended.vacated, ended.ending, ended.watches);
        if std::mem::needs_drop::<F::Trace>() {
            // What is the user's in it may panic.
            let _ = engine.guarded(|| drop(ended.trace));
        }
    }
}

/// Books how late those with these deadlines were ended: all of them by now.
fn book_lateness<P, W: Scheme>(engine: &Engine<P, W>, home: &Home<P, W>, deadlines: &[Tick]) {
    // (The clock may be the user's. If it panics, nothing is booked.)
    if let (false, Ok(now)) = (deadlines.is_empty(), engine.guarded(|| engine.clock.now())) {
        let (mut total, mut max) = (0_u64, 0);
        for &deadline in deadlines {
            let late = now.saturating_since(engine.timestamp(deadline));
            let late = u64::try_from(late.as_nanos()).unwrap_or(u64::MAX);
            total = total.saturating_add(late);
            max = late.max(max);
            engine.observe(|observer| observer.late(Duration::from_nanos(late)));
        }
        home.events.lateness_total.add_saturating(total);
        home.events.lateness_max.raise_to(max);
    }
}
