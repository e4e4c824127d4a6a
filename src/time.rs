//! Clocks, their readings, and deadlines.

pub(crate) mod anchor;
pub(crate) mod counter;
mod deadline;
pub(crate) mod ticks;
mod tsc;

pub use crate::threads::manual_clock::ManualClock;
pub use deadline::Deadline;

use std::sync::Arc;
use std::time::{Duration, Instant};

const NANOS_PER_SEC: u64 = 1_000_000_000;

/// A reading of a [`Clock`]: the time since an origin that the clock chose, in whole nanoseconds. Readings of different
/// clocks cannot be compared. The last possible reading lies `u64::MAX` nanoseconds (584 years) after the origin. As a
/// deadline, it never comes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Timestamp {
    nanos: u64,
}

impl Timestamp {
    /// The last possible reading.
    pub(crate) const LAST: Self = Self { nanos: u64::MAX };

    /// The reading that lies `since_origin` after the clock's origin, or the last possible reading.
    #[inline]
    pub const fn from_origin(since_origin: Duration) -> Self {
        Self { nanos: 0 }.saturating_add(since_origin)
    }

    #[inline]
    pub(crate) const fn from_nanos(nanos: u64) -> Self {
        Self { nanos }
    }

    #[inline]
    pub(crate) const fn nanos(self) -> u64 {
        self.nanos
    }

    /// The time since the clock's origin.
    #[inline]
    pub const fn since_origin(self) -> Duration {
        Duration::from_nanos(self.nanos)
    }

    /// The time from `earlier` to this reading; zero if `earlier` is later.
    #[inline]
    pub const fn saturating_since(self, earlier: Timestamp) -> Duration {
        Duration::from_nanos(self.nanos_since(earlier))
    }

    #[inline]
    pub(crate) const fn nanos_since(self, earlier: Timestamp) -> u64 {
        self.nanos.saturating_sub(earlier.nanos)
    }

    /// The reading `duration` later, or the last possible reading.
    #[inline]
    pub const fn saturating_add(self, duration: Duration) -> Self {
        let secs = duration.as_secs().saturating_mul(NANOS_PER_SEC);
        let nanos = self.nanos.saturating_add(duration.subsec_nanos() as u64);
        Self {
            nanos: nanos.saturating_add(secs),
        }
    }
}

/// A source of monotonic time.
///
/// A clock's methods are called with no lock of the library held, on these threads:
///
/// * threads that build a purgatory or timer, and threads that park, start or reschedule what waits in it;
/// * callers of `remaining`, `snapshot`, `point` and `advance`, and of a timer's `now`;
/// * threads that examine an operation at its deadline;
/// * the reaper, the thread that drives the timer;
/// * tasks whose listener has [rechecks](crate::Listener::recheck_every);
/// * with the feature `metrics` or `tracing`, every thread that ends an operation.
pub trait Clock: Send + Sync + 'static {
    /// The time now. Must never go back.
    fn now(&self) -> Timestamp;

    /// How long a thread may sleep before this clock reads `deadline`. `None` if the clock does not follow real time.
    /// Such a clock must wake sleeping threads whenever it jumps, by calling the functions that
    /// [`subscribe`](Self::subscribe) was given.
    fn time_until(&self, deadline: Timestamp) -> Option<Duration> {
        Some(deadline.saturating_since(self.now()))
    }

    /// Asks the clock to call `wake` whenever the clock jumps, so that a sleeping thread sees which deadlines have
    /// passed. A clock that follows real time may ignore `wake`.
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

/// A function that wakes the thread that drives a timer. The library gives one to a clock that is moved by hand
/// ([`Clock::subscribe`]). A reactor gives one to the library ([`Reaper::Reactor`](crate::threads::Reaper::Reactor)).
#[derive(Clone)]
pub struct WakeFn(Arc<dyn Fn() -> bool + Send + Sync>);

impl WakeFn {
    /// A wake function that calls `wake`, on any thread, any number of times. `wake` must not block, and returns
    /// `false` when no thread is left to wake. If `wake` is called before the thread falls asleep, the thread must not
    /// fall asleep: otherwise it could sleep past a deadline.
    pub fn new(wake: impl Fn() -> bool + Send + Sync + 'static) -> Self {
        Self(Arc::new(wake))
    }

    /// Wakes the thread. Returns `false` if no thread is left to wake. The caller can then drop this function.
    pub fn wake(&self) -> bool {
        (self.0)()
    }

    /// Whether `self` and `other` are clones of each other.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

debug_fields!([] WakeFn, "WakeFn", |it|);

/// The system's monotonic clock, counted from this instant. The default clock counts from the moment at which the
/// builder was made.
impl Clock for Instant {
    #[inline]
    fn now(&self) -> Timestamp {
        Timestamp::from_origin(self.elapsed())
    }
}
