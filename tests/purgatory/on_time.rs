//! G7 to G11, G20, G29, G30: a deadline is met in its tick, at any uptime; no later call moves it, and no other call
//! stands still meanwhile.

mod deadlines;
mod itself;
mod stalls;
mod storms;
mod wakes;

use crate::support::{Op, Probe};
use request_purgatory::purgatory::Builder;
use request_purgatory::threads::Reaper;
use request_purgatory::time::{Clock, ManualClock, Timestamp};
use request_purgatory::{DelayedOperation, Handle, Purgatory};
use std::sync::Arc;
use std::time::Duration;

const TICK: Duration = Duration::from_millis(1);

/// A purgatory without threads on this clock. (`support::manual` brings a clock that begins at zero.)
fn by_hand<O: DelayedOperation<Key = u64>>(
    clock: &ManualClock,
    configure: impl FnOnce(Builder<Purgatory<O>>) -> Builder<Purgatory<O>>,
) -> Purgatory<O> {
    let builder = Purgatory::builder("by-hand").clock(clock.clone());
    let built = configure(builder.reaper(Reaper::Manual)).build();
    built.expect("no threads to refuse")
}

/// A clock that does something more when it is read.
struct OnReading<F>(ManualClock, F);

impl<F: Fn() + Send + Sync + 'static> Clock for OnReading<F> {
    fn now(&self) -> Timestamp {
        (self.1)();
        self.0.now()
    }
}

/// Parks on key 1.
fn park<O: DelayedOperation<Key = u64>>(purgatory: &Purgatory<O>, op: O) -> Handle<O> {
    let parked = purgatory.try_complete_else_watch(op, [1]);
    let parked = parked.expect("there is room").into_handle();
    parked.expect("it does not end during the park")
}

/// Parks on key 1 what may expire during the park.
fn watched(purgatory: &Purgatory<Op>, timeout: Duration) -> Arc<Probe> {
    let probe = Probe::new();
    let parked = purgatory.try_complete_else_watch(probe.op(timeout), [1]);
    parked.expect("there is room");
    probe
}
