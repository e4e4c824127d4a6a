//! All operations watch one key, and each one of a thousand others, through which they are ended: half of them are
//! forced and half cancelled. Each ending takes one watcher off the long list of the hot key.

use super::{Measured, Scenario, park};
use crate::innocent::Round;
use crate::operation::Kind;
use anyhow::{Result, ensure};
use request_purgatory::Purgatory;
use std::time::Duration;

/// The key that all watch.
pub(super) const HOT: u64 = 1 << 30;
const OTHERS: u64 = 1_000;

pub(super) fn run(scenario: Scenario, operations: u32, round: Round) -> Result<()> {
    let purgatory = Purgatory::new("hot");
    let measured = Measured::alone(scenario.name(), &purgatory, round)?;
    for number in 0..u64::from(operations) {
        park(
            &purgatory,
            Duration::MAX,
            Kind::Plain,
            &[HOT, number % OTHERS],
        )?;
    }
    measured.abused(|| {
        let mut ended = 0;
        for key in 0..OTHERS {
            ended += match key % 2 {
                0 => purgatory.cancel_for_key(&key).len(),
                _ => purgatory.force_complete_for_key(&key),
            };
        }
        ensure!(ended == operations as usize, "{ended} have ended");
        Ok(())
    })
}
