//! One `on_complete` sleeps, and others expire meanwhile: how late is the timer, and how late are their completions?
//!
//! An executor promises that neither is; a completion thread, that the timer is not (completions wait in its queue).
//! Inline completions promise nothing, and stand here to compare.

use super::completions;
use crate::innocent::samples;
use crate::operation::{Kind, park};
use crate::table::{brief, quantile};
use anyhow::{Result, ensure};
use request_purgatory::{Purgatory, threads::Dispatch, time::Clock};
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

const OTHERS: u32 = 10_000;
const SLEEP: Duration = Duration::from_secs(1);
/// The sleeper is due first; the others follow, spread over most of its sleep.
const FIRST: Duration = Duration::from_millis(300);
const SPREAD: Duration = Duration::from_millis(800);

pub(super) fn run() -> Result<()> {
    println!(
        "\n| completions | the sleeper | timer late, mean | timer late, worst | completion late, p50 | p99 | worst |"
    );
    println!("|---|---|---:|---:|---:|---:|---:|");
    for sleeps in [false, true] {
        completions::each(|way, completions| one(way, completions, sleeps))?;
    }
    Ok(())
}

fn one(way: &str, completions: Dispatch, sleeps: bool) -> Result<()> {
    let promise = match completions {
        Dispatch::Inline => " (promises nothing)",
        _ => "",
    };
    let clock = Instant::now();
    let purgatory = Purgatory::builder("sleeper")
        .clock(clock)
        .dispatch(completions)
        .build()?;
    let base = clock.now().saturating_add(FIRST);
    let until = |moment| base.saturating_add(moment).saturating_since(clock.now());
    if sleeps {
        park(
            &purgatory,
            until(Duration::ZERO),
            Kind::SlowEnd(SLEEP, channel().0),
            &[0],
        )?;
    }
    let (tell, told) = channel();
    for number in 0..OTHERS {
        let after = Duration::from_millis(10) + SPREAD * number / OTHERS;
        let kind = Kind::Timed(base.saturating_add(after), clock, tell.clone());
        park(&purgatory, until(after), kind, &[u64::from(number % 100)])?;
    }
    drop(tell);
    // It ends when the last of them is gone.
    let mut late = samples();
    for it in told {
        late.saturating_record(it.as_nanos() as u64);
    }
    ensure!(
        late.len() == u64::from(OTHERS),
        "only {} completed",
        late.len()
    );
    // An expiry is booked a little after its completion, when its traces are gone.
    let all = u64::from(OTHERS) + u64::from(sleeps);
    while purgatory.stats().expired < all {
        thread::sleep(Duration::from_millis(1));
    }
    let stats = purgatory.stats();
    println!(
        "| {way}{promise} | {} | {} | {} | {} | {} | {} |",
        if sleeps { "sleeps 1 s" } else { "is not there" },
        brief(stats.lateness_total / all as u32),
        brief(stats.lateness_max),
        quantile(&late, 0.5),
        quantile(&late, 0.99),
        quantile(&late, 1.0)
    );
    Ok(())
}
