//! Futures dropped at any moment, and wakers and destructors that do what they should not.

use crate::support::bell::Bell;
use crate::support::{BadPayload, NEVER_IN_A_TEST, PATIENCE, lock, within};
use crate::{Slot, assert_empty, by_hand, now, put, take};
use request_purgatory::{Waits, future::WaitError, future::WaitFuture, future::WaitOperation};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::task::{Context, Wake, Waker};
use std::thread;
use std::time::Duration;

#[test]
fn g06_dropping_leaves_nothing() {
    let (waits, clock) = by_hand();
    let (slot, bell) = (Slot::<Arc<()>>::default(), Bell::new());
    let wait = || waits.wait([1, 2, 3], Duration::from_secs(1), take(&slot));

    drop(wait());
    assert_empty(&waits);
    assert_eq!(Arc::strong_count(&slot), 1);

    let mut polled = wait();
    assert!(bell.poll(&mut polled).is_pending());
    drop(polled);
    assert_empty(&waits);
    assert_eq!((Arc::strong_count(&slot), Arc::strong_count(&bell)), (1, 1));
    assert_eq!(waits.stats().cancelled, 2);

    // The value is there, and no task polls.
    let value = Arc::new(());
    let unpolled = wait();
    put(&slot, value.clone());
    assert_eq!(waits.check_and_complete(&1), 1);
    assert_eq!(Arc::strong_count(&value), 2);
    drop(unpolled);
    assert_eq!(Arc::strong_count(&value), 1);

    // The purgatory goes first.
    let orphan = wait();
    drop(waits);
    drop(orphan);
    clock.advance(Duration::from_secs(2));
    assert_eq!((Arc::strong_count(&slot), bell.rung()), (1, 0));
}

/// No thread waits for a predicate that runs; its thread clears away what the dropped future left.
#[test]
fn g06_dropping_while_another_thread_asks() {
    within(PATIENCE, || {
        for finds in [false, true] {
            let waits = Waits::<u64>::new("busy");
            let ((entered, inside), (leave, left)) = (channel(), channel());
            let (payload, mut examinations) = (Arc::new(()), 0);
            let mut wait = waits.wait([1], NEVER_IN_A_TEST, {
                let payload = payload.clone();
                move || {
                    examinations += 1;
                    (examinations > 2).then(|| {
                        entered.send(()).expect("the test waits for it");
                        left.recv().expect("the test lets it go");
                        finds.then(|| payload.clone())
                    })?
                }
            });
            let bell = Bell::new();
            assert!(bell.poll(&mut wait).is_pending());
            let checker = thread::spawn({
                let waits = waits.clone();
                move || waits.check_and_complete(&1)
            });
            inside.recv().expect("the predicate is asked");
            drop(wait);
            assert_eq!(Arc::strong_count(&bell), 1, "the waker is not kept");
            leave.send(()).expect("the predicate waits for it");
            let completed = checker.join().expect("it does not panic");
            assert_eq!(completed, usize::from(finds));
            assert_eq!(bell.rung(), 0);
            assert_eq!(Arc::strong_count(&payload), 1);
            assert_eq!((waits.stats().parked, waits.watched_keys()), (0, 0));
        }
    });
}

/// Rings once the predicate is dropped.
struct After(Arc<()>, AtomicBool);

impl Wake for After {
    fn wake(self: Arc<Self>) {
        let alone = Arc::strong_count(&self.0) == 1;
        self.1.store(alone, Ordering::SeqCst);
    }
}

#[test]
fn the_predicate_is_gone_before_the_future_hears() {
    let (waits, _clock) = by_hand();
    let after = Arc::new(After(Arc::new(()), AtomicBool::new(false)));
    let (payload, slot) = (after.0.clone(), Slot::default());
    let mut take = take(&slot);
    let mut wait = waits.wait([1], NEVER_IN_A_TEST, move || {
        let _ = &payload;
        take()
    });
    let waker = Waker::from(after.clone());
    let polled = Pin::new(&mut wait).poll(&mut Context::from_waker(&waker));
    assert!(polled.is_pending());
    put(&slot, 1);
    waits.check_and_complete(&1);
    assert!(after.1.load(Ordering::SeqCst));
    assert_eq!(now(wait), Ok(1));
}

/// A waker's destructor is the user's code: no lock is held then, whether the future has a new one or goes.
#[test]
fn g03_a_waker_may_end_the_operation_when_it_is_dropped() {
    struct Last(Waits<u64>);
    impl Wake for Last {
        fn wake(self: Arc<Self>) {}
    }
    impl Drop for Last {
        fn drop(&mut self) {
            self.0.force_complete_for_key(&1);
        }
    }
    within(PATIENCE, || {
        for replaced in [false, true] {
            let (waits, _clock) = by_hand();
            let mut wait = waits.wait([1], NEVER_IN_A_TEST, || None::<u8>);
            let waker = Waker::from(Arc::new(Last(waits.clone())));
            let polled = Pin::new(&mut wait).poll(&mut Context::from_waker(&waker));
            assert!(polled.is_pending());
            drop(waker);
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

/// Panics when it is dropped, also while the thread unwinds already.
pub(crate) struct Bomb;

impl Drop for Bomb {
    fn drop(&mut self) {
        resume_unwind(Box::new("intended"));
    }
}

#[test]
fn g12_a_destructor_that_panics_does_not_keep_the_value_back() {
    let (waits, _clock) = by_hand();
    let slot = Slot::default();
    let (mut take, bomb) = (take(&slot), Bomb);
    let wait = waits.wait([1], NEVER_IN_A_TEST, move || {
        let _ = &bomb;
        take()
    });
    put(&slot, 1);
    assert_eq!(waits.check_and_complete(&1), 1);
    assert_eq!(waits.stats().panicked, 1);
    assert_eq!(now(wait), Ok(1));
    assert_empty(&waits);
}

#[test]
fn g12_a_waker_that_panics_harms_no_other_wait() {
    struct Loud;
    impl Wake for Loud {
        fn wake(self: Arc<Self>) {
            panic!("on purpose");
        }
    }
    let (waits, _clock) = by_hand();
    let (slots, bell) = ([Slot::default(), Slot::default()], Bell::new());
    let [mut loud, mut other] = [0, 1].map(|at| waits.wait([1], NEVER_IN_A_TEST, take(&slots[at])));
    let waker = Waker::from(Arc::new(Loud));
    let polled = Pin::new(&mut loud).poll(&mut Context::from_waker(&waker));
    assert!(polled.is_pending() && bell.poll(&mut other).is_pending());
    slots.iter().for_each(|slot| put(slot, 1));
    assert_eq!(waits.check_and_complete(&1), 2);
    assert_eq!((waits.stats().panicked, bell.rung()), (1, 1));
    assert_eq!((now(loud), now(other)), (Ok(1), Ok(1)));

    // Also where it panics in the destructor of what panicked before.
    let bomb = Bomb;
    let mut loud = waits.wait([1], NEVER_IN_A_TEST, move || {
        let _ = &bomb;
        None::<u8>
    });
    let polled = Pin::new(&mut loud).poll(&mut Context::from_waker(&waker));
    assert!(polled.is_pending());
    let taken = waits.cancel_for_key(&1);
    let dropped = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| drop(taken)));
    assert!(dropped.is_err());
    assert_eq!(now(loud), Err(WaitError::Cancelled));
}

/// The predicate and the waker of one wait panic, each with a value that panics when it is dropped.
#[test]
fn g12_a_predicate_and_a_waker_with_bad_payloads_cost_no_process() {
    struct Bad;
    impl Drop for Bad {
        fn drop(&mut self) {
            resume_unwind(Box::new(BadPayload));
        }
    }
    struct Loud;
    impl Wake for Loud {
        fn wake(self: Arc<Self>) {
            resume_unwind(Box::new(BadPayload));
        }
    }
    let (waits, clock) = by_hand();
    let slot = Slot::default();
    let wait = || {
        let (mut take, bad) = (take(&slot), Bad);
        let mut wait = waits.wait([1], Duration::from_secs(1), move || {
            let _ = &bad;
            take()
        });
        let waker = Waker::from(Arc::new(Loud));
        let polled = Pin::new(&mut wait).poll(&mut Context::from_waker(&waker));
        assert!(polled.is_pending());
        wait
    };
    let found = wait();
    put(&slot, 1);
    assert_eq!(waits.check_and_complete(&1), 1);
    assert_eq!((waits.stats().panicked, now(found)), (1, Ok(1)));
    let expired = wait();
    clock.advance(Duration::from_secs(2));
    assert_eq!(waits.advance(), 1);
    assert_eq!(
        (waits.stats().panicked, now(expired)),
        (2, Err(WaitError::Expired))
    );
}

/// As executors do that run a task where it is woken.
#[test]
fn g03_a_waker_may_poll_and_drop_the_future() {
    struct Inline(
        Slot<WaitFuture<WaitOperation<u64>, u8>>,
        Slot<Result<u8, WaitError>>,
    );
    impl Wake for Inline {
        fn wake(self: Arc<Self>) {
            let wait = lock(&self.0).take().expect("woken once");
            put(&self.1, now(wait));
        }
    }
    within(PATIENCE, || {
        let (waits, _clock) = by_hand();
        let (slot, inline) = (Slot::default(), Inline(Slot::default(), Slot::default()));
        let (future, output) = (inline.0.clone(), inline.1.clone());
        let mut wait = waits.wait([1], NEVER_IN_A_TEST, take(&slot));
        let waker = Waker::from(Arc::new(inline));
        let polled = Pin::new(&mut wait).poll(&mut Context::from_waker(&waker));
        assert!(polled.is_pending());
        put(&future, wait);
        put(&slot, 1);
        assert_eq!(waits.check_and_complete(&1), 1);
        assert_eq!(lock(&output).take(), Some(Ok(1)));
    });
}

/// Of a destructor that panics while the thread unwinds already, the process would die.
#[test]
fn g12_a_future_that_is_dropped_by_a_panic_ends_though_its_predicate_panics_when_dropped() {
    struct Explodes(Bomb);
    impl Wake for Explodes {
        fn wake(self: Arc<Self>) {}
    }
    within(PATIENCE, || {
        let (waits, _clock) = by_hand();
        let bomb = Bomb;
        let wait = waits.wait([1], NEVER_IN_A_TEST, move || {
            let _ = &bomb;
            None::<()>
        });
        // So does the waker of a second, and the value that a third has found.
        let mut polled = waits.wait([1], NEVER_IN_A_TEST, || None::<()>);
        let waker = Waker::from(Arc::new(Explodes(Bomb)));
        let poll = Pin::new(&mut polled).poll(&mut Context::from_waker(&waker));
        assert!(poll.is_pending());
        drop(waker);
        let found = waits.wait([1], NEVER_IN_A_TEST, || Some(Bomb));
        let unwound = catch_unwind(AssertUnwindSafe(move || {
            let _owned = (wait, polled, found);
            resume_unwind(Box::new("intended too"));
        }));
        assert!(unwound.is_err());
        assert_empty(&waits);
    });
}
