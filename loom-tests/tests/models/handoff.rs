//! The whole purgatory: parker, checkers, canceller and the reaper's step against each other.

use loom::sync::atomic::{AtomicUsize, Ordering};
use loom::thread;
use loom_tests::{Outcome, Probe, assert_empty, bounded, manual};
use request_purgatory::{purgatory::RejectReason, time::ManualClock};
use std::sync::Arc;
use std::time::Duration;

/// Catches: a parker that does not examine its operation again after its keys are watched.
#[test]
fn g01_parker_races_checker() {
    bounded(|| {
        let purgatory = manual(&ManualClock::new());
        let outcome = Outcome::new();
        let checker = {
            let (purgatory, outcome) = (purgatory.clone(), outcome.clone());
            thread::spawn(move || {
                outcome.satisfy();
                purgatory.check_and_complete(&1)
            })
        };
        purgatory
            .try_complete_else_watch(Probe::new(&outcome), [1])
            .expect("it may park");
        checker.join().unwrap();
        // A parker that was asked twice to examine again leaves that to the reaper.
        purgatory.advance();
        assert_eq!(outcome.endings(), [1, 0, 0, 0]);
        assert_empty(&purgatory);
    });
}

/// Catches: a check of a resolved list that is only a load: it may miss a watch that misses the event.
#[test]
fn g01_parker_races_a_check_of_a_resolved_key() {
    bounded(|| {
        let purgatory = manual(&ManualClock::new());
        let key = purgatory.resolve(1);
        let outcome = Outcome::new();
        let checker = {
            let (purgatory, outcome) = (purgatory.clone(), outcome.clone());
            thread::spawn(move || {
                let key = purgatory.resolve(1);
                outcome.satisfy();
                key.check_and_complete()
            })
        };
        purgatory
            .try_complete_else_watch(Probe::new(&outcome), [key.watch()])
            .expect("it may park");
        checker.join().unwrap();
        purgatory.advance();
        assert_eq!(outcome.endings(), [1, 0, 0, 0]);
        drop(key);
        assert_empty(&purgatory);
    });
}

/// Parks on a resolved key, which another operation watches already, while another thread satisfies the new one (and
/// the other, if `both`) and checks the key.
fn parker_races_a_check_that_finds_another(both: bool) {
    bounded(move || {
        let purgatory = manual(&ManualClock::new());
        let key = purgatory.resolve(1);
        let (other, outcome) = (Outcome::new(), Outcome::new());
        let watched = purgatory
            .try_complete_else_watch(Probe::new(&other), [key.watch()])
            .expect("it may park");
        assert!(watched.is_parked());
        let checker = {
            let (key, other, outcome) = (key.clone(), other.clone(), outcome.clone());
            thread::spawn(move || {
                if both {
                    other.satisfy();
                }
                outcome.satisfy();
                key.check_and_complete()
            })
        };
        purgatory
            .try_complete_else_watch(Probe::new(&outcome), [key.watch()])
            .expect("it may park");
        checker.join().unwrap();
        purgatory.advance();
        assert_eq!(outcome.endings(), [1, 0, 0, 0]);
        assert_eq!(other.endings(), [usize::from(both), 0, 0, 0]);
        purgatory.force_complete_for_key(&1);
        drop(key);
        assert_empty(&purgatory);
    });
}

/// Catches: a check of a resolved key that completes the watcher it found, and does not look for others.
#[test]
fn g01_parker_races_a_check_that_completes_another_on_the_resolved_key() {
    parker_races_a_check_that_finds_another(true);
}

/// Catches: a check of a resolved key that examines the watcher it found in vain, and publishes the event to no parker.
#[test]
fn g01_parker_races_a_check_that_examines_another_on_the_resolved_key() {
    parker_races_a_check_that_finds_another(false);
}

/// Catches: an examination that is left to the reaper, and lost.
#[test]
fn g01_parker_races_two_checkers() {
    bounded(|| {
        let purgatory = manual(&ManualClock::new());
        let outcome = Outcome::new();
        let checkers = [false, true].map(|happens| {
            let (purgatory, outcome) = (purgatory.clone(), outcome.clone());
            thread::spawn(move || {
                if happens {
                    outcome.satisfy();
                }
                purgatory.check_and_complete(&1)
            })
        });
        purgatory
            .try_complete_else_watch(Probe::new(&outcome), [1])
            .expect("it may park");
        for checker in checkers {
            checker.join().unwrap();
        }
        purgatory.advance();
        assert_eq!(outcome.endings(), [1, 0, 0, 0]);
        assert_empty(&purgatory);
    });
}

/// Catches: a checker that finds the operation held and leaves no mark.
#[test]
fn g01_two_checkers_on_two_keys() {
    bounded(|| {
        let purgatory = manual(&ManualClock::new());
        let outcome = Outcome::new();
        purgatory
            .try_complete_else_watch(Probe::new(&outcome), [1, 2])
            .expect("it may park");
        let idle = {
            let purgatory = purgatory.clone();
            thread::spawn(move || purgatory.check_and_complete(&1))
        };
        outcome.satisfy();
        let mine = purgatory.check_and_complete(&2);
        idle.join().unwrap();
        assert!(mine <= 1);
        purgatory.advance();
        assert_eq!(outcome.endings(), [1, 0, 0, 0]);
        assert_empty(&purgatory);
    });
}

/// Catches: an ending that two threads win, or none; a callback beside a cancel that returned the operation.
#[test]
fn g05_cancel_races_expiry_and_check() {
    bounded(|| {
        let clock = ManualClock::new();
        let purgatory = manual(&clock);
        let outcome = Outcome::new();
        let watch = purgatory
            .try_complete_else_watch(
                Probe::with_timeout(&outcome, Duration::from_millis(100)),
                [1],
            )
            .expect("it may park");
        let handle = watch.into_handle().expect("it parked");
        clock.advance(Duration::from_millis(200));
        let reaper = {
            let purgatory = purgatory.clone();
            thread::spawn(move || purgatory.advance())
        };
        let checker = {
            let (purgatory, outcome) = (purgatory.clone(), outcome.clone());
            thread::spawn(move || {
                outcome.satisfy();
                purgatory.check_and_complete(&1)
            })
        };
        let cancelled = handle.cancel();
        let (expired, completed) = (reaper.join().unwrap(), checker.join().unwrap());
        let endings = outcome.endings();
        assert_eq!(
            endings.iter().sum::<usize>() + usize::from(cancelled.is_some()),
            1
        );
        // The answers agree with the endings, but for endings that were left to another thread.
        assert!(endings[0] >= completed && endings[1] >= expired);
        assert!(!handle.is_parked() && handle.cancel().is_none());
        assert_empty(&purgatory);
    });
}

/// Catches: an expiry that meets the parker and is lost.
#[test]
fn g05_expiry_races_park() {
    bounded(|| {
        let clock = ManualClock::new();
        let purgatory = manual(&clock);
        let outcome = Outcome::new();
        let reaper = {
            let (purgatory, clock) = (purgatory.clone(), clock.clone());
            thread::spawn(move || {
                clock.advance(Duration::from_millis(5));
                purgatory.advance()
            })
        };
        purgatory
            .try_complete_else_watch(Probe::with_timeout(&outcome, Duration::ZERO), [1])
            .expect("it may park");
        reaper.join().unwrap();
        purgatory.advance();
        assert_eq!(outcome.endings(), [0, 1, 0, 0]);
        assert_empty(&purgatory);
    });
}

/// Catches: a rescheduled timer that fires at its old deadline, or both times.
#[test]
fn g05_reschedule_races_expiry() {
    bounded(|| {
        let clock = ManualClock::new();
        let purgatory = manual(&clock);
        let outcome = Outcome::new();
        let watch = purgatory
            .try_complete_else_watch(Probe::with_timeout(&outcome, Duration::from_millis(1)), [1])
            .expect("it may park");
        let handle = watch.into_handle().expect("it parked");
        clock.advance(Duration::from_millis(1));
        let reaper = {
            let purgatory = purgatory.clone();
            thread::spawn(move || purgatory.advance())
        };
        let again = handle.reschedule(Duration::from_millis(10));
        let expired = reaper.join().unwrap();
        assert_eq!(usize::from(again) + expired, 1);
        clock.advance(Duration::from_millis(10));
        purgatory.advance();
        assert_eq!(outcome.endings(), [0, 1, 0, 0]);
        assert_empty(&purgatory);
    });
}

/// One thread checks for an event and then cancels, while another examines the operation. Catches: a holder that obeys
/// the ending mark before the recheck that came earlier.
#[test]
fn g01_an_event_checked_before_a_cancel_completes() {
    bounded(|| {
        let purgatory = manual(&ManualClock::new());
        let outcome = Outcome::new();
        let admission = purgatory
            .try_complete_else_watch(Probe::new(&outcome), [1])
            .expect("it may park");
        let handle = admission.into_handle().expect("it parked");
        let checker = {
            let handle = handle.clone();
            thread::spawn(move || handle.check())
        };
        outcome.satisfy();
        handle.check();
        assert!(
            handle.cancel().is_none(),
            "it is satisfied, and was checked"
        );
        checker.join().unwrap();
        assert_eq!(outcome.endings(), [1, 0, 0, 0]);
        assert_empty(&purgatory);
    });
}

/// Catches: an operation that parks after the shutdown.
#[test]
fn g15_shutdown_races_park() {
    bounded(|| {
        let purgatory = manual(&ManualClock::new());
        let outcome = Outcome::new();
        let refused = Arc::new(AtomicUsize::new(0));
        let parker = {
            let (purgatory, outcome, refused) =
                (purgatory.clone(), outcome.clone(), refused.clone());
            thread::spawn(move || {
                match purgatory.try_complete_else_watch(Probe::new(&outcome), [1]) {
                    Ok(_) => {}
                    Err(ref rejected) if rejected.reason() == RejectReason::ShutDown => {
                        refused.fetch_add(1, Ordering::Relaxed);
                    }
                    Err(other) => panic!("{other}"),
                }
            })
        };
        purgatory.shutdown();
        parker.join().unwrap();
        let [completed, expired, cancelled, shut_down] = outcome.endings();
        assert_eq!(shut_down + refused.load(Ordering::Relaxed), 1);
        assert_eq!(completed + expired + cancelled, 0);
        assert_empty(&purgatory);
    });
}

/// Catches: a mark that is left before the change: a holder that finds it ends the operation without the change.
#[test]
fn g05_a_change_reaches_the_operation_whichever_thread_ends_it() {
    bounded(|| {
        let purgatory = manual(&ManualClock::new());
        let (unchanged, changed) = (Outcome::new(), Outcome::new());
        purgatory
            .try_complete_else_watch(Probe::new(&unchanged), [1, 2])
            .expect("it may park");
        let forcer = {
            let (purgatory, outcome) = (purgatory.clone(), changed.clone());
            let change = move |probe: &mut Probe| probe.outcome = outcome.clone();
            thread::spawn(move || purgatory.force_complete_for_key_with(&1, change))
        };
        assert_eq!(purgatory.check_and_complete(&2), 0);
        assert!(forcer.join().unwrap() <= 1);
        assert_eq!(unchanged.endings(), [0; 4]);
        assert_eq!(changed.endings(), [1, 0, 0, 0]);
        assert_empty(&purgatory);
    });
}

/// Catches: an ending that is counted before the operation has left its watch lists. (The spawned thread looks: of a
/// first thread that only loads, loom tries one execution.)
#[test]
fn g06_a_thread_that_finds_an_ending_counted_finds_no_watch_of_it() {
    bounded(|| {
        let purgatory = manual(&ManualClock::new());
        let outcome = Outcome::new();
        purgatory
            .try_complete_else_watch(Probe::new(&outcome), [1])
            .expect("it may park");
        let looker = {
            let purgatory = purgatory.clone();
            thread::spawn(move || {
                if purgatory.is_empty() {
                    assert_eq!(purgatory.watchers(&1), 0);
                }
            })
        };
        outcome.satisfy();
        assert_eq!(purgatory.check_and_complete(&1), 1);
        looker.join().unwrap();
        assert_empty(&purgatory);
    });
}
