//! The quiet moment at the end of an epoch: nobody works on the purgatory, so everything must add up.

use crate::hand::Hand;
use crate::ledger::Ending;
use crate::operation::Operation;
use crate::plan::Finish;
use crate::random::Random;
use crate::record::{NEVER, Record};
use crate::stage::Stage;
use crate::temper::Temper;
use request_purgatory::{Purgatory, Stats};
use std::collections::HashSet;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

/// A deadline that is nearer is waited for. (Timeouts are shorter than a second, or hours.)
const NEAR: u64 = 1_000_000_000;
/// A key of nobody else's.
const PRIVATE: u32 = 2_000_000;

/// Waits until `holds`. False if that takes too long.
pub(crate) fn eventually(stage: &Stage, holds: impl Fn() -> bool) -> bool {
    let start = Instant::now();
    while !holds() {
        if stage.ledger.is_out_of_patience(start) {
            return false;
        }
        stage.ledger.pulse.add(1);
        thread::sleep(Duration::from_micros(500));
    }
    true
}

/// Audits one purgatory, and ends it.
pub(crate) fn run(stage: &Arc<Stage>, purgatory: Purgatory<Operation>, random: &mut Random) {
    if !purgatory.is_shut_down() {
        settle(&[stage]);
        handles_tell_the_truth(stage);
        what_is_parked_is_what_is_open(stage, &purgatory);
        the_limit_is_exact(stage, &purgatory, random);
        finish(stage, &purgatory, random);
    }
    // Where the drop of the last face is to be the shutdown, this is it.
    let kept = purgatory.is_shut_down().then_some(purgatory);
    over(stage, kept.as_ref());
}

/// Waits until nothing happens any more on these purgatories, whose callbacks may work on one another. By then no
/// operation may be parked that could complete, or whose deadline has passed.
pub(crate) fn settle(stages: &[&Stage]) {
    let motion = || {
        let counts = stages.iter().map(|stage| {
            let books = &stage.books;
            books.made.read() + books.dropped.read() + stage.calls.read()
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
    stage.books.dropped.read() == stage.books.all_ended()
}

fn is_overdue(stage: &Stage, record: &Record) -> bool {
    let by_key = stage.key_deadlines(record);
    let deadline = by_key.into_iter().fold(record.deadline(), u64::max);
    stage.is_satisfied(record) || (deadline != NEVER && deadline < stage.now() + NEAR)
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
    let open = stage.open();
    let watched = open.iter().map(|record| record.keys.len()).sum::<usize>();
    let keys = open.iter().flat_map(|record| &record.keys);
    let keys = keys.collect::<HashSet<_>>().len();
    let ours = (open.len(), watched, keys, open.len(), open.len() as u64);
    let theirs = || {
        (
            purgatory.delayed(),
            purgatory.watched(),
            purgatory.watched_keys(),
            purgatory.snapshot().len(),
            stage.books.open(),
        )
    };
    if !eventually(stage, || theirs() == ours) {
        stage.ledger.discrepancy(format!(
            "(delayed, watched, watched keys, snapshot, open) are {:?}, and should be {ours:?}, in {:?}",
            theirs(),
            stage.plan
        ));
    }
    stats_agree(stage, purgatory);
}

/// The library's counts are the ledger's.
fn stats_agree(stage: &Stage, purgatory: &Purgatory<Operation>) {
    let books = &stage.books;
    let ours = |stats: Stats| {
        let cancelled = books.ended(Ending::TakenBack) + books.ended(Ending::Cancelled);
        [
            ("parked", books.open(), stats.parked as u64),
            (
                "at once",
                books.ended(Ending::AtOnce),
                stats.completed_at_once,
            ),
            ("completed", books.ended(Ending::Completed), stats.completed),
            ("expired", books.ended(Ending::Expired), stats.expired),
            ("cancelled", cancelled, stats.cancelled),
            ("shut down", books.ended(Ending::ShutDown), stats.shut_down),
            ("aborted", books.ended(Ending::Aborted), stats.aborted),
            ("rejected", books.refused.read(), stats.rejected),
            ("panics", books.panics.read(), stats.panicked),
            ("missed checks", books.missed.read(), stats.missed_checks),
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
    let (said, completed) = (books.said_completed.read(), books.ended(Ending::Completed));
    if said > completed {
        let what = format!("checks say that they completed {said}, of {completed} in all");
        stage.ledger.discrepancy(what);
    }
}

/// There is room for just as many as the limit says: no place of an ended operation has been lost.
fn the_limit_is_exact(stage: &Arc<Stage>, purgatory: &Purgatory<Operation>, random: &mut Random) {
    let bounded_time = stage.plan.max_timeout != Duration::MAX;
    let Some(limit) = stage.plan.max_parked.filter(|_| !bounded_time) else {
        return;
    };
    let room = limit.saturating_sub(stage.open().len());
    let mut hand = hand(stage, purgatory, random);
    let fill =
        |hand: &mut Hand<'_>| (0..=limit).find(|_| !hand.park_calmly(PRIVATE, Temper::calm()));
    let parked = fill(&mut hand);
    hand.cancel(PRIVATE);
    if parked != Some(room) {
        let what = format!(
            "room for {parked:?}, not {room}, of {limit}: {:?}",
            stage.plan
        );
        stage.ledger.discrepancy(what);
    }
}

fn finish(stage: &Arc<Stage>, purgatory: &Purgatory<Operation>, random: &mut Random) {
    let open = stage.open();
    let keys = open.iter().flat_map(|record| record.keys.iter().copied());
    let keys = keys.collect::<HashSet<_>>();
    let mut hand = hand(stage, purgatory, random);
    match stage.plan.finish {
        Finish::Shutdown => {}
        Finish::Drop => return stage.shutdown_begins(),
        Finish::Callback => {
            let temper = Temper {
                shuts_down: true,
                ..Temper::calm()
            };
            if hand.park_calmly(PRIVATE, temper) {
                hand.force(PRIVATE);
            }
        }
        Finish::Cancel => keys.into_iter().for_each(|key| hand.cancel(key)),
        Finish::Force => keys.into_iter().for_each(|key| hand.force(key)),
    }
    if matches!(stage.plan.finish, Finish::Cancel | Finish::Force) {
        for record in open.iter().filter(|record| record.is_open()) {
            stage.complain("parked after all keys were ended".into(), record);
        }
        // (Callbacks may have parked others since.)
        settle(&[stage]);
        what_is_parked_is_what_is_open(stage, purgatory);
    }
    stage.shut_down();
    if purgatory.delayed() != 0 {
        let what = format!("{} parked after the shutdown", purgatory.delayed());
        stage.ledger.discrepancy(what);
    }
}

fn hand<'a>(
    stage: &'a Arc<Stage>,
    purgatory: &'a Purgatory<Operation>,
    random: &'a mut Random,
) -> Hand<'a> {
    Hand {
        stage,
        purgatory,
        random,
        callback: None,
    }
}

/// After the shutdown every operation has ended, and every payload is dropped.
fn over(stage: &Stage, purgatory: Option<&Purgatory<Operation>>) {
    let books = &stage.books;
    eventually(stage, || books.open() == 0);
    for record in stage.open() {
        stage.complain("never ended".into(), &record);
    }
    if !eventually(stage, || books.dropped.read() == books.made.read()) {
        let (dropped, made) = (books.dropped.read(), books.made.read());
        stage.ledger.discrepancy(format!(
            "{dropped} payloads dropped of {made} made, in {:?}",
            stage.plan
        ));
    }
    if let Some(purgatory) = purgatory {
        what_is_parked_is_what_is_open(stage, purgatory);
    }
}
