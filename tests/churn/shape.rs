//! What is drawn at random: who drives, how many come and stay, and on which keys.

use crate::support::Mint;
use crate::support::keys::Census;
use request_purgatory::threads::{Reaper, ReaperThread};
use request_purgatory::time::ManualClock;
use std::time::Duration;

pub(crate) const TICK: Duration = Duration::from_millis(1);

/// What drives all of them.
pub(crate) enum Driver {
    /// The test.
    Test,
    /// A thread of its own for each.
    Own,
    /// One thread for all.
    Shared(ReaperThread),
}

impl Driver {
    pub(crate) fn shared() -> Self {
        Self::Shared(ReaperThread::spawn("churn").expect("threads are to be had"))
    }

    pub(crate) fn reaper(&self) -> Reaper {
        match self {
            Self::Test => Reaper::Manual,
            Self::Own => Reaper::Own,
            Self::Shared(reaper) => Reaper::Shared(reaper.clone()),
        }
    }
}

/// A shape, and what stays the same while it is filled.
pub(crate) struct Shape {
    pub(crate) random: fastrand::Rng,
    pub(crate) driver: Driver,
    pub(crate) clock: ManualClock,
    pub(crate) census: Census,
    pub(crate) mint: Mint,
    /// Operations of a round in each purgatory, and how many stay.
    pub(crate) crowd: u64,
    pub(crate) survivors: usize,
    /// How many keys there are beside the hot one, and how many of them are resolved in each round.
    pub(crate) keys: u64,
    pub(crate) resolved: u64,
    /// How many expire together.
    pub(crate) group: u64,
}

impl Shape {
    pub(crate) fn draw(seed: u64) -> Self {
        let mut random = fastrand::Rng::with_seed(seed);
        let driver = match seed % 3 {
            0 => Driver::Test,
            1 => Driver::Own,
            _ => Driver::shared(),
        };
        Self {
            driver,
            clock: ManualClock::new(),
            census: Census::default(),
            mint: Mint::default(),
            crowd: 200 + random.u64(..600),
            survivors: random.usize(..4),
            keys: 1 + random.u64(..200),
            resolved: random.u64(..100),
            group: 2 + random.u64(..200),
            random,
        }
    }

    /// A deadline that it shares with its group. All have passed after [`Shape::over`].
    pub(crate) fn timeout(&self, number: u64) -> Duration {
        TICK * (1 + number / self.group) as u32
    }

    pub(crate) fn over(&self) -> Duration {
        self.timeout(self.crowd)
    }
}

/// A builder of any kind, with the clock and the driver of a shape.
macro_rules! in_shape {
    ($shape:expr, $kind:ident) => {
        $kind::builder("churn")
            .clock($shape.clock.clone())
            .reaper($shape.driver.reaper())
    };
}
pub(crate) use in_shape;
