//! W1x: one thread parks, another completes.
//!
//! The requests pass from one to the other in their order. Each says once per burst how many it has
//! parked or completed. The completer follows at a distance of `parked`, and the parker waits where
//! an eighth more are parked, or 1,000 more. The same for every candidate.
//!
//! On more threads than two there are several such pairs, each with requests and keys of its own.
//!
//! (If it waited for the flags, it would take their cache lines from a completer that is slower. If
//! twice as many could be parked, a fast parker would double the memory and the watchers of a key.)

use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Instant;

use crossbeam::utils::CachePadded;

use super::ring::{Ring, assert_empty};
use super::w1::W1;
use super::{Case, Contender, Workload, contenders, transfer, whole};
use crate::candidate::{BURST, Candidate};
use crate::candidates::{
    BTreeAndMap, DelayQueueAndMap, KafkaPort, Library, OnThreads, TmWheelAndMap, TokioIdiom,
    UnpurgedPort,
};
use crate::options::Options;
use crate::outcome::{Metric, Values};
use crate::request::Flag;

#[derive(Debug, Clone, Copy)]
pub(crate) struct W1x {
    pairs: usize,
    /// What each pair does.
    one: W1,
}

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
        let board = Flag::board(self.pairs * self.one.shape.flags());
        board.iter().for_each(Flag::mark_ended);
        let pairs: Vec<_> = board
            .chunks(self.one.shape.flags())
            .enumerate()
            .map(|(number, flags)| (self.one.shape.numbered(number), flags, Progress::default()))
            .collect();
        let together = Barrier::new(self.pairs);
        let spans: Vec<(Instant, Instant)> = thread::scope(|scope| {
            let completers: Vec<_> = pairs
                .iter()
                .map(|(shape, flags, progress)| {
                    let (candidate, together) = (&candidate, &together);
                    let ring = || Ring::new(candidate, *shape, flags);
                    scope.spawn(move || self.park_all(candidate, ring(), flags, progress));
                    scope.spawn(move || self.complete_all(candidate, ring(), progress, together))
                })
                .collect();
            let joined = completers.into_iter().map(thread::ScopedJoinHandle::join);
            joined
                .map(|span| span.expect("no completer panics"))
                .collect()
        });
        assert_empty(&candidate);
        let lives = (self.pairs * self.one.lives) as f64;
        lives / whole(&spans).as_secs_f64() / 1e6
    }

    fn total(&self) -> usize {
        self.one.shape.parked() + self.one.warm_up + self.one.lives
    }

    /// How many are parked at most.
    fn most(&self) -> usize {
        let parked = self.one.shape.parked();
        (parked + (parked / 8).max(1_000)).min(self.one.shape.flags())
    }

    fn park_all<C: Candidate>(
        &self,
        candidate: &C,
        mut ring: Ring<'_, C>,
        flags: &[Flag],
        progress: &Progress,
    ) {
        candidate.drive(async {
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
        mut ring: Ring<'_, C>,
        progress: &Progress,
        together: &Barrier,
    ) -> (Instant, Instant) {
        candidate.drive(async {
            let mut started = Instant::now();
            let mut ended = started;
            let mut parked = 0;
            for completed in 0..self.total() {
                if completed == self.one.warm_up {
                    together.wait();
                    started = Instant::now();
                }
                if completed == self.one.warm_up + self.one.lives {
                    ended = Instant::now();
                }
                // As far behind as it takes to have the ring full; at the end, the rest.
                let needed = (completed + self.one.shape.parked()).min(self.total());
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
                for threads in options.named_threads(|threads| threads % 2 == 0) {
                    let mut parameters = vec![("keys", keys), ("parked", parked)];
                    parameters.extend(threads.map(|threads| ("threads", threads)));
                    let pairs = threads.map_or(1, |threads| threads / 2);
                    let one = W1::new(parked, keys, options);
                    cases.push(Case {
                        parameters,
                        workload: Self { pairs, one },
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
}
