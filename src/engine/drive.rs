//! What the passing of time does, and the shutdown: the same for every facility.

use super::deliver::{Ready, Site, deliver};
use super::pass::{Gone, Heap, clear_away, pass};
use super::{Engine, Tenant};
use crate::cell::state::Mark;
use crate::reaper::{Driven, Rest};
use crate::scheme::{Scheme, Tick};
use crate::sync::{Arc, Weak};
use crate::time::ticks::NEVER;
use crate::turn::Turn;
use std::time::Duration;

/// What stands on an engine, and gives meaning to its payloads.
pub(crate) trait Facility: Send + Sync + Sized + 'static {
    /// What lies in the slots.
    type Payload: Send + 'static;
    /// How deadlines are kept.
    type Scheme: Scheme;
    /// What has ended and is on its way to the user's code.
    type Ended: Send + 'static;
    /// What one that has expired leaves behind elsewhere than in the engine.
    type Trace: Send;

    fn engine(&self) -> &Engine<Self::Payload, Self::Scheme>;

    /// What has expired and is still to be cleared away.
    fn gone(&self) -> &Heap<Self::Trace>;

    /// Ends one whose deadline has passed.
    fn expire(
        self: &Arc<Self>,
        tenant: Tenant<'_, Self::Payload, Self::Scheme>,
        ready: &mut Ready<Self::Ended>,
    ) -> Gone<Self::Trace>;

    /// Clears the traces of those that have expired.
    fn clear(&self, gone: &[Gone<Self::Trace>]);

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
    let expired = pass(facility);
    while clear_away(facility) {}
    expired
}

/// Sets the alarm to what is to be done next, if that is earlier. Returns it, and whether it could be earlier than the
/// sleeper knows.
fn set_alarm<F: Facility>(facility: &F) -> (Tick, bool) {
    let engine = facility.engine();
    let put_off = facility.is_behind().then_some(0);
    let buckets = engine.homes.iter().filter_map(|home| home.next_deadline());
    let mut next = NEVER;
    let mut earlier = false;
    for deadline in put_off.into_iter().chain(buckets) {
        next = next.min(deadline);
        earlier |= engine.alarm.set(deadline);
    }
    (next, earlier)
}

/// The same by the sleeper, who forgets what the alarm was set to before. Returns that as well.
fn rearm<F: Facility>(facility: &F) -> (Tick, Tick) {
    let alarm = &facility.engine().alarm;
    let before = alarm.reset();
    let (next, _) = set_alarm(facility);
    // Others may have set the alarm to what they knew: the earlier one counts.
    (next.min(alarm.time()), before)
}

/// For a caller who has driven the facility, or asks when to.
pub(crate) fn rearm_for_caller<F: Facility>(facility: &F) -> Tick {
    let engine = facility.engine();
    let (next, tell) = if engine.threads.has_reaper() {
        // The caller is not the sleeper, and leaves an alarm that is too early as it is: between a reset and what follows
        // it the caller may be kept from going on, and a reaper that wakes then would find nothing to do, nor to wait
        // for.
        set_alarm(facility)
    } else {
        // One at a time, or they would not know of each other's alarms whether they are the reactor's.
        let _alone = engine.rearming.lock();
        let (next, before) = rearm(facility);
        // The caller may not be the reactor, which only knows what it was told in here; and the deadline may be filed and
        // not announced yet: whoever announces it finds the alarm set, and wakes nobody.
        (next, next < before)
    };
    if tell {
        engine.wake();
    }
    next
}

/// Ends every payload and the threads, once. Returns whether this call did it.
pub(crate) fn shut_down<F: Facility>(facility: &Arc<F>) -> bool {
    let engine = facility.engine();
    if !engine.close() {
        return false;
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
    while clear_away(facility) {}
    drop(turn);
    engine.stop_threads();
    true
}

impl<F: Facility> Driven for F {
    fn drive(self: Arc<Self>) -> Rest {
        let engine = self.engine();
        if engine.is_closed() {
            while clear_away(&self) {}
            return Rest::Done;
        }
        let mut next = engine.alarm.time();
        if next != NEVER && next <= engine.now() {
            pass(&self);
            (next, _) = rearm(&*self);
        }
        // Whoever waits came first. The traces are cleared away while nothing is due.
        if clear_away(&self) {
            return Rest::For(Duration::ZERO);
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
