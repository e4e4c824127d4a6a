//! Waiting for the end of an abuse, for as long as it may take.

use crate::innocent;
use crate::operation::Operation;
use anyhow::{Result, ensure};
use request_purgatory::{Purgatory, time::Clock};
use std::thread;
use std::time::{Duration, Instant};

/// How long an abuse may last before something is wrong.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Waits until this many have expired and nothing is left of them: no watch, no key and no timer.
///
/// An expiry is booked before its traces are cleared away. The innocent has one operation at a time, which watches one
/// key, and whose deadline is far away.
pub(crate) fn wait_until_gone(
    purgatory: &Purgatory<Operation>,
    clock: Instant,
    expired: u64,
) -> Result<()> {
    let far = innocent::TIMEOUT / 2;
    wait_until("all have expired and are cleared away", || {
        // The first two take no lock, the others many: they are asked once, at the end.
        purgatory.stats().expired >= expired
            && purgatory.stats().watched <= 1
            && purgatory.watched_keys() <= 1
            && purgatory
                .next_deadline()
                .is_none_or(|next| next.saturating_since(clock.now()) > far)
    })
}

pub(crate) fn wait_until(what: &str, is_so: impl Fn() -> bool) -> Result<()> {
    let start = Instant::now();
    while !is_so() {
        let waited = start.elapsed();
        ensure!(waited < PATIENCE, "after {waited:?}, not yet: {what}");
        thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}
