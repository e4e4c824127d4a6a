//! Completions sleep, one after the other, while others fall due; calls on the same purgatory are timed meanwhile, for
//! each way of running completions.

use super::completions;
use crate::innocent::Round;
use crate::measured::Measured;
use crate::operation::{Kind, park};
use crate::patience::{PATIENCE, wait_until_gone};
use anyhow::{Context, Result, ensure};
use request_purgatory::{Purgatory, threads::Dispatch, time::Clock};
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

const SLEEPERS: u32 = 3;
const SLEEP: Duration = Duration::from_secs(1);
/// The number of operations whose deadline passes during each sleep.
const OTHERS: u32 = 10_000;
/// Until the first of all: time enough to park them.
const FIRST: Duration = Duration::from_secs(1);

pub(super) fn run(name: &str) -> Result<()> {
    completions::each(|way, completions| one(&format!("{name}, {way}"), completions))
}

fn one(name: &str, completions: Dispatch) -> Result<()> {
    let clock = Instant::now();
    let purgatory = Purgatory::builder("slow-end")
        .clock(clock)
        .dispatch(completions)
        .build()?;
    let measured = Measured::alone(name, &purgatory, Round::Own)?;
    let base = clock.now().saturating_add(FIRST);
    let until = |moment| base.saturating_add(moment).saturating_since(clock.now());
    let (tell, told) = channel();
    for number in 0..SLEEPERS {
        let begins = SLEEP * number;
        let kind = Kind::SlowEnd(SLEEP, tell.clone());
        park(&purgatory, until(begins), kind, &[0])?;
        for other in 0..OTHERS {
            let moment = begins + SLEEP * other / OTHERS;
            let key = 1 + u64::from(other % 100);
            park(&purgatory, until(moment), Kind::Plain, &[key])?;
        }
    }
    ensure!(clock.now() < base, "parking took too long");
    thread::sleep(until(Duration::ZERO).saturating_sub(Duration::from_millis(50)));
    measured.abused(|| {
        for _ in 0..SLEEPERS {
            told.recv_timeout(PATIENCE).context("a sleeper's end")?;
        }
        wait_until_gone(&purgatory, clock, (SLEEPERS * (1 + OTHERS)).into())
    })
}
