//! Of what make a purgatory is, and how it is to end.

use crate::random::Random;
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
    pub(crate) fn random(random: &mut Random) -> Self {
        use Driver::{Own, Polled, Reactor, Shared};
        use Place::{Executor, Inline, OwnThread};
        let micros = Duration::from_micros;
        Self {
            driver: random.pick(&[Own, Own, Shared, Reactor, Polled]),
            place: random.pick(&[Place::Default, Inline, OwnThread, Executor]),
            tick: random.pick(&[micros(100), micros(1_000), micros(1_000), micros(7_000)]),
            wheel_size: random.pick(&[2, 7, 64, 64, 256]),
            max_parked: random.pick(&[None, None, Some(64), Some(1_000), Some(5_000)]),
            max_timeout: random.pick(&[Duration::MAX, Duration::MAX, micros(150_000)]),
            early: random.once_in(3).then(|| Early {
                calls: random.between(1, 20_000),
                from_callback: random.once_in(2),
            }),
            finish: random.pick(&[
                Finish::Shutdown,
                Finish::Drop,
                Finish::Callback,
                Finish::Cancel,
                Finish::Force,
            ]),
        }
    }
}
