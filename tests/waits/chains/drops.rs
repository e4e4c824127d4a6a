//! G6: futures that are dropped at any moment leave nothing. G3 and G12: wakers and destructors do what they should
//! not.

use crate::support::bell::Bell;
use crate::support::{BadPayload, NEVER_IN_A_TEST, PATIENCE, lock, within};
use crate::{ENDS, End, SECOND, Slot, assert_empty, by_hand};
use crate::{now, owning, poll_in_vain, put, take};
use request_purgatory::{Wait, WaitError, Waits};
use scopeguard::guard;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier};
use std::thread;

/// Panics when it is dropped, also while the thread unwinds already.
pub(crate) struct Bomb;

impl Drop for Bomb {
    fn drop(&mut self) {
        panics();
    }
}

fn panics() {
    resume_unwind(Box::new("intended"));
}

/// With a payload whose destructor panics in turn.
fn panics_twice() {
    resume_unwind(Box::new(BadPayload));
}

fn nothing() {}

#[test]
fn g06_a_dropped_future_leaves_nothing() {
    let (waits, _clock) = by_hand();
    let (slot, bell) = (Slot::<Arc<()>>::default(), Bell::new());
    let wait = || waits.wait([1, 2, 3], SECOND, take(&slot));
    let mut polled = wait();
    assert!(bell.poll(&mut polled).is_pending());
    drop(polled);
    assert_empty(&waits);
    assert_eq!((Arc::strong_count(&slot), Arc::strong_count(&bell)), (1, 1));
    assert_eq!(waits.stats().cancelled, 1);
    // The value is there, and no task polls. (Which is the reason for `take`.)
    let value = Arc::new(());
    let unpolled = wait();
    put(&slot, value.clone());
    assert_eq!(waits.check_and_complete(&1), 1);
    assert_eq!(Arc::strong_count(&value), 2);
    drop(unpolled);
    assert_eq!(Arc::strong_count(&value), 1);
    assert!(lock(&slot).is_none());
    assert_eq!((Arc::strong_count(&slot), bell.rung()), (1, 0));
}

/// No thread waits for a predicate that runs; its thread clears away what the dropped future left.
#[test]
fn g06_a_future_dropped_while_another_thread_asks_leaves_nothing() {
    within(PATIENCE, || {
        for finds in [false, true] {
            let waits = Waits::<u64>::new("busy");
            let (stop, payload, bell) = (Arc::new(Barrier::new(2)), Arc::new(()), Bell::new());
            let (stops, kept, mut examinations) = (stop.clone(), payload.clone(), 0);
            let mut wait = waits.wait([1], NEVER_IN_A_TEST, move || {
                examinations += 1;
                if examinations <= 2 {
                    return None;
                }
                stops.wait();
                stops.wait();
                finds.then(|| kept.clone())
            });
            assert!(bell.poll(&mut wait).is_pending());
            let checks = waits.clone();
            let checker = thread::spawn(move || checks.check_and_complete(&1));
            stop.wait();
            drop(wait);
            assert_eq!(Arc::strong_count(&bell), 1, "the waker is not kept");
            stop.wait();
            let completed = checker.join().expect("it does not panic");
            assert_eq!(completed, usize::from(finds));
            assert_eq!((Arc::strong_count(&payload), bell.rung()), (1, 0));
            assert_eq!((waits.stats().parked, waits.watched_keys()), (0, 0));
        }
    });
}

#[test]
fn the_predicate_is_gone_before_the_future_hears() {
    let (waits, _clock) = by_hand();
    let (payload, gone) = (Arc::new(()), Arc::new(AtomicBool::new(false)));
    let slot = Slot::default();
    let predicate = owning(payload.clone(), take(&slot));
    let mut wait = waits.wait([1], NEVER_IN_A_TEST, predicate);
    let sees = gone.clone();
    let woken = move || sees.store(Arc::strong_count(&payload) == 1, Ordering::SeqCst);
    poll_in_vain(&mut wait, woken);
    put(&slot, 1);
    waits.check_and_complete(&1);
    assert!(gone.load(Ordering::SeqCst));
    assert_eq!(now(wait), Ok(1));
}

/// As executors do that run a task where it is woken.
#[test]
fn g03_a_waker_may_poll_and_drop_the_future() {
    within(PATIENCE, || {
        let (waits, _clock) = by_hand();
        let slot = Slot::default();
        let (future, output) = (Slot::<Wait<u64, u8>>::default(), Slot::default());
        let mut wait = waits.wait([1], NEVER_IN_A_TEST, take(&slot));
        let (woken, told) = (future.clone(), output.clone());
        poll_in_vain(&mut wait, move || {
            let wait = lock(&woken).take().expect("woken once");
            put(&told, now(wait));
        });
        put(&future, wait);
        put(&slot, 1);
        assert_eq!(waits.check_and_complete(&1), 1);
        assert_eq!(lock(&output).take(), Some(Ok(1)));
    });
}

/// A waker's destructor is the user's code: no lock is held then, whether the future has a new one or goes.
#[test]
fn g03_a_waker_may_end_the_operation_when_it_is_dropped() {
    within(PATIENCE, || {
        for replaced in [false, true] {
            let (waits, _clock) = by_hand();
            let mut wait = waits.wait([1], NEVER_IN_A_TEST, || None::<u8>);
            let ends = waits.clone();
            let last = guard((), move |()| _ = ends.force_complete_for_key(&1));
            poll_in_vain(&mut wait, move || _ = &last);
            // A future that goes has cancelled its operation before it drops the waker.
            let forced = u64::from(replaced);
            if replaced {
                let bell = Bell::new();
                assert!(bell.poll(&mut wait).is_pending());
                assert_eq!(bell.rung(), 1);
                assert_eq!(now(wait), Err(WaitError::Forced));
            } else {
                drop(wait);
            }
            let stats = waits.stats();
            assert_eq!((stats.completed, stats.cancelled), (forced, 1 - forced));
            assert_empty(&waits);
        }
    });
}

/// The destructor of a predicate runs first, and then the waker, in each ending. Their panics neither keep the end back
/// nor harm another wait. They are counted as one; that of a cancelled predicate is the caller's, who drops it.
#[test]
fn g12_a_predicate_and_a_waker_that_panic_cost_neither_value_nor_process() {
    let found: End = |waits, _| assert_eq!(waits.check_and_complete(&1), 2);
    let ends = ENDS.map(|(error, end)| (Err(error), end));
    let panicking: [(&str, fn(), fn()); 5] = [
        ("the destructor", panics, nothing),
        ("the waker", nothing, panics),
        ("both", panics, panics),
        ("the destructor, twice", panics_twice, nothing),
        ("both, twice", panics_twice, panics_twice),
    ];
    for (who, destructor, waker) in panicking {
        for (result, end) in [(Ok(1), found)].into_iter().chain(ends) {
            let (waits, clock) = by_hand();
            let (is_there, bell) = (Arc::new(AtomicBool::new(false)), Bell::new());
            let wait = |destructor: fn()| {
                let sees = is_there.clone();
                let finds = move || sees.load(Ordering::SeqCst).then_some(1);
                let owned = guard((), move |()| destructor());
                waits.wait([1], SECOND, owning(owned, finds))
            };
            let (mut loud, mut other) = (wait(destructor), wait(nothing));
            poll_in_vain(&mut loud, waker);
            assert!(bell.poll(&mut other).is_pending());
            is_there.store(result.is_ok(), Ordering::SeqCst);
            // (The payload may panic when it is dropped.)
            let unwound = catch_unwind(AssertUnwindSafe(|| end(&waits, &clock)));
            let unwound = unwound.map_err(std::mem::forget).is_err();
            let is_cancelled = result == Err(WaitError::Cancelled);
            let is_callers = is_cancelled && who != "the waker";
            assert_eq!(unwound, is_callers, "{who}: {result:?}");
            let counted = u64::from(!is_cancelled);
            let heard = (waits.stats().panicked, bell.rung());
            assert_eq!(heard, (counted, 1), "{who}: {result:?}");
            assert_eq!((now(loud), now(other)), (result, result));
            assert_empty(&waits);
        }
    }
}

/// Of a destructor that panics while the thread unwinds already, the process would die.
#[test]
fn g12_a_future_that_is_dropped_by_a_panic_ends_though_its_predicate_panics_when_dropped() {
    within(PATIENCE, || {
        let (waits, _clock) = by_hand();
        let wait = waits.wait([1], NEVER_IN_A_TEST, owning(Bomb, || None::<()>));
        // So does the waker of a second, and the value that a third has found.
        let mut polled = waits.wait([1], NEVER_IN_A_TEST, || None::<()>);
        let bomb = Bomb;
        poll_in_vain(&mut polled, move || _ = &bomb);
        let found = waits.wait([1], NEVER_IN_A_TEST, || Some(Bomb));
        let unwound = catch_unwind(AssertUnwindSafe(move || {
            let _owned = (wait, polled, found);
            resume_unwind(Box::new("intended too"));
        }));
        assert!(unwound.is_err());
        assert_empty(&waits);
    });
}
