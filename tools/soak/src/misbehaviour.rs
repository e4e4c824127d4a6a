//! How an operation misbehaves: decided when it is made, so that the seed decides it.

use crate::random::Random;
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

    pub(crate) fn random(random: &mut Random) -> Self {
        Self {
            panics: random.once_in(40).then(|| any(random)),
            reenters: random.once_in(6).then(|| (hook(random), random.next())),
            sleeps: random.once_in(30).then(|| {
                let micros = match random.below(400) {
                    0 => 20_000,
                    1..40 => 1_000,
                    _ => random.between(1, 60),
                };
                (hook(random), Duration::from_micros(micros))
            }),
            locks: random.once_in(10).then(|| hook(random)),
            shuts_down: false,
        }
    }
}

/// A hook that may call the purgatory.
fn hook(random: &mut Random) -> At {
    match random.below(2) {
        0 => At::Examination(random.between(1, 4) as u32),
        _ => At::Completion,
    }
}

fn any(random: &mut Random) -> At {
    match random.below(3) {
        0 => At::Drop,
        _ => hook(random),
    }
}
