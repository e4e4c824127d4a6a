//! The ring of parked requests that several workloads turn.

use std::time::Duration;

use crate::candidate::{BURST, Candidate};
use crate::request::{Flag, Request};

/// Long enough that nothing expires while it is measured.
pub(super) const TIMEOUT: Duration = Duration::from_secs(30);

const MAX_KEYS: usize = 3;

/// How many are parked, and under which keys: request `i` watches those with `keys` consecutive numbers,
/// from `i mod parked` on. With one key each request has its own, with three every key has three watchers.
#[derive(Debug, Clone, Copy)]
pub(super) struct Shape {
    parked: usize,
    keys: usize,
    first_key: usize,
}

impl Shape {
    pub(super) fn new(parked: usize, keys: usize) -> Self {
        assert!(
            (1..=MAX_KEYS).contains(&keys),
            "a ring is for 1 to {MAX_KEYS} keys"
        );
        assert!(
            parked >= 2 * BURST,
            "a ring is for at least {} parked",
            2 * BURST
        );
        Self {
            parked,
            keys,
            first_key: 0,
        }
    }

    /// The same under keys that the rings of other numbers have not.
    pub(super) fn numbered(self, number: usize) -> Self {
        Self {
            first_key: number * self.parked,
            ..self
        }
    }

    pub(super) fn parked(self) -> usize {
        self.parked
    }

    /// Twice as many as requests, so that the flag of a request that a burst ended still stands
    /// when the burst is verified.
    pub(super) fn flags(self) -> usize {
        2 * self.parked
    }
}

/// Asserts that everything has left.
pub(super) fn assert_empty<C: Candidate>(candidate: &C) {
    candidate.settle();
    let left = (candidate.parked(), candidate.watched());
    assert_eq!(left, (0, 0), "{}: leftovers, parked and watched", C::NAME);
}

/// The parked requests in the order of their parking, as a queue of flags.
pub(super) struct Ring<'a, C> {
    candidate: &'a C,
    shape: Shape,
    flags: &'static [Flag],
    oldest: usize,
    next: usize,
    /// Endings that are not verified yet: those of the flags before the oldest.
    unverified: usize,
}

impl<'a, C: Candidate> Ring<'a, C> {
    /// On flags that are [`Shape::flags`] many.
    pub(super) fn new(candidate: &'a C, shape: Shape, flags: &'static [Flag]) -> Self {
        assert_eq!(flags.len(), shape.flags());
        Self {
            candidate,
            shape,
            flags,
            oldest: 0,
            next: 0,
            unverified: 0,
        }
    }

    /// The place in the ring's order, which is the first key: the index modulo `parked`.
    fn place(&self, index: usize) -> usize {
        let parked = self.shape.parked;
        if index < parked {
            index
        } else {
            index - parked
        }
    }

    #[inline(always)]
    fn key(&self, index: usize) -> u64 {
        C::key(self.shape.first_key + self.place(index))
    }

    fn advance(&self, index: usize) -> usize {
        if index + 1 < self.flags.len() {
            index + 1
        } else {
            0
        }
    }

    /// Inlined wherever it is called, as is [`end_oldest`](Self::end_oldest): the calls of the candidate stand in
    /// several places of the program.
    #[inline(always)]
    pub(super) fn park(&mut self) {
        let flag = &self.flags[self.next];
        flag.reset();
        let first = self.place(self.next);
        let mut keys = [0; MAX_KEYS];
        for (offset, key) in keys.iter_mut().enumerate() {
            *key = self.key(first + offset);
        }
        let request = Request::new(self.next as u32, flag, TIMEOUT);
        let completed = self.candidate.park(request, &keys[..self.shape.keys]);
        assert!(
            !completed,
            "{}: completed a request that was not ready",
            C::NAME
        );
        self.next = self.advance(self.next);
    }

    #[inline(always)]
    pub(super) fn end_oldest(&mut self) {
        self.flags[self.oldest].mark_completable();
        let completed = self.candidate.check(self.key(self.oldest));
        assert_eq!(completed, 1, "{}: one request was ready", C::NAME);
        self.oldest = self.advance(self.oldest);
    }

    /// Ends and parks `lives` times, from two places in turn.
    pub(super) async fn live(&mut self, lives: usize) {
        let even = |ring: &mut Self| {
            ring.end_oldest();
            ring.park();
        };
        let odd = |ring: &mut Self| {
            ring.end_oldest();
            ring.park();
        };
        self.in_bursts(lives, even, odd).await;
    }

    pub(super) async fn fill(&mut self) {
        let parked = self.shape.parked;
        for begun in (0..parked).step_by(BURST) {
            (begun..parked.min(begun + BURST)).for_each(|_| self.park());
            self.candidate.turn().await;
        }
    }

    pub(super) async fn drain(&mut self) {
        self.in_bursts(self.shape.parked, Self::end_oldest, Self::end_oldest)
            .await;
        self.candidate.finish().await;
        self.verify(0).await;
    }

    /// Takes `steps` that each end one request, by `even` and `odd` in turn, in bursts, and verifies every ending: at
    /// once, or, where other threads end the requests, before half of the flags without a request are unverified.
    async fn in_bursts(&mut self, steps: usize, even: impl Fn(&mut Self), odd: impl Fn(&mut Self)) {
        let mut left = steps;
        while left > 0 {
            let burst = left.min(BURST);
            for _ in 0..burst / 2 {
                even(self);
                odd(self);
            }
            if burst % 2 == 1 {
                even(self);
            }
            self.candidate.turn().await;
            self.unverified += burst;
            let may_stay = if C::ENDS_LATER {
                self.shape.parked / 2
            } else {
                0
            };
            self.verify(may_stay).await;
            left -= burst;
        }
    }

    /// The flag of the next request, which [`park`](Self::park) makes good.
    pub(super) fn next_flag(&self) -> &'static Flag {
        &self.flags[self.next]
    }

    async fn verify(&mut self, may_stay: usize) {
        let flags = self.flags.len();
        let mut index = (self.oldest + flags - self.unverified) % flags;
        while self.unverified > may_stay {
            if C::ENDS_LATER && !self.flags[index].has_ended() {
                self.candidate.finish().await;
            }
            assert!(
                self.flags[index].is_satisfied(),
                "{}: not satisfied once",
                C::NAME
            );
            index = self.advance(index);
            self.unverified -= 1;
        }
    }
}
