//! Futures: on three executors, through every ending, and when they are dropped.

mod anywhere;
mod chains;
mod jobs_in_hand;
mod model;
mod on_time;
mod one_ending;

use request_purgatory::time::ManualClock;
use request_purgatory::{DelayedOperation, Purgatory, WaitError, Waits};
use request_purgatory::{purgatory::Builder, threads::Reaper};
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;
use support::bell::{Bell, waker};
use support::lock;
use testing as support;

const SECOND: Duration = Duration::from_secs(1);

/// A place where at most one value lies.
type Slot<T> = Arc<Mutex<Option<T>>>;

fn put<T>(slot: &Slot<T>, value: T) {
    *lock(slot) = Some(value);
}

/// Finds what lies in `slot`, and takes it.
fn take<T>(slot: &Slot<T>) -> impl FnMut() -> Option<T> + use<T> {
    let slot = slot.clone();
    move || lock(&slot).take()
}

/// The predicate `find`, which owns `owned` besides.
fn owning<O, T>(owned: O, mut find: impl FnMut() -> T) -> impl FnMut() -> T {
    move || {
        let _ = &owned;
        find()
    }
}

fn by_hand() -> (Waits<u64>, ManualClock) {
    built(|builder| builder)
}

/// Without threads, on a clock that is moved by hand.
fn built<Op: DelayedOperation>(
    configure: impl FnOnce(Builder<Purgatory<Op>>) -> Builder<Purgatory<Op>>,
) -> (Purgatory<Op>, ManualClock) {
    let clock = ManualClock::new();
    let builder = Purgatory::builder("by hand").clock(clock.clone());
    let built = configure(builder.reaper(Reaper::Manual)).build();
    (built.expect("no threads to refuse"), clock)
}

/// What ends an operation on key 1, with a timeout of a second, and finds no value.
const ENDS: [(WaitError, End); 4] = [
    (WaitError::Expired, |waits, clock| {
        pass(waits, clock, SECOND)
    }),
    (WaitError::Forced, |waits, _| {
        _ = waits.force_complete_for_key(&1)
    }),
    (WaitError::Cancelled, |waits, _| {
        drop(waits.cancel_for_key(&1))
    }),
    (WaitError::ShutDown, |waits, _| waits.shutdown()),
];

type End = fn(&Waits<u64>, &ManualClock);

/// Time passes, and the timer is driven.
fn pass<Op: DelayedOperation>(purgatory: &Purgatory<Op>, clock: &ManualClock, time: Duration) {
    clock.advance(time);
    purgatory.advance();
}

fn assert_empty<T: DelayedOperation>(purgatory: &Purgatory<T>) {
    let stats = purgatory.stats();
    assert_eq!((stats.parked, stats.watched), (0, 0));
    assert_eq!(purgatory.watched_keys(), 0);
    assert_eq!(purgatory.next_deadline(), None, "and no timer");
}

fn now<F: Future + Unpin>(mut future: F) -> F::Output {
    match Bell::new().poll(&mut future) {
        Poll::Ready(output) => output,
        Poll::Pending => panic!("still pending"),
    }
}

fn is_pending<F: Future + Unpin>(future: &mut F) -> bool {
    Bell::new().poll(future).is_pending()
}

/// The future, which was polled in vain, and the bell of its task.
fn waiting<F: Future>(future: F) -> (Pin<Box<F>>, Arc<Bell>) {
    let (mut future, bell) = (Box::pin(future), Bell::new());
    assert!(bell.poll(&mut future).is_pending());
    (future, bell)
}

/// Polls in vain, for a task whose waker calls `woken`. The library has the only clone of the waker then.
fn poll_in_vain<F: Future + Unpin>(future: &mut F, woken: impl Fn() + Send + Sync + 'static) {
    let waker = waker(woken);
    let polled = Pin::new(future).poll(&mut Context::from_waker(&waker));
    assert!(polled.is_pending());
}
