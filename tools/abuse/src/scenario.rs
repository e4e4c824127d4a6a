//! The scenarios.

mod cascade;
mod completions;
mod hot_key;
mod many;
mod sleeper;
mod slow_end;
mod slow_look;
mod storm;

use crate::innocent::Round;
use crate::table;
use anyhow::Result;
use clap::ValueEnum;
use std::fmt;
use std::thread;

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
        let name = &self.to_string();
        match self {
            Self::Cascade => cascade::run(name, operations),
            Self::Storm => storm::run(name, operations),
            Self::HotKey => hot_key::run(name, operations, Round::Own),
            Self::HotList => hot_key::run(name, operations, Round::Watching(hot_key::HOT)),
            Self::HotCheck => hot_key::run(name, operations, Round::Checking(hot_key::HOT)),
            Self::Sleeper => sleeper::run(),
            Self::SlowEnd => slow_end::run(name),
            Self::Many => many::run(name),
            Self::SlowLook => slow_look::run(name),
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
