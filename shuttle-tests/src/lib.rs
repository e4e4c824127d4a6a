//! Random schedules of the whole purgatory: what is too large for the models in `loom-tests` is run on schedules that
//! shuttle draws, by chance or with a few changes of priority. `.ci/models shuttle` is the long run.
//!
//! A failure prints the command that repeats the run, and the schedule; twice if the unwinding took more steps, and
//! then the second is whole. On the same source, that one schedule is repeated by
//!
//! ```text
//! SHUTTLE_SCHEDULE='...' .ci/models shuttle 1 NAME
//! ```
//!
//! with its line breaks or without. (A `failing seed` names it too: `SHUTTLE_SEED=... .ci/models shuttle 1 NAME`.)
#![cfg(request_purgatory_shuttle)]

pub mod ledger;
pub mod operation;

use shuttle::scheduler::{PctScheduler, RandomScheduler, Scheduler};
use shuttle::sync::{Mutex, MutexGuard};
use shuttle::{Config, Runner};
use std::sync::PoisonError;
use std::thread;
use std::time::{SystemTime, UNIX_EPOCH};

/// Runs `scenario` on `SHUTTLE_ITERATIONS` schedules (1,000 by default): half of them draw every step, the others
/// change priorities three times.
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
    let schedules = number("SHUTTLE_ITERATIONS", 1_000);
    let half = schedules.div_ceil(2) as usize;
    let test = thread::current();
    // Only a failing test shows this.
    println!(
        "SHUTTLE_SEED={seed} .ci/models shuttle {schedules} {}",
        test.name().unwrap_or_default()
    );
    run(scenario, RandomScheduler::new_from_seed(seed, half));
    run(scenario, PctScheduler::new_from_seed(seed, 3, half));
}

fn run(scenario: fn(), scheduler: impl Scheduler + 'static) {
    let mut config = Config::new();
    config.stack_size = 1 << 18;
    Runner::new(scheduler, config).run(scenario);
}

/// Locks a mutex of a test. All tasks of a run share one thread of the system: a guard that one task drops while another
/// task unwinds poisons its mutex, although nothing is half-changed.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|text| !text.is_empty())
}
