//! Clocks, and the one place that turns their readings into ticks.

pub(crate) mod ticks;

use crate::panics::Panics;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A reading of a [`Clock`]: the time since an origin that the clock chose. Readings of different clocks do not
/// compare.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Timestamp(Duration);

impl Timestamp {
    /// The reading that lies `since_origin` after the clock's origin.
    pub const fn from_origin(since_origin: Duration) -> Self {
        Self(since_origin)
    }

    /// The time since the clock's origin.
    pub const fn since_origin(self) -> Duration {
        self.0
    }

    /// The time from `earlier` to this reading; zero if `earlier` is the later one.
    pub const fn saturating_since(self, earlier: Timestamp) -> Duration {
        self.0.saturating_sub(earlier.0)
    }

    /// The reading `duration` later, or the last possible one.
    pub const fn saturating_add(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(duration))
    }
}

/// A source of monotonic time.
///
/// Its methods are called on threads that build, park or reschedule, on callers of `remaining`, `snapshot` and
/// `advance`, on the reaper, and in tasks whose listener has rechecks; with the feature `metrics` or `tracing`, on every
/// thread that ends an operation. No lock of the library is held.
pub trait Clock: Send + Sync + 'static {
    /// The time now. Must never go back.
    fn now(&self) -> Timestamp;

    /// How long a thread may sleep before this clock reads `deadline`. `None` if the clock does not follow real time;
    /// then it must wake sleeping threads by the functions of [`subscribe`](Self::subscribe).
    fn time_until(&self, deadline: Timestamp) -> Option<Duration> {
        Some(deadline.saturating_since(self.now()))
    }

    /// Asks to call `wake` whenever this clock jumps. Clocks that follow real time need not remember it.
    fn subscribe(&self, wake: WakeFn) {
        drop(wake);
    }
}

impl<C: Clock + ?Sized> Clock for Arc<C> {
    fn now(&self) -> Timestamp {
        (**self).now()
    }

    fn time_until(&self, deadline: Timestamp) -> Option<Duration> {
        (**self).time_until(deadline)
    }

    fn subscribe(&self, wake: WakeFn) {
        (**self).subscribe(wake);
    }
}

/// Wakes the thread that drives a timer: given to clocks that are moved by hand, and by reactors
/// ([`Reaper::Reactor`](crate::threads::Reaper::Reactor)).
#[derive(Clone)]
pub struct WakeFn(Arc<dyn Fn() -> bool + Send + Sync>);

impl WakeFn {
    /// Calls `wake`, on any thread, any number of times. `wake` returns `false` when no thread is left to wake, and
    /// must not block. A wake-up that comes before the thread sleeps must keep it from sleeping.
    pub fn new(wake: impl Fn() -> bool + Send + Sync + 'static) -> Self {
        Self(Arc::new(wake))
    }

    /// Wakes the thread. `false` if there is none any more, and this function can be dropped.
    pub fn wake(&self) -> bool {
        (self.0)()
    }
}

debug_fields!([] WakeFn, "WakeFn", |it|);

/// The system's monotonic clock, counted from this instant: the default, with the moment at which the builder was made.
impl Clock for Instant {
    #[inline]
    fn now(&self) -> Timestamp {
        Timestamp(self.elapsed())
    }
}

/// A clock that stands still until it is moved, for tests. Clones share one time.
///
/// Moving it wakes the reaper of a purgatory that has one. A purgatory with
/// [`Reaper::Manual`](crate::threads::Reaper::Manual) expires no operation before its `advance` is called.
#[derive(Debug, Clone, Default)]
pub struct ManualClock(Arc<ManualTime>);

#[derive(Debug, Default)]
struct ManualTime {
    now: parking_lot::Mutex<Duration>,
    wakers: parking_lot::Mutex<Vec<WakeFn>>,
}

impl ManualClock {
    /// A clock that reads zero.
    pub fn new() -> Self {
        Self::default()
    }

    /// A clock that reads `since_origin`.
    pub fn starting_at(since_origin: Duration) -> Self {
        let clock = Self::new();
        *clock.0.now.lock() = since_origin;
        clock
    }

    /// Moves the clock forward, at most to the last possible reading. Wakes the threads that sleep by this clock, which
    /// expire operations on their own. The wake functions run on this thread, also those of
    /// [reactors](crate::threads::Reaper::Reactor); if one panics, so does this call, when all were called.
    pub fn advance(&self, by: Duration) {
        let mut now = self.0.now.lock();
        *now = now.saturating_add(by);
        drop(now);
        self.wake();
    }

    /// Calls all wake functions, and forgets those whose purgatory is gone.
    fn wake(&self) {
        // Without the lock: a wake function may move this clock, or subscribe.
        let wakers = self.0.wakers.lock().clone();
        // One that panics keeps no other from being called, and is called again the next time.
        let mut panics = Panics::default();
        let is_stale = |waker: &WakeFn| panics.catch(|| waker.wake()) == Some(false);
        let stale = wakers.into_iter().filter(is_stale).collect::<Vec<_>>();
        let mut wakers = self.0.wakers.lock();
        wakers.retain(|waker| !stale.iter().any(|stale| Arc::ptr_eq(&stale.0, &waker.0)));
        // Room for as many again: a subscription calls all of them when the room is full.
        let left = wakers.len();
        wakers.reserve(left);
        drop(wakers);
        panics.resume();
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Timestamp {
        Timestamp(*self.0.now.lock())
    }

    fn time_until(&self, deadline: Timestamp) -> Option<Duration> {
        (deadline <= self.now()).then_some(Duration::ZERO)
    }

    fn subscribe(&self, waker: WakeFn) {
        let mut wakers = self.0.wakers.lock();
        wakers.push(waker);
        let full = wakers.len() == wakers.capacity();
        drop(wakers);
        // Each keeps some memory of a purgatory, which may be gone. Only a call tells, and a wake-up without cause does
        // no harm.
        if full {
            self.wake();
        }
    }
}
