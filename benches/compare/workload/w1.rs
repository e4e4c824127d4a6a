//! W1: the life of one request on one thread, with `parked` others waiting.
//!
//! A life marks the oldest request completable, checks its first key, which must end exactly that
//! one, and parks a new one under the same keys.

use std::time::Instant;

use super::ring::{Ring, Shape, assert_empty};
use super::{Case, Contender, ROUNDS, Workload, contenders};
use crate::candidate::Candidate;
use crate::candidates::{
    BTreeAndMap, DelayQueueAndMap, Floor, KafkaPort, Library, OnThreads, TmWheelAndMap, TokioIdiom,
    UnpurgedPort,
};
use crate::options::Options;
use crate::outcome::{Metric, Values};
use crate::request::Flag;

#[derive(Debug, Clone, Copy)]
pub(crate) struct W1 {
    pub(super) shape: Shape,
    pub(super) warm_up: usize,
    /// Measured lives in one round.
    pub(super) lives: usize,
}

impl W1 {
    /// A whole turn of the ring before the measured lives, so that these use memory used before.
    pub(super) fn new(parked: usize, keys: usize, options: &Options) -> Self {
        let lives = options.lives().div_ceil(options.rounds_of(ROUNDS));
        Self {
            shape: Shape::new(parked, keys),
            warm_up: options
                .scale
                .pick(parked.max(lives / 4), parked.min(lives), 0),
            lives,
        }
    }

    /// One round on a fresh candidate: nanoseconds per life.
    fn round<C: Candidate>(&self) -> Values {
        vec![self.measure(&C::new())]
    }

    /// Nanoseconds per life on an empty candidate, which is empty again then.
    pub(super) fn measure<C: Candidate>(&self, candidate: &C) -> f64 {
        let elapsed = candidate.drive(async {
            let flags = Flag::board(self.shape.flags());
            let mut ring = Ring::new(candidate, self.shape, flags);
            ring.fill().await;
            assert_eq!(candidate.parked(), self.shape.parked(), "{}", C::NAME);
            ring.live(self.warm_up).await;
            let started = Instant::now();
            ring.live(self.lives).await;
            let elapsed = started.elapsed();
            ring.drain().await;
            elapsed
        });
        assert_empty(candidate);
        elapsed.as_nanos() as f64 / self.lives as f64
    }
}

impl Workload for W1 {
    const NAME: &'static str = "W1";

    const TITLE: &'static str = "one life (park, complete by key) on one thread";

    const METRICS: &'static [Metric] = &[Metric::less("life", "ns")];

    fn cases(options: &Options) -> Vec<Case<Self>> {
        let mut cases = Vec::new();
        for &keys in &options.keys {
            for &parked in &options.parked {
                cases.push(Case {
                    parameters: vec![("keys", keys), ("parked", parked)],
                    workload: Self::new(parked, keys, options),
                });
            }
        }
        cases
    }

    fn contenders() -> Vec<Contender<Self>> {
        contenders![new, round:
            Floor,
            Library,
            TmWheelAndMap,
            BTreeAndMap,
            DelayQueueAndMap,
            KafkaPort,
            UnpurgedPort,
            TokioIdiom,
            TokioIdiom<OnThreads>,
            #[cfg(tokio_unstable)] TokioIdiom<crate::candidates::AltTimer>,
        ]
    }
}
