//! A purgatory in which operations come and go, and what the test has counted of it.

use crate::shape::{Driver, Shape, in_shape};
use crate::support::keys::Counted;
use crate::support::{Op, Tally, eventually, refusal};
use request_purgatory::purgatory::{RejectReason, Stats};
use request_purgatory::{Handle, Purgatory, ResolvedKey, Watch};
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

pub(crate) type Operations = Purgatory<Op<Counted>>;

/// The key that every operation watches.
pub(crate) const HOT: u64 = 0;

/// A purgatory, with what stays in it.
pub(crate) struct Place {
    pub(crate) purgatory: Operations,
    pub(crate) survivors: Vec<Comer>,
    /// How many it takes, if that is bounded: as many as a crowd has, with those that stay.
    pub(crate) max_parked: Option<usize>,
    /// What the test has counted.
    pub(crate) expected: Stats,
    pub(crate) ends: Arc<Tally>,
}

/// One that has come.
pub(crate) struct Comer {
    pub(crate) handle: Handle<Op<Counted>>,
    /// The other key that it watches.
    pub(crate) key: u64,
    pub(crate) ready: Arc<AtomicBool>,
    pub(crate) expires: bool,
}

impl Place {
    pub(crate) fn new(shape: &mut Shape) -> Self {
        let mut builder = in_shape!(shape, Operations);
        let most = shape.crowd as usize + shape.survivors;
        let max_parked = shape.random.bool().then_some(most);
        if let Some(most) = max_parked {
            builder = builder.max_parked(most);
        }
        Self {
            max_parked,
            purgatory: builder.build().expect("threads are to be had"),
            survivors: Vec::new(),
            expected: Stats::default(),
            ends: Tally::new(),
        }
    }

    /// Parks on the hot key and on another, which may be resolved, and may have a rank.
    pub(crate) fn park(
        &self,
        shape: &mut Shape,
        resolved: &[ResolvedKey<Op<Counted>>],
        timeout: Duration,
    ) -> Comer {
        let ready = Arc::new(AtomicBool::new(false));
        let (answer, token, ends) = (ready.clone(), shape.mint.token(0), self.ends.clone());
        let op = Op::new(timeout)
            .when(move || answer.load(Ordering::Relaxed))
            .then(move |_| {
                drop(token);
                ends.add();
            });
        let key = 1 + shape.random.u64(..shape.keys);
        let resolved = resolved.iter().find(|resolved| resolved.key().0 == key);
        let other = match resolved {
            Some(resolved) if shape.random.u64(..4) > 0 => resolved.watch(),
            _ => Watch::from(shape.census.key(key)),
        };
        let watches = [Watch::from(shape.census.key(HOT)), other];
        let watches = watches.map(|watch| match shape.random.u64(..8) {
            0 => watch.at_rank(shape.random.u64(..3)),
            _ => watch,
        });
        let admission = self.purgatory.try_complete_else_watch(op, watches);
        let handle = admission.expect("there is room").into_handle();
        Comer {
            handle: handle.expect("it cannot complete yet"),
            key,
            ready,
            expires: timeout != Duration::MAX,
        }
    }

    /// A crowd comes, and goes but for those that expire. In the middle of it comes one that stays, in the place of one
    /// that has stayed so far.
    pub(crate) fn churn(&mut self, shape: &mut Shape) {
        let resolve = |number| self.purgatory.resolve(shape.census.key(number));
        let mut resolved = (1..=shape.resolved).map(resolve).collect::<Vec<_>>();
        let middle = shape.random.u64(..shape.crowd);
        // The share of those with a deadline that go before it, in quarters.
        let early = shape.random.u64(..4);
        let (mut crowd, mut deferred) = (Vec::new(), Vec::new());
        for number in 0..shape.crowd {
            if number == middle && shape.survivors > 0 {
                if self.survivors.len() == shape.survivors {
                    let left = self.survivors.remove(0);
                    drop(left.handle.cancel().expect("it stays until now"));
                    self.expected.cancelled += 1;
                }
                let stays = self.park(shape, &resolved, Duration::MAX);
                self.survivors.push(stays);
            }
            let timeout = match shape.random.u64(..3) {
                0 => Duration::MAX,
                _ => shape.timeout(number),
            };
            crowd.push(self.park(shape, &resolved, timeout));
        }
        if shape.random.bool() {
            resolved.clear();
        }
        while !crowd.is_empty() {
            let place = match shape.random.u64(..3) {
                0 => shape.random.usize(..crowd.len()),
                1 => crowd.len() - 1,
                _ => 0,
            };
            let comer = crowd.swap_remove(place);
            if comer.expires && shape.random.u64(..4) >= early {
                continue;
            }
            match shape.random.u64(..4) {
                0 => {
                    drop(comer.handle.cancel().expect("no other thread ends it"));
                    self.expected.cancelled += 1;
                }
                1 => {
                    assert!(comer.handle.force_complete());
                    self.expected.completed += 1;
                }
                2 => deferred.push(comer),
                _ => {
                    comer.ready.store(true, Ordering::Relaxed);
                    let key = shape.census.key(comer.key);
                    self.expected.checks += self.purgatory.watchers(&key) as u64;
                    assert_eq!(self.purgatory.check_and_complete(&key), 1);
                    self.expected.completed += 1;
                }
            }
        }
        self.check_later(shape, &deferred);
        let stats = self.purgatory.stats();
        self.expected.expired += (stats.parked - self.survivors.len()) as u64;
    }

    /// They are completed by checks that are deferred, one for each of their keys.
    pub(crate) fn check_later(&mut self, shape: &Shape, deferred: &[Comer]) {
        let left = self.purgatory.stats().parked - deferred.len();
        let mut keys = HashSet::new();
        for comer in deferred {
            comer.ready.store(true, Ordering::Relaxed);
            keys.insert(shape.census.key(comer.key));
        }
        let watchers = keys.iter().map(|key| self.purgatory.watchers(key) as u64);
        self.expected.checks += watchers.sum::<u64>();
        self.expected.completed += deferred.len() as u64;
        for key in keys {
            self.purgatory.check_later(key);
        }
        if matches!(shape.driver, Driver::Test) {
            assert_eq!(self.purgatory.advance(), 0);
        }
        // Also of those that are not ready, before their deadlines pass.
        eventually("the deferred checks", || {
            let stats = self.purgatory.stats();
            (stats.checks, stats.parked) == (self.expected.checks, left)
        });
    }

    /// Where their number is bounded, as many may come as are missing, and no more.
    pub(crate) fn fill(&mut self, shape: &mut Shape) {
        let Some(most) = self.max_parked else {
            return;
        };
        let missing = most - self.survivors.len();
        let comers = (0..missing).map(|_| self.park(shape, &[], Duration::MAX));
        let comers = comers.collect::<Vec<_>>();
        let (op, hot) = (Op::new(Duration::MAX), shape.census.key(HOT));
        let refused = self.purgatory.try_complete_else_watch(op, [hot]);
        assert_eq!(refusal(&refused), Some(RejectReason::Full));
        self.expected.rejected += 1;
        self.expected.cancelled += missing as u64;
        for comer in comers {
            drop(comer.handle.cancel().expect("no other thread ends it"));
        }
    }

    pub(crate) fn is_quiet(&self) -> bool {
        let (stats, stay) = (self.purgatory.stats(), self.survivors.len());
        // An expired operation is counted before its completion is handed over.
        let have_run = self.ends.count() == stats.completed + stats.expired;
        have_run && (stats.parked, stats.watched, stats.completions_pending) == (stay, 2 * stay, 0)
    }

    pub(crate) fn assert_exact(&self, shape: &Shape) {
        let (stats, mut expected) = (self.purgatory.stats(), self.expected.clone());
        let stay = self.survivors.len();
        (expected.parked, expected.watched) = (stay, 2 * stay);
        // How late they were depends on when they were driven.
        (expected.lateness_total, expected.lateness_max) =
            (stats.lateness_total, stats.lateness_max);
        assert_eq!(stats, expected);
        assert!(self.survivors.iter().all(|comer| comer.handle.is_parked()));
        assert_eq!(self.purgatory.watchers(&shape.census.key(HOT)), stay);
        let keys = self.survivors.iter().flat_map(|comer| [HOT, comer.key]);
        let keys = keys.collect::<HashSet<_>>();
        assert_eq!(self.purgatory.watched_keys(), keys.len());
        assert_eq!(self.purgatory.snapshot().len(), stay);
    }
}
