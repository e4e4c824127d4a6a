//! Futures: on three executors, through every ending, and when they are dropped.

#[path = "../support/mod.rs"]
mod support;

mod completing;
mod drops;
mod endings;
mod executors;
mod stress;

use request_purgatory::{ManualClock, Purgatory, Reaper, Waits};
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use support::lock;

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
    assert_eq!((purgatory.delayed(), purgatory.watched()), (0, 0));
    assert_eq!(purgatory.watched_keys(), 0);
    assert_eq!(purgatory.next_deadline(), None, "and no timer");
}

/// Counts its wake-ups.
#[derive(Default)]
struct Bell(AtomicUsize);

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

impl Bell {
    fn new() -> Arc<Self> {
        Arc::default()
    }

    fn rung(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }

    fn poll<F: Future + Unpin>(self: &Arc<Self>, future: &mut F) -> Poll<F::Output> {
        let waker = Waker::from(self.clone());
        Pin::new(future).poll(&mut Context::from_waker(&waker))
    }
}

fn now<F: Future + Unpin>(mut future: F) -> F::Output {
    match Bell::new().poll(&mut future) {
        Poll::Ready(output) => output,
        Poll::Pending => panic!("still pending"),
    }
}
