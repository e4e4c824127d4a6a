//! The workloads, one file each, and what each says of itself.

pub(crate) mod handles;
mod ring;
pub(crate) mod transfer;
pub(crate) mod w1;
pub(crate) mod w10;
pub(crate) mod w10t;
pub(crate) mod w11;
pub(crate) mod w12;
pub(crate) mod w13;
pub(crate) mod w1t;
pub(crate) mod w1x;
pub(crate) mod w2;
pub(crate) mod w3;
pub(crate) mod w4;
pub(crate) mod w5;
pub(crate) mod w6;
pub(crate) mod w7;
pub(crate) mod w8;
pub(crate) mod w9;

use std::thread;
use std::time::{Duration, Instant};

use crate::candidate::{ByHandle, Candidate};
use crate::options::Options;
use crate::outcome::{Metric, Outcome, Parameters, Values};
use crate::self_check;
use crate::timer_queue::TimerQueue;

const ROUNDS: usize = 5;

/// One setting of something to measure; the cases are its values.
pub(crate) trait Workload: Sized + 'static {
    const NAME: &'static str;

    /// What it shows, in a line.
    const TITLE: &'static str;

    const METRICS: &'static [Metric];

    /// How many rounds tell the candidates apart, on the full scale.
    const ROUNDS: usize = ROUNDS;

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

/// One setting of a workload.
pub(crate) struct Case<W> {
    /// What distinguishes it, for the report.
    pub(crate) parameters: Parameters,
    pub(crate) workload: W,
}

/// A candidate entered for a workload.
pub(crate) struct Contender<W> {
    pub(crate) name: &'static str,
    pub(crate) check: fn(),
    pub(crate) round: fn(&W) -> Values,
}

impl<W> Contender<W> {
    pub(crate) fn new<C: Candidate>(round: fn(&W) -> Values) -> Self {
        Self {
            name: C::NAME,
            check: self_check::run::<C>,
            round,
        }
    }

    /// Enters one whose requests are completed by handle.
    pub(crate) fn by_handle<C: ByHandle>(round: fn(&W) -> Values) -> Self {
        Self {
            name: C::NAME,
            check: self_check::handles::run::<C>,
            round,
        }
    }

    /// Enters another way to use `C`.
    pub(crate) fn named<C: Candidate>(name: &'static str, round: fn(&W) -> Values) -> Self {
        Self {
            name,
            ..Self::new::<C>(round)
        }
    }

    /// Enters one of another kind, which `check` holds to the rules of its workload.
    pub(crate) fn other(name: &'static str, check: fn(), round: fn(&W) -> Values) -> Self {
        Self { name, check, round }
    }

    /// Enters a timer alone.
    pub(crate) fn timer<Q: TimerQueue<u32>>(round: fn(&W) -> Values) -> Self {
        Self {
            name: Q::NAME,
            check: self_check::timer::run::<Q>,
            round,
        }
    }
}

/// Runs all at the same time, each on a thread of its own.
fn on_threads<T: Send>(bodies: impl IntoIterator<Item = impl FnOnce() -> T + Send>) -> Vec<T> {
    thread::scope(|scope| {
        let threads: Vec<_> = bodies.into_iter().map(|body| scope.spawn(body)).collect();
        let joined = threads.into_iter().map(thread::ScopedJoinHandle::join);
        joined
            .map(|value| value.expect("no thread panics"))
            .collect()
    })
}

/// From the first beginning to the last end.
fn whole(spans: &[(Instant, Instant)]) -> Duration {
    let began = spans.iter().map(|span| span.0).min();
    let ended = spans.iter().map(|span| span.1).max();
    ended
        .zip(began)
        .map_or(Duration::ZERO, |(end, begin)| end - begin)
}

/// Enters each of the candidates with its instance of the round, and of the check where these are of another kind.
macro_rules! contenders {
    ($check:ident and $round:ident: $($candidate:ty),+ $(,)?) => {
        vec![$($crate::workload::Contender::other(
            <$candidate>::NAME,
            Self::$check::<$candidate>,
            Self::$round::<$candidate>,
        )),+]
    };
    ($enter:ident, $round:ident: $($(#[$built:meta])? $candidate:ty),+ $(,)?) => {
        Vec::from([$(
            $(#[$built])?
            $crate::workload::Contender::$enter::<$candidate>(Self::$round::<$candidate>)
        ),+])
    };
}
pub(crate) use contenders;
