//! Many tasks against many checkers.

use crate::support::{NEVER_IN_A_TEST, PATIENCE, eventually, within};
use request_purgatory::{Waits, future::WaitError};
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::Poll;
use std::thread;
use std::time::Duration;

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
                    for key in 0..KEYS {
                        waits.check_and_complete(&key);
                    }
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
                let mut wait = waits.wait(keys, timeout, move || {
                    let _ = &payload;
                    Some(epoch.load(Ordering::SeqCst)).filter(|&epoch| epoch >= needed)
                });
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
            (waits.stats().parked, waits.watched_keys()) == (0, 0)
                && Arc::strong_count(&payload) == 1
        });
        assert_eq!(waits.stats().panicked, 0);
    });
}
