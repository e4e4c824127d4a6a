//! Building a timer.

use super::Timer;
use super::core::Core;
use crate::completions::Completions;
use crate::engine::Engine;
use crate::engine::owner::Face;
use crate::engine::settings::{Settings, knobs};
use crate::error::BuildError;
use crate::reaper::Reaper;
use crate::scheme::{HierarchicalWheel, Scheme};
use crate::sync::Arc;
use crate::time::Clock;
use std::fmt;
use std::marker::PhantomData;
use std::sync::mpsc;
use std::time::Duration;

/// The knobs of a [`Timer`], each with a sensible default.
pub struct TimerBuilder<T, W = HierarchicalWheel> {
    settings: Settings,
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
    knobs!();

    /// How deadlines are kept; see [`scheme`](crate::scheme) for what each is good for. Default:
    /// [`HierarchicalWheel`].
    pub fn scheme<V: Scheme>(self) -> TimerBuilder<T, V> {
        TimerBuilder {
            settings: self.settings,
            timer: PhantomData,
        }
    }

    /// Builds the timer and starts its threads. `on_expiry` gets each payload whose timeout has passed, on the thread
    /// that [`completions`](Self::completions) says.
    ///
    /// # Errors
    /// [`BuildError`] if the tick or the wheel's size make no sense, or the system refuses a thread.
    ///
    /// # Panics
    /// If the clock does.
    pub fn build(
        self,
        on_expiry: impl Fn(T) + Send + Sync + 'static,
    ) -> Result<Timer<T, W>, BuildError> {
        let engine = Engine::new(self.settings)?;
        Ok(Timer {
            face: Face::start(Core::new(engine, on_expiry)),
        })
    }

    /// The same with a channel in place of a callback: what has expired is received from it, and dropped if the
    /// receiver is gone. There is no completion thread unless one is asked for. When the timer is shut down and gone,
    /// the channel ends.
    ///
    /// # Errors
    /// As for [`build`](Self::build).
    ///
    /// # Panics
    /// If the clock does.
    pub fn build_with_channel(mut self) -> Result<(Timer<T, W>, mpsc::Receiver<T>), BuildError> {
        // Sending does not block.
        self.settings.completions.get_or_insert(Completions::Inline);
        let (sender, receiver) = mpsc::channel();
        let timer = self.build(move |payload| {
            // Nobody wants it any more if the receiver is gone.
            let _ = sender.send(payload);
        })?;
        Ok((timer, receiver))
    }
}

impl<T, W> fmt::Debug for TimerBuilder<T, W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("TimerBuilder").field(&self.settings).finish()
    }
}
