//! The settings of a timer.

use crate::dispatch::Dispatch;
use crate::engine::settings::{Settings, setters};
use crate::reaper::Reaper;
use crate::scheme::{HierarchicalWheel, Scheme};
use crate::sync::Arc;
use crate::time::Clock;
use std::fmt;
use std::marker::PhantomData;
use std::time::Duration;

/// The settings of a [`Timer`](super::Timer), each with a default.
pub struct TimerBuilder<T, W = HierarchicalWheel> {
    pub(super) settings: Settings,
    timer: PhantomData<fn() -> (T, W)>,
}

impl<T: Send + 'static> TimerBuilder<T> {
    pub(crate) fn new(name: String) -> Self {
        Self {
            settings: Settings::new(name),
            timer: PhantomData,
        }
    }
}

impl<T: Send + 'static, W: Scheme> TimerBuilder<T, W> {
    setters!();

    /// How deadlines are kept; see [`scheme`](crate::scheme) for what each is good for. Default:
    /// [`HierarchicalWheel`].
    pub fn scheme<V: Scheme>(self) -> TimerBuilder<T, V> {
        TimerBuilder {
            settings: self.settings,
            timer: PhantomData,
        }
    }
}

impl<T, W> fmt::Debug for TimerBuilder<T, W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("TimerBuilder").field(&self.settings).finish()
    }
}
