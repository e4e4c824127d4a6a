//! W8: a check of a key that no request watches, as most checks of a broker are, while others wait under other keys.
//!
//! By key, in turn those of a thousand that are not there; and by one resolved key, with and without the fence that a
//! caller who published its event under a lock need not pay.

use std::array;
use std::hint::black_box;
use std::time::{Duration, Instant};

use request_purgatory::{Purgatory, ResolvedKey};

use super::{Case, Contender, Workload, contenders};
use crate::candidate::Candidate;
use crate::candidates::{Floor, KafkaPort, Library, TmWheelAndMap};
use crate::options::Options;
use crate::outcome::{Metric, Values};
use crate::request::{Flag, Request};

const TIMEOUT: Duration = Duration::from_secs(300);

/// Keys that no request watches.
const ABSENT: usize = 1_000;

pub(crate) struct W8 {
    parked: usize,
    checks: usize,
}

impl W8 {
    fn by_key<C: Candidate>(&self) -> Values {
        let candidate = C::new();
        let absent: [u64; ABSENT] = array::from_fn(|number| C::key(self.parked + number));
        self.among(&candidate, || {
            self.time(|check| candidate.check(black_box(absent[check % ABSENT])))
        })
    }

    fn by_resolved_key(&self) -> Values {
        self.resolved(|key| key.check_and_complete())
    }

    fn after_lock(&self) -> Values {
        self.resolved(|key| key.check_and_complete_after_lock())
    }

    fn resolved(&self, check: impl Fn(&ResolvedKey<Request>) -> usize) -> Values {
        let library = Library::new();
        let purgatory: &Purgatory<Request> = library.purgatory();
        let key = purgatory.resolve(Library::key(self.parked));
        let value = self.among(&library, || self.time(|_| check(black_box(&key))));
        drop(key);
        assert_eq!(purgatory.watched_keys(), 0, "the key is forgotten");
        value
    }

    /// Runs `measure` while others wait, and ends these.
    fn among<C: Candidate>(&self, candidate: &C, measure: impl FnOnce() -> Values) -> Values {
        let flags = Flag::board(self.parked);
        for (number, flag) in flags.iter().enumerate() {
            let request = Request::new(number as u32, flag, TIMEOUT);
            assert!(!candidate.park(request, &[C::key(number)]));
        }
        let values = measure();
        assert_eq!(candidate.parked(), self.parked, "{}", C::NAME);
        for (number, flag) in flags.iter().enumerate() {
            flag.mark_completable();
            assert_eq!(candidate.check(C::key(number)), 1, "{}", C::NAME);
        }
        super::ring::assert_empty(candidate);
        values
    }

    /// Nanoseconds per check.
    fn time(&self, mut check: impl FnMut(usize) -> usize) -> Values {
        let mut ended = 0;
        let started = Instant::now();
        for number in 0..self.checks {
            ended += check(number);
        }
        let elapsed = started.elapsed();
        assert_eq!(ended, 0, "no request watches");
        vec![elapsed.as_nanos() as f64 / self.checks as f64]
    }
}

impl Workload for W8 {
    const NAME: &'static str = "W8";

    const TITLE: &'static str = "check of a key that no request watches";

    const METRICS: &'static [Metric] = &[Metric::less("check", "ns")];

    fn cases(options: &Options) -> Vec<Case<Self>> {
        let case = |&parked| Case {
            parameters: vec![("parked", parked)],
            workload: Self {
                parked,
                checks: options.scale.pick(5_000_000, 1_000_000, 1_000),
            },
        };
        options.parked.iter().map(case).collect()
    }

    fn contenders() -> Vec<Contender<Self>> {
        let mut all = contenders![new, by_key: Floor, Library, TmWheelAndMap, KafkaPort];
        all.insert(
            2,
            Contender::named::<Library>("resolved_key", Self::by_resolved_key),
        );
        all.insert(
            3,
            Contender::named::<Library>("after_lock", Self::after_lock),
        );
        all
    }
}
