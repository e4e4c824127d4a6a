//! The quiet moment at the end of an epoch: no thread works on the purgatory, so all counts must be exact.

use crate::caller::Caller;
use crate::key::Key;
use crate::ledger::Ending;
use crate::misbehaviour::Misbehaviour;
use crate::plan::Finish;
use crate::rest::{eventually, settle};
use crate::stage::{Operation, Stage};
use fastrand::Rng;
use request_purgatory::{Purgatory, purgatory::Stats};
use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

/// A key that only this check uses.
const PRIVATE: u32 = 2_000_000;

/// Audits one purgatory, and ends it.
pub(crate) fn run(stage: &Arc<Stage>, purgatory: Purgatory<Operation>, random: &mut Rng) {
    if !purgatory.is_shut_down() {
        settle(&[stage]);
        handles_tell_the_truth(stage);
        what_is_parked_is_what_is_open(stage, &purgatory);
        the_sleeper_hears(stage, &purgatory, random);
        the_limit_is_exact(stage, &purgatory, random);
        finish(stage, &purgatory, random);
    }
    // Where the drop of the last clone is the shutdown, it happens here.
    let kept = purgatory.is_shut_down().then_some(purgatory);
    over(stage, kept.as_ref());
}

fn handles_tell_the_truth(stage: &Stage) {
    for entry in stage.posted() {
        if entry.handle.is_parked() != entry.record.is_open() {
            let what = "its handle and the ledger disagree on whether it is parked".into();
            stage.complain(what, &entry.record);
        }
    }
}

fn what_is_parked_is_what_is_open(stage: &Stage, purgatory: &Purgatory<Operation>) {
    // A callback of a neighbour may still end some of them: so both sides are read anew each time.
    let ours = || {
        let open = stage.open();
        let watched = open.iter().map(|record| record.keys.len()).sum::<usize>();
        let keys = open.iter().flat_map(|record| &record.keys);
        let keys = keys.collect::<HashSet<_>>().len();
        (open.len(), watched, keys, open.len(), open.len() as u64)
    };
    let theirs = || {
        (
            purgatory.stats().parked,
            purgatory.stats().watched,
            purgatory.watched_keys(),
            purgatory.snapshot().len(),
            stage.accounts.open(),
        )
    };
    if !eventually(stage, || theirs() == ours()) {
        stage.ledger.discrepancy(format!(
            "(delayed, watched, watched keys, snapshot, open) are {:?}, and should be {:?}, in {:?}",
            theirs(),
            ours(),
            stage.plan
        ));
    }
    stats_agree(stage, purgatory);
}

/// The library's counts are the ledger's.
fn stats_agree(stage: &Stage, purgatory: &Purgatory<Operation>) {
    let accounts = &stage.accounts;
    let ours = |stats: Stats| {
        let cancelled = accounts.ended(Ending::TakenBack) + accounts.ended(Ending::Cancelled);
        [
            ("parked", accounts.open(), stats.parked as u64),
            (
                "at once",
                accounts.ended(Ending::AtOnce),
                stats.completed_at_once,
            ),
            (
                "completed",
                accounts.ended(Ending::Completed),
                stats.completed,
            ),
            ("expired", accounts.ended(Ending::Expired), stats.expired),
            ("cancelled", cancelled, stats.cancelled),
            (
                "shut down",
                accounts.ended(Ending::ShutDown),
                stats.shut_down,
            ),
            ("aborted", accounts.ended(Ending::Aborted), stats.aborted),
            ("rejected", accounts.refused.read(), stats.rejected),
            (
                "panics",
                accounts.panics.read() - accounts.unwound.read(),
                stats.panicked,
            ),
            ("missed checks", accounts.missed.read(), stats.missed_checks),
        ]
    };
    let wrong = || {
        let lines = ours(purgatory.stats());
        let wrong = lines.into_iter().filter(|(_, ours, theirs)| ours != theirs);
        wrong.collect::<Vec<_>>()
    };
    if !eventually(stage, || wrong().is_empty()) {
        for (what, ours, theirs) in wrong() {
            stage.ledger.discrepancy(format!(
                "{what}: {theirs} in stats(), {ours} in the ledger, in {:?}",
                stage.plan
            ));
        }
    }
    let (said, completed) = (
        accounts.said_completed.read(),
        accounts.ended(Ending::Completed),
    );
    if said > completed {
        let what = format!("checks say that they completed {said}, of {completed} in all");
        stage.ledger.discrepancy(what);
    }
}

/// No deadline has passed, and the thread that drives the timer sleeps: a nearer deadline wakes it, and so does a
/// deferred check.
fn the_sleeper_hears(stage: &Arc<Stage>, purgatory: &Purgatory<Operation>, random: &mut Rng) {
    let mut caller = caller(stage, purgatory, random);
    for nearer in [true, false] {
        let Some((record, handle)) = caller.park_calmly(PRIVATE, Misbehaviour::calm()) else {
            return;
        };
        if nearer {
            let soon = Duration::from_millis(3);
            record.set_deadline(stage.deadline(soon));
            // If it has ended meanwhile, the deadline stays as it was, and its end is there already.
            let _unchanged = !handle.reschedule(soon);
        } else {
            record.make_ready();
            purgatory.check_later(Key::new(PRIVATE));
        }
        if !eventually(stage, || !record.is_open()) {
            let what = match nearer {
                true => "no thread woke up for a nearer deadline",
                false => "no thread woke up for check_later",
            };
            stage.complain(what.into(), &record);
        }
        // Asleep again, for the next.
        settle(&[stage]);
    }
}

/// There is room for just as many as the limit says: no place of an ended operation has been lost.
fn the_limit_is_exact(stage: &Arc<Stage>, purgatory: &Purgatory<Operation>, random: &mut Rng) {
    let bounded_time = stage.plan.max_timeout != Duration::MAX;
    let Some(limit) = stage.plan.max_parked.filter(|_| !bounded_time) else {
        return;
    };
    let room = limit.saturating_sub(stage.open().len());
    let mut caller = caller(stage, purgatory, random);
    let fill = |caller: &mut Caller<'_>| {
        (0..=limit).find(|_| caller.park_calmly(PRIVATE, Misbehaviour::calm()).is_none())
    };
    let parked = fill(&mut caller);
    caller.cancel(PRIVATE);
    if parked != Some(room) {
        let what = format!(
            "room for {parked:?}, not {room}, of {limit}: {:?}",
            stage.plan
        );
        stage.ledger.discrepancy(what);
    }
}

fn finish(stage: &Arc<Stage>, purgatory: &Purgatory<Operation>, random: &mut Rng) {
    // On a busy machine, one that the checks before have parked may have expired in the park, and wait for an executor.
    settle(&[stage]);
    let open = stage.open();
    let keys = open.iter().flat_map(|record| record.keys.iter().copied());
    let keys = keys.collect::<HashSet<_>>();
    let mut caller = caller(stage, purgatory, random);
    match stage.plan.finish {
        Finish::Shutdown => {}
        Finish::Drop => return stage.shutdown_begins(),
        Finish::Callback => {
            let misbehaviour = Misbehaviour {
                shuts_down: true,
                ..Misbehaviour::calm()
            };
            if caller.park_calmly(PRIVATE, misbehaviour).is_some() {
                caller.force(PRIVATE);
            }
        }
        Finish::Cancel => keys.into_iter().for_each(|key| caller.cancel(key)),
        Finish::Force => keys.into_iter().for_each(|key| caller.force(key)),
    }
    if matches!(stage.plan.finish, Finish::Cancel | Finish::Force) {
        for record in open.iter().filter(|record| record.is_open()) {
            stage.complain("parked after all keys were ended".into(), record);
        }
        // Callbacks may have parked others since.
        settle(&[stage]);
        what_is_parked_is_what_is_open(stage, purgatory);
    }
    stage.shut_down();
    if !purgatory.is_empty() {
        let what = format!("{} parked after the shutdown", purgatory.stats().parked);
        stage.ledger.discrepancy(what);
    }
}

fn caller<'a>(
    stage: &'a Arc<Stage>,
    purgatory: &'a Purgatory<Operation>,
    random: &'a mut Rng,
) -> Caller<'a> {
    Caller {
        stage,
        purgatory,
        random,
        callback: None,
    }
}

/// After the shutdown every operation has ended, and every payload is dropped.
fn over(stage: &Stage, purgatory: Option<&Purgatory<Operation>>) {
    let accounts = &stage.accounts;
    eventually(stage, || accounts.open() == 0);
    for record in stage.open() {
        stage.complain("never ended".into(), &record);
    }
    if !eventually(stage, || accounts.dropped.read() == accounts.made.read()) {
        let (dropped, made) = (accounts.dropped.read(), accounts.made.read());
        stage.ledger.discrepancy(format!(
            "{dropped} payloads dropped of {made} made, in {:?}",
            stage.plan
        ));
    }
    if let Some(purgatory) = purgatory {
        what_is_parked_is_what_is_open(stage, purgatory);
    }
}
