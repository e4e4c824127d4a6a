//! W1t: W1 on several threads at once, each with a ring of its own under keys of its own.
//!
//! `parked` is what each thread has parked.

use std::sync::Barrier;
use std::time::Instant;

use super::ring::{Ring, assert_empty};
use super::w1::W1;
use super::{Case, Contender, Workload, contenders, on_threads, transfer, whole};
use crate::candidate::Candidate;
use crate::candidates::{
    BTreeAndMap, DelayQueueAndMap, KafkaPort, Library, OnThreads, TmWheelAndMap, TokioIdiom,
    UnpurgedPort,
};
use crate::options::Options;
use crate::outcome::{Metric, Outcome, Parameters, Values};
use crate::request::Flag;

#[derive(Debug, Clone, Copy)]
pub(crate) struct W1t {
    threads: usize,
    /// What each thread does.
    one: W1,
}

const RATE: usize = 0;
const SCALING: usize = 1;

impl W1t {
    fn round<C: Candidate>(&self) -> Values {
        let (rate, transfer) = match self.threads {
            1 => (self.rate::<C>(), f64::NAN),
            _ => transfer::beside(|| self.rate::<C>()),
        };
        vec![rate, f64::NAN, transfer]
    }

    fn rate<C: Candidate>(&self) -> f64 {
        let candidate = C::new();
        let board = Flag::board(self.threads * self.one.shape.flags());
        let together = Barrier::new(self.threads);
        let boards = board.chunks(self.one.shape.flags()).enumerate();
        let spans = on_threads(boards.map(|(number, flags)| {
            let (candidate, together) = (&candidate, &together);
            move || self.run_one(candidate, number, flags, together)
        }));
        assert_empty(&candidate);
        let lives = (self.threads * self.one.lives) as f64;
        lives / whole(&spans).as_secs_f64() / 1e6
    }

    fn run_one<C: Candidate>(
        &self,
        candidate: &C,
        number: usize,
        flags: &'static [Flag],
        together: &Barrier,
    ) -> (Instant, Instant) {
        candidate.drive(async {
            let mut ring = Ring::new(candidate, self.one.shape.numbered(number), flags);
            ring.fill().await;
            ring.live(self.one.warm_up).await;
            together.wait();
            let started = Instant::now();
            ring.live(self.one.lives).await;
            let ended = Instant::now();
            together.wait();
            ring.drain().await;
            (started, ended)
        })
    }
}

impl Workload for W1t {
    const NAME: &'static str = "W1t";

    const TITLE: &'static str = "lives on several threads, each with its own keys";

    const METRICS: &'static [Metric] = &[
        Metric::more("rate", "M lives/s"),
        Metric::note("scaling", "x one thread"),
        transfer::BESIDE,
    ];

    /// The million has no case of its own: it is memory that W1 measures there.
    fn cases(options: &Options) -> Vec<Case<Self>> {
        let mut cases = Vec::new();
        for &keys in &options.keys {
            for &parked in options.parked.iter().filter(|&&parked| parked < 1_000_000) {
                for threads in options.threads() {
                    let one = W1::new(parked, keys, options);
                    cases.push(Case {
                        parameters: vec![("keys", keys), ("parked", parked), ("threads", threads)],
                        workload: Self { threads, one },
                    });
                }
            }
        }
        cases
    }

    fn contenders() -> Vec<Contender<Self>> {
        contenders![new, round:
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

    fn finish(outcomes: &mut [Outcome]) {
        let rates = |outcome: &Outcome| outcome.values(RATE).collect::<Vec<_>>();
        let alone: Vec<(&'static str, Parameters, Vec<f64>)> = outcomes
            .iter()
            .filter(|outcome| outcome.parameter("threads") == Some(1))
            .map(|outcome| {
                (
                    outcome.candidate,
                    outcome.parameters.clone(),
                    rates(outcome),
                )
            })
            .collect();
        for outcome in outcomes {
            let of_one_thread = alone.iter().find(|(candidate, parameters, _)| {
                *candidate == outcome.candidate && parameters[..2] == outcome.parameters[..2]
            });
            let Some((_, _, rates)) = of_one_thread else {
                continue;
            };
            for (round, rate) in outcome.rounds.iter_mut().zip(rates) {
                round[SCALING] = round[RATE] / rate;
            }
        }
    }
}
