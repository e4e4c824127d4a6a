//! All operations expire within 100 ms, and what is left of them is cleared away: most of that comes later.

use crate::innocent::Round;
use crate::measured::Measured;
use crate::operation::{Kind, park};
use crate::patience::wait_until_gone;
use anyhow::{Result, ensure};
use request_purgatory::{Purgatory, time::Clock};
use std::thread;
use std::time::{Duration, Instant};

const WITHIN: Duration = Duration::from_millis(100);
/// So much longer they may take to be parked, where another program has the processor.
const GRACE: Duration = Duration::from_millis(200);

pub(super) fn run(name: &str, operations: u32) -> Result<()> {
    let clock = Instant::now();
    let purgatory = Purgatory::builder("storm").clock(clock).build()?;
    let measured = Measured::alone(name, &purgatory, Round::Own)?;
    // Time enough to park them all: about a microsecond each.
    let parking = GRACE + Duration::from_micros(3) * operations;
    let storm = clock.now().since_origin() + parking;
    for number in 0..operations {
        let deadline = storm + WITHIN * (number % 1_000) / 1_000;
        let timeout = deadline.saturating_sub(clock.now().since_origin());
        park(
            &purgatory,
            timeout,
            Kind::Plain,
            &[u64::from(number % 10_000)],
        )?;
    }
    ensure!(clock.now().since_origin() < storm, "parking took too long");
    let before = storm - Duration::from_millis(50);
    thread::sleep(before.saturating_sub(clock.now().since_origin()));
    measured.abused(|| wait_until_gone(&purgatory, clock, operations.into()))
}
