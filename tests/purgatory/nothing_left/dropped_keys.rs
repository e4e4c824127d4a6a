//! What the destructor of a key may do, whichever call drops the key: panic (G12), end other operations, or take long.
//! It costs no operation its ending (G05), no thread its way out of the library, and no drain or shutdown its end
//! (G15).

use crate::support::keys::{Act, Acting};
use crate::support::{
    NEVER_IN_A_TEST, Op, PATIENCE, Probe, Tally, eventually, lock, manual, threads_named, within,
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

/// A completion panics, and so does a key of its operation, which the unwinding drops: both are counted.
#[test]
fn g12_a_completion_and_a_key_of_its_operation_panic() {
    let (purgatory, _clock) = manual::<Bomb>(|builder| builder);
    let ready = Arc::new(AtomicBool::new(false));
    let op = Op::new(NEVER_IN_A_TEST)
        .when({
            let ready = ready.clone();
            move || ready.load(Ordering::Relaxed)
        })
        .then(|_| {
            LIT.set(true);
            resume_unwind(Box::new("a completion"));
        });
    drop(purgatory.try_complete_else_watch(op, [Bomb(1)]));
    ready.store(true, Ordering::Relaxed);
    let key = Bomb(1);
    let completed = catch_unwind(AssertUnwindSafe(|| purgatory.check_and_complete(&key)));
    LIT.set(false);
    assert!(matches!(completed, Ok(1)), "{completed:?}");
    let stats = purgatory.stats();
    assert_eq!((stats.panicked, stats.parked, stats.watched), (2, 0, 0));
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

/// Two operations: a key of the first, when it is dropped, forces the second, whose key then panics when it is dropped.
/// Returns the purgatory, the first one's handle, and how many were completed.
fn two_with_bad_keys() -> (Purgatory<Op<Acting>>, Handle<Op<Acting>>, Arc<Tally>) {
    let (purgatory, _clock) = manual::<Acting>(|builder| builder);
    let ended = Tally::new();
    let op = || {
        let ended = ended.clone();
        Op::new(NEVER_IN_A_TEST).then(move |_| ended.add())
    };
    let second = park(&purgatory, op(), [bad(2)]);
    let force: Act = Arc::new(move || _ = second.force_complete());
    let first = park(&purgatory, op(), [Acting(1, Some(force))]);
    (purgatory, first, ended)
}

/// Between two examinations of a check its list is emptied, and another one of that key filled: the check does not go
/// on in that one.
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

/// The payload of a panic may panic in turn: the thread leaves the library all the same.
#[test]
fn g12_a_key_whose_panic_has_a_bad_payload_leaves_the_thread_outside() {
    within(PATIENCE, || {
        let (purgatory, first, ended) = two_with_bad_keys();
        let forced = catch_unwind(AssertUnwindSafe(|| first.force_complete()));
        assert_eq!(forced.ok(), Some(true), "the panic is counted");
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
fn g05_a_cancel_returns_the_operation_though_a_key_panics() {
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
fn g05_a_park_that_is_refused_returns_the_operation_though_a_key_panics() {
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
fn g05_a_park_returns_the_handle_though_a_key_panics() {
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
fn g12_a_job_does_not_panic_though_a_key_does() {
    within(PATIENCE, || {
        let (other, first, ended) = two_with_bad_keys();
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
        assert_eq!(other.stats().panicked, 1);
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

/// Checks that wait at the shutdown are not made. A key that panics when it is dropped then costs no other one its
/// drop.
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
fn g15_a_shutdown_stops_its_threads_though_a_key_panics() {
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
        assert_eq!(other.stats().panicked, 1);
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
