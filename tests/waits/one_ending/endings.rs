//! How a wait ends, one at a time, and what its caller is told.

use crate::support::bell::Bell;
use crate::support::{NEVER_IN_A_TEST, Op, Tally, lock};
use crate::{Slot, assert_empty, by_hand, now, put, take};
use request_purgatory::{
    CheckBound, Waits, future::WaitError, future::WaitFuture, future::WaitOperation,
    threads::Reaper, time::ManualClock,
};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::Duration;

#[test]
fn a_value_at_once_parks_nothing_and_types_may_differ() {
    let (waits, _clock) = by_hand();
    let number = waits.wait([1], NEVER_IN_A_TEST, || Some(1_u8));
    let text = waits.wait([1], NEVER_IN_A_TEST, || Some(String::from("text")));
    let unit = waits.wait([1], Duration::ZERO, || Some(()));
    assert!(number.handle().is_none());
    assert_empty(&waits);
    assert_eq!(now(number), Ok(1));
    assert_eq!(now(text), Ok("text".into()));
    assert_eq!(now(unit), Ok(()));
}

#[test]
fn g01_an_event_before_the_first_poll_is_not_missed() {
    let (waits, _clock) = by_hand();
    let slot = Slot::default();
    let examinations = Tally::new();
    let mut wait = waits.wait([1], NEVER_IN_A_TEST, {
        let (examinations, mut take) = (examinations.clone(), take(&slot));
        move || {
            examinations.add();
            take()
        }
    });
    assert_eq!(examinations.count(), 2, "it is asked by the call");
    put(&slot, 5);
    let bell = Bell::new();
    assert_eq!(waits.check_and_complete(&1), 1);
    assert_empty(&waits);
    assert_eq!(bell.poll(&mut wait), Poll::Ready(Ok(5)));
    assert!(bell.poll(&mut wait).is_pending(), "and only once");
    assert_eq!(Arc::strong_count(&bell), 1, "it keeps no waker then");
    assert_eq!(examinations.count(), 3, "a poll asks nothing");
}

#[test]
fn the_last_waker_is_woken_and_no_other() {
    let (waits, _clock) = by_hand();
    let slot = Slot::default();
    let mut wait = waits.wait([1], NEVER_IN_A_TEST, take(&slot));
    let (first, second) = (Bell::new(), Bell::new());
    assert!(first.poll(&mut wait).is_pending());
    assert!(second.poll(&mut wait).is_pending());
    assert!(second.poll(&mut wait).is_pending());
    assert_eq!(Arc::strong_count(&first), 1, "the old waker is dropped");
    assert_eq!(Arc::strong_count(&second), 2, "the new one is kept once");
    waits.check_and_complete(&1);
    assert_eq!(second.rung(), 0, "a check in vain wakes no task");
    put(&slot, 1);
    waits.check_and_complete(&1);
    assert_eq!((first.rung(), second.rung()), (0, 1));
    assert_eq!(Arc::strong_count(&second), 1);
    assert_eq!(now(wait), Ok(1));
}

#[test]
fn g05_every_ending_has_its_error() {
    type End = fn(&Waits<u64>, &ManualClock);
    let endings: [(WaitError, End); 6] = [
        (WaitError::Expired, |waits, clock| {
            clock.advance(Duration::from_secs(1));
            assert_eq!(waits.advance(), 1);
        }),
        (WaitError::Forced, |waits, _| {
            assert_eq!(waits.force_complete_for_key(&1), 1);
        }),
        (WaitError::Cancelled, |waits, _| {
            assert_eq!(waits.cancel_for_key(&1).len(), 1);
        }),
        (WaitError::ShutDown, |waits, _| waits.shutdown()),
        (WaitError::Panicked, |waits, _| {
            PANIC.store(true, Ordering::SeqCst);
            assert_eq!(waits.check_and_complete(&1), 0);
        }),
        // The last examination, at the deadline, panics.
        (WaitError::Panicked, |waits, clock| {
            PANIC.store(true, Ordering::SeqCst);
            clock.advance(Duration::from_secs(1));
            assert_eq!(waits.advance(), 0);
        }),
    ];
    static PANIC: AtomicBool = AtomicBool::new(false);
    for (error, end) in endings {
        PANIC.store(false, Ordering::SeqCst);
        let (waits, clock) = by_hand();
        let payload = Arc::new(());
        let mut wait = waits.wait([1, 2], Duration::from_secs(1), {
            let payload = payload.clone();
            move || {
                let _ = &payload;
                assert!(!PANIC.load(Ordering::SeqCst), "on purpose");
                None::<u8>
            }
        });
        let bell = Bell::new();
        assert!(bell.poll(&mut wait).is_pending());
        end(&waits, &clock);
        assert_eq!(bell.rung(), 1, "{error:?}");
        assert_eq!(bell.poll(&mut wait), Poll::Ready(Err(error)));
        assert_eq!(Arc::strong_count(&payload), 1, "{error:?}");
        assert!(wait.handle().is_none());
        assert_empty(&waits);
    }
}

#[test]
fn a_refused_wait_resolves_at_once() {
    let clock = ManualClock::new();
    let waits = Waits::<u64>::builder("full")
        .clock(clock)
        .reaper(Reaper::Manual)
        .max_parked(1)
        .build()
        .expect("no threads to refuse");
    let payload = Arc::new(());
    let wait = |keys: &[u64]| {
        let payload = payload.clone();
        let nothing = move || (Arc::strong_count(&payload) == 0).then_some(());
        waits.wait(keys.to_vec(), NEVER_IN_A_TEST, nothing)
    };
    assert_eq!(now(wait(&[])), Err(WaitError::NoKeys));
    let held = wait(&[1]);
    assert_eq!(now(wait(&[1])), Err(WaitError::Full));
    assert_eq!(Arc::strong_count(&payload), 2);
    drop(held);
    let held = wait(&[1]);
    assert_eq!(waits.stats().parked, 1, "the place is free again");
    assert_eq!(waits.drain(Duration::ZERO), 1);
    assert_eq!(now(wait(&[1])), Err(WaitError::Draining));
    waits.shutdown();
    assert_eq!(now(held), Err(WaitError::ShutDown));
    assert_eq!(now(wait(&[1])), Err(WaitError::ShutDown));
    assert_eq!(Arc::strong_count(&payload), 1);
    assert_empty(&waits);
}

/// Each is begun by the predicate of the one before.
#[test]
fn g14_the_ninth_nested_wait_is_refused() {
    type Ends = Arc<Mutex<Vec<(u64, Result<(), WaitError>)>>>;

    fn nest(waits: &Waits<u64>, depth: u64, ends: &Ends) {
        let (inner, all, mut is_first) = (waits.downgrade(), ends.clone(), true);
        let mut wait = waits.wait([depth], NEVER_IN_A_TEST, move || {
            if std::mem::take(&mut is_first) {
                nest(&inner.upgrade()?, depth + 1, &all);
            }
            None
        });
        if let Poll::Ready(end) = Bell::new().poll(&mut wait) {
            lock(ends).push((depth, end));
        }
    }

    let ends = Ends::default();
    nest(&by_hand().0, 0, &ends);
    assert_eq!(*lock(&ends), [(9, Err(WaitError::Nested))]);
}

#[test]
fn g28_a_wait_without_a_timeout_has_no_deadline() {
    let (waits, _clock) = by_hand();
    let wait = waits.wait([1], None, || None::<u8>);
    let take = waits.take([1], None, |_| None::<u8>, drop);
    assert_eq!((waits.stats().parked, waits.next_deadline()), (2, None));
    drop((wait, take));
}

#[test]
fn a_dropped_purgatory_ends_its_waits() {
    let waits = Waits::<u64>::new("dropped");
    let wait = waits.wait([1], NEVER_IN_A_TEST, || None::<u8>);
    drop(waits);
    assert_eq!(now(wait), Err(WaitError::ShutDown));
}

/// A predicate may have taken it from somewhere.
#[test]
fn what_is_found_at_the_deadline_is_not_thrown_away() {
    let (waits, clock) = by_hand();
    let slot = Slot::default();
    let wait = waits.wait([1], Duration::from_secs(1), take(&slot));
    put(&slot, "late");
    clock.advance(Duration::from_secs(1));
    waits.advance();
    assert_eq!(waits.stats().missed_checks, 1);
    assert_eq!(now(wait), Ok("late"));
}

#[test]
fn a_handle_moves_the_deadline() {
    let (waits, clock) = by_hand();
    let mut wait = waits.wait([1], Duration::from_secs(1), || None::<u8>);
    let handle = wait.handle().expect("it is parked");
    assert!(handle.reschedule(Duration::from_secs(3)));
    clock.advance(Duration::from_secs(2));
    assert_eq!(waits.advance(), 0);
    let bell = Bell::new();
    assert!(bell.poll(&mut wait).is_pending());
    clock.advance(Duration::from_secs(1));
    assert_eq!(waits.advance(), 1);
    assert_eq!(now(wait), Err(WaitError::Expired));
}

#[test]
fn waits_on_resolved_keys_and_at_ranks() {
    let (waits, _clock) = by_hand();
    let end = Arc::new(AtomicUsize::new(0));
    let topic = waits.resolve(9);
    let [near, far] = [10, 20].map(|offset| {
        let end = end.clone();
        let watches = [topic.watch().at_rank(offset as u64)];
        waits.wait(watches, NEVER_IN_A_TEST, move || {
            Some(end.load(Ordering::SeqCst)).filter(|&end| end >= offset)
        })
    });
    end.store(15, Ordering::SeqCst);
    assert_eq!(
        waits.check_and_complete_with(&9, CheckBound::all().up_to(15)),
        1
    );
    assert_eq!(waits.stats().checks, 1, "only the nearer one");
    assert_eq!(now(near), Ok(15));
    end.store(20, Ordering::SeqCst);
    assert_eq!(topic.check_and_complete(), 1);
    assert_eq!(now(far), Ok(20));
}

#[test]
fn futures_are_send_and_debug() {
    fn check<T: Send + Sync + Unpin + std::fmt::Debug + 'static>() {}
    check::<WaitFuture<WaitOperation<u64>, u8>>();
    check::<Waits<u64>>();
    fn sendable<T: Send + Unpin + 'static>() {}
    sendable::<WaitFuture<request_purgatory::future::Awaited<Op>, Op>>();
    sendable::<WaitOperation<u64>>();
}
