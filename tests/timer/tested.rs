//! What a scheme says of itself to the tests, and timers on it.

use crate::support::lock;
use request_purgatory::scheme::Scheme;
use request_purgatory::{
    Timer, purgatory::Builder, purgatory::WeakRef, threads::Dispatch, threads::Reaper,
    time::ManualClock,
};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex, OnceLock};

/// A scheme under test.
pub(crate) trait Tested: Scheme {
    /// It holds any deadline.
    const ENDLESS: bool;
}

/// A name that starts like no other's: threads are found by it.
pub(crate) fn unique(name: &str) -> String {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    format!("{name}{}.", NEXT.fetch_add(1, Ordering::Relaxed))
}

/// A builder of a timer with this scheme.
pub(crate) fn builder<T: Send + 'static, W: Scheme>(name: &str) -> Builder<Timer<T, W>> {
    Timer::<T>::builder(name).scheme::<W>()
}

/// A builder of one without threads on a clock moved by hand.
pub(crate) fn manual<T: Send + 'static, W: Scheme>() -> (Builder<Timer<T, W>>, ManualClock) {
    let clock = ManualClock::new();
    let builder = builder("manual").clock(clock.clone());
    (builder.reaper(Reaper::Manual), clock)
}

/// Builds one that sends what expires to a channel.
pub(crate) fn with_channel<T: Send + 'static, W: Scheme>(
    builder: Builder<Timer<T, W>>,
) -> (Timer<T, W>, Receiver<T>) {
    let (sender, receiver) = channel();
    let builder = builder.dispatch(Dispatch::Inline);
    // A test that drops the receiver wants none of it.
    let timer = builder.build(move |payload| drop(sender.send(payload)));
    (timer.expect("no threads to refuse"), receiver)
}

/// Builds one that logs what `told` makes of what expires, which is dropped after that.
pub(crate) fn log<T: Send + 'static, L: Send + 'static, W: Scheme>(
    builder: Builder<Timer<T, W>>,
    told: impl Fn(&T) -> L + Send + Sync + 'static,
) -> (Timer<T, W>, Arc<Mutex<Vec<L>>>) {
    let log = Arc::new(Mutex::new(Vec::new()));
    let written = log.clone();
    let timer = builder.build(move |payload| {
        let told = told(&payload);
        lock(&written).push(told);
    });
    (timer.expect("threads are to be had"), log)
}

/// Where the callback of a timer finds the timer.
pub(crate) type Itself<T, W> = Arc<OnceLock<WeakRef<Timer<T, W>>>>;

pub(crate) fn found<T: Send + 'static, W: Scheme>(itself: &Itself<T, W>) -> Timer<T, W> {
    let timer = itself.get().and_then(WeakRef::upgrade);
    timer.expect("it lives while it is driven")
}

/// Builds a timer whose callback finds the timer there.
pub(crate) fn knowing_itself<T: Send + 'static, W: Scheme>(
    itself: &Itself<T, W>,
    builder: Builder<Timer<T, W>>,
    callback: impl Fn(&Timer<T, W>, T) + Send + Sync + 'static,
) -> Timer<T, W> {
    let place = itself.clone();
    let timer = builder.build(move |payload| callback(&found(&place), payload));
    let timer = timer.expect("no threads to refuse");
    assert!(itself.set(timer.downgrade()).is_ok(), "set once");
    timer
}
