//! G1: wherever the task runs, on tokio, on smol or on a thread that blocks, it learns its end. G19: a blocking thread
//! sleeps.

use crate::support::{NEVER_IN_A_TEST, PATIENCE, eventually, within};
use crate::{Slot, now, owning, put, take};
use request_purgatory::Waits;
use request_purgatory::future::{WaitError, block_on};
use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::Poll;
use std::thread;
use std::time::Duration;

const SHORT: Duration = Duration::from_millis(5);

/// A poll blocks in a call of its own. What wakes the outer task meanwhile also ends the sleep of the inner call, and is
/// not lost for the outer one.
#[test]
fn g01_a_wake_up_during_a_nested_block_on_is_not_lost() {
    within(PATIENCE, || {
        let waits = Waits::<u64>::new("nested");
        let (outer, inner) = (Slot::default(), Slot::default());
        let mut first = waits.wait([1], NEVER_IN_A_TEST, take(&outer));
        let mut second = Some(waits.wait([2], NEVER_IN_A_TEST, take(&inner)));
        let checks = || {
            put(&outer, 1);
            waits.check_and_complete(&1);
            // The inner call wakes up, and sleeps again.
            thread::sleep(4 * SHORT);
            put(&inner, 2);
            waits.check_and_complete(&2);
        };
        let both = poll_fn(|cx| {
            let found = Pin::new(&mut first).poll(cx);
            thread::scope(|scope| {
                if let Some(second) = second.take() {
                    scope.spawn(checks);
                    assert_eq!(block_on(second), Ok(2));
                }
            });
            found
        });
        assert_eq!(block_on(both), Ok(1));
    });
}

/// What every executor has to bear: a value that another thread finds, and a timeout.
async fn on_any_executor(executor: &'static str) {
    let waits = Waits::<u64>::new("anywhere");
    let slot = Slot::default();
    let found = waits.wait([1, 2], NEVER_IN_A_TEST, take(&slot));
    let checks = waits.clone();
    let checker = thread::spawn(move || {
        thread::sleep(SHORT);
        put(&slot, "value");
        checks.check_and_complete(&2)
    });
    assert_eq!(found.await, Ok("value"), "{executor}");
    assert_eq!(checker.join().expect("it does not panic"), 1, "{executor}");
    let expired = waits.wait([1], SHORT, || None::<u8>);
    assert_eq!(expired.await, Err(WaitError::Expired), "{executor}");
}

#[test]
fn g01_a_future_ends_on_tokio_on_smol_and_in_block_on() {
    within(PATIENCE, || {
        let runtime = tokio::runtime::Runtime::new().expect("threads for tokio");
        runtime.block_on(async {
            let spawned = tokio::spawn(on_any_executor("a thread of tokio"));
            on_any_executor("tokio").await;
            spawned.await.expect("it does not panic");
        });
        smol::block_on(async {
            let spawned = smol::spawn(on_any_executor("a thread of smol"));
            on_any_executor("smol").await;
            spawned.await;
        });
        block_on(on_any_executor("block_on"));
    });
}

/// It would sleep on the very thread that has to wake it.
#[test]
fn block_on_in_a_callback_panics_and_does_not_hang() {
    within(PATIENCE, || {
        let waits = Waits::<u64>::new("nested");
        let inner = waits.clone();
        let outer = || {
            waits.wait([1], NEVER_IN_A_TEST, move || {
                block_on(inner.wait([2], NEVER_IN_A_TEST, || Some(1))).ok()
            })
        };
        assert!(catch_unwind(AssertUnwindSafe(outer)).is_err());
        assert_eq!(waits.stats().parked, 0);
        let (inner, panicked) = (waits.clone(), waits.stats().panicked);
        let give_back = move |()| _ = block_on(inner.wait([2], NEVER_IN_A_TEST, || Some(1)));
        drop(now(waits.take([1], None, |_| Some(()), give_back)));
        assert_eq!(waits.stats().panicked, panicked + 1);
    });
}

/// It polls in vain once, and again when it is woken. (A wake-up of the thread from before the call may add a poll.)
#[test]
fn g19_a_thread_that_blocks_sleeps_until_it_is_woken() {
    let waits = Waits::<u64>::new("asleep");
    let mut wait = waits.wait([1], Duration::from_millis(100), || None::<u8>);
    let mut polls = 0;
    let end = block_on(poll_fn(|cx| {
        polls += 1;
        Pin::new(&mut wait).poll(cx)
    }));
    assert_eq!(end, Err(WaitError::Expired));
    assert!(polls <= 3, "{polls} polls");
}

/// Values, timeouts and drops against checks from other threads: each wait that stays learns its end, and nothing is
/// left.
#[test]
fn g01_many_tasks_many_checkers() {
    const TASKS: usize = 4_000;
    const KEYS: u64 = 8;
    within(PATIENCE, || {
        let runtime = tokio::runtime::Runtime::new().expect("threads for tokio");
        let waits = Waits::<u64>::new("many");
        let stop = Arc::new(AtomicBool::new(false));
        let epoch = Arc::new(AtomicUsize::new(0));
        let checkers = [0, 1].map(|_| {
            let (waits, stop, epoch) = (waits.clone(), stop.clone(), epoch.clone());
            thread::spawn(move || {
                while !stop.load(Ordering::SeqCst) {
                    epoch.fetch_add(1, Ordering::SeqCst);
                    (0..KEYS).for_each(|key| _ = waits.check_and_complete(&key));
                    thread::yield_now();
                }
            })
        });
        let mut random = fastrand::Rng::with_seed(11);
        let payload = Arc::new(());
        let tasks = (0..TASKS).map(|_| {
            let (waits, epoch, payload) = (waits.clone(), epoch.clone(), payload.clone());
            let (keys, kind) = ([random.u64(..KEYS), random.u64(..KEYS)], random.u64(..4));
            runtime.spawn(async move {
                let begun = epoch.load(Ordering::SeqCst);
                // The timeout is longer than any test: a lost wake-up hangs.
                let timeout = match kind {
                    0 => Duration::from_millis(1),
                    _ => NEVER_IN_A_TEST,
                };
                let needed = if kind == 1 { usize::MAX } else { begun + 3 };
                let reached = move || Some(epoch.load(Ordering::SeqCst)).filter(|at| *at >= needed);
                let mut wait = waits.wait(keys, timeout, owning(payload, reached));
                if kind == 1 {
                    let polled = poll_fn(|cx| Poll::Ready(Pin::new(&mut wait).poll(cx))).await;
                    tokio::task::yield_now().await;
                    drop(wait);
                    return polled.is_pending();
                }
                match wait.await {
                    Ok(epoch) => epoch >= needed,
                    Err(WaitError::Expired) => kind == 0,
                    Err(_) => false,
                }
            })
        });
        for task in tasks.collect::<Vec<_>>() {
            assert!(runtime.block_on(task).expect("it does not panic"));
        }
        stop.store(true, Ordering::SeqCst);
        for checker in checkers {
            checker.join().expect("it does not panic");
        }
        eventually("the end of all", || {
            let left = (waits.stats().parked, waits.watched_keys());
            left == (0, 0) && Arc::strong_count(&payload) == 1
        });
        assert_eq!(waits.stats().panicked, 0);
    });
}
