//! A thousand purgatories share one reaper; a thread parks short-lived operations in all of them in turn.

use crate::innocent::Round;
use crate::measured::Measured;
use crate::operation::{Kind, park};
use anyhow::{Context, Result};
use request_purgatory::{Purgatory, threads::Reaper, threads::ReaperThread};
use std::thread;
use std::time::{Duration, Instant};

const PURGATORIES: usize = 1_000;
const LASTS: Duration = Duration::from_secs(3);
/// The number of operations that are parked at once, before a pause.
const BURST: usize = 100;

pub(super) fn run(name: &str) -> Result<()> {
    let reaper = ReaperThread::spawn("many")?;
    let build = |number| {
        let builder = Purgatory::builder(format!("many-{number}"));
        builder.reaper(Reaper::Shared(reaper.clone())).build()
    };
    let purgatories = (0..PURGATORIES).map(build).collect::<Result<Vec<_>, _>>()?;
    let innocents = purgatories.first().context("there is one")?;
    let measured = Measured::alone(name, innocents, Round::Own)?;
    measured.abused(|| {
        let start = Instant::now();
        for (number, purgatory) in (0_u64..).zip(purgatories.iter().cycle()) {
            let timeout = Duration::from_millis(5 + number % 200);
            park(purgatory, timeout, Kind::Plain, &[number % 10])?;
            if number as usize % BURST == 0 {
                if start.elapsed() > LASTS {
                    break;
                }
                thread::sleep(Duration::from_millis(2));
            }
        }
        Ok(())
    })
}
