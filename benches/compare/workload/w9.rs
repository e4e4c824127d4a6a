//! W9: the life of W1 for who knows more: keys that are resolved once, and a reading of the clock that has been made.
//!
//! A broker keeps a resolved key for each partition, and reads the clock once for each batch of requests that it takes
//! off the network: here for every [`BURST`](crate::candidate::BURST) lives, within the time that is measured.

use std::future::{Future, ready};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use request_purgatory::{
    Completion, DelayedOperation, Purgatory, ResolvedKey, time::Clock, time::Timestamp,
};

use super::w1::W1;
use super::{Case, Contender, Workload};
use crate::candidate::Candidate;
use crate::candidates::{Floor, Library};
use crate::options::Options;
use crate::outcome::{Metric, Values};
use crate::request::Request;

pub(crate) struct W9(W1);

/// The library with its keys resolved: each is known by its number.
struct Resolved {
    purgatory: Purgatory<Arrived>,
    keys: Vec<ResolvedKey<Arrived>>,
    clock: Instant,
    /// The last reading of the clock, in nanoseconds.
    reading: &'static AtomicU64,
}

/// A request that came when the clock was last read.
struct Arrived(Request, &'static AtomicU64);

impl DelayedOperation for Arrived {
    type Key = u64;

    fn timeout(&self) -> Duration {
        DelayedOperation::timeout(&self.0)
    }

    fn arrival(&self) -> Option<Timestamp> {
        let reading = self.1.load(Ordering::Relaxed);
        Some(Timestamp::from_origin(Duration::from_nanos(reading)))
    }

    fn try_complete(&mut self) -> bool {
        DelayedOperation::try_complete(&mut self.0)
    }

    fn on_complete(self, completion: Completion) {
        DelayedOperation::on_complete(self.0, completion);
    }
}

impl Resolved {
    fn with(keys: usize) -> Self {
        let clock = Instant::now();
        let purgatory = Purgatory::builder("compare")
            .clock(clock)
            .build()
            .expect("the settings are sound");
        let keys = (0..keys)
            .map(|number| purgatory.resolve(Library::key(number)))
            .collect();
        Self {
            purgatory,
            keys,
            clock,
            reading: Box::leak(Box::default()),
        }
    }
}

impl Candidate for Resolved {
    const NAME: &'static str = "resolved_keys";

    fn new() -> Self {
        Self::with(0)
    }

    /// The number itself: `park` and `check` find the resolved key by its place.
    fn key(number: usize) -> u64 {
        number as u64
    }

    #[inline(never)]
    fn park(&self, request: Request, numbers: &[u64]) -> bool {
        let watches = numbers
            .iter()
            .map(|&number| self.keys[number as usize].watch());
        let parked = self
            .purgatory
            .try_complete_else_watch(Arrived(request, self.reading), watches);
        !parked
            .expect("neither full nor shut down, and every request has a key")
            .is_parked()
    }

    #[inline(never)]
    fn check(&self, number: u64) -> usize {
        self.keys[number as usize].check_and_complete()
    }

    fn parked(&self) -> usize {
        self.purgatory.stats().parked
    }

    fn watched(&self) -> usize {
        self.purgatory.stats().watched
    }

    /// Between two bursts: reads the clock.
    fn turn(&self) -> impl Future<Output = ()> {
        let reading = self.clock.now().since_origin();
        self.reading
            .store(reading.as_nanos() as u64, Ordering::Relaxed);
        ready(())
    }
}

impl W9 {
    fn plain<C: Candidate>(&self) -> Values {
        vec![self.0.measure(&C::new())]
    }

    fn resolved(&self) -> Values {
        let candidate = Resolved::with(self.0.shape.parked());
        vec![self.0.measure(&candidate)]
    }
}

impl Workload for W9 {
    const NAME: &'static str = "W9";

    const TITLE: &'static str = "one life on a resolved key, the time supplied";

    const METRICS: &'static [Metric] = &[Metric::less("life", "ns")];

    fn cases(options: &Options) -> Vec<Case<Self>> {
        let case = |&parked| Case {
            parameters: vec![("parked", parked)],
            workload: Self(W1::new(parked, 1, options)),
        };
        options.parked.iter().map(case).collect()
    }

    /// The library is held to the rules as it is.
    fn contenders() -> Vec<Contender<Self>> {
        vec![
            Contender::new::<Floor>(Self::plain::<Floor>),
            Contender::new::<Library>(Self::plain::<Library>),
            Contender::named::<Library>(Resolved::NAME, Self::resolved),
        ]
    }
}
