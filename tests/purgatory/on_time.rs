//! G7 to G11, G20, G29, G30: a deadline is met in its tick, at any uptime; no later call moves it, and no other call
//! stands still meanwhile.

mod deadlines;
mod itself;
mod stalls;
mod storms;
mod wakes;

use crate::chains::scene;
use crate::support::{Op, Probe};
use request_purgatory::purgatory::Builder;
use request_purgatory::threads::Reaper;
use request_purgatory::time::ManualClock;
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

/// Parks on key 1 an operation that cannot complete yet.
pub(crate) fn park<O: DelayedOperation<Key = u64>>(purgatory: &Purgatory<O>, op: O) -> Handle<O> {
    scene::park(purgatory, op, [1])
}

/// Parks on key 1 what may expire during the park.
fn watched(purgatory: &Purgatory<Op>, timeout: Duration) -> Arc<Probe> {
    let probe = Probe::new();
    scene::admit(purgatory, probe.op(timeout), [1]);
    probe
}
