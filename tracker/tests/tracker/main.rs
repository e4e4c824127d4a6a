//! `Tracker` and `Requests`: the guarantees where each key has one value. `PROPTEST_CASES` says how many sequences the
//! property tests try.

mod chains;
mod closures;
mod deadlines;
mod endings;
mod futures;
mod keys;
mod model;
mod panics;
mod points;
mod requests;
mod requests_model;
mod shutdown;
mod stress;

use request_purgatory::{purgatory::Key, threads::Reaper, time::ManualClock};
use request_purgatory_tracker::{
    Builder, FencingToken, RejectReason, Rejected, Requests, Responded, Tracker, WeakRef,
};
use std::future::Future;
use std::panic::resume_unwind;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Waker};
use support::bell::waker;
use testing as support;

/// A tracker without threads, on a clock moved by hand.
fn manual_tracker<K: Key, V: Send + 'static>(
    configure: impl FnOnce(Builder<Tracker<K, V>>) -> Builder<Tracker<K, V>>,
    on_expiry: impl Fn(K, V, FencingToken) + Send + Sync + 'static,
) -> (Tracker<K, V>, ManualClock) {
    let clock = ManualClock::new();
    let builder = Tracker::builder("manual").clock(clock.clone());
    let tracker = configure(builder.reaper(Reaper::Manual)).build(on_expiry);
    (tracker.expect("no threads to refuse"), clock)
}

/// Requests without threads, on a clock moved by hand.
fn manual_requests<K: Key, R: Send + 'static>(
    configure: impl FnOnce(Builder<Requests<K, R>>) -> Builder<Requests<K, R>>,
) -> (Requests<K, R>, ManualClock) {
    let clock = ManualClock::new();
    let builder = Requests::builder("manual").clock(clock.clone());
    let calls = configure(builder.reaper(Reaper::Manual)).build();
    (calls.expect("no threads to refuse"), clock)
}

/// Where the code that a tracker runs finds this tracker.
type Place<K, V> = Arc<OnceLock<WeakRef<Tracker<K, V>>>>;

fn found<K: Key, V: Send + 'static>(place: &Place<K, V>) -> Option<Tracker<K, V>> {
    place.get().and_then(WeakRef::upgrade)
}

/// Why it was refused, if it was.
fn refusal<T, V>(result: &Result<T, Rejected<V>>) -> Option<RejectReason> {
    result.as_ref().err().map(Rejected::reason)
}

fn delivered<R>(responded: Responded<R>) -> bool {
    matches!(responded, Responded::Delivered)
}

fn panicking_waker() -> Waker {
    waker(|| resume_unwind(Box::new("intended")))
}

/// Polls what is pending, for the task of this waker.
fn poll_in_vain<F: Future + Unpin>(future: &mut F, waker: &Waker) {
    let polled = Pin::new(future).poll(&mut Context::from_waker(waker));
    assert!(polled.is_pending());
}
