//! What the passing of time does, and the shutdown: the same for every facility.

use super::deliver::{Ready, Site, deliver};
use super::home::Home;
use super::{Engine, Tenant, Vacated};
use crate::cell::state::Mark;
use crate::reaper::{Driven, Rest};
use crate::scheme::{Scheme, Tick};
use crate::stats::Ending;
use crate::sync::{Arc, SLICE, Weak};
use crate::time::ticks::NEVER;
use crate::turn::Turn;

/// What stands on an engine, and gives meaning to its payloads.
pub(crate) trait Facility: Send + Sync + Sized + 'static {
    /// What lies in the slots.
    type Payload: Send + 'static;
    /// How deadlines are kept.
    type Scheme: Scheme;
    /// What has ended and is on its way to the user's code.
    type Ended: Send + 'static;
    /// What one that has expired leaves behind elsewhere than in the engine.
    type Trace;

    fn engine(&self) -> &Engine<Self::Payload, Self::Scheme>;

    /// Ends one whose deadline has passed.
    fn expire<'a>(
        self: &Arc<Self>,
        tenant: Tenant<'a, Self::Payload, Self::Scheme>,
        ready: &mut Ready<Self::Ended>,
    ) -> Gone<'a, Self>;

    /// Clears the traces of those that have expired; `at` gives that of each of so many.
    fn clear<'a>(&self, count: usize, at: impl Fn(usize) -> &'a Self::Trace)
    where
        Self::Trace: 'a;

    /// Ends one because of the shutdown.
    fn abandon(
        self: &Arc<Self>,
        tenant: Tenant<'_, Self::Payload, Self::Scheme>,
        ready: &mut Ready<Self::Ended>,
    );

    /// Whether the user chose where the code for this one runs, as for all that expired.
    fn has_expired(ended: &Self::Ended) -> bool;

    /// Runs the user's code for one that has ended.
    fn complete(&self, ended: Self::Ended);

    /// Whether something was put off until the engine is driven.
    fn is_behind(&self) -> bool {
        false
    }

    /// Does what was put off.
    fn catch_up(self: &Arc<Self>) {}

    /// Forgets what was put off.
    fn give_up(&self) {}
}

/// One that has expired, and is still to be cleared away.
pub(crate) struct Gone<'a, F: Facility> {
    pub(crate) vacated: Vacated<'a, F::Payload, F::Scheme>,
    pub(crate) ending: Ending,
    /// Watch entries among its traces.
    pub(crate) watches: usize,
    pub(crate) trace: F::Trace,
}

/// So many that have expired are cleared away together.
const HEAP: usize = 1 << 18;

/// Lets the facility's reaper drive it from now on, and its clock wake whoever does.
pub(super) fn start<F: Facility>(facility: &Arc<F>) {
    let driven: Weak<dyn Driven> = Arc::<F>::downgrade(facility);
    let engine = facility.engine();
    engine.threads.drive(driven, &*engine.clock);
}

/// Does everything that is due now. Returns how many payloads this expired.
///
/// What user code makes due meanwhile, however close, is left for the next call, so that this one ends.
pub(crate) fn advance<F: Facility>(facility: &Arc<F>) -> usize {
    let turn = Turn::enter();
    facility.catch_up();
    let engine = facility.engine();
    let now = engine.now();
    let mut pass = Pass {
        facility,
        turn: &turn,
        gone: Vec::new(),
        expired: 0,
    };
    for home in &engine.homes {
        pass.over(home, now);
    }
    pass.clear_away();
    pass.expired
}

/// Ends one whose time came while it was being started, and whoever found that left it to this thread.
pub(crate) fn expire_late<F: Facility>(
    facility: &Arc<F>,
    tenant: Tenant<'_, F::Payload, F::Scheme>,
) {
    let turn = Turn::enter();
    let mut ready = Ready::new();
    let mut pass = Pass {
        facility,
        turn: &turn,
        gone: vec![facility.expire(tenant, &mut ready)],
        expired: 0,
    };
    pass.clear_away();
    deliver(facility, &turn, ready, Site::Here);
}

/// One advance of the time.
///
/// In a storm the user's code comes first: whoever waits is told that it has expired, and only then its traces are
/// cleared away, many at once. A few are cleared away before the user hears of them.
struct Pass<'a, F: Facility> {
    facility: &'a Arc<F>,
    turn: &'a Turn,
    gone: Vec<Gone<'a, F>>,
    expired: usize,
}

impl<'a, F: Facility> Pass<'a, F> {
    /// Expires what is due in one home, slice by slice.
    fn over(&mut self, home: &'a Home<F::Payload, F::Scheme>, now: Tick) {
        let engine = self.facility.engine();
        let heap = if engine.is_limited() { 1 } else { HEAP };
        let mut left = home.begin_pass(now);
        let mut deadlines = Vec::new();
        while left > 0 {
            let due = home.drain(now);
            left = left.saturating_sub(due.fired.len());
            let mut ready = Ready::new();
            deadlines.clear();
            for (at, deadline) in due.fired {
                // One in the hands of another thread is ended by that.
                let Some(tenant) = engine.begin(home.address(at), Mark::Expire) else {
                    continue;
                };
                let gone = self.facility.expire(tenant, &mut ready);
                if gone.ending == Ending::Expired {
                    deadlines.push(deadline);
                }
                self.gone.push(gone);
            }
            self.expired += deadlines.len();
            self.book_lateness(home, &deadlines);
            // (A place under the limit is free only when the books say so: then nobody waits for the rest.)
            let storm = due.more || self.gone.len() > SLICE;
            if !storm || self.gone.len() >= heap {
                self.clear_away();
            }
            deliver(self.facility, self.turn, ready, Site::Here);
            if !due.more {
                break;
            }
        }
    }

    /// Clears away what has expired: traces first, while the slots cannot have other tenants yet.
    fn clear_away(&mut self) {
        let gone = std::mem::take(&mut self.gone);
        self.facility.clear(gone.len(), |place| &gone[place].trace);
        for Gone {
            vacated,
            ending,
            watches,
            trace,
        } in gone
        {
            self.facility.engine().give_back(vacated, ending, watches);
            if std::mem::needs_drop::<F::Trace>() {
                // What is the user's in it may panic.
                let _ = self.facility.engine().guarded(|| drop(trace));
            }
        }
    }

    /// Books how late those with these deadlines were ended: all of them by now.
    fn book_lateness(&self, home: &Home<F::Payload, F::Scheme>, deadlines: &[Tick]) {
        let engine = self.facility.engine();
        // (The clock may be the user's. If it panics, nothing is booked.)
        if let (false, Ok(now)) = (deadlines.is_empty(), engine.guarded(|| engine.clock.now())) {
            let (mut total, mut max) = (0_u64, 0);
            for &deadline in deadlines {
                let late = now.saturating_since(engine.timestamp(deadline));
                let late = u64::try_from(late.as_nanos()).unwrap_or(u64::MAX);
                total = total.saturating_add(late);
                max = late.max(max);
            }
            home.events.lateness_total.add(total);
            home.events.lateness_max.raise_to(max);
        }
    }
}

/// Sets the alarm anew, to what is to be done next. Returns that, and whether it could be earlier than the sleeper
/// knows.
fn rearm<F: Facility>(facility: &F) -> (Tick, bool) {
    let engine = facility.engine();
    engine.alarm.reset();
    let put_off = facility.is_behind().then_some(0);
    let buckets = engine.homes.iter().filter_map(|home| home.next_deadline());
    let mut next = NEVER;
    let mut earlier = false;
    for deadline in put_off.into_iter().chain(buckets) {
        next = next.min(deadline);
        earlier |= engine.alarm.set(deadline);
    }
    // Others may have reset the alarm just now, or set it to what they knew: the earlier one counts.
    (next.min(engine.alarm.time()), earlier)
}

/// The same on behalf of a caller who is not the reaper: that must hear of it. (A reactor is the caller itself.)
pub(crate) fn rearm_for_caller<F: Facility>(facility: &F) -> Tick {
    let (next, earlier) = rearm(facility);
    let threads = &facility.engine().threads;
    if earlier && threads.has_reaper() {
        threads.wake();
    }
    next
}

/// Ends every payload and the threads, once.
pub(crate) fn shut_down<F: Facility>(facility: &Arc<F>) {
    let engine = facility.engine();
    if !engine.close() {
        return;
    }
    let turn = Turn::enter();
    for home in &engine.homes {
        // After this nobody gets a slot here. Who has one and is still being registered is held, and will find the
        // mark.
        home.close();
        let mut ready = Ready::new();
        for at in home.tenants() {
            if let Some(tenant) = engine.begin(home.address(at), Mark::ShutDown) {
                facility.abandon(tenant, &mut ready);
            }
        }
        deliver(facility, &turn, ready, Site::Here);
    }
    facility.give_up();
    drop(turn);
    engine.threads.stop();
}

impl<F: Facility> Driven for F {
    fn drive(self: Arc<Self>) -> Rest {
        let engine = self.engine();
        if engine.is_closed() {
            return Rest::Done;
        }
        let mut next = engine.alarm.time();
        if next != NEVER && next <= engine.now() {
            advance(&self);
            (next, _) = rearm(&*self);
        }
        // What no reading of the clock can reach is never due.
        if next == NEVER || !engine.scale.can_come(next) {
            return Rest::UntilWoken;
        }
        match engine.clock.time_until(engine.timestamp(next)) {
            Some(time) => Rest::For(time),
            None => Rest::UntilWoken,
        }
    }
}
