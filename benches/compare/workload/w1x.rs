//! W1x: one thread parks, another completes.
//!
//! The requests pass from one to the other in their order. Each says once per burst how many it has
//! parked or completed. The completer follows at a distance of `parked`, and the parker waits where
//! an eighth more are parked, or 1,000 more. The same for every candidate.
//!
//! (If it waited for the flags, it would take their cache lines from a completer that is slower. If
//! twice as many could be parked, a fast parker would double the memory and the watchers of a key.)

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Instant;

use crossbeam::utils::CachePadded;

use super::ring::{Ring, assert_empty};
use super::w1::W1;
use super::{Case, Contender, Workload, contenders, transfer};
use crate::candidate::{BURST, Candidate};
use crate::candidates::{
    BTreeAndMap, DelayQueueAndMap, KafkaPort, Library, TmWheelAndMap, TokioIdiom, UnpurgedPort,
};
use crate::options::Options;
use crate::outcome::{Metric, Values};
use crate::request::Flag;

#[derive(Debug, Clone, Copy)]
pub(crate) struct W1x(W1);

/// Looks for the other thread's progress before the core is offered to it.
const SPINS: usize = 100;

/// How many requests each thread has done, as far as the other knows.
#[derive(Default)]
struct Progress {
    parked: CachePadded<AtomicUsize>,
    completed: CachePadded<AtomicUsize>,
}

impl W1x {
    fn round<C: Candidate>(&self) -> Values {
        let (rate, transfer) = transfer::beside(|| self.rate::<C>());
        vec![rate, transfer]
    }

    fn rate<C: Candidate>(&self) -> f64 {
        let candidate = C::new();
        let flags = Flag::board(self.0.shape.flags());
        flags.iter().for_each(Flag::mark_ended);
        let progress = Progress::default();
        let (started, ended) = thread::scope(|scope| {
            let parker = scope.spawn(|| self.park_all(&candidate, flags, &progress));
            let span = self.complete_all(&candidate, flags, &progress);
            parker.join().expect("the parker does not panic");
            span
        });
        assert_empty(&candidate);
        let elapsed = ended.duration_since(started).as_secs_f64();
        self.0.lives as f64 / elapsed / 1e6
    }

    fn total(&self) -> usize {
        self.0.shape.parked() + self.0.warm_up + self.0.lives
    }

    /// How many are parked at most.
    fn most(&self) -> usize {
        let parked = self.0.shape.parked();
        (parked + (parked / 8).max(1_000)).min(self.0.shape.flags())
    }

    fn park_all<C: Candidate>(&self, candidate: &C, flags: &'static [Flag], progress: &Progress) {
        candidate.drive(async {
            let mut ring = Ring::new(candidate, self.0.shape, flags);
            let most = self.most();
            let mut completed = 0;
            for parked in 1..=self.total() {
                let mut spins = 0;
                while parked > completed + most || !ring.next_flag().has_ended() {
                    completed = progress.completed.load(Ordering::Acquire);
                    spins += 1;
                    if spins % SPINS == 0 {
                        thread::yield_now();
                    }
                    candidate.turn().await;
                }
                ring.park();
                if parked % BURST == 0 || parked == self.total() {
                    progress.parked.store(parked, Ordering::Release);
                    candidate.turn().await;
                }
            }
            // An executor of this thread still has the last endings to do.
            while !flags.iter().all(Flag::has_ended) {
                thread::yield_now();
                candidate.turn().await;
            }
            assert!(flags.iter().all(Flag::is_satisfied), "{}", C::NAME);
            candidate.turn().await;
        });
    }

    /// Returns when the measured lives began and ended.
    fn complete_all<C: Candidate>(
        &self,
        candidate: &C,
        flags: &'static [Flag],
        progress: &Progress,
    ) -> (Instant, Instant) {
        candidate.drive(async {
            let mut ring = Ring::new(candidate, self.0.shape, flags);
            let mut started = Instant::now();
            let mut ended = started;
            let mut parked = 0;
            for completed in 0..self.total() {
                if completed == self.0.warm_up {
                    started = Instant::now();
                }
                if completed == self.0.warm_up + self.0.lives {
                    ended = Instant::now();
                }
                // As far behind as it takes to have the ring full; at the end, the rest.
                let needed = (completed + self.0.shape.parked()).min(self.total());
                let mut spins = 0;
                while parked < needed {
                    parked = progress.parked.load(Ordering::Acquire);
                    spins += 1;
                    if spins % SPINS == 0 {
                        thread::yield_now();
                    }
                }
                ring.end_oldest();
                if completed % BURST == 0 {
                    progress.completed.store(completed, Ordering::Release);
                }
            }
            (started, ended)
        })
    }
}

impl Workload for W1x {
    const NAME: &'static str = "W1x";

    const TITLE: &'static str = "one thread parks, another completes by key";

    const METRICS: &'static [Metric] = &[Metric::more("rate", "M lives/s"), transfer::BESIDE];

    fn cases(options: &Options) -> Vec<Case<Self>> {
        let mut cases = Vec::new();
        for &keys in &options.keys {
            for &parked in options.parked.iter().filter(|&&parked| parked < 1_000_000) {
                cases.push(Case {
                    parameters: vec![("keys", keys), ("parked", parked)],
                    workload: Self(W1::new(parked, keys, options)),
                });
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
        ]
    }
}
