//! G6: nothing is left behind. (Memory over a million operations is measured in the target `memory`.)

use crate::support::keys::Acting;
use crate::support::{NEVER_IN_A_TEST, Op, PATIENCE, Probe, eventually, manual, quietly, within};
use request_purgatory::{
    Completion, DelayedOperation, Purgatory, threads::Reaper, time::ManualClock,
};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Weak, mpsc};
use std::thread;
use std::time::Duration;

/// An operation with something to lose.
struct Loaded {
    payload: Arc<Vec<u8>>,
    timeout: Duration,
}

impl DelayedOperation for Loaded {
    type Key = String;

    fn timeout(&self) -> Duration {
        self.timeout
    }

    fn try_complete(&mut self) -> bool {
        false
    }

    fn on_complete(self, _: Completion) {
        assert!(!self.payload.is_empty());
    }
}

fn park(purgatory: &Purgatory<Loaded>, keys: &[&str], timeout: Duration) -> Weak<Vec<u8>> {
    let payload = Arc::new(vec![1; 100]);
    let weak = Arc::downgrade(&payload);
    let keys = keys.iter().map(|key| String::from(*key));
    purgatory
        .try_complete_else_watch(Loaded { payload, timeout }, keys)
        .expect("there is room");
    weak
}

#[test]
fn g06_every_ending_drops_the_payload_and_leaves_every_key() {
    type End = fn(&Purgatory<Loaded>, &ManualClock);
    let ends: [End; 4] = [
        |purgatory, _| assert_eq!(purgatory.force_complete_for_key("busy"), 1_000),
        |purgatory, _| drop(purgatory.cancel_for_key("busy")),
        |purgatory, clock| {
            clock.advance(Duration::from_secs(2));
            purgatory.advance();
        },
        |purgatory, _| purgatory.shutdown(),
    ];
    for end in ends {
        let clock = ManualClock::new();
        let purgatory = Purgatory::<Loaded>::builder("g06")
            .clock(clock.clone())
            .reaper(Reaper::Manual)
            .build()
            .expect("no threads to refuse");
        let payloads = (0..1_000)
            .map(|number| {
                let own = format!("own {number}");
                let keys = ["busy", "quiet", "quiet", &own];
                park(&purgatory, &keys, Duration::from_millis(number))
            })
            .collect::<Vec<_>>();
        assert_eq!(
            (purgatory.stats().parked, purgatory.stats().watched),
            (1_000, 3_000)
        );
        assert_eq!(purgatory.watched_keys(), 1_002);
        assert!(payloads.iter().all(|payload| payload.strong_count() == 1));
        end(&purgatory, &clock);
        assert!(payloads.iter().all(|payload| payload.strong_count() == 0));
        assert_eq!(
            (purgatory.stats().parked, purgatory.stats().watched),
            (0, 0)
        );
        assert_eq!(purgatory.watched_keys(), 0);
        assert_eq!(purgatory.next_deadline(), None, "and no timer");
        assert!(purgatory.snapshot().is_empty());
    }
}

#[test]
fn g06_one_that_expires_alone_leaves_every_key() {
    let (purgatory, clock) = manual::<&'static str>(|builder| builder);
    let second = Duration::from_secs(1);
    for timeout in [second, NEVER_IN_A_TEST] {
        let op = Op::new(timeout);
        drop(purgatory.try_complete_else_watch(op, ["shared", "other"]));
    }
    // By the time of its completion it has.
    let (weak, found) = (
        purgatory.downgrade(),
        Arc::new(AtomicUsize::new(usize::MAX)),
    );
    let told = found.clone();
    let op = Op::new(second * 3).then(move |_| {
        let purgatory = weak.upgrade().expect("it drives the timer");
        told.store(purgatory.watchers("own"), Ordering::SeqCst);
    });
    drop(purgatory.try_complete_else_watch(op, ["own"]));
    for (left, keys) in [(2, 3), (1, 2)] {
        clock.advance(second * 2);
        assert_eq!(purgatory.advance(), 1);
        assert_eq!(
            (purgatory.stats().parked, purgatory.watched_keys()),
            (left, keys)
        );
    }
    assert_eq!(found.load(Ordering::SeqCst), 0);
    let examined = purgatory.stats().checks;
    purgatory.check_and_complete("shared");
    assert_eq!(purgatory.stats().checks, examined + 1);
}

#[test]
fn g06_the_quiet_key_keeps_nothing_of_what_the_busy_one_ended() {
    let (purgatory, _clock) = manual::<&'static str>(|builder| builder);
    let quiet = crate::support::Probe::new();
    purgatory
        .try_complete_else_watch(quiet.op(NEVER_IN_A_TEST), ["quiet"])
        .expect("there is room");
    for _ in 0..10_000 {
        let probe = crate::support::Probe::new();
        purgatory
            .try_complete_else_watch(probe.op(NEVER_IN_A_TEST), ["busy", "quiet"])
            .expect("there is room");
        probe.satisfy();
        assert_eq!(purgatory.check_and_complete("busy"), 1);
        assert_eq!(
            (purgatory.stats().watched, purgatory.watched_keys()),
            (1, 1)
        );
    }
    let checks = purgatory.stats().checks;
    purgatory.check_and_complete("quiet");
    assert_eq!(purgatory.stats().checks, checks + 1, "only the living one");
}

/// A cause that is left for an operation that has ended otherwise: just before it is left, or in the hands of a thread
/// that does not look for it.
#[test]
fn g06_a_cause_goes_whose_operation_ends_without_it() {
    let (purgatory, _clock) = manual::<u64>(|builder| builder);
    let parked = [(); 2].map(|()| {
        let admission = purgatory.try_complete_else_watch(Op::new(NEVER_IN_A_TEST), [1]);
        admission.ok().and_then(|admission| admission.into_handle())
    });
    let token = Arc::new(());
    let (held, second) = (token.clone(), parked[1].clone());
    let cause = move |_: &mut Op| {
        let _ = &held;
        drop(second.as_ref().and_then(|second| second.cancel()));
    };
    assert_eq!(purgatory.force_complete_for_key_with(&1, cause), 1);
    assert_eq!(Arc::strong_count(&token), 1, "the second had ended");

    type Later = fn(&Purgatory<Op>);
    let laters: [Later; 2] = [|idle| _ = idle.advance(), |closed| closed.shutdown()];
    for later in laters {
        within(PATIENCE, move || {
            let (purgatory, _clock) = manual::<u64>(|builder| builder);
            let (entered, inside) = mpsc::channel();
            let (go_on, wait) = mpsc::channel::<()>();
            let mut examinations = 0;
            let op = Op::new(Duration::MAX).when(move || {
                examinations += 1;
                if examinations == 3 {
                    entered.send(()).expect("the test waits for it");
                    wait.recv().expect("the test lets it go on");
                }
                examinations == 3
            });
            assert!(purgatory.try_complete_else_watch(op, [1]).is_ok());
            let holder = {
                let purgatory = purgatory.clone();
                thread::spawn(move || purgatory.check_and_complete(&1))
            };
            inside.recv().expect("it is examined");
            let token = Arc::new(());
            let held = token.clone();
            let cause = move |_: &mut Op| drop(held.clone());
            assert_eq!(purgatory.force_complete_for_key_with(&1, cause), 0);
            go_on.send(()).expect("the holder waits");
            assert_eq!(holder.join().expect("the holder"), 1, "it is satisfied");
            later(&purgatory);
            assert_eq!(Arc::strong_count(&token), 1);
        });
    }
}

/// The destructor of what a change has captured may leave a change in turn.
#[test]
fn g03_a_change_that_another_replaces_is_dropped_with_no_lock_held() {
    struct Forces(Purgatory<Op>);
    impl Drop for Forces {
        fn drop(&mut self) {
            let forced = self.0.force_complete_for_key_with(&1, |_| ());
            assert_eq!(forced, 0, "it is examined");
        }
    }
    within(PATIENCE, || {
        let purgatory = manual(|builder| builder).0;
        let (inside, mut examinations) = (purgatory.clone(), 0);
        let op = Op::new(NEVER_IN_A_TEST).when(move || {
            examinations += 1;
            if examinations == 3 {
                let forces = Forces(inside.clone());
                inside.force_complete_for_key_with(&1, move |_| _ = &forces);
                inside.force_complete_for_key_with(&1, |_| ());
            }
            false
        });
        assert!(purgatory.try_complete_else_watch(op, [1]).is_ok());
        assert_eq!(purgatory.check_and_complete(&1), 0);
        assert_eq!(purgatory.stats().completed, 1, "as the changes were to be");
    });
}

/// The change of an operation that was satisfied all the same is left to the next call that has one, and its destructor
/// panics. That call's own is for an operation that a thread examines.
#[test]
fn g12_a_change_that_panics_when_it_is_dropped_costs_no_other_operation_its_change() {
    within(PATIENCE, || {
        quietly();
        let purgatory = manual(|builder| builder).0;
        let (inside, mut examinations) = (purgatory.downgrade(), 0);
        let satisfied = Op::new(NEVER_IN_A_TEST).when(move || {
            examinations += 1;
            if examinations == 3 {
                let inside = inside.upgrade().expect("the test has it");
                let loud = Acting(0, Some(Arc::new(|| std::panic::panic_any("intended"))));
                inside.force_complete_for_key_with(&1, move |_| _ = &loud);
            }
            examinations == 3
        });
        assert!(purgatory.try_complete_else_watch(satisfied, [1]).is_ok());
        assert_eq!(purgatory.check_and_complete(&1), 1);
        let probe = Probe::new();
        let (examined, stall) = probe.stalled_op(NEVER_IN_A_TEST);
        assert!(purgatory.try_complete_else_watch(examined, [2]).is_ok());
        let check = stall.check(&purgatory, 2);
        let changed = Arc::new(AtomicBool::new(false));
        let change = changed.clone();
        let force = || {
            purgatory
                .force_complete_for_key_with(&2, move |_| change.store(true, Ordering::Relaxed))
        };
        let _ = catch_unwind(AssertUnwindSafe(force));
        stall.end();
        check.join().expect("no panic");
        assert_eq!(probe.ending(), Some(Completion::Satisfied));
        assert!(changed.load(Ordering::Relaxed));
    });
}

/// Everything goes when the purgatory goes, jobs on other threads included.
#[test]
fn g06_a_dropped_purgatory_keeps_nothing() {
    within(PATIENCE, || {
        let purgatory = Purgatory::<Loaded>::new("g06-drop");
        let timeouts = [Duration::ZERO, Duration::from_millis(5), Duration::MAX];
        let payloads = (0..300)
            .map(|number| park(&purgatory, &["a", "b"], timeouts[number % 3]))
            .collect::<Vec<_>>();
        let weak = purgatory.downgrade();
        drop(purgatory);
        assert!(weak.upgrade().is_none());
        eventually("the end of every payload", || {
            payloads.iter().all(|payload| payload.strong_count() == 0)
        });
    });
}
