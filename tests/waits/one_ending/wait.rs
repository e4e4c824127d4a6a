//! G1 and G5, `wait` and `wait_then`: what a predicate finds, when, and whom that wakes.

use crate::chains::drops::Bomb;
use crate::on_time::{WOKEN, told};
use crate::support::bell::Bell;
use crate::support::{NEVER_IN_A_TEST, Op, lock, on_a_stack_of};
use crate::{SECOND, Slot, assert_empty, by_hand, now, owning, pass, put, take};
use request_purgatory::future::{Awaited, WaitError, WaitFuture, WaitOperation};
use request_purgatory::{CheckBound, Handle, Waits};
use std::panic::resume_unwind;
use std::sync::{Arc, Mutex};
use std::task::Poll;

#[test]
fn the_last_waker_is_woken_and_no_other() {
    let (waits, _clock) = by_hand();
    let slot = Slot::default();
    let mut wait = waits.wait([1], NEVER_IN_A_TEST, take(&slot));
    let (first, second) = (Bell::new(), Bell::new());
    for bell in [&first, &second, &second] {
        assert!(bell.poll(&mut wait).is_pending());
    }
    assert_eq!(Arc::strong_count(&first), 1, "the old waker is dropped");
    assert_eq!(Arc::strong_count(&second), 2, "the new one is kept once");
    waits.check_and_complete(&1);
    assert_eq!(second.rung(), 0, "a check in vain wakes no task");
    put(&slot, 1);
    waits.check_and_complete(&1);
    assert_eq!((first.rung(), second.rung()), (0, 1));
    assert_eq!(Arc::strong_count(&second), 1);
    assert_eq!(first.poll(&mut wait), Poll::Ready(Ok(1)));
    assert!(first.poll(&mut wait).is_pending(), "and only once");
    assert_eq!(Arc::strong_count(&first), 1, "it keeps no waker then");
}

#[test]
fn a_dropped_purgatory_ends_its_waits() {
    let waits = Waits::<u64>::new("dropped");
    let wait = waits.wait([1], NEVER_IN_A_TEST, || None::<u8>);
    let (_, told) = wait_then(&waits, &Slot::default());
    drop(waits);
    assert_eq!(now(wait), Err(WaitError::ShutDown));
    assert_eq!(*lock(&told), [Err(WaitError::ShutDown)]);
}

/// Without a timeout they have no deadline. The event comes before the first poll.
#[test]
fn g22_g28_waits_and_listeners_are_examined_up_to_their_rank() {
    let (waits, _clock) = by_hand();
    let (topic, slot) = (waits.resolve(9), Slot::default());
    let near = waits.wait([topic.watch().at_rank(10)], None, take(&slot));
    let mut far = waits.listen([topic.watch().at_rank(20)], None);
    let _taker = waits.take([1], None, |_| None::<u8>, drop);
    assert_eq!((waits.len(), waits.next_deadline()), (3, None));
    put(&slot, 1);
    for (rank, completed, woken) in [(9, 0, false), (10, 1, false), (19, 0, false), (20, 0, true)] {
        let bound = CheckBound::all().up_to(rank);
        assert_eq!(waits.check_and_complete_with(&9, bound), completed);
        assert_eq!(told(&Bell::new(), &mut far).is_ready(), woken, "{rank}");
    }
    assert_eq!((now(near), waits.stats().checks), (Ok(1), 2));
    topic.check_and_complete();
    assert_eq!(told(&Bell::new(), &mut far), WOKEN);
}

#[test]
fn futures_are_send_and_debug() {
    fn check<T: Send + Sync + Unpin + std::fmt::Debug + 'static>() {}
    check::<WaitFuture<WaitOperation<u64>, u8>>();
    check::<Waits<u64>>();
    fn sendable<T: Send + Unpin + 'static>() {}
    sendable::<WaitFuture<Awaited<Op>, Op>>();
    sendable::<WaitOperation<u64>>();
}

type Told = Arc<Mutex<Vec<Result<u8, WaitError>>>>;

/// Waits for what lies in `slot`, and notes what it is told.
fn wait_then(waits: &Waits<u64>, slot: &Slot<u8>) -> (Option<Handle<WaitOperation<u64>>>, Told) {
    let told = Told::default();
    let tells = told.clone();
    let then = move |result| lock(&tells).push(result);
    (waits.wait_then([1], SECOND, take(slot), then), told)
}

/// The other endings of a wait with a callback are in the table of [all](super::endings).
#[test]
fn g05_a_callback_is_told_its_end_once() {
    let (waits, clock) = by_hand();
    let slot = Slot::default();
    put(&slot, 1);
    let (handle, at_once) = wait_then(&waits, &slot);
    assert!(handle.is_none());
    assert_eq!(*lock(&at_once), [Ok(1)]);

    let (_, by_a_check) = wait_then(&waits, &slot);
    assert_eq!(waits.check_and_complete(&1), 0);
    assert_eq!(*lock(&by_a_check), []);
    put(&slot, 2);
    assert_eq!(waits.check_and_complete(&1), 1);
    assert_eq!(*lock(&by_a_check), [Ok(2)]);

    let (handle, cancelled) = wait_then(&waits, &slot);
    let operation = handle.expect("it parks").cancel();
    assert_eq!(*lock(&cancelled), []);
    drop(operation);
    assert_eq!(*lock(&cancelled), [Err(WaitError::Cancelled)]);

    // A predicate may have taken it from somewhere.
    let (_, at_the_deadline) = wait_then(&waits, &slot);
    put(&slot, 3);
    pass(&waits, &clock, SECOND);
    assert_eq!(*lock(&at_the_deadline), [Ok(3)]);
    let stats = waits.stats();
    assert_eq!((stats.expired, stats.missed_checks), (1, 1));
    assert_empty(&waits);
}

/// The predicate is dropped first. Where its destructor and the callback panic, both run, and the process lives.
#[test]
fn g12_a_callback_is_told_although_the_destructor_of_its_predicate_panics() {
    let (waits, _clock) = by_hand();
    let (slot, told) = (Slot::default(), Told::default());
    let tells = told.clone();
    waits.wait_then([1], None, owning(Bomb, take(&slot)), move |result| {
        lock(&tells).push(result);
        resume_unwind(Box::new("intended"));
    });
    put(&slot, 7);
    assert_eq!(waits.check_and_complete(&1), 1);
    assert_eq!(*lock(&told), [Ok(7)]);
    assert_empty(&waits);

    // In the call itself, it does not reach the caller either.
    put(&slot, 8);
    let panicked = waits.stats().panicked;
    waits.wait_then([1], None, take(&slot), |_| resume_unwind(Box::new("own")));
    assert_eq!(waits.stats().panicked, panicked + 1);
}

/// Waits that begin in callbacks do not nest: a chain of them needs no stack.
#[test]
fn g14_a_chain_of_callbacks_that_wait_needs_no_stack() {
    fn next(waits: &Waits<u64>, left: u32) {
        let again = waits.clone();
        let then = move |_| {
            if left > 0 {
                next(&again, left - 1);
            }
        };
        waits.wait_then([1], NEVER_IN_A_TEST, || Some(()), then);
    }
    let (waits, _clock) = by_hand();
    on_a_stack_of(256, move || next(&waits, 100_000));
}

/// The callback of each drops the next operation, which ends by that.
#[test]
fn g14_a_chain_of_callbacks_that_cancel_needs_no_stack() {
    let (waits, _clock) = by_hand();
    on_a_stack_of(256, move || {
        for key in 0..100_000 {
            let all = waits.clone();
            let then = move |_| drop(all.cancel_for_key(&(key + 1)));
            waits.wait_then([key], None, || None::<()>, then);
        }
        assert_eq!(waits.force_complete_for_key(&0), 1);
        assert_empty(&waits);
    });
}

/// The operation is dropped: by the caller who has cancelled it, who hears of no panic, or because its predicate has
/// panicked, which counts as well. After the shutdown nothing is counted.
#[test]
fn g12_a_callback_that_panics_when_its_operation_is_dropped_is_counted_there() {
    let (waits, _clock) = by_hand();
    let fails = |_| resume_unwind(Box::new("intended"));
    let waiting = || waits.wait_then([1], None, || None::<()>, fails);
    let cancelled = || waiting().expect("there is room").cancel();
    drop(cancelled());
    assert_eq!(waits.stats().panicked, 1);
    let mut examinations = 0;
    let panics = move || {
        examinations += 1;
        assert!(examinations < 3);
        None::<()>
    };
    waits.wait_then([1], None, panics, fails);
    assert_eq!(waits.check_and_complete(&1), 0);
    assert_eq!(waits.stats().panicked, 3);
    let late = cancelled();
    waits.shutdown();
    drop(late);
    assert_eq!(waits.stats().panicked, 3);
}

/// It is refused inside a callback of another purgatory, whose caller has nothing to do with it.
#[test]
fn g12_a_callback_that_panics_when_its_wait_is_refused_is_counted_there() {
    let ((waits, _clock), (closed, _)) = (by_hand(), by_hand());
    closed.shutdown();
    let refusing = closed.clone();
    let mut examinations = 0;
    let wait = waits.wait([1], NEVER_IN_A_TEST, move || {
        examinations += 1;
        if examinations == 3 {
            let then = |_| resume_unwind(Box::new("intended"));
            assert!(refusing.wait_then([1], None, || None::<()>, then).is_none());
        }
        None::<()>
    });
    assert_eq!(waits.check_and_complete(&1), 0);
    assert_eq!((waits.stats().panicked, closed.stats().panicked), (0, 1));
    drop(wait);
}
