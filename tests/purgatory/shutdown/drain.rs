//! G15 for a drain: it refuses parks, waits for what is parked and for its completions, and ends whatever happens.

use crate::support::keys::{Act, Acting};
use crate::support::stall::overasked_op;
use crate::support::{NEVER_IN_A_TEST, Op, PATIENCE, Probe, busy, eventually, lock, manual};
use crate::support::{threads_named, within};
use request_purgatory::threads::{Dispatch, Reaper};
use request_purgatory::{Completion, Purgatory, purgatory::RejectReason, time::WakeFn};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

const SOON: Duration = Duration::from_millis(5);

/// (An operation that expires soon may have ended when the call returns.)
fn park(purgatory: &Purgatory<Op>, op: Op, key: u64) {
    let admission = purgatory.try_complete_else_watch(op, [key]);
    assert!(admission.is_ok(), "there is room");
}

#[test]
fn g15_a_drain_refuses_what_is_new_and_waits_for_what_is_parked() {
    within(PATIENCE, || {
        let purgatory = Purgatory::<Op>::new("g15-drain");
        let (expires, satisfied) = (Probe::new(), Probe::new());
        park(&purgatory, expires.op(Duration::from_millis(50)), 1);
        park(&purgatory, satisfied.op(NEVER_IN_A_TEST), 2);
        let drain = {
            let purgatory = purgatory.clone();
            thread::spawn(move || purgatory.drain(NEVER_IN_A_TEST))
        };
        eventually("the refusal", || {
            let ready = Op::new(NEVER_IN_A_TEST).when(|| true);
            let refused = purgatory.try_complete_else_watch(ready, [3]);
            refused.is_err_and(|refused| refused.reason() == RejectReason::Draining)
        });
        // Checks and timers go on.
        satisfied.satisfy();
        assert_eq!(purgatory.check_and_complete(&2), 1);
        assert_eq!(drain.join().expect("no panic"), 0);
        assert_eq!(expires.ending(), Some(Completion::Expired));
        assert_eq!(satisfied.ending(), Some(Completion::Satisfied));
        assert!(!purgatory.is_shut_down());
        purgatory.shutdown();
        let refused = purgatory.try_complete_else_watch(Op::new(SOON), [3]);
        assert!(refused.is_err_and(|refused| refused.reason() == RejectReason::ShutDown));
    });
}

/// Its bound passes, it waits for a completion, it is called again, without a reaper, from a callback, and shut down.
#[test]
fn g15_a_drain_ends_whatever_happens() {
    within(PATIENCE, || {
        let purgatory = Purgatory::<Op>::new("g15-drain2");
        for key in 0..3 {
            park(&purgatory, Op::new(NEVER_IN_A_TEST), key);
        }
        let begun = Instant::now();
        assert_eq!(purgatory.drain(Duration::from_millis(30)), 3);
        assert!(begun.elapsed() >= Duration::from_millis(30));
        assert_eq!(purgatory.drain(Duration::ZERO), 3);
        assert_eq!(purgatory.snapshot().len(), 3);
        let drain = {
            let purgatory = purgatory.clone();
            thread::spawn(move || purgatory.drain(NEVER_IN_A_TEST))
        };
        thread::sleep(SOON);
        purgatory.shutdown();
        assert_eq!(drain.join().expect("no panic"), 0);

        // Where no thread of the library drives the timer, the drain does, perhaps on the reactor's own thread.
        for reaper in [Reaper::Manual, Reaper::Reactor(WakeFn::new(|| true))] {
            let driven = Purgatory::<Op>::builder("g15-drain3").reaper(reaper);
            let driven = driven.build().expect("no threads to refuse");
            park(&driven, Op::new(SOON), 0);
            assert_eq!(driven.drain(PATIENCE / 4), 0);
            assert_eq!(driven.stats().expired, 1);
        }

        // A callback that drains cannot wait for what its own thread has to do.
        let inside = Purgatory::<Op>::new("g15-drain4");
        let (within, answer) = (inside.clone(), Arc::new(AtomicUsize::new(usize::MAX)));
        let told = answer.clone();
        let op = Op::new(NEVER_IN_A_TEST).when(|| false).then(move |_| {
            told.store(within.drain(NEVER_IN_A_TEST), Ordering::SeqCst);
        });
        park(&inside, op, 1);
        park(&inside, Op::new(NEVER_IN_A_TEST), 2);
        assert_eq!(inside.force_complete_for_key(&1), 1);
        assert_eq!(answer.load(Ordering::SeqCst), 1);
        inside.shutdown();
    });
}

/// Also those that the thread which drives the timer runs itself, and those that it has yet to hand over.
#[test]
fn g15_a_drain_waits_for_the_completions_of_the_pass_in_progress() {
    within(PATIENCE, || {
        for dispatch in [Dispatch::Inline, Dispatch::OwnThread] {
            let builder = Purgatory::<Op>::builder("g15-drain6").dispatch(dispatch);
            let purgatory = builder.build().expect("threads are to be had");
            let probe = Probe::new();
            let ending = probe.clone();
            let op = Op::new(SOON).then(move |completion| {
                thread::sleep(Duration::from_millis(100));
                ending.end(completion);
            });
            park(&purgatory, op, 1);
            assert_eq!(purgatory.drain(NEVER_IN_A_TEST), 0);
            assert_eq!(probe.ending(), Some(Completion::Expired));
        }
    });
}

/// A check examines an operation while its deadline passes, and expires it. It hands the completion over before it runs
/// that of another one, which takes long.
#[test]
fn g15_a_drain_waits_for_what_a_check_found_expired() {
    within(PATIENCE, || {
        let (purgatory, clock) = manual(|builder| builder.dispatch(Dispatch::OwnThread));
        // Satisfied by the check, which runs its completion.
        let ((begun, has_begun), (end, ended)) = (channel(), channel::<()>());
        let slow = Probe::new();
        let op = slow.op(NEVER_IN_A_TEST).then(move |_| {
            begun.send(()).expect("the test waits");
            ended.recv().expect("the test says so, after the drain");
        });
        park(&purgatory, op, 1);
        slow.satisfy();
        let expired = Probe::new();
        let (op, stall) = expired.stalled_op(NEVER_IN_A_TEST);
        park(&purgatory, op, 1);
        let check = stall.check(&purgatory, 1);
        stall.end_after_the_deadline(&purgatory, &clock);
        has_begun.recv().expect("the completion begins");
        assert_eq!(purgatory.drain(NEVER_IN_A_TEST), 0);
        // Which does not wait for what the check itself completes.
        assert_eq!(expired.ending(), Some(Completion::Expired));
        end.send(()).expect("the completion waits");
        assert_eq!(check.join().expect("no panic"), 1);
    });
}

/// Threads park while the drain comes: what it admits before it refuses, it waits for.
#[test]
fn g15_nothing_is_admitted_once_a_drain_has_answered() {
    within(PATIENCE, || {
        for _ in 0..50 {
            let purgatory = Purgatory::<Op>::new("g15-drain5");
            let parkers = (0..3).map(|key| {
                let purgatory = purgatory.clone();
                thread::spawn(move || {
                    let mut admitted = 0_u64;
                    while purgatory
                        .try_complete_else_watch(Op::new(Duration::from_millis(1)), [key])
                        .is_ok()
                    {
                        admitted += 1;
                    }
                    admitted
                })
            });
            let parkers = parkers.collect::<Vec<_>>();
            assert_eq!(purgatory.drain(NEVER_IN_A_TEST), 0);
            let expired = purgatory.stats().expired;
            let admitted = parkers
                .into_iter()
                .map(|parker| parker.join().expect("no panic"));
            assert_eq!(admitted.sum::<u64>(), expired);
            let stats = purgatory.stats();
            assert_eq!(
                (stats.expired, stats.parked, stats.completions_pending),
                (expired, 0, 0)
            );
        }
    });
}

/// Completions run where the operation ends: `check` ends `op`, whose deadline has passed, and completes it. A drain
/// waits for that.
fn a_drain_waits_for_the_completion(
    purgatory: &Purgatory<Op>,
    op: Op,
    check: impl FnOnce() -> JoinHandle<usize>,
) {
    let ((begun, has_begun), (end, ended)) = (channel(), channel::<()>());
    let op = op.then(move |_| {
        begun.send(thread::current().id()).expect("the test waits");
        ended.recv().expect("the test says so");
    });
    park(purgatory, op, 1);
    let check = check();
    let completing = has_begun.recv().expect("the completion begins");
    assert_eq!(completing, check.thread().id());
    assert_eq!(purgatory.stats().parked, 0);
    let begun = Instant::now();
    assert_eq!(purgatory.drain(4 * SOON), 0);
    assert!(begun.elapsed() >= 4 * SOON, "its completion has not run");
    end.send(()).expect("the completion waits");
    assert_eq!(purgatory.drain(NEVER_IN_A_TEST), 0);
    assert_eq!(check.join().expect("no panic"), 0);
}

#[test]
fn g15_a_drain_waits_for_a_completion_in_the_hands_of_a_check() {
    within(PATIENCE, || {
        let (purgatory, clock) = manual(|builder| builder.dispatch(Dispatch::Inline));
        let (op, stall) = Probe::new().stalled_op(NEVER_IN_A_TEST);
        a_drain_waits_for_the_completion(&purgatory, op, || {
            let check = stall.check(&purgatory, 1);
            stall.end_after_the_deadline(&purgatory, &clock);
            check
        });
    });
}

/// The check has examined the operation as often as it may, and is asked for once more, when the deadline passes.
#[test]
fn g15_a_drain_waits_for_a_completion_in_the_hands_of_a_check_that_was_asked_too_often() {
    within(PATIENCE, || {
        let (purgatory, clock) = manual(|builder| builder.dispatch(Dispatch::Inline));
        let expire = move |purgatory: &Purgatory<Op>| {
            clock.advance(2 * NEVER_IN_A_TEST);
            assert_eq!(purgatory.advance(), 0, "the check holds it");
        };
        let op = overasked_op(&purgatory, expire, || false);
        a_drain_waits_for_the_completion(&purgatory, op, || {
            let purgatory = purgatory.clone();
            thread::spawn(move || purgatory.check_and_complete(&1))
        });
    });
}

/// A deferred check ends the last one, whose key takes its time to be dropped before the completion is handed over.
#[test]
fn g15_a_drain_waits_for_the_completions_of_a_deferred_check() {
    within(PATIENCE, || {
        for dispatch in [Dispatch::Inline, Dispatch::OwnThread] {
            let builder = Purgatory::<Op<Acting>>::builder("g15-drain8").dispatch(dispatch);
            let purgatory = builder.build().expect("threads are to be had");
            let ((begun, has_begun), (go_on, told)) = (channel(), channel::<()>());
            let told = Mutex::new(told);
            let act: Act = Arc::new(move || {
                begun.send(()).expect("the test waits");
                lock(&told).recv().expect("the test says so");
            });
            let probe = Probe::new();
            let op = probe.op(NEVER_IN_A_TEST);
            let parked = purgatory.try_complete_else_watch(op, [Acting(1, Some(act))]);
            assert!(parked.is_ok_and(|parked| parked.is_parked()));
            probe.satisfy();
            purgatory.check_later(Acting(1, None));
            has_begun.recv().expect("the key is dropped");
            assert_eq!((purgatory.stats().parked, probe.ending()), (0, None));
            let begun = Instant::now();
            assert_eq!(purgatory.drain(4 * SOON), 0);
            assert!(begun.elapsed() >= 4 * SOON, "its completion has not run");
            go_on.send(()).expect("the destructor waits");
            assert_eq!(purgatory.drain(NEVER_IN_A_TEST), 0);
            assert_eq!(probe.ending(), Some(Completion::Satisfied));
        }
    });
}

/// It looks again and again, and sleeps in between.
#[test]
fn g15_a_drain_leaves_the_processor_to_others() {
    within(PATIENCE, || {
        let purgatory = Purgatory::<Op>::new("g15-drain7");
        park(&purgatory, Op::new(NEVER_IN_A_TEST), 1);
        let drain = thread::Builder::new().name("g15-sleeper".into());
        let drain = drain.spawn(move || {
            let this = threads_named("g15-sleeper")[0];
            assert_eq!(purgatory.drain(Duration::from_millis(500)), 1);
            busy(this)
        });
        let ticks = drain.expect("there are threads").join();
        let ticks = ticks.expect("no panic");
        assert!(ticks < 10, "busy for {ticks} ticks of about 50");
    });
}
