//! What the destructor of a key may do, whichever call drops the key: end another operation, queue a call that panics
//! (G12), or take long. It costs no operation its ending (G05), no thread its way out of the library, and no drain or
//! shutdown its end (G15).

use super::calls::{CALLS, Key, OTHER, Scene, assert_all_end, key};
use crate::chains::scene::{Breaks, Gate, park};
use crate::lost_completion::steps::{FIRST_CHECK, hooked_op, park_hook};
use crate::support::keys::{Acting, fragile};
use crate::support::{
    BadPayload, Job, NEVER_IN_A_TEST, Op, PATIENCE, Probe, Tally, eventually, manual,
    threads_named, within,
};
use request_purgatory::{
    Completion, Purgatory, Waits, future::block_on, purgatory::RejectReason, threads::Dispatch,
    threads::run_unnested,
};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

const TICK: Duration = Duration::from_millis(1);

fn acting(number: u32, act: impl Fn() + Send + Sync + 'static) -> Key {
    Breaks(fragile(number), Acting(0, Some(Arc::new(act))))
}

/// The payload of the panic panics in turn when it is dropped.
fn panics() {
    resume_unwind(Box::new(BadPayload));
}

/// A key that, when it is dropped, forces another operation of `purgatory`, whose completion then panics.
fn forcing(number: u32, purgatory: &Purgatory<Op<Key>>) -> Key {
    let op = Op::new(NEVER_IN_A_TEST).then(|_| panics());
    let another = park(purgatory, op, [key(7)]);
    acting(number, move || _ = another.force_complete())
}

/// Each call returns what it returns otherwise, the operations that it takes back above all, and the thread leaves the
/// library.
#[test]
fn g05_g12_what_a_dropped_key_forces_costs_no_call_its_result() {
    within(PATIENCE, || {
        let waits = Waits::<u64>::new("outside");
        for (name, call) in CALLS {
            let mut scene = Scene::new(3, |all| forcing(OTHER, all));
            let returned = catch_unwind(AssertUnwindSafe(|| call(&mut scene)));
            assert!(returned.is_ok(), "{name}: the panic is counted");
            // A blocking call is refused inside the library.
            assert_eq!(block_on(waits.wait([1], TICK, || Some(7))), Ok(7), "{name}");
            let ended = scene.endings().flatten().count() + scene.taken;
            let panicked = scene.all.stats().panicked;
            assert_eq!(panicked, ended as u64, "{name}: of the others' completions");
            assert_all_end(scene, &returned, name);
        }
    });
}

/// A call of the library in which this key is dropped.
type Within = fn(Key) -> Purgatory<Op<Key>>;

const WITHIN: [(&str, Within); 4] = [
    ("a refused park returns its operation", |loud| {
        let (purgatory, _clock) = manual::<Key>(|builder| builder.max_watchers_per_key(1));
        park(&purgatory, Op::new(NEVER_IN_A_TEST), [key(5)]);
        let op = Op::new(NEVER_IN_A_TEST);
        let parked = purgatory.try_complete_else_watch(op, [loud, key(5)]);
        let refused = parked.expect_err("the key is full");
        assert_eq!(refused.reason(), RejectReason::KeyFull);
        assert_eq!(purgatory.stats().parked, 1);
        purgatory
    }),
    // The handle is the only way to cancel the operation that has been parked.
    ("a park returns the handle", |loud| {
        let (purgatory, _clock) = manual::<Key>(|builder| builder);
        let mut loud = Some(loud);
        let handle = park_hook(&purgatory, [key(9)], move |_, _| {
            drop(loud.take());
            false
        });
        assert!(handle.cancel().is_some());
        purgatory
    }),
    // The threads of an executor are the user's: what waited for the end of a job must not end them.
    ("a job returns", |loud| {
        let (tell, ran) = channel();
        let executor = Dispatch::Executor(Arc::new(move |job: Job| {
            let ended = thread::spawn(job).join();
            tell.send(ended.is_ok()).expect("the test waits");
        }));
        let (purgatory, clock) = manual::<Key>(|builder| builder.dispatch(executor));
        let op = Op::new(TICK).then(move |_| drop(loud));
        park(&purgatory, op, [key(9)]);
        clock.advance(TICK);
        assert_eq!(purgatory.advance(), 1);
        assert_eq!(ran.recv(), Ok(true), "the job has panicked");
        purgatory
    }),
    ("a shutdown stops its threads", |loud| {
        let purgatory = Purgatory::<Op<Key>>::new("g15-badkey");
        park(&purgatory, Op::new(NEVER_IN_A_TEST), [loud]);
        let threads = || threads_named("g15-badkey").len();
        eventually("its threads", || threads() > 0);
        purgatory.shutdown();
        eventually("the end of its threads", || threads() == 0);
        purgatory
    }),
];

/// The call that the destructor of the key queues runs when the outermost call is about to return.
#[test]
fn g05_g12_g15_a_queued_call_that_panics_costs_no_call_its_end() {
    for (what, call) in WITHIN {
        within(PATIENCE, move || {
            let loud = acting(2, || run_unnested(panics));
            let called = catch_unwind(AssertUnwindSafe(|| call(loud)));
            let panicked = called.ok().map(|purgatory| purgatory.stats().panicked);
            assert_eq!(panicked, Some(1), "{what}");
        });
    }
}

/// A check finds that the deadline of the operation has passed. Between the count of its end and the hand-over of its
/// completion, a key takes its time to be dropped.
#[test]
fn g15_a_drain_waits_while_the_keys_of_an_expired_operation_are_dropped() {
    within(PATIENCE, || {
        let (purgatory, clock) = manual::<Key>(|builder| builder.dispatch(Dispatch::OwnThread));
        let ((gate, wait), probe) = (Gate::new(), Probe::new());
        let (op, stall) = probe.stalled_op(NEVER_IN_A_TEST);
        park(&purgatory, op, [acting(1, wait)]);
        let check = stall.check(&purgatory, key(1));
        stall.end_after_the_deadline(&purgatory, &clock);
        // Its key is dropped.
        gate.entered();
        assert!(purgatory.is_empty(), "it has ended");
        let begun = Instant::now();
        assert_eq!(purgatory.drain(20 * TICK), 0);
        assert!(begun.elapsed() >= 20 * TICK, "its completion has not run");
        gate.open();
        assert_eq!(purgatory.drain(NEVER_IN_A_TEST), 0);
        assert_eq!(probe.ending(), Some(Completion::Expired));
        assert_eq!(check.join().expect("no panic"), 0);
    });
}

/// Between two examinations of a check its list is emptied, and another one of that key filled: the check does not go
/// on in that one.
#[test]
fn g22_a_check_whose_list_was_emptied_meets_none_of_the_next_list() {
    const WATCHERS: u64 = 200;
    within(PATIENCE, || {
        let (purgatory, _clock) = manual::<Key>(|builder| builder);
        let (weak, met) = (purgatory.downgrade(), Tally::new());
        let meets = met.clone();
        let replace = acting(1, move || {
            let all = weak.upgrade().expect("it is checked");
            let others = all.cancel_for_key(&key(1)).len() as u64;
            assert_eq!(others, WATCHERS - 1);
            for _ in 0..2 * WATCHERS {
                let meets = meets.clone();
                park_hook(&all, [key(1)], move |_, _| {
                    meets.add();
                    false
                });
            }
        });
        park(&purgatory, Op::new(NEVER_IN_A_TEST), [key(1)]);
        let satisfied = hooked_op(&purgatory, NEVER_IN_A_TEST, |_, nth| nth == FIRST_CHECK);
        park(&purgatory, satisfied, [replace]);
        for _ in 2..WATCHERS {
            park(&purgatory, Op::new(NEVER_IN_A_TEST), [key(1)]);
        }
        assert_eq!(purgatory.check_and_complete(&key(1)), 1);
        assert_eq!(purgatory.stats().panicked, 0);
        // Each is examined twice in its park.
        assert_eq!(met.count(), 2 * 2 * WATCHERS);
    });
}
