//! W7: one hot key, on which requests wait at rising offsets, each for the key to reach its own.
//!
//! The offset advances one by one, and each advance is followed by a check that must end exactly the request whose
//! offset was reached. A full check looks at all of them; a check [up to a rank](CheckBound::up_to), at those whose
//! rank was reached. After every few advances, which are timed, as many are parked anew at the end.

use std::time::{Duration, Instant};

use request_purgatory::{CheckBound, Watch};

use super::ring::assert_empty;
use super::{Case, Contender, Workload};
use crate::candidate::Candidate;
use crate::candidates::{KafkaPort, Library, TmWheelAndMap};
use crate::options::Options;
use crate::outcome::{Metric, Values};
use crate::request::{Flag, Request};

const KEY: u64 = 7;

const TIMEOUT: Duration = Duration::from_secs(300);

/// Advances between two readings of the clock: at least `parked` less this number are waiting.
const BATCH: usize = 10;

pub(crate) struct W7 {
    parked: usize,
    /// Looks at a request in a round of full checks.
    looks: usize,
    /// Advances in a round of ranked checks.
    ranked: usize,
}

impl W7 {
    fn full<C: Candidate>(&self) -> Values {
        let candidate = C::new();
        let advances = (self.looks / self.parked).max(BATCH);
        let park = |offset: usize, flag: &'static Flag| {
            let request = Request::new(offset as u32, flag, TIMEOUT);
            assert!(!candidate.park(request, &[KEY]));
        };
        let value = self.advance(advances, park, |_| candidate.check(KEY));
        assert_empty(&candidate);
        value
    }

    fn ranked(&self) -> Values {
        let library = Library::new();
        let purgatory = library.purgatory();
        let park = |offset: usize, flag: &'static Flag| {
            let request = Request::new(offset as u32, flag, TIMEOUT);
            let watch = Watch::from(KEY).at_rank(offset as u64);
            let parked = purgatory
                .try_complete_else_watch(request, [watch])
                .expect("neither full nor shut down");
            assert!(parked.is_parked());
        };
        let check = |offset| {
            purgatory.check_and_complete_with(&KEY, CheckBound::all().up_to(offset as u64))
        };
        let value = self.advance(self.ranked, park, check);
        assert_empty(&library);
        value
    }

    /// Nanoseconds per advance.
    fn advance(
        &self,
        advances: usize,
        park: impl Fn(usize, &'static Flag),
        check: impl Fn(usize) -> usize,
    ) -> Values {
        let advances = advances.next_multiple_of(BATCH);
        let flags = Flag::board(self.parked + advances);
        let reach = |offset: usize| {
            flags[offset].mark_completable();
            check(offset)
        };
        for (offset, flag) in flags[..self.parked].iter().enumerate() {
            park(offset, flag);
        }
        let mut elapsed = Duration::ZERO;
        for first in (0..advances).step_by(BATCH) {
            let batch = first..first + BATCH;
            let started = Instant::now();
            let ended: usize = batch.clone().map(reach).sum();
            elapsed += started.elapsed();
            assert_eq!(ended, BATCH, "one ends in each advance");
            assert!(flags[batch.clone()].iter().all(Flag::is_satisfied));
            assert!(flags[batch.end].is_parked(), "not before its offset");
            for offset in batch {
                let offset = offset + self.parked;
                park(offset, &flags[offset]);
            }
        }
        let left = advances..advances + self.parked;
        assert_eq!(left.map(reach).sum::<usize>(), self.parked);
        assert!(flags.iter().all(Flag::is_satisfied));
        vec![elapsed.as_nanos() as f64 / advances as f64]
    }
}

impl Workload for W7 {
    const NAME: &'static str = "W7";

    const TITLE: &'static str = "a hot key's offset advances past one of those that wait for it";

    const METRICS: &'static [Metric] = &[Metric::less("advance", "ns")];

    fn cases(options: &Options) -> Vec<Case<Self>> {
        let scale = options.scale;
        let all = [100, 1_000, 10_000];
        let sizes = scale.pick(&all[..], &all, &all[..1]);
        let case = |&parked| Case {
            parameters: vec![("parked", parked)],
            workload: Self {
                parked,
                looks: scale.pick(20_000_000, 4_000_000, 2_000),
                ranked: scale.pick(200_000, 40_000, 100),
            },
        };
        sizes.iter().map(case).collect()
    }

    /// The library by ranked checks, then all by full checks.
    fn contenders() -> Vec<Contender<Self>> {
        vec![
            Contender::new::<Library>(Self::ranked),
            Contender::named::<Library>("full_check", Self::full::<Library>),
            Contender::new::<TmWheelAndMap>(Self::full::<TmWheelAndMap>),
            Contender::new::<KafkaPort>(Self::full::<KafkaPort>),
        ]
    }
}
