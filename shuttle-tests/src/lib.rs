//! Random schedules of the whole purgatory: what is too large for the models in `loom-tests` is run on schedules that
//! shuttle draws, by chance or with a few changes of priority. `.ci/shuttle` is the long run.
//!
//! A failure prints the seed of the run, and the schedule as a string. Either repeats it:
//!
//! ```text
//! SHUTTLE_SEED=... .ci/shuttle 20000 NAME      the same run, up to the failure
//! SHUTTLE_SCHEDULE=... .ci/shuttle 1 NAME      that one schedule
//! ```
#![cfg(shuttle)]

pub mod ledger;
pub mod operation;

use shuttle::scheduler::{PctScheduler, RandomScheduler, Scheduler};
use shuttle::{Config, Runner};
use std::time::{SystemTime, UNIX_EPOCH};

/// Runs `scenario` on `SHUTTLE_ITERATIONS` schedules (1,000 by default): half of them draw every step, the others change
/// priorities three times.
pub fn explore(scenario: fn()) {
    if let Some(schedule) = variable("SHUTTLE_SCHEDULE") {
        shuttle::replay(scenario, &schedule);
        return;
    }
    let number = |name, default: u64| match variable(name) {
        None => default,
        Some(text) => text
            .parse()
            .unwrap_or_else(|_| panic!("{name} is a number")),
    };
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let seed = number("SHUTTLE_SEED", now.map_or(0, |now| now.as_nanos() as u64));
    let half = number("SHUTTLE_ITERATIONS", 1_000).div_ceil(2) as usize;
    // (Only a failing test shows this.)
    println!("SHUTTLE_SEED={seed}");
    run(scenario, RandomScheduler::new_from_seed(seed, half));
    run(scenario, PctScheduler::new_from_seed(seed, 3, half));
}

fn run(scenario: fn(), scheduler: impl Scheduler + 'static) {
    let mut config = Config::new();
    config.stack_size = 1 << 18;
    Runner::new(scheduler, config).run(scenario);
}

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|text| !text.is_empty())
}
