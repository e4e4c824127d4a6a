//! The settings that purgatory and timer share, and the builder of both.

use crate::error::BuildError;
use crate::sync::Arc;
use crate::threads::dispatch::Dispatch;
use crate::threads::reaper::Reaper;
use crate::time::Clock;
use std::time::{Duration, Instant};

#[derive(Clone)]
pub(crate) struct Settings {
    pub(crate) name: String,
    pub(crate) tick: Duration,
    pub(crate) wheel_size: usize,
    pub(crate) max_parked: Option<usize>,
    pub(crate) max_weight: Option<usize>,
    /// Whether the slots of ended payloads, and their entries in the watch lists of keys, are reclaimed before their
    /// completions run. With `max_parked` or `max_weight` this is always done, even if this field is `false`.
    pub(crate) reclaim_first: bool,
    pub(crate) max_timeout: Duration,
    pub(crate) clock: Arc<dyn Clock>,
    /// The instant from which the default clock counts; `None` if the user has set another clock.
    pub(crate) system_since: Option<Instant>,
    pub(crate) dispatch: Option<Dispatch>,
    pub(crate) reaper: Reaper,
    pub(crate) threads_at_once: bool,
}

impl Settings {
    pub(crate) fn new(name: String) -> Self {
        let now = Instant::now();
        Self {
            name,
            tick: Duration::from_millis(1),
            wheel_size: 64,
            max_parked: None,
            max_weight: None,
            reclaim_first: false,
            max_timeout: Duration::MAX,
            clock: Arc::new(now),
            system_since: Some(now),
            dispatch: None,
            reaper: Reaper::Own,
            threads_at_once: false,
        }
    }
}

/// Returns the purgatory or timer that was built with the default settings. Building it cannot fail.
pub(crate) fn sound<T>(built: Result<T, BuildError>) -> T {
    built.unwrap_or_else(|error| unreachable!("the default settings are sound: {error}"))
}

/// A type that a [`Builder`] builds: a purgatory or a timer.
pub(crate) trait Built {
    /// The settings that only this type has.
    type Own;
}

/// The settings of a [`Purgatory`](crate::Purgatory) or a [`Timer`](crate::Timer), each with a default.
///
/// Made by [`Purgatory::builder`](crate::Purgatory::builder) or [`Timer::builder`](crate::Timer::builder), and consumed
/// by `build`.
#[expect(private_bounds, reason = "only `Purgatory` and `Timer` can be built")]
pub struct Builder<T: Built> {
    pub(crate) settings: Settings,
    pub(crate) own: T::Own,
}

#[expect(private_bounds, reason = "only `Purgatory` and `Timer` can be built")]
impl<T: Built> Builder<T> {
    pub(crate) fn new(name: impl Into<String>, own: T::Own) -> Self {
        Self {
            settings: Settings::new(name.into()),
            own,
        }
    }

    /// The resolution of the timer: an operation expires at its deadline or up to one tick later. More than zero, and
    /// at most 584 years. Default: 1 ms.
    pub fn tick(mut self, tick: Duration) -> Self {
        self.settings.tick = tick;
        self
    }

    /// The number of slots in each level of the timing wheel, from 2 to 65,536, rounded up to a power of two. With the
    /// number `slots` that results, level `n`, counted from 0, covers timeouts up to `tick * slots^(n + 1)`; levels are
    /// added when timeouts need them. A slot takes 8 bytes, in each level of each timer shard (there are 8 to 64). A
    /// timer's [scheme](crate::scheme) that is a wheel with one level only has exactly the given number of slots.
    /// Default: 64.
    pub fn wheel_size(mut self, slots: usize) -> Self {
        self.settings.wheel_size = slots;
        self
    }

    /// The maximum number of parked operations (of payloads, for a timer). A park beyond it is rejected with
    /// [`RejectReason::Full`](crate::purgatory::RejectReason::Full). An operation that has ended still counts until
    /// your code for it has returned, on whatever thread. So this setting bounds memory. The bound is exact, and costs
    /// a counter that every thread writes. Default: no limit.
    pub fn max_parked(mut self, count: usize) -> Self {
        self.settings.max_parked = Some(count);
        self
    }

    /// The maximum sum of the weights of all parked operations (of all payloads, for a timer), for example in bytes. An
    /// operation weighs what its [`DelayedOperation::weight`](crate::DelayedOperation::weight) returns. A payload of a
    /// timer has the weight that is passed to [`Timer::start_weighed`](crate::Timer::start_weighed). A park that would
    /// exceed the bound is rejected with [`RejectReason::Full`](crate::purgatory::RejectReason::Full). So an operation
    /// that is heavier than the bound is always rejected.
    ///
    /// As with [`max_parked`](Self::max_parked), an operation that has ended still counts until your code for it has
    /// returned. [`Stats::weight`](crate::purgatory::Stats::weight) is the present sum. The bound is exact, also
    /// together with `max_parked`. It costs a counter that all threads write, and together with `max_parked` a lock
    /// that every park and every ending takes for a few instructions. Weights other than 1 are recorded until your code
    /// for their operations has returned, in tables with a lock each, one for each timer shard (a part of the parked
    /// operations). The park of such an operation takes the lock of a table for an instant. So does every ending in
    /// that shard while the table has weights. Default: no limit, and nothing is weighed.
    pub fn max_weight(mut self, weight: usize) -> Self {
        self.settings.max_weight = Some(weight);
        self
    }

    /// The longest timeout: a longer one is shortened to this. With it, an operator bounds the timeouts that clients
    /// choose. Default: no limit.
    pub fn max_timeout(mut self, timeout: Duration) -> Self {
        self.settings.max_timeout = timeout;
        self
    }

    /// The source of time. Default: the system's monotonic clock, counted from the [`Instant`] at which the builder was
    /// made.
    ///
    /// **Default on x86-64 Linux.** If a tick lasts 1 ms or more and the kernel's clock source is the time stamp
    /// counter (`tsc`), deadlines are computed from the processor's counter, which each thread compares with the
    /// system's clock every millisecond. Such a deadline is later than one that is computed from the system's clock:
    /// usually by some microseconds, at most by 1 ms. This applies only if you do not call this method. With
    /// `clock(Instant::now())`, each call reads the system's clock; `docs/guarantees.md` (G10) says when that is worth
    /// it.
    pub fn clock(mut self, clock: impl Clock) -> Self {
        self.settings.clock = Arc::new(clock);
        self.settings.system_since = None;
        self
    }

    /// Chooses the thread on which your code runs for an operation (payload) that has expired, or that a deferred
    /// check, such as a [`check_later`](crate::Purgatory::check_later), has completed. Default:
    /// [`Dispatch::OwnThread`]; [`Dispatch::Inline`] if the library has no reaper thread.
    pub fn dispatch(mut self, dispatch: Dispatch) -> Self {
        self.settings.dispatch = Some(dispatch);
        self
    }

    /// Chooses the thread that drives the timer. Default: [`Reaper::Own`].
    pub fn reaper(mut self, reaper: Reaper) -> Self {
        self.settings.reaper = reaper;
        self
    }

    /// Starts the threads during `build`, so that no later call pays for the start. If the system refuses a thread,
    /// `build` fails with [`BuildError::Thread`](crate::purgatory::BuildError::Thread). Default: threads start [when
    /// they are first needed](crate::guide::threads#when-the-threads-start), and the call that first needs the reaper
    /// takes about 0.1 ms longer.
    pub fn threads_at_once(mut self) -> Self {
        self.settings.threads_at_once = true;
        self
    }
}

debug_fields!([T: Built] Builder<T>, "Builder", |it| name: it.settings.name);
