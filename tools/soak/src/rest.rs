//! Waiting for the quiet moment.

use crate::record::{NEVER, Record};
use crate::stage::Stage;
use std::thread;
use std::time::{Duration, Instant};

/// A deadline that is nearer is waited for. (Timeouts are shorter than a second, or hours.)
const NEAR: u64 = 1_000_000_000;
/// Waits until `holds`. False if that takes too long.
pub(crate) fn eventually(stage: &Stage, holds: impl Fn() -> bool) -> bool {
    let start = Instant::now();
    while !holds() {
        if stage.ledger.is_out_of_patience(start) {
            return false;
        }
        stage.ledger.heartbeat.add(1);
        thread::sleep(Duration::from_micros(500));
    }
    true
}

/// Waits until nothing happens any more on these purgatories, whose callbacks may work on one another. By then no
/// operation may be parked that could complete, or whose deadline has passed.
pub(crate) fn settle(stages: &[&Stage]) {
    let motion = || {
        let counts = stages.iter().map(|stage| {
            let accounts = &stage.accounts;
            accounts.made.read() + accounts.dropped.read() + stage.calls.read()
        });
        counts.sum::<u64>()
    };
    let still = || {
        let before = motion();
        stages.iter().all(|stage| rests(stage)) && motion() == before
    };
    let Some(first) = stages.first() else {
        return;
    };
    if !eventually(first, still) {
        for stage in stages {
            let open = stage.open();
            for record in open.iter().filter(|record| is_overdue(stage, record)) {
                let what = match stage.is_satisfied(record) {
                    true => "left parked, though it can complete and was checked",
                    false => "left parked past its deadline",
                };
                stage.complain(what.into(), record);
            }
            if !callbacks_are_over(stage) {
                let what = "callbacks still run, or operations have ended and are not dropped";
                stage
                    .ledger
                    .discrepancy(format!("{what}, in {:?}", stage.plan));
            }
        }
    }
}

fn rests(stage: &Stage) -> bool {
    let open = stage.open();
    !open.iter().any(|record| is_overdue(stage, record)) && callbacks_are_over(stage)
}

/// An operation is dropped when its last callback returns.
fn callbacks_are_over(stage: &Stage) -> bool {
    stage.accounts.dropped.read() == stage.accounts.all_ended()
}

fn is_overdue(stage: &Stage, record: &Record) -> bool {
    let deadline = record.deadline();
    stage.is_satisfied(record) || (deadline != NEVER && deadline < stage.now() + NEAR)
}
