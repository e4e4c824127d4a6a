//! How an operation misbehaves: decided when it is made, so that the seed decides it.

use fastrand::Rng;
use std::time::Duration;

/// A hook of an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum At {
    /// This one of its `try_complete`s.
    Examination(u32),
    Completion,
    Drop,
}

#[derive(Debug, Clone)]
pub(crate) struct Misbehaviour {
    pub(crate) panics: Option<At>,
    /// Where it calls the purgatory again, and with which seed.
    pub(crate) reenters: Option<(At, u64)>,
    pub(crate) sleeps: Option<(At, Duration)>,
    /// Where it takes a lock under which others call `check_later`.
    pub(crate) locks: Option<At>,
    /// Its completion shuts the purgatory down.
    pub(crate) shuts_down: bool,
}

impl Misbehaviour {
    pub(crate) fn calm() -> Self {
        Self {
            panics: None,
            reenters: None,
            sleeps: None,
            locks: None,
            shuts_down: false,
        }
    }

    pub(crate) fn random(random: &mut Rng) -> Self {
        Self {
            panics: (random.u64(..40) == 0).then(|| any(random)),
            reenters: (random.u64(..6) == 0).then(|| (hook(random), random.u64(..))),
            sleeps: (random.u64(..30) == 0).then(|| {
                let micros = match random.u64(..400) {
                    0 => 20_000,
                    1..40 => 1_000,
                    _ => random.u64(1..=60),
                };
                (hook(random), Duration::from_micros(micros))
            }),
            locks: (random.u64(..10) == 0).then(|| hook(random)),
            shuts_down: false,
        }
    }
}

/// A hook that may call the purgatory.
fn hook(random: &mut Rng) -> At {
    match random.u64(..2) {
        0 => At::Examination(random.u64(1..=4) as u32),
        _ => At::Completion,
    }
}

fn any(random: &mut Rng) -> At {
    match random.u64(..3) {
        0 => At::Drop,
        _ => hook(random),
    }
}
