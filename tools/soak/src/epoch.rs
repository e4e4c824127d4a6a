//! The run: epoch after epoch, until the time is up or something does not add up.

use crate::actor::Actor;
use crate::audit;
use crate::caller::Caller;
use crate::cli::Options;
use crate::ledger::Ledger;
use crate::panics::{self, lock};
use crate::plan::Plan;
use crate::report::{self, Memory, Monitor};
use crate::rest;
use crate::stage::{Helpers, Stage};
use fastrand::Rng;
use request_purgatory::threads::ReaperThread;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};
use testing::process::Process;

/// Returns whether everything added up.
pub(crate) fn run(options: &Options) -> bool {
    panics::silence();
    let ledger = Arc::new(Ledger::new());
    report::begin(options);
    let start = Instant::now();
    let threads_before = Process::this().count_threads();
    let monitor = Monitor::start(&ledger);
    let shared = match ReaperThread::spawn("shared") {
        Ok(shared) => shared,
        Err(error) => {
            eprintln!("soak: a thread could not be started: {error}");
            return false;
        }
    };
    let threads_between = Process::this().count_threads();
    let mut random = Rng::with_seed(options.seed);
    let mut memory = Memory::new(options.duration());
    while ledger.discrepancies() == 0 {
        let left = options.duration().saturating_sub(start.elapsed());
        if left.is_zero() {
            break;
        }
        // Every epoch has a seed of its own: how much of it was used, schedules decide.
        let mut random = Rng::with_seed(random.u64(..));
        let duration = Duration::from_millis(random.u64(200..=900)).min(left);
        epoch(&ledger, &shared, &mut random, options.threads, duration);
        threads_are_back(&ledger, threads_between);
        memory.sample(start.elapsed());
        ledger.epochs.add(1);
    }
    drop(shared);
    monitor.stop();
    threads_are_back(&ledger, threads_before);
    memory.judge(&ledger);
    report::end(&ledger, &memory, options, start.elapsed());
    ledger.discrepancies() == 0
}

fn epoch(
    ledger: &Arc<Ledger>,
    shared: &ReaperThread,
    random: &mut Rng,
    threads: u16,
    duration: Duration,
) {
    let mut stages = Vec::new();
    let mut helpers = Vec::new();
    for _ in 0..random.u64(1..=3) {
        let stage = Stage::new(Plan::random(random), ledger, Caller::nested);
        match Helpers::start(&stage, shared) {
            Ok((purgatory, helper)) => {
                lock(&ledger.current).push(stage.accounts.clone());
                stages.push((stage, purgatory));
                helpers.push(helper);
            }
            Err(error) => return ledger.discrepancy(format!("no purgatory: {error}")),
        }
    }
    for (place, (stage, _)) in stages.iter().enumerate() {
        stage.introduce(&stages[(place + 1) % stages.len()].0);
    }
    let actors = (0..threads).map(|_| {
        let actor = Actor {
            stages: stages.clone(),
            random: Rng::with_seed(random.u64(..)),
            duration,
        };
        thread::spawn(move || actor.run())
    });
    for actor in actors.collect::<Vec<_>>() {
        if actor.join().is_err() {
            ledger.discrepancy("an actor panicked: see above".into());
        }
    }
    // Callbacks of one work on the next: all must be at rest before the first is audited.
    rest::settle(&stages.iter().map(|(stage, _)| &**stage).collect::<Vec<_>>());
    for (stage, purgatory) in stages {
        audit::run(&stage, purgatory, random);
    }
    for helper in helpers {
        if !helper.finish() {
            ledger.discrepancy("a reactor or an executor panicked: see above".into());
        }
    }
    for accounts in lock(&ledger.current).drain(..) {
        ledger.totals.absorb(&accounts);
    }
}

/// No purgatory has left a thread behind.
fn threads_are_back(ledger: &Ledger, before: Option<usize>) {
    let start = Instant::now();
    while Process::this().count_threads() > before {
        if ledger.is_out_of_patience(start) {
            let now = Process::this().count_threads();
            return ledger.discrepancy(format!("{now:?} threads, and {before:?} before"));
        }
        ledger.heartbeat.add(1);
        thread::sleep(Duration::from_millis(1));
    }
}
