//! The promise behind a request: keeping it against polling, with wakers that change. A lost wake-up shows as a
//! deadlock.

use loom::sync::atomic::{AtomicBool, Ordering};
use loom::thread;
use loom_tests::{DriverWaker, Sleeper, exhaustive};
use request_purgatory::model::{HandedOver, Promise, close_unreceived};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

/// As a task that moves from executor to executor: every poll comes with another waker.
fn wait(promise: &Promise<u32>, sleeper: &Sleeper) -> u32 {
    loop {
        let waker = Arc::new(DriverWaker(sleeper.waker())).into();
        match promise.poll(&Context::from_waker(&waker)) {
            Poll::Ready(value) => return value,
            Poll::Pending => sleeper.sleep(),
        }
    }
}

/// Catches: a waker that is not stored, or stored past a value that came meanwhile; a keeper that wakes no task.
#[test]
fn keep_races_poll() {
    exhaustive(|| {
        let promise = Arc::new(Promise::new());
        let keeper = {
            let promise = promise.clone();
            thread::spawn(move || promise.keep(7))
        };
        assert_eq!(wait(&promise, &Sleeper::default()), 7);
        assert_eq!(keeper.join().unwrap(), Ok(()));
    });
}

/// Catches: the first waker kept in place of the last, or woken in its place.
#[test]
fn keep_races_a_change_of_wakers() {
    exhaustive(|| {
        let promise = Arc::new(Promise::new());
        let keeper = {
            let promise = promise.clone();
            thread::spawn(move || promise.keep(7))
        };
        // The task that polled first was dropped; the task that polls now must be woken.
        let first = promise.poll(&Context::from_waker(Waker::noop()));
        if first.is_pending() {
            assert_eq!(wait(&promise, &Sleeper::default()), 7);
        }
        assert_eq!(keeper.join().unwrap(), Ok(()));
    });
}

/// Catches: a value that overwrites another, or is handed out twice; one that is taken though no task asks any more.
#[test]
fn of_two_keepers_one_is_refused() {
    exhaustive(|| {
        let promise = Arc::new(Promise::new());
        let keeper = {
            let promise = promise.clone();
            thread::spawn(move || promise.keep(1))
        };
        let mine = promise.keep(2);
        let theirs = keeper.join().unwrap();
        let cx = Context::from_waker(Waker::noop());
        match promise.poll(&cx) {
            Poll::Ready(1) => assert_eq!((theirs, mine), (Ok(()), Err(2))),
            Poll::Ready(2) => assert_eq!((theirs, mine), (Err(1), Ok(()))),
            other => panic!("{other:?}"),
        }
        assert!(promise.poll(&cx).is_pending());
        drop(promise.close());
        assert_eq!(promise.keep(3), Err(3));
    });
}

/// The value of an operation that has ended waits for its turn in a queue, while the task that waits gives up.
///
/// Catches: a value that stays although the promise is closed; one that is dropped twice, or before what comes before
/// it.
#[test]
fn handing_over_races_a_close() {
    exhaustive(|| {
        let (promise, value) = (Arc::new(Promise::new()), Arc::new(()));
        let queue = {
            let (promise, value) = (promise.clone(), value.clone());
            thread::spawn(move || {
                let before = value.clone();
                let handed_over = HandedOver::new(&promise, value, before);
                handed_over.is_some()
            })
        };
        let unreceived = close_unreceived(&promise);
        let closed_first = unreceived.is_none();
        drop(unreceived);
        let is_wanted = queue.join().unwrap();
        assert!(is_wanted || closed_first);
        assert_eq!(Arc::strong_count(&value), 1, "it lies nowhere any more");
    });
}

/// Catches: a value that is told and wakes no task; one that is told before its turn.
#[test]
fn handing_over_races_poll() {
    exhaustive(|| {
        let promise = Arc::new(Promise::new());
        let turn = Arc::new(AtomicBool::new(false));
        let queue = {
            let (promise, turn) = (promise.clone(), turn.clone());
            thread::spawn(move || {
                let handed_over = HandedOver::new(&promise, 7, ());
                assert!(handed_over.is_some());
                turn.store(true, Ordering::Relaxed);
                drop(handed_over);
            })
        };
        assert_eq!(wait(&promise, &Sleeper::default()), 7);
        assert!(turn.load(Ordering::Relaxed), "its turn has come");
        queue.join().unwrap();
    });
}
