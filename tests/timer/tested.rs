//! What a scheme says of itself to the tests, and timers on it.

use request_purgatory::scheme::Scheme;
use request_purgatory::{
    Timer, purgatory::Builder, threads::Dispatch, threads::Reaper, time::ManualClock,
};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, channel};

/// A scheme under test.
pub(crate) trait Tested: Scheme {
    /// It knows the next deadline: with nothing but a far timer, no thread wakes.
    const SLEEPS: bool;
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
