//! The promise behind a request: keeping it against polling, with wakers that change. A lost wake-up shows as a
//! deadlock.
#![cfg(request_purgatory_loom)]

use loom::thread;
use loom_tests::{DriverWaker, Sleeper, exhaustive};
use request_purgatory::model::Promise;
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
