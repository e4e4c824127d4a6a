//! What the destructor of a key may do, whichever call drops the key: panic (G12), end other operations, or take long.
//! It costs no operation its ending (G05), no thread its way out of the library, and no drain or shutdown its end
//! (G15).

use super::calls::{CALLS, Key, OTHER, Scene, assert_all_end, key};
use crate::support::keys::fragile;
use crate::support::{
    BadPayload, Job, NEVER_IN_A_TEST, Op, PATIENCE, Probe, Tally, eventually, lock, manual,
    on_a_stack_of, threads_named, within,
};
use request_purgatory::{
    Completion, Handle, Purgatory, Waits, Watch, future::block_on, purgatory::RejectReason,
    threads::Dispatch, time::ManualClock,
};
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

const TICK: Duration = Duration::from_millis(1);

thread_local! {
    static LIT: Cell<bool> = const { Cell::new(false) };
    static ARMED: Cell<bool> = const { Cell::new(false) };
    /// How many keys were dropped while `LIT` was set.
    static DROPPED: Cell<u64> = const { Cell::new(0) };
}

/// A key whose destructor panics also while the thread unwinds: of two such panics at once, the process dies.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Bomb(u64);

impl Drop for Bomb {
    fn drop(&mut self) {
        DROPPED.set(DROPPED.get() + u64::from(LIT.get()));
        assert!(!LIT.get(), "a key");
    }
}

/// A completion panics, and so does a key of its operation, which the unwinding drops: both are counted.
#[test]
fn g12_a_completion_and_a_key_of_its_operation_panic() {
    let (purgatory, _clock) = manual::<Bomb>(|builder| builder);
    let probe = Probe::new();
    let op = probe.op(NEVER_IN_A_TEST).then(|_| {
        LIT.set(true);
        resume_unwind(Box::new("a completion"));
    });
    drop(purgatory.try_complete_else_watch(op, [Bomb(1)]));
    probe.satisfy();
    let key = Bomb(1);
    let completed = catch_unwind(AssertUnwindSafe(|| purgatory.check_and_complete(&key)));
    LIT.set(false);
    assert!(matches!(completed, Ok(1)), "{completed:?}");
    let stats = purgatory.stats();
    assert_eq!((stats.panicked, stats.parked, stats.watched), (2, 0, 0));
}

/// All keys of all operations that end in one call panic when they are dropped. They are dropped one by one, whatever
/// the number of keys of an operation, and of operations.
#[test]
fn g12_several_keys_that_panic_when_they_are_dropped_are_each_counted() {
    type End = fn(&Purgatory<Op<Bomb>>, &ManualClock, &Bomb) -> usize;
    const ENDS: [(&str, End); 4] = [
        ("a check", |all, _, key| all.check_and_complete(key)),
        ("a cancel", |all, _, key| all.cancel_for_key(key).len()),
        ("forced ends", |all, _, key| all.force_complete_for_key(key)),
        ("an expiry", |all, clock, _| {
            clock.advance(TICK);
            all.advance()
        }),
    ];
    for (name, end) in ENDS {
        for (operations, keys) in [(1, 2), (1, 3), (1, 5), (2, 1), (3, 2), (100, 4)] {
            let (purgatory, clock) = manual::<Bomb>(|builder| builder);
            let ready = Arc::new(AtomicBool::new(false));
            for _ in 0..operations {
                let ready = ready.clone();
                let op = Op::new(TICK).when(move || ready.load(Ordering::Relaxed));
                let parked = purgatory.try_complete_else_watch(op, (0..keys).map(Bomb));
                assert!(parked.is_ok_and(|it| it.is_parked()), "{name}");
            }
            let key = Bomb(0);
            ready.store(name == "a check", Ordering::Relaxed);
            LIT.set(true);
            let ended = catch_unwind(AssertUnwindSafe(|| end(&purgatory, &clock, &key)));
            LIT.set(false);
            let what = format!("{name} of {operations} with {keys} keys");
            assert_eq!(ended.ok(), Some(operations), "{what}");
            let stats = purgatory.stats();
            assert!(stats.panicked >= operations as u64 * keys, "{what}");
            assert_eq!((stats.parked, stats.watched), (0, 0), "{what}");
        }
    }
}

/// An operation checks keys of two purgatories in its `try_complete`. When these nested checks have been made, their
/// keys are dropped, and all destructors panic: one after another, so that each runs, and the process goes on.
#[test]
fn g12_keys_of_nested_checks_panic_one_by_one() {
    const KEYS: u64 = 3;
    let purgatories = [(); 2].map(|()| manual::<Bomb>(|builder| builder).0);
    for (purgatory, key) in purgatories
        .iter()
        .flat_map(|it| (0..KEYS).map(move |key| (it, key)))
    {
        // From the first nested check on, every destructor panics.
        let watcher = Op::new(NEVER_IN_A_TEST).when(|| {
            LIT.set(ARMED.get());
            false
        });
        assert!(
            purgatory
                .try_complete_else_watch(watcher, [Bomb(key)])
                .is_ok()
        );
    }
    let all = purgatories.clone();
    let checking = Op::new(NEVER_IN_A_TEST).when(move || {
        for key in (0..KEYS).filter(|_| ARMED.get()).map(Bomb) {
            for purgatory in &all {
                purgatory.check_and_complete(&key);
            }
        }
        false
    });
    let key = Bomb(KEYS);
    assert!(
        purgatories[0]
            .try_complete_else_watch(checking, [key.clone()])
            .is_ok()
    );
    ARMED.set(true);
    let checked = catch_unwind(AssertUnwindSafe(|| purgatories[0].check_and_complete(&key)));
    ARMED.set(false);
    LIT.set(false);
    assert!(checked.is_err());
    assert_eq!(DROPPED.take(), 2 * KEYS);
}

/// The list of a resolved key goes, whatever ends its last use: its own key and that of the map are dropped one by one.
#[test]
fn g12_the_keys_of_a_resolved_list_that_goes_panic_one_by_one() {
    type End = fn(&Purgatory<Op<Bomb>>, &ManualClock, &Handle<Op<Bomb>>);
    const ENDS: [(&str, End); 4] = [
        ("none was parked", |_, _, _| ()),
        ("a forced end", |_, _, handle| _ = handle.force_complete()),
        ("a cancel", |_, _, handle| drop(handle.cancel())),
        ("an expiry", |all, clock, _| {
            clock.advance(TICK);
            all.advance();
        }),
    ];
    for (name, end) in ENDS {
        let (purgatory, clock) = manual::<Bomb>(|builder| builder);
        let [first, second] = [purgatory.resolve(Bomb(1)), purgatory.resolve(Bomb(1))];
        let other = Bomb(2);
        let watch = match name {
            "none was parked" => Watch::from(other.clone()),
            _ => first.watch(),
        };
        let parked = purgatory.try_complete_else_watch(Op::new(TICK), [watch]);
        let handle = parked.expect("there is room").into_handle();
        let handle = handle.expect("it cannot complete yet");
        LIT.set(true);
        // The last `ResolvedKey` may drop its key itself: that panic is the caller's.
        for key in [first, second] {
            _ = catch_unwind(AssertUnwindSafe(|| drop(key)));
        }
        let ended = catch_unwind(AssertUnwindSafe(|| end(&purgatory, &clock, &handle)));
        LIT.set(false);
        assert!(ended.is_ok(), "{name}");
        let left = usize::from(name == "none was parked");
        assert_eq!(purgatory.watched_keys(), left, "{name}");
    }
}

/// The keys that a call has copied for itself, or was given, are dropped one by one as well. The first of their panics
/// goes to the caller, or is counted where the caller gets a list.
#[test]
fn g12_several_keys_that_panic_when_their_call_drops_them_abort_nothing() {
    type Call = fn(&Purgatory<Op<Bomb>>, u64);
    const CALLS: [(&str, bool, Call); 3] = [
        ("a check of the keys that", false, |all, _| {
            all.check_where(|_| false);
        }),
        ("a snapshot", true, |all, keys| {
            let found = all.snapshot();
            LIT.set(false);
            assert_eq!(found.len() as u64, keys);
            assert_eq!(all.stats().panicked, 1);
        }),
        ("a park that completes at once", false, |all, keys| {
            let op = Op::new(NEVER_IN_A_TEST).when(|| true);
            drop(all.try_complete_else_watch(op, (0..keys).map(Bomb)));
        }),
    ];
    for (name, returns, call) in CALLS {
        for keys in [2, 3, 5] {
            let (purgatory, _clock) = manual::<Bomb>(|builder| builder);
            for key in 0..keys {
                let op = Op::new(NEVER_IN_A_TEST);
                let parked = purgatory.try_complete_else_watch(op, [Bomb(key)]);
                assert!(parked.is_ok_and(|it| it.is_parked()), "{name}");
            }
            LIT.set(true);
            let made = catch_unwind(AssertUnwindSafe(|| call(&purgatory, keys)));
            LIT.set(false);
            assert_eq!(made.is_ok(), returns, "{name} with {keys} keys");
            assert_eq!(purgatory.stats().parked as u64, keys, "{name}");
        }
    }
}

/// After a storm a snapshot finds operations that have ended, and drops what it has copied of their keys.
#[test]
fn g12_keys_of_ended_operations_that_panic_in_a_snapshot_abort_nothing() {
    const STORM: u64 = 100;
    let (purgatory, clock) = manual::<Bomb>(|builder| builder);
    let (weak, (tell, found)) = (purgatory.downgrade(), channel());
    let mut snapshot = Some(move |_: Completion| {
        let all = weak.upgrade().expect("it drives the timer");
        LIT.set(true);
        let found = all.snapshot();
        LIT.set(false);
        let told = tell.send((found.len(), all.stats().panicked));
        told.expect("the test waits");
    });
    for _ in 0..STORM {
        let op = match snapshot.take() {
            Some(snapshot) => Op::new(TICK).then(snapshot),
            None => Op::new(TICK),
        };
        let parked = purgatory.try_complete_else_watch(op, [1, 2].map(Bomb));
        assert!(parked.is_ok_and(|it| it.is_parked()));
    }
    clock.advance(TICK);
    assert_eq!(purgatory.advance() as u64, STORM);
    // One of the keys that are watched, and one of each operation's.
    assert_eq!(found.try_recv(), Ok((0, 1 + STORM)));
}

fn acting(number: u32, act: impl Fn() + Send + Sync + 'static) -> Key {
    Key(fragile(number), Some(Arc::new(act)))
}

/// The handle of an operation that parks.
fn park(
    purgatory: &Purgatory<Op<Key>>,
    op: Op<Key>,
    keys: impl IntoIterator<Item = Key>,
) -> Handle<Op<Key>> {
    let parked = purgatory.try_complete_else_watch(op, keys);
    let handle = parked.ok().and_then(|parked| parked.into_handle());
    handle.expect("it is parked")
}

/// A key that, when it is dropped, forces another operation of `purgatory`, whose key then panics when it is dropped.
/// The payload of that panic may panic in turn.
fn forcing(number: u32, purgatory: &Purgatory<Op<Key>>) -> Key {
    let panics = acting(7, || resume_unwind(Box::new(BadPayload)));
    let another = park(purgatory, Op::new(NEVER_IN_A_TEST), [panics]);
    acting(number, move || _ = another.force_complete())
}

/// Each call returns what it returns otherwise, the operations that it takes back above all, and the thread leaves the
/// library.
#[test]
fn g05_g12_a_key_whose_drop_causes_a_panic_costs_no_call_its_result() {
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
            assert_eq!(panicked, ended as u64, "{name}: of the others' keys");
            assert_all_end(scene, &returned, name);
        }
    });
}

/// A call of the library in which this key is dropped.
type Within = fn(Key);

const WITHIN: [(&str, Within); 4] = [
    ("a refused park returns its operation", |first| {
        let (purgatory, _clock) = manual::<Key>(|builder| builder.max_watchers_per_key(1));
        park(&purgatory, Op::new(NEVER_IN_A_TEST), [key(5)]);
        let op = Op::new(NEVER_IN_A_TEST);
        let parked = purgatory.try_complete_else_watch(op, [first, key(5)]);
        let refused = parked.expect_err("the key is full");
        assert_eq!(refused.reason(), RejectReason::KeyFull);
        assert_eq!(purgatory.stats().parked, 1);
    }),
    // The handle is the only way to cancel the operation that has been parked.
    ("a park returns the handle", |first| {
        let (purgatory, _clock) = manual::<Key>(|builder| builder);
        let mut first = Some(first);
        let op = Op::new(NEVER_IN_A_TEST).when(move || {
            drop(first.take());
            false
        });
        assert!(park(&purgatory, op, [key(9)]).cancel().is_some());
    }),
    // The threads of an executor are the user's: what waited for the end of a job must not end them.
    ("a job returns", |first| {
        let (tell, ran) = channel();
        let executor = Dispatch::Executor(Arc::new(move |job: Job| {
            let ended = thread::spawn(job).join();
            tell.send(ended.is_ok()).expect("the test waits");
        }));
        let (purgatory, clock) = manual::<Key>(|builder| builder.dispatch(executor));
        park(
            &purgatory,
            Op::new(TICK).then(move |_| drop(first)),
            [key(9)],
        );
        clock.advance(TICK);
        assert_eq!(purgatory.advance(), 1);
        assert_eq!(ran.recv(), Ok(true), "the job has panicked");
    }),
    ("a shutdown stops its threads", |first| {
        let purgatory = Purgatory::<Op<Key>>::new("g15-badkey");
        park(&purgatory, Op::new(NEVER_IN_A_TEST), [first]);
        let threads = || threads_named("g15-badkey").len();
        eventually("its threads", || threads() > 0);
        purgatory.shutdown();
        eventually("the end of its threads", || threads() == 0);
    }),
];

/// The key forces an operation, whose key forces another one, whose key panics.
#[test]
fn g05_g12_g15_a_key_whose_drop_causes_a_panic_costs_no_call_its_end() {
    for (what, call) in WITHIN {
        within(PATIENCE, move || {
            let (other, _clock) = manual::<Key>(|builder| builder);
            let forcing = forcing(1, &other);
            let first = park(&other, Op::new(NEVER_IN_A_TEST), [forcing]);
            let first = acting(2, move || _ = first.force_complete());
            let returned = catch_unwind(AssertUnwindSafe(|| call(first)));
            assert!(returned.is_ok(), "{what}");
            let stats = other.stats();
            assert_eq!((stats.completed, stats.panicked), (2, 1), "{what}");
        });
    }
}

/// Checks that wait at the shutdown are not made. A key that panics when it is dropped then costs no other one its
/// drop.
#[test]
fn g12_keys_of_deferred_checks_that_panic_at_the_shutdown_are_counted() {
    let (purgatory, _clock) = manual::<Key>(|builder| builder);
    for number in 0..3 {
        purgatory.check_later(acting(number, || resume_unwind(Box::new("intended"))));
    }
    let shut_down = catch_unwind(AssertUnwindSafe(|| purgatory.shutdown()));
    assert!(shut_down.is_ok());
    assert_eq!(purgatory.stats().panicked, 3);
}

/// Checks wait at the shutdown, and the destructor of each key defers one more.
#[test]
fn g14_keys_that_defer_checks_when_they_are_dropped_at_the_shutdown_do_not_nest() {
    let (purgatory, _clock) = manual::<Key>(|builder| builder);
    for number in 10..20_010 {
        let all = purgatory.downgrade();
        let defer = move || {
            if let Some(all) = all.upgrade() {
                all.check_later(key(OTHER));
            }
        };
        purgatory.check_later(acting(number, defer));
    }
    let shared = purgatory.clone();
    on_a_stack_of(256, move || shared.shutdown());
    assert_eq!(purgatory.stats().panicked, 0);
}

/// A check finds that the deadline of the operation has passed. Between the count of its end and the hand-over of its
/// completion, a key takes its time to be dropped.
#[test]
fn g15_a_drain_waits_while_the_keys_of_an_expired_operation_are_dropped() {
    within(PATIENCE, || {
        let (purgatory, clock) = manual::<Key>(|builder| builder.dispatch(Dispatch::OwnThread));
        let ((dropping, is_dropping), (drop_it, may_drop)) = (channel(), channel::<()>());
        let may_drop = Mutex::new(may_drop);
        let slow = acting(1, move || {
            dropping.send(()).expect("the test waits");
            lock(&may_drop).recv().expect("the test says so");
        });
        let probe = Probe::new();
        let (op, stall) = probe.stalled_op(NEVER_IN_A_TEST);
        park(&purgatory, op, [slow]);
        let check = stall.check(&purgatory, key(1));
        stall.end_after_the_deadline(&purgatory, &clock);
        is_dropping.recv().expect("its key is dropped");
        assert!(purgatory.is_empty(), "it has ended");
        let begun = Instant::now();
        assert_eq!(purgatory.drain(20 * TICK), 0);
        assert!(begun.elapsed() >= 20 * TICK, "its completion has not run");
        drop_it.send(()).expect("the key waits");
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
                let newcomer = Op::new(NEVER_IN_A_TEST).when(move || {
                    meets.add();
                    false
                });
                park(&all, newcomer, [key(1)]);
            }
        });
        park(&purgatory, Op::new(NEVER_IN_A_TEST), [key(1)]);
        let mut examinations = 0;
        let satisfied = Op::new(NEVER_IN_A_TEST).when(move || {
            examinations += 1;
            examinations == 3
        });
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
