//! What a drain and a shutdown wait for: when one has said that all is over, each operation has ended once, and the
//! thread that was told sees what its completion did.

use loom::thread;
use loom_tests::{Outcome, Probe, assert_empty, bounded, driven_by_others};
use request_purgatory::model::{Completions, ReaperLoop, use_timer_shards, wait_until_over};
use request_purgatory::{
    Handle, Purgatory, purgatory::RejectReason, threads::Dispatch, time::ManualClock,
};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const FOREVER: Duration = Duration::MAX;
const NOW: Duration = Duration::ZERO;

fn park(purgatory: &Purgatory<Probe>, timeout: Duration) -> (Arc<Outcome>, Handle<Probe>) {
    let outcome = Outcome::new();
    let admission = purgatory.try_complete_else_watch(Probe::with_timeout(&outcome, timeout), [1]);
    let handle = admission.expect("it may park").into_handle();
    (outcome, handle.expect("it parked"))
}

/// Runs `call` in a thread of its own.
fn spawn<T: 'static>(
    purgatory: &Purgatory<Probe>,
    call: impl FnOnce(&Purgatory<Probe>) -> T + 'static,
) -> thread::JoinHandle<T> {
    let purgatory = purgatory.clone();
    thread::spawn(move || call(&purgatory))
}

/// Drains in a thread of its own, which must see the end of the operation.
fn drain_and_see(purgatory: &Purgatory<Probe>, outcome: &Arc<Outcome>) -> thread::JoinHandle<()> {
    let outcome = outcome.clone();
    spawn(purgatory, move |purgatory| {
        assert_eq!(purgatory.drain(FOREVER), 0);
        outcome.assert_over();
    })
}

/// Catches: a drain that asks for the passes before it asks what is parked, a pass that begins unseen, and one that
/// ends without saying what it did.
#[test]
fn g15_a_drain_races_a_pass() {
    bounded(|| {
        let purgatory = driven_by_others(&ManualClock::new());
        let (outcome, _) = park(&purgatory, NOW);
        let drain = drain_and_see(&purgatory, &outcome);
        assert_eq!(purgatory.advance(), 1);
        drain.join().unwrap();
        assert_empty(&purgatory);
    });
}

/// The threads of an executor that gives each job one. (No step of the model is made under this lock.)
type Jobs = Arc<Mutex<Vec<thread::JoinHandle<()>>>>;

/// A purgatory [`driven_by_others`], with such an executor.
fn with_an_executor() -> (Purgatory<Probe>, Jobs) {
    let jobs = Jobs::default();
    let taken = jobs.clone();
    let purgatory = Purgatory::builder("model")
        .clock(ManualClock::new())
        .reaper(ReaperLoop::new().1)
        .dispatch(Dispatch::Executor(Arc::new(move |job| {
            taken.lock().unwrap().push(thread::spawn(job));
        })))
        .build();
    (purgatory.expect("the settings are sound"), jobs)
}

fn join(jobs: &Jobs) {
    let jobs = std::mem::take(&mut *jobs.lock().unwrap());
    jobs.into_iter().for_each(|job| job.join().unwrap());
}

/// Catches: a drain that asks for what was handed over before it asks for the passes that hand it over, a completion
/// that counts before it has run, or counts without saying what it did.
#[test]
fn g15_a_drain_races_an_executor() {
    bounded(|| {
        let (purgatory, jobs) = with_an_executor();
        let (outcome, _) = park(&purgatory, NOW);
        let drain = drain_and_see(&purgatory, &outcome);
        assert_eq!(purgatory.advance(), 1);
        drain.join().unwrap();
        join(&jobs);
        assert_empty(&purgatory);
    });
}

/// One completion is handed over and not run yet, while another one comes and goes. Catches: the delivery of the second
/// is counted and its handing over not yet, so the two seem to be over.
#[test]
fn g15_a_completion_that_is_over_hides_none_that_is_pending() {
    bounded(|| {
        let completions = loom::sync::Arc::new(Completions::default());
        completions.hand_over();
        let other = completions.clone();
        let other = thread::spawn(move || {
            other.hand_over();
            other.deliver();
        });
        assert_ne!(completions.pending(), 0);
        other.join().unwrap();
        assert_eq!(completions.pending(), 1);
    });
}

/// The pass may find the operation held by the check, which then hands the completion over in its place. Catches: an
/// ending in the place of a pass that is over before its completion counts as handed over.
#[test]
fn g15_a_drain_races_a_check_that_hands_over() {
    bounded(|| {
        let (purgatory, jobs) = with_an_executor();
        let (outcome, _) = park(&purgatory, NOW);
        let seen = outcome.clone();
        let drain = spawn(&purgatory, move |purgatory| {
            purgatory.advance();
            assert_eq!(purgatory.drain(FOREVER), 0);
            seen.assert_over();
        });
        assert_eq!(purgatory.check_and_complete(&1), 0);
        drain.join().unwrap();
        join(&jobs);
        assert_eq!(outcome.endings(), [0, 1, 0, 0]);
        assert_empty(&purgatory);
    });
}

/// The pass may find the operation held by the check, which then expires it in its place. Catches: an ending in the
/// place of a pass that counts as none.
#[test]
fn g15_a_drain_races_a_check_that_expires() {
    bounded(|| {
        let purgatory = driven_by_others(&ManualClock::new());
        let (outcome, _) = park(&purgatory, NOW);
        let seen = outcome.clone();
        let drain = spawn(&purgatory, move |purgatory| {
            let expired = purgatory.advance();
            assert_eq!(purgatory.drain(FOREVER), 0);
            seen.assert_over();
            expired
        });
        assert_eq!(purgatory.check_and_complete(&1), 0);
        drain.join().unwrap();
        assert_eq!(outcome.endings(), [0, 1, 0, 0]);
        assert_empty(&purgatory);
    });
}

/// Catches: an operation that is returned by a cancel and completed as well, or neither, or that a drain waits for.
#[test]
fn g15_a_drain_races_a_cancel_and_a_pass() {
    bounded(|| {
        let purgatory = driven_by_others(&ManualClock::new());
        let (outcome, handle) = park(&purgatory, NOW);
        let drain = spawn(&purgatory, |purgatory| {
            let expired = purgatory.advance();
            assert_eq!(purgatory.drain(FOREVER), 0);
            expired
        });
        let cancelled = usize::from(handle.cancel().is_some());
        drain.join().unwrap();
        assert_eq!(outcome.endings(), [0, 1 - cancelled, 0, 0]);
        assert_empty(&purgatory);
    });
}

/// Each thread parks in a shard of its own. Catches: a drain that leaves a shard open, or that has not seen what came
/// into one before it was closed.
#[test]
fn g15_a_drain_races_a_park_in_another_shard() {
    bounded(|| {
        use_timer_shards(2);
        let purgatory = driven_by_others(&ManualClock::new());
        use_timer_shards(1);
        let outcome = Outcome::new();
        let refused = |purgatory: &Purgatory<Probe>, outcome: &Arc<Outcome>| {
            let admission =
                purgatory.try_complete_else_watch(Probe::with_timeout(outcome, NOW), [1]);
            admission.is_err_and(|refused| {
                assert_eq!(refused.reason(), RejectReason::Draining);
                true
            })
        };
        let drain = spawn(&purgatory, move |purgatory| {
            assert_eq!(purgatory.drain(FOREVER), 0);
            let stats = purgatory.stats();
            assert!(refused(purgatory, &Outcome::new()));
            stats.expired
        });
        let first = usize::from(refused(&purgatory, &outcome));
        purgatory.advance();
        assert_eq!(outcome.endings(), [0, 1 - first, 0, 0]);
        assert_eq!(drain.join().unwrap(), 1 - first as u64);
        assert!(refused(&purgatory, &outcome));
        assert_empty(&purgatory);
    });
}

/// Catches: a drain that says that all is over while the shutdown is at it.
#[test]
fn g15_a_drain_races_the_shutdown() {
    bounded(|| {
        let purgatory = driven_by_others(&ManualClock::new());
        let (outcome, _) = park(&purgatory, FOREVER);
        let drain = drain_and_see(&purgatory, &outcome);
        purgatory.shutdown();
        drain.join().unwrap();
        assert_eq!(outcome.endings(), [0, 0, 0, 1]);
        assert_empty(&purgatory);
    });
}

/// Shuts down in a thread of its own, which must see the end of the operation, whichever thread ends it.
fn shut_down_and_see(
    purgatory: &Purgatory<Probe>,
    outcome: &Arc<Outcome>,
) -> thread::JoinHandle<()> {
    let outcome = outcome.clone();
    spawn(purgatory, move |purgatory| {
        purgatory.shutdown();
        wait_until_over(purgatory);
        outcome.assert_over();
    })
}

/// Catches: a shutdown that says it is over when it has only entered the phase, or without saying what it did.
#[test]
fn g15_the_end_of_a_shutdown_is_waited_for() {
    bounded(|| {
        let purgatory = driven_by_others(&ManualClock::new());
        let (outcome, _) = park(&purgatory, FOREVER);
        let seen = outcome.clone();
        let waiter = spawn(&purgatory, move |purgatory| {
            wait_until_over(purgatory);
            seen.assert_over();
        });
        purgatory.shutdown();
        waiter.join().unwrap();
        assert_eq!(outcome.endings(), [0, 0, 0, 1]);
        assert_empty(&purgatory);
    });
}

/// Catches: an operation that comes after another thread has found none, and before the shutdown has closed its shard.
#[test]
fn g15_the_end_of_a_shutdown_that_races_a_park_is_waited_for() {
    bounded(|| {
        let purgatory = driven_by_others(&ManualClock::new());
        let waiter = spawn(&purgatory, |purgatory| {
            wait_until_over(purgatory);
            purgatory.stats().shut_down
        });
        let closer = spawn(&purgatory, Purgatory::shutdown);
        let outcome = Outcome::new();
        let admission = purgatory.try_complete_else_watch(Probe::new(&outcome), [1]);
        let admitted = usize::from(admission.is_ok());
        closer.join().unwrap();
        assert_eq!(waiter.join().unwrap(), admitted as u64);
        assert_eq!(outcome.endings(), [0, 0, 0, admitted]);
        assert_empty(&purgatory);
    });
}

/// Catches: an ending that the shutdown leaves to the holder, and that counts as no pass.
#[test]
fn g15_a_shutdown_races_a_check() {
    bounded(|| {
        let purgatory = driven_by_others(&ManualClock::new());
        let (outcome, _) = park(&purgatory, FOREVER);
        let closer = shut_down_and_see(&purgatory, &outcome);
        assert_eq!(purgatory.check_and_complete(&1), 0);
        closer.join().unwrap();
        assert_eq!(outcome.endings(), [0, 0, 0, 1]);
        assert_empty(&purgatory);
    });
}

/// Catches: an operation that is ended by two threads, or an expiry that the shutdown does not wait for.
#[test]
fn g15_a_shutdown_races_a_pass() {
    bounded(|| {
        let purgatory = driven_by_others(&ManualClock::new());
        let (outcome, _) = park(&purgatory, NOW);
        let closer = shut_down_and_see(&purgatory, &outcome);
        let expired = purgatory.advance();
        closer.join().unwrap();
        assert_eq!(outcome.endings(), [0, expired, 0, 1 - expired]);
        assert_empty(&purgatory);
    });
}

/// Catches: an operation that a cancel returns and the shutdown completes, or neither.
#[test]
fn g15_a_shutdown_races_a_cancel() {
    bounded(|| {
        let purgatory = driven_by_others(&ManualClock::new());
        let (outcome, handle) = park(&purgatory, FOREVER);
        let closer = spawn(&purgatory, |purgatory| {
            purgatory.shutdown();
            wait_until_over(purgatory);
            assert_eq!(purgatory.stats().parked, 0);
        });
        let cancelled = usize::from(handle.cancel().is_some());
        closer.join().unwrap();
        assert_eq!(outcome.endings(), [0, 0, 0, 1 - cancelled]);
        assert_empty(&purgatory);
    });
}

/// Each thread parks in a shard of its own. Catches: an operation that is parked in a purgatory which was found idle.
#[test]
fn g15_a_shutdown_if_idle_races_a_park() {
    bounded(|| {
        use_timer_shards(2);
        let purgatory = driven_by_others(&ManualClock::new());
        use_timer_shards(1);
        let outcome = Outcome::new();
        let parks = spawn(&purgatory, {
            let outcome = outcome.clone();
            move |purgatory| {
                let probe = Probe::with_timeout(&outcome, FOREVER);
                let parked = purgatory.try_complete_else_watch(probe, [1]);
                parked.map(drop).map_err(|rejected| rejected.reason())
            }
        });
        let has_ended = purgatory.shutdown_if_idle();
        match parks.join().unwrap() {
            Ok(()) => assert!(!has_ended),
            Err(reason) => assert_eq!((reason, has_ended), (RejectReason::ShutDown, true)),
        }
        assert_eq!(outcome.endings(), [0; 4]);
        purgatory.shutdown();
        assert_empty(&purgatory);
    });
}
