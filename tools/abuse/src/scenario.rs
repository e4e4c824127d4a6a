//! The scenarios.

mod cascade;
mod completions;
mod hot_key;
mod many;
mod sleeper;
mod slow_end;
mod slow_look;
mod storm;

use crate::innocent::{self, Found, Innocents, Round};
use crate::operation::{Kind, Operation};
use crate::table;
use anyhow::{Result, anyhow, ensure};
use clap::ValueEnum;
use request_purgatory::{Purgatory, time::Clock};
use std::fmt;
use std::thread;
use std::time::{Duration, Instant};

/// How long the threads run alone.
const ALONE: Duration = Duration::from_millis(1_500);
/// How long an abuse may last before something is wrong.
const PATIENCE: Duration = Duration::from_secs(60);

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Scenario {
    /// a coarse bucket with all operations is filed again
    Cascade,
    /// all operations expire within 100 ms, and are cleared away
    Storm,
    /// a key that all operations watch loses them through other keys
    HotKey,
    /// the same, and the innocent's operations watch that key too
    HotList,
    /// the same, and the innocent checks that key: all who are left
    HotCheck,
    /// how late others expire and complete while an on_complete sleeps for 1 s
    Sleeper,
    /// an on_complete sleeps for 1 s, again and again, and others fall due meanwhile
    SlowEnd,
    /// 1,000 busy purgatories on one ReaperThread
    Many,
    /// a try_complete on another key takes 100 ms, again and again
    SlowLook,
}

/// As on the command line.
impl fmt::Display for Scenario {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let value = self.to_possible_value().expect("none is skipped");
        f.write_str(value.get_name())
    }
}

impl Scenario {
    fn measure(self, operations: u32) -> Result<()> {
        match self {
            Self::Cascade => cascade::run(self, operations),
            Self::Storm => storm::run(self, operations),
            Self::HotKey => hot_key::run(self, operations, Round::Own),
            Self::HotList => hot_key::run(self, operations, Round::Watching(hot_key::HOT)),
            Self::HotCheck => hot_key::run(self, operations, Round::Checking(hot_key::HOT)),
            Self::Sleeper => sleeper::run(),
            Self::SlowEnd => slow_end::run(self),
            Self::Many => many::run(self),
            Self::SlowLook => slow_look::run(self),
        }
    }
}

pub(crate) fn run(scenarios: &[Scenario], operations: u32) -> Result<()> {
    let is_sleeper = |scenario: &Scenario| *scenario == Scenario::Sleeper;
    let (sleeper, tables): (Vec<Scenario>, Vec<Scenario>) =
        scenarios.iter().partition(|it| is_sleeper(it));
    let cores = thread::available_parallelism().map_or(1, |cores| cores.get());
    println!("{cores} cores, {operations} operations\n");
    if !tables.is_empty() {
        table::head();
    }
    // The scenario of lateness has a table of its own.
    for scenario in tables.into_iter().chain(sleeper) {
        scenario.measure(operations)?;
    }
    Ok(())
}

/// What the threads found alone, to be shown beside what they find during the abuse: the same threads, which do the
/// same on the same purgatory.
struct Measured {
    name: String,
    purgatory: Purgatory<Operation>,
    round: Round,
    alone: Found,
}

impl Measured {
    /// The threads while no other thread works.
    fn alone(name: impl ToString, purgatory: &Purgatory<Operation>, round: Round) -> Result<Self> {
        let innocents = Innocents::start(purgatory, round);
        thread::sleep(ALONE);
        Ok(Self {
            name: name.to_string(),
            purgatory: purgatory.clone(),
            round,
            alone: innocents.finish()?,
        })
    }

    /// Measures while `abuse` runs, and prints.
    fn abused(self, abuse: impl FnOnce() -> Result<()>) -> Result<()> {
        let innocents = Innocents::start(&self.purgatory, self.round);
        let abuse = abuse();
        let found = innocents.finish()?;
        abuse?;
        table::rows(&self.name, &self.alone, &found);
        Ok(())
    }
}

fn park(
    purgatory: &Purgatory<Operation>,
    timeout: Duration,
    kind: Kind,
    keys: &[u64],
) -> Result<()> {
    purgatory
        .try_complete_else_watch(Operation::new(timeout, kind), keys.iter().copied())
        .map(drop)
        .map_err(|refused| anyhow!("an operation to abuse with: {refused}"))
}

/// Waits until this many have expired and nothing is left of them: no watch, no key and no timer.
///
/// An expiry is booked before its traces are cleared away. The innocent has one operation at a time, which watches one
/// key, and whose deadline is far away.
fn wait_until_gone(purgatory: &Purgatory<Operation>, clock: Instant, expired: u64) -> Result<()> {
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

fn wait_until(what: &str, is_so: impl Fn() -> bool) -> Result<()> {
    let start = Instant::now();
    while !is_so() {
        let waited = start.elapsed();
        ensure!(waited < PATIENCE, "after {waited:?}, not yet: {what}");
        thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}
