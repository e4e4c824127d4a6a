//! The sleeper: whatever makes the next deadline earlier wakes it. A lost wake-up shows as a deadlock.

use loom::thread;
use loom_tests::{Outcome, Probe, Sleeper, assert_empty, bounded, driven, long};
use request_purgatory::{Purgatory, threads::Reaper, time::ManualClock};
use std::time::Duration;

const NEAR: Duration = Duration::from_millis(2);
const FAR: Duration = Duration::from_secs(60);

/// A reactor's loop, until it would sleep no longer than `until`.
fn drive(purgatory: &Purgatory<Probe>, sleeper: &Sleeper, until: Duration) {
    loop {
        purgatory.advance();
        let next = purgatory.next_deadline();
        if next.is_some_and(|next| next.since_origin() <= until) {
            return;
        }
        sleeper.sleep();
    }
}

fn park(purgatory: &Purgatory<Probe>, timeout: Duration) -> request_purgatory::Handle<Probe> {
    let probe = Probe::with_timeout(&Outcome::new(), timeout);
    let watch = purgatory.try_complete_else_watch(probe, [1]);
    watch
        .expect("it may park")
        .into_handle()
        .expect("it parked")
}

/// Catches: a missing wake-up, an alarm set before the timer is started, a reset that comes after the reading.
#[test]
fn g07_insert_races_a_reaper_going_to_sleep() {
    bounded(|| {
        let sleeper = Sleeper::default();
        let purgatory = driven(&ManualClock::new(), Reaper::Reactor(sleeper.waker()));
        let parker = {
            let purgatory = purgatory.clone();
            thread::spawn(move || park(&purgatory, NEAR))
        };
        drive(&purgatory, &sleeper, NEAR);
        parker
            .join()
            .unwrap()
            .cancel()
            .expect("no other thread ended it");
        assert_empty(&purgatory);
    });
}

/// The same with the sleeper counting on a later deadline, and two parkers.
#[test]
fn g07_the_earlier_of_two_inserts_wakes() {
    bounded(|| {
        let sleeper = Sleeper::default();
        let purgatory = driven(&ManualClock::new(), Reaper::Reactor(sleeper.waker()));
        let parkers = [FAR, NEAR].map(|timeout| {
            let purgatory = purgatory.clone();
            thread::spawn(move || park(&purgatory, timeout))
        });
        drive(&purgatory, &sleeper, NEAR);
        for parker in parkers {
            parker
                .join()
                .unwrap()
                .cancel()
                .expect("no other thread ended it");
        }
        assert_empty(&purgatory);
    });
}

/// Another thread asks for the next deadline, or drives the timer, just between the start of a timer and its
/// announcement; the reactor counts on a later one, or on none. Catches: an alarm set on the parker's behalf by a
/// thread that wakes no other.
#[test]
fn g07_insert_and_another_caller_race_a_reactor_going_to_sleep() {
    const CALLS: [fn(&Purgatory<Probe>); 2] = [|it| _ = it.next_deadline(), |it| _ = it.advance()];
    let both = |later| CALLS.map(|call| (later, call));
    for (counts_on_a_later_one, call) in [false, true].into_iter().flat_map(both) {
        long(move || {
            let sleeper = Sleeper::default();
            let purgatory = driven(&ManualClock::new(), Reaper::Reactor(sleeper.waker()));
            let later = counts_on_a_later_one.then(|| park(&purgatory, FAR));
            let parker = {
                let purgatory = purgatory.clone();
                thread::spawn(move || park(&purgatory, NEAR))
            };
            let asker = {
                let purgatory = purgatory.clone();
                thread::spawn(move || call(&purgatory))
            };
            drive(&purgatory, &sleeper, NEAR);
            asker.join().unwrap();
            for parked in later.into_iter().chain([parker.join().unwrap()]) {
                parked.cancel().expect("no other thread ended it");
            }
            assert_empty(&purgatory);
        });
    }
}

/// Another thread sets the alarm to a deadline that was just cancelled, while the reactor has seen that. Catches:
/// callers that set the alarm side by side.
#[test]
fn g07_a_deadline_that_goes_hides_no_later_one_from_a_reactor() {
    bounded(|| {
        let sleeper = Sleeper::default();
        let purgatory = driven(&ManualClock::new(), Reaper::Reactor(sleeper.waker()));
        let goes = park(&purgatory, NEAR);
        let parker = {
            let purgatory = purgatory.clone();
            thread::spawn(move || {
                goes.cancel().expect("no other thread ended it");
                park(&purgatory, 2 * NEAR)
            })
        };
        let asker = {
            let purgatory = purgatory.clone();
            thread::spawn(move || _ = purgatory.next_deadline())
        };
        drive(&purgatory, &sleeper, 2 * NEAR);
        asker.join().unwrap();
        parker
            .join()
            .unwrap()
            .cancel()
            .expect("no other thread ended it");
        assert_empty(&purgatory);
    });
}

/// Catches: a reschedule that is not announced.
#[test]
fn g07_reschedule_to_an_earlier_deadline_wakes() {
    bounded(|| {
        let sleeper = Sleeper::default();
        let purgatory = driven(&ManualClock::new(), Reaper::Reactor(sleeper.waker()));
        let handle = park(&purgatory, FAR);
        let mover = {
            let handle = handle.clone();
            thread::spawn(move || assert!(handle.reschedule(NEAR)))
        };
        drive(&purgatory, &sleeper, NEAR);
        mover.join().unwrap();
        handle.cancel().expect("no other thread ended it");
        assert_empty(&purgatory);
    });
}

/// Catches: a deferred check that is swallowed by a reset.
#[test]
fn g07_check_later_wakes() {
    bounded(|| {
        let sleeper = Sleeper::default();
        let purgatory = driven(&ManualClock::new(), Reaper::Reactor(sleeper.waker()));
        let outcome = Outcome::new();
        purgatory
            .try_complete_else_watch(Probe::new(&outcome), [1])
            .expect("it may park");
        let asker = {
            let (purgatory, outcome) = (purgatory.clone(), outcome.clone());
            thread::spawn(move || {
                outcome.satisfy();
                purgatory.check_later(1);
            })
        };
        while !purgatory.is_empty() {
            purgatory.advance();
            if !purgatory.is_empty() && purgatory.next_deadline().is_none() {
                sleeper.sleep();
            }
        }
        asker.join().unwrap();
        assert_eq!(outcome.endings(), [1, 0, 0, 0]);
        assert_empty(&purgatory);
    });
}

/// The alarm is set already when the second check is deferred. Catches: an alarm that is reset after
/// the deferred checks were read.
#[test]
fn g07_a_second_check_later_wakes() {
    bounded(|| {
        let sleeper = Sleeper::default();
        let purgatory = driven(&ManualClock::new(), Reaper::Reactor(sleeper.waker()));
        let outcome = Outcome::new();
        purgatory
            .try_complete_else_watch(Probe::new(&outcome), [1])
            .expect("it may park");
        let asker = {
            let (purgatory, outcome) = (purgatory.clone(), outcome.clone());
            thread::spawn(move || {
                purgatory.check_later(1);
                outcome.satisfy();
                purgatory.check_later(1);
            })
        };
        while !purgatory.is_empty() {
            purgatory.advance();
            if !purgatory.is_empty() && purgatory.next_deadline().is_none() {
                sleeper.sleep();
            }
        }
        asker.join().unwrap();
        assert_eq!(outcome.endings(), [1, 0, 0, 0]);
        assert_empty(&purgatory);
    });
}
