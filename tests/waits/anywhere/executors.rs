//! Wherever the task runs: tokio, smol, bare, and threads that block.

use crate::support::{NEVER_IN_A_TEST, Op, PATIENCE, Probe, eventually, within};
use crate::{Slot, now, put, take};
use request_purgatory::future::{Awaited, WaitError, block_on};
use request_purgatory::{Completion, Purgatory, Waits};
use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Wake};
use std::thread;
use std::time::Duration;

/// An executor of one task, with nothing but the standard library.
fn bare<F: Future>(future: F) -> F::Output {
    struct Unpark(thread::Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Arc::new(Unpark(thread::current())).into();
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(output) => return output,
            Poll::Pending => thread::park(),
        }
    }
}

/// What every executor has to bear: a value from another thread, a timeout, a race that drops the loser, a shutdown.
async fn on_any_executor() {
    let waits = Waits::<u64>::new("anywhere");
    let slot = Slot::default();
    let found = waits.wait([1, 2], NEVER_IN_A_TEST, take(&slot));
    let setter = thread::spawn({
        let waits = waits.clone();
        move || {
            thread::sleep(Duration::from_millis(5));
            put(&slot, "value");
            waits.check_and_complete(&2)
        }
    });
    assert_eq!(found.await, Ok("value"));
    assert_eq!(setter.join().expect("it does not panic"), 1);

    let expired = waits.wait([1], Duration::from_millis(5), || None::<u8>);
    assert_eq!(expired.await, Err(WaitError::Expired));

    let mut slow = waits.wait([1], NEVER_IN_A_TEST, || None::<u8>);
    let mut quick = waits.wait([2], Duration::from_millis(5), || None::<u8>);
    let first = poll_fn(|cx| match Pin::new(&mut slow).poll(cx) {
        Poll::Pending => Pin::new(&mut quick).poll(cx),
        ready => ready,
    });
    assert_eq!(first.await, Err(WaitError::Expired));
    drop(slow);
    assert_eq!((waits.stats().parked, waits.watched_keys()), (0, 0));

    let last = waits.wait([3], NEVER_IN_A_TEST, || None::<u8>);
    let closer = thread::spawn({
        let waits = waits.clone();
        move || waits.shutdown()
    });
    assert_eq!(last.await, Err(WaitError::ShutDown));
    closer.join().expect("it does not panic");

    let fetches = Purgatory::<Awaited<Op>>::new("anywhere");
    let probe = Probe::new();
    let fetch = fetches.completion(probe.op(NEVER_IN_A_TEST), [1]);
    let checker = thread::spawn({
        let fetches = fetches.clone();
        move || {
            thread::sleep(Duration::from_millis(5));
            probe.satisfy();
            fetches.check_and_complete(&1)
        }
    });
    let (_, completion) = fetch.expect("there is room").await.expect("it ends");
    assert_eq!(completion, Completion::Satisfied);
    assert_eq!(checker.join().expect("it does not panic"), 1);
}

#[test]
fn on_tokio() {
    within(PATIENCE, || {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .build();
        let runtime = runtime.expect("threads for tokio");
        runtime.block_on(async {
            let spawned = tokio::spawn(on_any_executor());
            on_any_executor().await;
            spawned.await.expect("it does not panic");
        });
    });
}

#[test]
fn on_smol() {
    within(PATIENCE, || {
        smol::block_on(async {
            let spawned = smol::spawn(on_any_executor());
            on_any_executor().await;
            spawned.await;
        });
    });
}

#[test]
fn on_a_bare_block_on() {
    within(PATIENCE, || bare(on_any_executor()));
}

#[test]
fn blocking() {
    within(PATIENCE, || {
        let waits = Waits::<u64>::new("blocking");
        let slot = Slot::default();
        let setter = thread::spawn({
            let (waits, slot) = (waits.clone(), slot.clone());
            move || {
                eventually("the wait", || waits.stats().parked == 1);
                put(&slot, 7);
                waits.check_and_complete(&1)
            }
        });
        let found = block_on(waits.wait([1], NEVER_IN_A_TEST, take(&slot)));
        assert_eq!(found, Ok(7));
        // None, if the wait is counted but not yet on its list: then it finds the value by itself.
        assert!(setter.join().expect("it does not panic") <= 1);
        let expired = block_on(waits.wait([1], Duration::from_millis(2), || None::<u8>));
        assert_eq!(expired, Err(WaitError::Expired));

        let fetches = Purgatory::<Awaited<Op>>::new("blocking");
        let fetch = fetches.completion(Op::new(Duration::from_millis(2)), [1]);
        let fetch = fetch.expect("there is room");
        let (_, completion) = block_on(fetch).expect("it ends");
        assert_eq!(completion, Completion::Expired);
    });
}

/// It would sleep on the very thread that has to wake it.
#[test]
fn blocking_in_a_callback_panics_and_does_not_hang() {
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
