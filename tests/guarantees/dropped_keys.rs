//! What the destructor of a key may do, whichever call drops the key: panic (G12), end other operations, or take long.
//! It costs no operation its ending (G05), no thread its way out of the library, and no drain or shutdown its end (G15).

use crate::support::keys::{Act, Acting, by_number};
use crate::support::{
    NEVER_IN_A_TEST, Op, PATIENCE, Probe, Tally, eventually, lock, manual, refusal, threads_named,
    within,
};
use request_purgatory::{
    Completion, Handle, Purgatory, Waits, future::block_on, purgatory::RejectReason,
    threads::Dispatch, threads::Reaper, threads::ReaperThread, time::Clock, time::Timestamp,
};
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

const TICK: Duration = Duration::from_millis(1);
const SOON: Duration = Duration::from_secs(1);

thread_local!(static LIT: Cell<bool> = const { Cell::new(false) });

/// A key whose destructor panics also while the thread unwinds: of two such panics at once, the process dies.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Bomb(u64);

impl Drop for Bomb {
    fn drop(&mut self) {
        assert!(!LIT.get(), "a key");
    }
}

/// Calls this while every key that is dropped on this thread panics.
fn lit<R>(call: impl FnOnce() -> R) -> thread::Result<R> {
    LIT.set(true);
    let result = catch_unwind(AssertUnwindSafe(call));
    LIT.set(false);
    result
}

#[test]
fn g12_keys_whose_destructors_panic_are_dropped_one_by_one_after_a_storm() {
    within(PATIENCE, || {
        let (purgatory, clock) = manual::<Bomb>(|builder| builder);
        let probes = [(); 300].map(|()| Probe::new());
        for (number, probe) in (0..).zip(&probes) {
            drop(purgatory.try_complete_else_watch(probe.op(SOON), [Bomb(number)]));
        }
        clock.advance(2 * SOON);
        let expired = lit(|| purgatory.advance());
        assert_eq!(expired.ok(), Some(probes.len()));
        let all = Some(Completion::Expired);
        assert!(probes.iter().all(|probe| probe.ending() == all));
        assert!(purgatory.stats().panicked > 0);
    });
}

type BombWatch<'a> = request_purgatory::Watch<'a, Bomb>;

/// All keys of an operation panic when they are dropped at its end, whichever end that is.
#[test]
fn g12_the_keys_of_one_operation_are_dropped_one_by_one_at_every_end() {
    type End = fn(&Purgatory<Op<Bomb>>, &Bomb);
    const ENDS: [(&str, End); 5] = [
        ("force", |all, key| _ = all.force_complete_for_key(key)),
        ("cancel", |all, key| drop(all.cancel_for_key(key))),
        ("check", |all, key| _ = all.check_and_complete(key)),
        ("expiry", |all, _| _ = all.advance()),
        ("shutdown", |all, _| all.shutdown()),
    ];
    for (name, end) in ENDS {
        for keys in 1..6 {
            for mixed in [false, true] {
                within(PATIENCE, move || {
                    let (purgatory, clock) = manual::<Bomb>(|builder| builder);
                    let probe = Probe::new();
                    let op = probe.op(SOON);
                    let ranked = |number| BombWatch::from(Bomb(number)).at_rank(number);
                    drop(match mixed {
                        true => purgatory.try_complete_else_watch(op, (0..keys).map(ranked)),
                        false => purgatory.try_complete_else_watch(op, (0..keys).map(Bomb)),
                    });
                    clock.advance(2 * SOON);
                    probe.satisfy();
                    let key = Bomb(0);
                    assert!(lit(|| end(&purgatory, &key)).is_ok(), "{name}, {keys} keys");
                    assert_eq!(probe.ending().is_some(), name != "cancel", "{name}");
                    assert_eq!(
                        (purgatory.stats().parked, purgatory.stats().watched),
                        (0, 0)
                    );
                    assert_eq!(purgatory.watched_keys(), 0);
                });
            }
        }
    }
}

/// The last of a resolved key are dropped together: the one in the map, and the one of its list.
#[test]
fn g12_a_resolved_key_whose_destructor_panics_costs_no_process() {
    within(PATIENCE, || {
        let (purgatory, _clock) = manual::<Bomb>(|builder| builder);
        let key = purgatory.resolve(Bomb(1));
        let probe = Probe::new();
        let parked = purgatory.try_complete_else_watch(probe.op(SOON), [key.watch()]);
        let handle = parked.ok().and_then(|parked| parked.into_handle());
        drop(key);
        let handle = handle.expect("it cannot complete yet");
        assert!(lit(|| handle.force_complete()).is_ok());
        assert_eq!(probe.ending(), Some(Completion::Satisfied));
        assert_eq!((purgatory.stats().parked, purgatory.watched_keys()), (0, 0));
    });
}

/// An operation that never parks leaves its keys: it has its completion or its error all the same.
#[test]
fn g12_an_operation_that_does_not_park_outlives_its_keys() {
    fn refused(purgatory: &Purgatory<Op<Bomb>>, keys: Vec<Bomb>) -> Option<RejectReason> {
        let op = Op::new(SOON);
        let refused = lit(|| purgatory.try_complete_else_watch(op, keys));
        refused.ok().and_then(|refused| refusal(&refused))
    }

    within(PATIENCE, || {
        for keys in 1..6 {
            let keys = || (0..keys).map(Bomb).collect::<Vec<_>>();
            let (purgatory, _clock) = manual::<Bomb>(|builder| builder.max_parked(0));
            let probe = Probe::new();
            probe.satisfy();
            let (op, watched) = (probe.op(SOON), keys());
            let at_once = lit(|| purgatory.try_complete_else_watch(op, watched));
            assert!(at_once.is_ok_and(|admitted| admitted.is_ok()));
            assert_eq!(probe.ending(), Some(Completion::Satisfied));
            assert_eq!(refused(&purgatory, keys()), Some(RejectReason::Full));
            purgatory.shutdown();
            assert_eq!(refused(&purgatory, keys()), Some(RejectReason::ShutDown));
        }
        // The second key is full: the first one's list is left, and the others were never watched.
        let (purgatory, _clock) = manual::<Bomb>(|builder| builder.max_watchers_per_key(1));
        drop(purgatory.try_complete_else_watch(Op::new(SOON), [Bomb(2)]));
        let keys = (1..6).map(Bomb).collect();
        assert_eq!(refused(&purgatory, keys), Some(RejectReason::KeyFull));
        assert_eq!(
            (purgatory.stats().parked, purgatory.stats().watched),
            (1, 1)
        );
        assert_eq!(purgatory.watched_keys(), 1);
    });
}

/// The destructor of a key that panics does not cost the check that it was deferred for.
#[test]
fn g01_a_deferred_check_is_made_though_a_copy_of_its_key_panics_when_dropped() {
    within(PATIENCE, || {
        let (purgatory, _clock) = manual::<Bomb>(|builder| builder);
        let probe = Probe::new();
        drop(purgatory.try_complete_else_watch(probe.op(NEVER_IN_A_TEST), [Bomb(1)]));
        purgatory.check_later(Bomb(1));
        probe.satisfy();
        assert!(lit(|| purgatory.advance()).is_ok(), "it is counted");
        assert_eq!(probe.ending(), Some(Completion::Satisfied));
    });
}

/// Keys that the library has collected are dropped one by one: of two panics together the process would die.
#[test]
fn g12_collected_keys_whose_destructors_panic_are_dropped_one_by_one() {
    type Call = fn(&Waits<Bomb>);
    let calls: [Call; 3] = [
        |waits| _ = waits.check_where(|_| false),
        |waits| drop(waits.snapshot()),
        |waits| {
            LIT.set(false);
            let keys = [Bomb(5), Bomb(6)];
            let take = waits.take(keys, NEVER_IN_A_TEST, |_| None::<()>, |()| ());
            LIT.set(true);
            drop(take);
        },
    ];
    for call in calls {
        within(PATIENCE, move || {
            let waits = Waits::<Bomb>::builder("g12").reaper(Reaper::Manual);
            let waits = waits.build().expect("no threads to refuse");
            let listeners = (0..4).map(|key| waits.listen([Bomb(key)], NEVER_IN_A_TEST));
            let listeners = listeners.collect::<Vec<_>>();
            let called = lit(|| call(&waits));
            assert!(called.is_err(), "no key has panicked");
            drop(listeners);
            assert!(waits.is_empty());
        });
    }
}

/// The destructor of a key that is dropped within another such destructor runs as a deferred call. If it panics, the
/// panic goes on, and the thread is outside the library again.
#[test]
fn g12_a_deferred_call_that_panics_leaves_the_thread_outside() {
    /// Forces the next key when it is dropped; the last one panics.
    #[derive(Clone)]
    struct Next(u64, Arc<Mutex<Option<Purgatory<Op<Next>>>>>);

    by_number!(Next);

    impl Drop for Next {
        fn drop(&mut self) {
            let purgatory = lock(&self.1).clone();
            match (purgatory, self.0) {
                (Some(purgatory), 1) => {
                    purgatory.force_complete_for_key(&Self(2, Arc::default()));
                }
                (Some(_), 2) => resume_unwind(Box::new("intended")),
                _ => {}
            }
        }
    }

    within(PATIENCE, || {
        let (purgatory, _clock) = manual::<Next>(|builder| builder);
        let place = Arc::<Mutex<_>>::default();
        let ended = Tally::new();
        for number in [1, 2] {
            let ended = ended.clone();
            let op = Op::new(NEVER_IN_A_TEST).then(move |_| ended.add());
            let key = Next(number, place.clone());
            drop(purgatory.try_complete_else_watch(op, [key]));
        }
        *lock(&place) = Some(purgatory.clone());
        let force = || purgatory.force_complete_for_key(&Next(1, Arc::default()));
        let forced = catch_unwind(AssertUnwindSafe(force));
        *lock(&place) = None;
        assert!(forced.is_err(), "no deferred call has panicked");
        assert_eq!((ended.count(), purgatory.stats().parked), (2, 0));
        // The next call on this thread is an outermost one: its completions run before it returns.
        let (seen, ending) = (Tally::new(), ended.clone());
        let saw = seen.clone();
        let op = Op::new(NEVER_IN_A_TEST).then(move |_| ending.add());
        drop(purgatory.try_complete_else_watch(op, [Next(3, Arc::default())]));
        assert_eq!(
            purgatory.force_complete_for_key(&Next(3, Arc::default())),
            1
        );
        assert_eq!(ended.count(), 3);
        let waits = Waits::<u64>::new("g12-outside");
        let answer = block_on(waits.wait([1], TICK * 1_000, move || {
            saw.add();
            Some(saw.count())
        }));
        assert_eq!(answer.ok(), Some(1));
        assert_eq!(seen.count(), 1);
    });
}

/// The payload of a panic, which panics in turn when it is dropped.
struct BadPayload;

impl Drop for BadPayload {
    fn drop(&mut self) {
        if !thread::panicking() {
            resume_unwind(Box::new("intended"));
        }
    }
}

/// A key that panics with such a payload when it is dropped.
fn bad(number: u64) -> Acting {
    let panics: Act = Arc::new(|| resume_unwind(Box::new(BadPayload)));
    Acting(number, Some(panics))
}

/// The handle of an operation that parks.
fn park(
    purgatory: &Purgatory<Op<Acting>>,
    op: Op<Acting>,
    keys: impl IntoIterator<Item = Acting>,
) -> Handle<Op<Acting>> {
    let parked = purgatory.try_complete_else_watch(op, keys);
    let handle = parked.ok().and_then(|parked| parked.into_handle());
    handle.expect("it is parked")
}

/// Two operations: a key of the first, when it is dropped, forces the second, whose two keys then panic when they are
/// dropped as deferred calls. Returns the purgatory, the first one's handle, and how many were completed.
fn two_with_bad_keys() -> (Purgatory<Op<Acting>>, Handle<Op<Acting>>, Arc<Tally>) {
    let (purgatory, _clock) = manual::<Acting>(|builder| builder);
    let ended = Tally::new();
    let op = || {
        let ended = ended.clone();
        Op::new(NEVER_IN_A_TEST).then(move |_| ended.add())
    };
    let second = park(&purgatory, op(), [bad(2), bad(3)]);
    let force: Act = Arc::new(move || _ = second.force_complete());
    let first = park(&purgatory, op(), [Acting(1, Some(force))]);
    (purgatory, first, ended)
}

/// Between two examinations of a check its list is emptied, and another one of that key filled: the check does not go on
/// in that one.
#[test]
fn g22_a_check_whose_list_was_emptied_meets_none_of_the_next_list() {
    const WATCHERS: u64 = 200;
    within(PATIENCE, || {
        let (purgatory, _clock) = manual::<Acting>(|builder| builder);
        let park = |op, act| drop(purgatory.try_complete_else_watch(op, [Acting(1, act)]));
        let (weak, met) = (purgatory.downgrade(), Tally::new());
        let meets = met.clone();
        let replace: Act = Arc::new(move || {
            let all = weak.upgrade().expect("it is checked");
            let others = all.cancel_for_key(&Acting(1, None)).len() as u64;
            assert_eq!(others, WATCHERS - 1);
            for _ in 0..2 * WATCHERS {
                let meets = meets.clone();
                let newcomer = Op::new(NEVER_IN_A_TEST).when(move || {
                    meets.add();
                    false
                });
                drop(all.try_complete_else_watch(newcomer, [Acting(1, None)]));
            }
        });
        park(Op::new(NEVER_IN_A_TEST), None);
        let mut examinations = 0;
        let satisfied = Op::new(NEVER_IN_A_TEST).when(move || {
            examinations += 1;
            examinations == 3
        });
        park(satisfied, Some(replace));
        for _ in 2..WATCHERS {
            park(Op::new(NEVER_IN_A_TEST), None);
        }
        assert_eq!(purgatory.check_and_complete(&Acting(1, None)), 1);
        assert_eq!(purgatory.stats().panicked, 0);
        // Each is examined twice in its park.
        assert_eq!(met.count(), 2 * 2 * WATCHERS);
    });
}

/// The payloads of several panics in deferred calls may panic in turn: the thread leaves the library all the same.
#[test]
fn g12_deferred_calls_whose_panics_have_bad_payloads_leave_the_thread_outside() {
    within(PATIENCE, || {
        let (purgatory, first, ended) = two_with_bad_keys();
        let forced = catch_unwind(AssertUnwindSafe(|| first.force_complete()));
        std::mem::forget(forced.expect_err("a panic goes to the caller"));
        assert_eq!(ended.count(), 2);
        // A blocking call is refused inside the library.
        let waits = Waits::<u64>::new("outside");
        assert_eq!(block_on(waits.wait([1], TICK, || Some(7))), Ok(7));
        let probe = Probe::new();
        let third = purgatory.try_complete_else_watch(probe.op(NEVER_IN_A_TEST), [Acting(9, None)]);
        assert!(third.is_ok());
        assert_eq!(purgatory.force_complete_for_key(&Acting(9, None)), 1);
        assert_eq!(probe.ending(), Some(Completion::Satisfied));
    });
}

/// A call that returns an operation returns it, whatever the destructors do that it has caused.
#[test]
fn g05_a_cancel_returns_the_operation_though_a_deferred_call_panics() {
    within(PATIENCE, || {
        for by_key in [false, true] {
            let (purgatory, first, ended) = two_with_bad_keys();
            let cancelled = catch_unwind(AssertUnwindSafe(|| match by_key {
                true => purgatory.cancel_for_key(&Acting(1, None)).len(),
                false => usize::from(first.cancel().is_some()),
            }));
            assert_eq!(cancelled.ok(), Some(1), "by key: {by_key}");
            assert_eq!(ended.count(), 1, "the other was forced");
            assert!(purgatory.stats().panicked >= 1);
            assert_eq!(purgatory.stats().parked, 0);
        }
    });
}

#[test]
fn g05_a_park_that_is_refused_returns_the_operation_though_a_deferred_call_panics() {
    within(PATIENCE, || {
        let (purgatory, _clock) = manual::<Acting>(|builder| builder.max_watchers_per_key(1));
        let occupied =
            purgatory.try_complete_else_watch(Op::new(NEVER_IN_A_TEST), [Acting(5, None)]);
        assert!(occupied.is_ok());
        let second = park(&purgatory, Op::new(NEVER_IN_A_TEST), [bad(2)]);
        let force: Act = Arc::new(move || _ = second.force_complete());
        let keys = [Acting(1, Some(force)), Acting(5, None)];
        let parked = catch_unwind(AssertUnwindSafe(|| {
            purgatory.try_complete_else_watch(Op::new(NEVER_IN_A_TEST), keys)
        }));
        let refused = parked.ok().and_then(Result::err).expect("it is refused");
        assert_eq!(refused.reason(), RejectReason::KeyFull);
        assert_eq!(purgatory.stats().parked, 1);
    });
}

/// The handle is the only way to cancel the operation that has been parked.
#[test]
fn g05_a_park_returns_the_handle_though_a_deferred_call_panics() {
    within(PATIENCE, || {
        let (purgatory, first, ended) = two_with_bad_keys();
        let mut first = Some(first);
        let op = Op::new(NEVER_IN_A_TEST).when(move || {
            if let Some(first) = first.take() {
                first.force_complete();
            }
            false
        });
        let handle = park(&purgatory, op, [Acting(9, None)]);
        assert_eq!(ended.count(), 2, "both were forced");
        assert_eq!(purgatory.stats().panicked, 1);
        assert!(handle.cancel().is_some());
    });
}

/// The threads of an executor are the user's: what waited for the end of a job must not end them.
#[test]
fn g12_a_job_does_not_panic_though_a_deferred_call_does() {
    within(PATIENCE, || {
        let (_bad, first, ended) = two_with_bad_keys();
        let (tell, ran) = channel();
        let executor = move |job: Box<dyn FnOnce() + Send>| {
            let ended = thread::spawn(job).join();
            tell.send(ended.is_ok()).expect("the test waits");
        };
        let (purgatory, clock) =
            manual::<u64>(|builder| builder.dispatch(Dispatch::Executor(Arc::new(executor))));
        let op = Op::new(TICK).then(move |_| _ = first.force_complete());
        drop(purgatory.try_complete_else_watch(op, [1]));
        clock.advance(TICK);
        assert_eq!(purgatory.advance(), 1);
        assert_eq!(ran.recv(), Ok(true), "the job has panicked");
        assert_eq!(ended.count(), 2, "its completion has run, and ended both");
        assert_eq!(purgatory.stats().panicked, 1);
    });
}

/// A check finds that the deadline of the operation has passed. Between the count of its end and the hand-over of its
/// completion, a key takes its time to be dropped.
#[test]
fn g15_a_drain_waits_while_the_keys_of_an_expired_operation_are_dropped() {
    within(PATIENCE, || {
        let (purgatory, clock) = manual::<Acting>(|builder| builder.dispatch(Dispatch::OwnThread));
        let ((dropping, is_dropping), (drop_it, may_drop)) = (channel(), channel::<()>());
        let may_drop = Mutex::new(may_drop);
        let slow: Act = Arc::new(move || {
            dropping.send(()).expect("the test waits");
            lock(&may_drop).recv().expect("the test says so");
        });
        let probe = Probe::new();
        let (op, stall) = probe.stalled_op(NEVER_IN_A_TEST);
        park(&purgatory, op, [Acting(1, Some(slow))]);
        let check = stall.check(&purgatory, Acting(1, None));
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

/// Checks that wait at the shutdown are not made. A key that panics when it is dropped then costs no other one its drop.
#[test]
fn g12_keys_of_deferred_checks_that_panic_at_the_shutdown_are_counted() {
    within(PATIENCE, || {
        let (purgatory, _clock) = manual::<Acting>(|builder| builder);
        for number in 0..3 {
            let panics: Act = Arc::new(|| resume_unwind(Box::new("intended")));
            purgatory.check_later(Acting(number, Some(panics)));
        }
        let shut_down = catch_unwind(AssertUnwindSafe(|| purgatory.shutdown()));
        assert!(shut_down.is_ok());
        assert_eq!(purgatory.stats().panicked, 3);
    });
}

/// The destructor of a key, dropped at the shutdown, causes a panic: the threads end all the same.
#[test]
fn g15_a_shutdown_stops_its_threads_though_a_deferred_call_panics() {
    within(PATIENCE, || {
        let (other, _clock) = manual::<Acting>(|builder| builder);
        let second = park(&other, Op::new(NEVER_IN_A_TEST), [bad(2)]);
        let force: Act = Arc::new(move || _ = second.force_complete());
        let purgatory = Purgatory::<Op<Acting>>::new("g15-badkey");
        let first =
            purgatory.try_complete_else_watch(Op::new(NEVER_IN_A_TEST), [Acting(1, Some(force))]);
        assert!(first.is_ok());
        eventually("its threads", || !threads_named("g15-badkey").is_empty());
        let shut_down = catch_unwind(AssertUnwindSafe(|| purgatory.shutdown()));
        assert!(shut_down.is_ok(), "the panic is counted");
        assert_eq!(purgatory.stats().panicked, 1);
        eventually("the end of its threads", || {
            threads_named("g15-badkey").is_empty()
        });
        assert!(other.is_empty(), "no panic has happened");
    });
}

/// The clock of one purgatory panics, and the payload panics when it is dropped: the reaper drives this and the others.
#[test]
fn g12_a_reaper_survives_a_panic_with_a_bad_payload() {
    #[derive(Clone)]
    struct Bad(Arc<AtomicBool>, Instant);

    impl Clock for Bad {
        fn now(&self) -> Timestamp {
            if self.0.swap(false, Ordering::SeqCst) {
                resume_unwind(Box::new(BadPayload));
            }
            self.1.now()
        }
    }

    within(PATIENCE, || {
        let reaper = ReaperThread::spawn("g12").expect("two threads more");
        let armed = Arc::new(AtomicBool::new(false));
        let clock = Bad(armed.clone(), Instant::now());
        let builder = || Purgatory::<Op>::builder("g12").reaper(Reaper::Shared(reaper.clone()));
        let bad = builder().clock(clock).build().expect("no thread more");
        let good = builder().build().expect("no thread more");
        let probes = [Probe::new(), Probe::new()];
        drop(bad.try_complete_else_watch(probes[0].op(100 * TICK), [1]));
        armed.store(true, Ordering::SeqCst);
        eventually("a reading by the reaper", || !armed.load(Ordering::SeqCst));
        drop(good.try_complete_else_watch(probes[1].op(TICK), [1]));
        for probe in probes {
            eventually("its expiry", || probe.ending() == Some(Completion::Expired));
        }
    });
}
