//! The settings of trackers and requests, and their builder.

use crate::error::BuildError;
use crate::values::Expiring;
use request_purgatory::Timer;
use request_purgatory::threads::{Dispatch, Reaper};
use request_purgatory::time::Clock;
use std::fmt;
use std::time::Duration;

/// The settings that trackers and requests share.
pub(crate) struct Settings {
    pub(crate) timer: request_purgatory::purgatory::Builder<Timer<Expiring>>,
    /// A copy of the timer's setting `max_timeout`. `Shared::expiry` needs it to compute the deadline of a value.
    pub(crate) max_timeout: Duration,
}

/// Returns what was built with the default settings, which are always accepted.
pub(crate) fn sound<T>(built: Result<T, BuildError>) -> T {
    built.unwrap_or_else(|error| unreachable!("the default settings are sound: {error}"))
}

/// A type that a [`Builder`] can build: `Tracker` or `Requests`.
pub(crate) trait Built {
    /// The settings that only this type has, beside the settings of the timer.
    type Own;
}

/// The settings of a [`Tracker`](crate::Tracker) or of [`Requests`](crate::Requests), each with a default.
///
/// Made by [`Tracker::builder`](crate::Tracker::builder) or [`Requests::builder`](crate::Requests::builder), and
/// consumed by `build`. All settings except `first_token`, `remembered_ids` and `hasher` are settings of the underlying
/// [`Timer`].
#[expect(private_bounds, reason = "only `Tracker` and `Requests` can be built")]
pub struct Builder<T: Built> {
    pub(crate) settings: Settings,
    pub(crate) own: T::Own,
}

/// Defines a method for each setting that the builder passes on to the timer.
macro_rules! of_the_timer {
    ($($(#[$doc:meta])* $name:ident($($argument:ident: $type:ty)?);)*) => {$(
        $(#[$doc])*
        #[doc = ""]
        #[doc = concat!(
            "Sets [`Builder::", stringify!($name), "`](request_purgatory::purgatory::Builder::", stringify!($name), ") of the timer."
        )]
        pub fn $name(mut self $(, $argument: $type)?) -> Self {
            self.settings.timer = self.settings.timer.$name($($argument)?);
            self
        }
    )*};
}

#[expect(private_bounds, reason = "only `Tracker` and `Requests` can be built")]
impl<T: Built> Builder<T> {
    pub(crate) fn new(name: impl Into<String>, own: T::Own) -> Self {
        Self {
            settings: Settings {
                timer: Timer::builder(name),
                max_timeout: Duration::MAX,
            },
            own,
        }
    }

    of_the_timer! {
        /// The resolution of the timer: the callback of a value runs at its deadline or up to one tick later. Default:
        /// 1 ms.
        tick(tick: Duration);
        /// Slots per level of the timing wheel, rounded up to a power of two. Default: 64.
        wheel_size(slots: usize);
        /// The maximum number of values. An expired value counts until its callback has returned. A value beyond the
        /// maximum is rejected with [`RejectReason::Full`](crate::RejectReason::Full), unless it replaces another one.
        /// Default: no limit.
        max_parked(count: usize);
        /// The source of time. Default: the system's monotonic clock.
        clock(clock: impl Clock);
        /// The thread on which your code runs for expired values. Default: [`Dispatch::OwnThread`], or
        /// [`Dispatch::Inline`] if no reaper thread of the library drives the timer.
        dispatch(dispatch: Dispatch);
        /// Which thread drives the timer. Default: [`Reaper::Own`].
        reaper(reaper: Reaper);
        /// Starts the threads during `build`. Default: threads start when they are first needed.
        threads_at_once();
    }

    /// The longest timeout: a call with a longer timeout gets this one. Useful if clients choose the timeouts. Default:
    /// no limit.
    pub fn max_timeout(mut self, timeout: Duration) -> Self {
        self.settings.timer = self.settings.timer.max_timeout(timeout);
        self.settings.max_timeout = timeout;
        self
    }
}

impl<T: Built> fmt::Debug for Builder<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Builder");
        shown
            .field("timer", &self.settings.timer)
            .finish_non_exhaustive()
    }
}
