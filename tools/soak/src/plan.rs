//! Of what make a purgatory is, and how it is to end.

use fastrand::Rng;
use std::time::Duration;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Driver {
    Own,
    Shared,
    /// A thread of ours that sleeps until it is woken, or until the next deadline.
    Reactor,
    /// A thread of ours that calls `advance` all the time; so do the actors.
    Polled,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    Default,
    Inline,
    OwnThread,
    Executor,
}

/// How a purgatory ends that no call has shut down before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Finish {
    Shutdown,
    /// The last clone is dropped.
    Drop,
    /// From a callback.
    Callback,
    /// Everything is taken back by key first.
    Cancel,
    /// Everything is forced by key first.
    Force,
}

/// A shutdown in the middle of the work.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Early {
    /// After this many calls.
    pub(crate) calls: u64,
    pub(crate) from_callback: bool,
}

#[derive(Debug, Clone)]
pub(crate) struct Plan {
    pub(crate) driver: Driver,
    pub(crate) place: Place,
    pub(crate) tick: Duration,
    pub(crate) wheel_size: usize,
    pub(crate) max_parked: Option<usize>,
    pub(crate) max_timeout: Duration,
    pub(crate) early: Option<Early>,
    pub(crate) finish: Finish,
}

impl Plan {
    pub(crate) fn random(random: &mut Rng) -> Self {
        use Driver::{Own, Polled, Reactor, Shared};
        use Finish::{Callback, Cancel, Force, Shutdown};
        use Place::{Executor, Inline, OwnThread};
        let micros = Duration::from_micros;
        Self {
            driver: pick(random, &[Own, Own, Shared, Reactor, Polled]),
            place: pick(random, &[Place::Default, Inline, OwnThread, Executor]),
            tick: micros(pick(random, &[100, 1_000, 1_000, 7_000])),
            wheel_size: pick(random, &[2, 7, 64, 64, 256]),
            max_parked: pick(random, &[None, None, Some(64), Some(1_000), Some(5_000)]),
            max_timeout: pick(random, &[Duration::MAX, Duration::MAX, micros(150_000)]),
            early: (random.u64(..3) == 0).then(|| Early {
                calls: random.u64(1..=20_000),
                from_callback: random.bool(),
            }),
            finish: pick(random, &[Shutdown, Finish::Drop, Callback, Cancel, Force]),
        }
    }
}

fn pick<T: Copy>(random: &mut Rng, choices: &[T]) -> T {
    choices[random.usize(..choices.len())]
}
