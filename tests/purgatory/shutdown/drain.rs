//! G15 for a drain: it refuses parks, waits for what is parked and for its completions, and ends whatever happens.

use crate::chains::scene::{Gate, admit, park};
use crate::support::keys::{Act, Acting};
use crate::support::stall::overasked_op;
use crate::support::{NEVER_IN_A_TEST, Op, PATIENCE, Probe, busy, eventually, manual, refusal};
use crate::support::{threads_named, within};
use request_purgatory::threads::{Dispatch, Reaper};
use request_purgatory::{Completion, DelayedOperation, Purgatory};
use request_purgatory::{purgatory::RejectReason, time::WakeFn};
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

const SOON: Duration = Duration::from_millis(5);

fn drain_on_a_thread(purgatory: &Purgatory<Op>) -> JoinHandle<usize> {
    let purgatory = purgatory.clone();
    thread::spawn(move || purgatory.drain(NEVER_IN_A_TEST))
}

/// Nothing is parked, but a completion that waits at this gate is under way.
fn assert_that_a_drain_waits_for<O: DelayedOperation>(purgatory: &Purgatory<O>, gate: Gate) {
    assert_eq!(purgatory.stats().parked, 0);
    let begun = Instant::now();
    assert_eq!(purgatory.drain(4 * SOON), 0);
    assert!(begun.elapsed() >= 4 * SOON, "its completion has not run");
    gate.open();
    assert_eq!(purgatory.drain(NEVER_IN_A_TEST), 0);
}

#[test]
fn g15_a_drain_refuses_what_is_new_and_waits_for_what_is_parked() {
    within(PATIENCE, || {
        let purgatory = Purgatory::<Op>::new("g15-drain");
        let (expires, satisfied) = (Probe::new(), Probe::new());
        admit(&purgatory, expires.op(Duration::from_millis(50)), [1]);
        park(&purgatory, satisfied.op(NEVER_IN_A_TEST), [2]);
        let refused = || {
            let ready = Op::new(NEVER_IN_A_TEST).when(|| true);
            refusal(&purgatory.try_complete_else_watch(ready, [3]))
        };
        let drain = drain_on_a_thread(&purgatory);
        eventually("the refusal", || refused() == Some(RejectReason::Draining));
        // Checks and timers go on.
        satisfied.satisfy();
        assert_eq!(purgatory.check_and_complete(&2), 1);
        assert_eq!(drain.join().expect("no panic"), 0);
        assert_eq!(expires.ending(), Some(Completion::Expired));
        assert_eq!(satisfied.ending(), Some(Completion::Satisfied));
        assert!(!purgatory.is_shut_down());
        purgatory.shutdown();
        assert_eq!(refused(), Some(RejectReason::ShutDown));
    });
}

#[test]
fn g15_a_drain_ends_at_its_bound_and_by_a_shutdown() {
    within(PATIENCE, || {
        let purgatory = Purgatory::<Op>::new("g15-drain2");
        for key in 0..3 {
            park(&purgatory, Op::new(NEVER_IN_A_TEST), [key]);
        }
        let begun = Instant::now();
        assert_eq!(purgatory.drain(Duration::from_millis(30)), 3);
        assert!(begun.elapsed() >= Duration::from_millis(30));
        assert_eq!(purgatory.drain(Duration::ZERO), 3);
        assert_eq!(purgatory.snapshot().len(), 3);
        let drain = drain_on_a_thread(&purgatory);
        thread::sleep(SOON);
        purgatory.shutdown();
        assert_eq!(drain.join().expect("no panic"), 0);
    });
}

/// Where no thread of the library drives the timer, the drain does, perhaps on the reactor's own thread.
#[test]
fn g15_a_drain_without_a_reaper_drives_the_timer() {
    for reaper in [Reaper::Manual, Reaper::Reactor(WakeFn::new(|| true))] {
        let driven = Purgatory::<Op>::builder("g15-drain3").reaper(reaper);
        let driven = driven.build().expect("no threads to refuse");
        admit(&driven, Op::new(SOON), [0]);
        assert_eq!(driven.drain(PATIENCE / 4), 0);
        assert_eq!(driven.stats().expired, 1);
    }
}

#[test]
fn g15_a_drain_in_a_callback_does_not_wait_for_its_own_thread() {
    within(PATIENCE, || {
        let purgatory = Purgatory::<Op>::new("g15-drain4");
        let (inside, (tell, told)) = (purgatory.clone(), channel());
        let op = Op::new(NEVER_IN_A_TEST).then(move |_| {
            let left = inside.drain(NEVER_IN_A_TEST);
            tell.send(left).expect("the test waits");
        });
        park(&purgatory, op, [1]);
        park(&purgatory, Op::new(NEVER_IN_A_TEST), [2]);
        assert_eq!(purgatory.force_complete_for_key(&1), 1);
        assert_eq!(told.recv(), Ok(1));
        purgatory.shutdown();
    });
}

/// Also those that the thread which drives the timer runs itself, and those that it has yet to hand over.
#[test]
fn g15_a_drain_waits_for_the_completions_of_the_pass_in_progress() {
    for dispatch in [Dispatch::Inline, Dispatch::OwnThread] {
        within(PATIENCE, || {
            let builder = Purgatory::<Op>::builder("g15-drain6").dispatch(dispatch);
            let purgatory = builder.build().expect("threads are to be had");
            let probe = Probe::new();
            let ending = probe.clone();
            let op = Op::new(SOON).then(move |completion| {
                thread::sleep(Duration::from_millis(100));
                ending.end(completion);
            });
            admit(&purgatory, op, [1]);
            assert_eq!(purgatory.drain(NEVER_IN_A_TEST), 0);
            assert_eq!(probe.ending(), Some(Completion::Expired));
        });
    }
}

/// A check examines an operation while its deadline passes, and expires it. It hands the completion over before it runs
/// that of another one, which takes long.
#[test]
fn g15_a_drain_waits_for_what_a_check_found_expired() {
    within(PATIENCE, || {
        let (purgatory, clock) = manual(|builder| builder.dispatch(Dispatch::OwnThread));
        // Satisfied by the check, which runs its completion.
        let ((gate, wait), slow, expired) = (Gate::new(), Probe::new(), Probe::new());
        let op = slow.op(NEVER_IN_A_TEST).then(move |_| wait());
        park(&purgatory, op, [1]);
        slow.satisfy();
        let (op, stall) = expired.stalled_op(NEVER_IN_A_TEST);
        park(&purgatory, op, [1]);
        let check = stall.check(&purgatory, 1);
        stall.end_after_the_deadline(&purgatory, &clock);
        gate.entered();
        assert_eq!(purgatory.drain(NEVER_IN_A_TEST), 0);
        // Which does not wait for what the check itself completes.
        assert_eq!(expired.ending(), Some(Completion::Expired));
        gate.open();
        assert_eq!(check.join().expect("no panic"), 1);
    });
}

/// Threads park while the drain comes: what it admits before it refuses, it waits for.
#[test]
fn g15_nothing_is_admitted_once_a_drain_has_answered() {
    within(PATIENCE, || {
        for _ in 0..50 {
            let purgatory = Purgatory::<Op>::new("g15-drain5");
            let parkers = [0, 1, 2].map(|key| {
                let purgatory = purgatory.clone();
                let op = || Op::new(Duration::from_millis(1));
                let park = move || purgatory.try_complete_else_watch(op(), [key]).is_ok();
                thread::spawn(move || (0_u64..).find(|_| !park()).expect("it ends"))
            });
            assert_eq!(purgatory.drain(NEVER_IN_A_TEST), 0);
            let expired = purgatory.stats().expired;
            let admitted = parkers.map(|parker| parker.join().expect("no panic"));
            assert_eq!(admitted.into_iter().sum::<u64>(), expired);
            let stats = purgatory.stats();
            let left = (stats.parked, stats.completions_pending);
            assert_eq!((stats.expired, left), (expired, (0, 0)));
        }
    });
}

/// The deadline passes while a check examines the operation, which the check then ends and completes itself. The check
/// is in its first examination, or has made as many as it may and is asked for once more.
#[test]
fn g15_a_drain_waits_for_a_completion_in_the_hands_of_a_check() {
    for is_overasked in [false, true] {
        within(PATIENCE, move || {
            let (purgatory, clock) = manual(|builder| builder.dispatch(Dispatch::Inline));
            let (gate, wait) = Gate::new();
            let check = if is_overasked {
                let expire = move |purgatory: &Purgatory<Op>| {
                    clock.advance(2 * NEVER_IN_A_TEST);
                    assert_eq!(purgatory.advance(), 0, "the check holds it");
                };
                let op = overasked_op(&purgatory, expire, || false);
                park(&purgatory, op.then(move |_| wait()), [1]);
                let same = purgatory.clone();
                thread::spawn(move || same.check_and_complete(&1))
            } else {
                let (op, stall) = Probe::new().stalled_op(NEVER_IN_A_TEST);
                park(&purgatory, op.then(move |_| wait()), [1]);
                let check = stall.check(&purgatory, 1);
                stall.end_after_the_deadline(&purgatory, &clock);
                check
            };
            assert_eq!(gate.entered(), check.thread().id());
            assert_that_a_drain_waits_for(&purgatory, gate);
            assert_eq!(check.join().expect("no panic"), 0);
        });
    }
}

/// A deferred check ends the last one, whose key takes its time to be dropped before the completion is handed over.
#[test]
fn g15_a_drain_waits_for_the_completions_of_a_deferred_check() {
    for dispatch in [Dispatch::Inline, Dispatch::OwnThread] {
        within(PATIENCE, || {
            let builder = Purgatory::<Op<Acting>>::builder("g15-drain8").dispatch(dispatch);
            let purgatory = builder.build().expect("threads are to be had");
            let ((gate, wait), probe) = (Gate::new(), Probe::new());
            let act: Act = Arc::new(wait);
            park(
                &purgatory,
                probe.op(NEVER_IN_A_TEST),
                [Acting(1, Some(act))],
            );
            probe.satisfy();
            purgatory.check_later(Acting(1, None));
            gate.entered();
            assert_eq!(probe.ending(), None);
            assert_that_a_drain_waits_for(&purgatory, gate);
            assert_eq!(probe.ending(), Some(Completion::Satisfied));
        });
    }
}

/// It looks again and again, and sleeps in between.
#[test]
fn g15_a_drain_leaves_the_processor_to_others() {
    within(PATIENCE, || {
        let purgatory = Purgatory::<Op>::new("g15-drain7");
        park(&purgatory, Op::new(NEVER_IN_A_TEST), [1]);
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
