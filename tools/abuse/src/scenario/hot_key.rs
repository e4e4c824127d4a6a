//! All operations watch one key, and each one of a thousand others, through which they are ended: half of them are
//! forced and half cancelled. Each ending takes one watcher off the long list of the hot key.
//!
//! The innocent has nothing to do with that key, or watches it, or checks it. A check looks at the whole crowd, so that
//! one is measured alone beside an idle crowd, the others without any.

use crate::innocent::Round;
use crate::measured::Measured;
use crate::operation::{Kind, park};
use crate::patience::wait_until;
use anyhow::{Result, ensure};
use request_purgatory::Purgatory;
use std::time::Duration;

/// The key that all watch.
pub(super) const HOT: u64 = 1 << 30;
const OTHERS: u64 = 1_000;

pub(super) fn run(name: &str, operations: u32, round: Round) -> Result<()> {
    let purgatory = Purgatory::new("hot");
    let crowd = || {
        (0..u64::from(operations)).try_for_each(|number| {
            let keys = [HOT, number % OTHERS];
            park(&purgatory, Duration::MAX, Kind::Plain, &keys)
        })
    };
    let checks = matches!(round, Round::Checking(_));
    if checks {
        crowd()?;
    }
    let measured = Measured::alone(name, &purgatory, round)?;
    if !checks {
        crowd()?;
    }
    measured.abused(|| {
        let mut ended = 0;
        for key in 0..OTHERS {
            ended += match key % 2 {
                0 => purgatory.cancel_for_key(&key).len(),
                _ => purgatory.force_complete_for_key(&key),
            };
        }
        // Those that the innocent is just looking at are ended by that thread.
        ensure!(checks || ended == operations as usize, "{ended} have ended");
        wait_until("all have ended", || purgatory.stats().parked <= 1)
    })
}
