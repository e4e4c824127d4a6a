//! The workloads, one file each, and a line each in [`ALL`].

mod idle;
mod ring;
mod schemes;
mod w1;
mod w10;
mod w11;
mod w12;
mod w1t;
mod w1x;
mod w2;
mod w3;
mod w4;
mod w5;
mod w6;
mod w7;
mod w8;
mod w9;

use crate::contest::{self, Case, Contender};
use crate::options::{Child, Options};
use crate::outcome::{Metric, Outcome};
use crate::report::Report;

/// All workloads, in the order in which they run.
pub(crate) const ALL: [Entry; 16] = [
    Entry::of::<w1::W1>(),
    Entry::of::<w1t::W1t>(),
    Entry::of::<w1x::W1x>(),
    Entry::of::<w2::W2>(),
    Entry::of::<w3::W3>(),
    Entry::of::<w4::W4>(),
    Entry::of::<w5::W5>(),
    Entry::of::<w6::W6>(),
    Entry::of::<w7::W7>(),
    Entry::of::<w8::W8>(),
    Entry::of::<w9::W9>(),
    Entry::of::<w10::W10>(),
    Entry::of::<w11::W11>(),
    Entry::of::<w12::W12>(),
    Entry::of::<schemes::Schemes>(),
    Entry::of::<idle::Idle>(),
];

/// One setting of something to measure; the cases are its values.
pub(crate) trait Workload: Sized + 'static {
    const NAME: &'static str;

    /// What it shows, in a line.
    const TITLE: &'static str;

    const METRICS: &'static [Metric];

    /// Whether each round runs in a process of its own.
    const ALONE: bool = false;

    /// The cases that the options ask for.
    fn cases(options: &Options) -> Vec<Case<Self>>;

    fn contenders() -> Vec<Contender<Self>>;

    /// Fills in the values that follow from other contenders' or other cases'.
    fn finish(outcomes: &mut [Outcome]) {
        let _ = outcomes;
    }
}

/// A workload behind plain functions.
pub(crate) struct Entry {
    pub(crate) name: &'static str,
    pub(crate) title: &'static str,
    pub(crate) run: fn(&Options) -> Report,
    pub(crate) run_as_child: fn(&Child, &Options),
    pub(crate) candidates: fn() -> Vec<&'static str>,
}

impl Entry {
    const fn of<W: Workload>() -> Self {
        Self {
            name: W::NAME,
            title: W::TITLE,
            run: |options| Report {
                workload: W::NAME,
                title: W::TITLE,
                metrics: W::METRICS,
                outcomes: contest::run::<W>(options),
            },
            run_as_child: contest::run_as_child::<W>,
            candidates: || {
                W::contenders()
                    .iter()
                    .map(|contender| contender.name)
                    .collect()
            },
        }
    }
}
