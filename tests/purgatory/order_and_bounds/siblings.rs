//! G1, G7, G14, G15: several purgatories share a clock, a reaper or a thread, and none takes another for itself.

use crate::support::{NEVER_IN_A_TEST, Op, PATIENCE, Probe, Tally};
use crate::support::{eventually, lock, manual, threads_named, within};
use request_purgatory::threads::{Dispatch, Reaper, ReaperThread};
use request_purgatory::time::{Clock, ManualClock, WakeFn};
use request_purgatory::{Completion, Purgatory};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const SOON: Duration = Duration::from_millis(5);

/// Wherever its completions run: only its own threads end with it.
#[test]
fn g15_the_end_of_one_leaves_the_shared_reaper_to_the_others() {
    within(PATIENCE, || {
        let name = "g15-siblings";
        let shared = ReaperThread::spawn(name).expect("threads are to be had");
        eventually("two named threads", || threads_named(name).len() == 2);
        let build = |dispatch| {
            let builder = Purgatory::<Op>::builder("g15").reaper(Reaper::Shared(shared.clone()));
            let built = builder.dispatch(dispatch).build();
            built.expect("no threads to refuse")
        };
        let stays = build(Dispatch::OwnThread);
        let executor = Dispatch::Executor(Arc::new(|job| job()));
        for dispatch in [Dispatch::OwnThread, Dispatch::Inline, executor] {
            let ends: [fn(Purgatory<Op>); 2] = [drop, |gone| gone.shutdown()];
            for end in ends {
                end(build(dispatch.clone()));
                assert_eq!(threads_named(name).len(), 2, "{dispatch:?}");
                let probe = Probe::new();
                let parked = stays.try_complete_else_watch(probe.op(SOON), [1]);
                assert!(parked.is_ok());
                eventually("its expiry", || probe.ending() == Some(Completion::Expired));
            }
        }
    });
}

/// One is gone, and the wake function of the next moves the clock, while that wakes all: each other one is woken by
/// this and by every later move.
#[test]
fn g07_a_clock_that_a_wake_function_moves_forgets_none_that_is_left() {
    let (clock, woken) = (ManualClock::new(), [(); 2].map(|()| Tally::new()));
    clock.subscribe(WakeFn::new(|| false));
    let moves = Arc::new(Mutex::new(None::<ManualClock>));
    for count in woken.clone() {
        let moves = moves.clone();
        clock.subscribe(WakeFn::new(move || {
            count.add();
            let moved = lock(&moves).take();
            moved.into_iter().for_each(|clock| clock.advance(SOON));
            true
        }));
    }
    *lock(&moves) = Some(clock.clone());
    for wakes in [2, 3, 4] {
        clock.advance(SOON);
        assert_eq!(woken.each_ref().map(|woken| woken.count()), [wakes; 2]);
    }
}

/// What a wake function subscribes is woken by every later move.
#[test]
fn g07_a_clock_keeps_what_subscribes_while_it_moves() {
    let (clock, woken) = (ManualClock::new(), Tally::new());
    let (subscribes, count) = (Mutex::new(Some(clock.clone())), woken.clone());
    clock.subscribe(WakeFn::new(move || {
        if let Some(clock) = lock(&subscribes).take() {
            let count = count.clone();
            clock.subscribe(WakeFn::new(move || {
                count.add();
                true
            }));
        }
        true
    }));
    clock.advance(SOON);
    let before = woken.count();
    clock.advance(SOON);
    clock.advance(SOON);
    assert_eq!(woken.count() - before, 2);
}

/// The first that a thread parks in each of two purgatories. Both check one key, the second when the check of the first
/// has been made.
#[test]
fn g14_operations_of_two_purgatories_cause_a_nested_check_each() {
    let [one, other] = [(); 2].map(|()| manual::<u64>(|builder| builder).0);
    let (probe, armed) = (Probe::new(), Arc::new(AtomicBool::new(false)));
    let check = |purgatory: &Purgatory<Op>, key| {
        let (weak, armed) = (purgatory.downgrade(), armed.clone());
        move || {
            let purgatory = weak.upgrade().expect("the test has it");
            if armed.load(Ordering::SeqCst) {
                assert_eq!(purgatory.check_and_complete(&key), 0, "it waits");
            }
        }
    };
    let (early, next, late) = (check(&one, 7), check(&other, 1), check(&one, 7));
    let first = Op::new(NEVER_IN_A_TEST).when(move || {
        early();
        next();
        false
    });
    let (happens, enabled) = (probe.clone(), armed.clone());
    let second = Op::new(NEVER_IN_A_TEST).when(move || {
        if enabled.load(Ordering::SeqCst) {
            happens.satisfy();
        }
        late();
        false
    });
    drop(one.try_complete_else_watch(first, [1]));
    drop(other.try_complete_else_watch(second, [1]));
    drop(one.try_complete_else_watch(probe.op(NEVER_IN_A_TEST), [7]));
    armed.store(true, Ordering::SeqCst);
    assert_eq!(one.check_and_complete(&1), 0);
    assert_eq!(probe.ending(), Some(Completion::Satisfied));
    assert_eq!(probe.examinations(), 4, "two of the park, and two checks");
}
