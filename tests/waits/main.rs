//! Futures: on three executors, through every ending, and when they are dropped.

mod anywhere;
mod chains;
mod jobs_in_hand;
mod model;
mod on_time;
mod one_ending;

use request_purgatory::{Purgatory, Waits, threads::Reaper, time::ManualClock};
use std::future::Future;
use std::sync::{Arc, Mutex};
use std::task::Poll;
use support::bell::Bell;
use support::lock;
use testing as support;

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

fn by_hand() -> (Waits<u64>, ManualClock) {
    let clock = ManualClock::new();
    let waits = Waits::builder("by hand")
        .clock(clock.clone())
        .reaper(Reaper::Manual)
        .build()
        .expect("no threads to refuse");
    (waits, clock)
}

fn assert_empty<T: request_purgatory::DelayedOperation>(purgatory: &Purgatory<T>) {
    assert_eq!(
        (purgatory.stats().parked, purgatory.stats().watched),
        (0, 0)
    );
    assert_eq!(purgatory.watched_keys(), 0);
    assert_eq!(purgatory.next_deadline(), None, "and no timer");
}

fn now<F: Future + Unpin>(mut future: F) -> F::Output {
    match Bell::new().poll(&mut future) {
        Poll::Ready(output) => output,
        Poll::Pending => panic!("still pending"),
    }
}
