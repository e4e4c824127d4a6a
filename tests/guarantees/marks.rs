//! G1, G3: the marks that are left for whoever is examining an operation.

use crate::support::{Op, PATIENCE, Tally, manual, within};
use std::thread;
use std::time::Duration;

/// A look that brings the next event itself, through another thread, for as long as that is wanted: whoever holds the
/// operation lets go of it at last, and the events that are left are met when time is driven.
#[test]
fn g01_a_look_put_off_is_made_when_time_is_driven() {
    const EVENTS: u64 = 100;
    within(PATIENCE, || {
        let (purgatory, _clock) = manual(|builder| builder);
        let (events, ended) = (Tally::new(), Tally::new());
        let (happening, ending) = (events.clone(), ended.clone());
        let weak = purgatory.downgrade();
        let op = Op::new(Duration::MAX)
            .when(move || {
                let seen = happening.count();
                if seen < EVENTS {
                    happening.add();
                    let purgatory = weak.upgrade().expect("it is being asked");
                    let checker = thread::spawn(move || purgatory.check_and_complete(&1));
                    checker.join().expect("it only checks");
                }
                seen == EVENTS
            })
            .then(move |_| ending.add());
        purgatory
            .try_complete_else_watch(op, [1])
            .expect("there is room");
        assert!(events.count() < EVENTS / 2, "the parker was kept busy");
        while purgatory.next_deadline().is_some() {
            purgatory.advance();
        }
        assert_eq!((events.count(), ended.count()), (EVENTS, 1));
        assert_eq!(purgatory.len(), 0);
    });
}

/// A look that checks its own key would otherwise ask for another one, each time.
#[test]
fn g03_a_look_that_checks_its_own_key_asks_for_no_other() {
    within(PATIENCE, || {
        let (purgatory, _clock) = manual(|builder| builder);
        let looks = Tally::new();
        let (looking, weak) = (looks.clone(), purgatory.downgrade());
        let op = Op::new(Duration::MAX).when(move || {
            looking.add();
            let purgatory = weak.upgrade().expect("it is being asked");
            assert_eq!(purgatory.check_and_complete(&1), 0);
            false
        });
        let watch = purgatory.try_complete_else_watch(op, [1]);
        let handle = watch.expect("there is room").into_handle();
        let handle = handle.expect("it parked");
        assert_eq!(looks.count(), 2, "before its key was watched, and after");
        assert_eq!(purgatory.check_and_complete(&1), 0);
        assert!(!handle.check());
        assert_eq!(looks.count(), 4);
        assert_eq!(purgatory.next_deadline(), None, "a look was put off");
    });
}

/// What a look puts off is left for the next call, or this one would never end.
#[test]
fn g01_a_look_that_puts_off_another_check_does_not_keep_time_from_going_on() {
    within(PATIENCE, || {
        let (purgatory, _clock) = manual(|builder| builder);
        let looks = Tally::new();
        let (looking, weak) = (looks.clone(), purgatory.downgrade());
        let op = Op::new(Duration::MAX).when(move || {
            looking.add();
            let purgatory = weak.upgrade().expect("it is being asked");
            if looking.count() < 100_000 {
                purgatory.check_later(1);
            }
            false
        });
        drop(purgatory.try_complete_else_watch(op, [1]));
        assert_eq!(looks.count(), 2);
        purgatory.advance();
        assert_eq!(looks.count(), 4, "the two that were put off before");
        assert!(purgatory.next_deadline().is_some(), "and two more now");
    });
}
