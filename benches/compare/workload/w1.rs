//! W1: the life of one request on one thread, with `parked` others waiting.
//!
//! A life marks the oldest request completable, checks its first key, which must end exactly that
//! one, and parks a new one under the same keys. Request `i` watches `keys` consecutive keys from
//! `i mod parked` on: with one key nobody shares it, with three every key has three watchers.

use std::time::{Duration, Instant};

use crate::candidate::{BURST, Candidate};
use crate::candidates::{
    DelayQueueAndMap, Floor, KafkaPort, Library, TmWheelAndMap, TokioIdiom, UnpurgedPort,
};
use crate::contest::{Case, Contender};
use crate::options::Options;
use crate::request::{Flag, Request};

pub(crate) const NAME: &str = "W1";

/// Long enough that nothing expires while it is measured.
const TIMEOUT: Duration = Duration::from_secs(30);

const MAX_KEYS: usize = 3;

#[derive(Debug, Clone, Copy)]
pub(crate) struct W1 {
    parked: usize,
    keys: usize,
    warm_up: usize,
    /// Measured lives in one round.
    lives: usize,
}

impl W1 {
    /// The cases that the options ask for.
    pub(crate) fn cases(options: &Options) -> Vec<Case<Self>> {
        let mut cases = Vec::new();
        for &keys in &options.keys {
            assert!(
                (1..=MAX_KEYS).contains(&keys),
                "W1 is for 1 to {MAX_KEYS} keys"
            );
            for &parked in &options.parked {
                assert!(
                    parked >= 2 * BURST,
                    "W1 is for at least {} parked",
                    2 * BURST
                );
                let lives = options.lives.div_ceil(options.rounds);
                // A whole turn of the ring, so that what is measured is memory used before.
                let warm_up = if options.quick {
                    parked.min(lives)
                } else {
                    parked.max(lives / 4)
                };
                cases.push(Case {
                    parameters: vec![("keys", keys), ("parked", parked)],
                    workload: Self {
                        parked,
                        keys,
                        warm_up,
                        lives,
                    },
                });
            }
        }
        cases
    }

    pub(crate) fn contenders() -> Vec<Contender<Self>> {
        vec![
            Contender::new::<Floor>(Self::round::<Floor>),
            Contender::new::<Library>(Self::round::<Library>),
            Contender::new::<TmWheelAndMap>(Self::round::<TmWheelAndMap>),
            Contender::new::<DelayQueueAndMap>(Self::round::<DelayQueueAndMap>),
            Contender::new::<KafkaPort>(Self::round::<KafkaPort>),
            Contender::new::<UnpurgedPort>(Self::round::<UnpurgedPort>),
            Contender::new::<TokioIdiom>(Self::round::<TokioIdiom>),
        ]
    }

    /// One round on a fresh candidate: nanoseconds per life.
    fn round<C: Candidate>(&self) -> f64 {
        let candidate = C::new();
        let elapsed = candidate.drive(async {
            let mut ring = Ring::new(&candidate, *self);
            ring.fill().await;
            ring.live(self.warm_up).await;
            let started = Instant::now();
            ring.live(self.lives).await;
            let elapsed = started.elapsed();
            ring.drain().await;
            elapsed
        });
        candidate.settle();
        assert_eq!(
            (candidate.parked(), candidate.watched()),
            (0, 0),
            "{}: leftovers",
            C::NAME
        );
        elapsed.as_nanos() as f64 / self.lives as f64
    }
}

/// The parked requests in the order of their parking, as a queue of flags.
///
/// There are twice as many flags as requests, so that the flag of a request that a burst ended
/// still stands when the burst is verified.
struct Ring<'a, C> {
    candidate: &'a C,
    workload: W1,
    flags: &'static [Flag],
    oldest: usize,
    next: usize,
}

impl<'a, C: Candidate> Ring<'a, C> {
    fn new(candidate: &'a C, workload: W1) -> Self {
        let flags = Flag::board(2 * workload.parked);
        Self {
            candidate,
            workload,
            flags,
            oldest: 0,
            next: 0,
        }
    }

    /// The place in the ring's order, which is the first key: the index modulo `parked`.
    fn place(&self, index: usize) -> usize {
        let parked = self.workload.parked;
        if index < parked {
            index
        } else {
            index - parked
        }
    }

    fn advance(&self, index: usize) -> usize {
        if index + 1 < self.flags.len() {
            index + 1
        } else {
            0
        }
    }

    fn park(&mut self) {
        let flag = &self.flags[self.next];
        flag.reset();
        let first = self.place(self.next);
        let mut keys = [0; MAX_KEYS];
        for (offset, key) in keys.iter_mut().enumerate() {
            let index = first + offset;
            *key = (if index < self.workload.parked {
                index
            } else {
                index - self.workload.parked
            }) as u64;
        }
        let request = Request::new(self.next as u32, flag, TIMEOUT);
        let completed = self.candidate.park(request, &keys[..self.workload.keys]);
        assert!(
            !completed,
            "{}: completed a request that was not ready",
            C::NAME
        );
        self.next = self.advance(self.next);
    }

    fn end_oldest(&mut self) {
        self.flags[self.oldest].mark_completable();
        let completed = self.candidate.check(self.place(self.oldest) as u64);
        assert_eq!(completed, 1, "{}: one request was ready", C::NAME);
        self.oldest = self.advance(self.oldest);
    }

    /// Ends and parks `lives` times.
    async fn live(&mut self, lives: usize) {
        self.in_bursts(lives, |ring| {
            ring.end_oldest();
            ring.park();
        })
        .await;
    }

    async fn fill(&mut self) {
        let parked = self.workload.parked;
        for begun in (0..parked).step_by(BURST) {
            (begun..parked.min(begun + BURST)).for_each(|_| self.park());
            self.candidate.turn().await;
        }
        assert_eq!(
            self.candidate.parked(),
            parked,
            "{}: after the fill",
            C::NAME
        );
    }

    async fn drain(&mut self) {
        self.in_bursts(self.workload.parked, Self::end_oldest).await;
        self.candidate.turn().await;
    }

    /// Takes `steps` that each end one request, in bursts, and verifies every ending.
    async fn in_bursts(&mut self, steps: usize, step: impl Fn(&mut Self)) {
        let mut left = steps;
        while left > 0 {
            let burst = left.min(BURST);
            let first = self.oldest;
            (0..burst).for_each(|_| step(self));
            self.candidate.turn().await;
            self.verify(first, burst);
            left -= burst;
        }
    }

    fn verify(&self, first: usize, count: usize) {
        let mut index = first;
        for _ in 0..count {
            assert!(
                self.flags[index].is_satisfied(),
                "{}: not satisfied once",
                C::NAME
            );
            index = self.advance(index);
        }
    }
}
