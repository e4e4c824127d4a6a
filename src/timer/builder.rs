//! How a timer is built.

use super::Timer;
use super::inner::Inner;
use crate::dispatch::Dispatch;
use crate::engine::Engine;
use crate::engine::settings::{Builder, Built};
use crate::engine::shared_handle::SharedHandle;
use crate::error::BuildError;
use crate::scheme::Scheme;
use std::sync::mpsc;

impl<T: Send + 'static, W: Scheme> Built for Timer<T, W> {
    type Own = ();
}

impl<T: Send + 'static> Timer<T> {
    /// A timer with a tick of 1 ms, a reaper thread, and a completion thread on which `on_expiry` is called.
    ///
    /// # Panics
    /// If the system refuses a thread. [`Builder::build`] returns that as an error.
    pub fn new(name: impl Into<String>, on_expiry: impl Fn(T) + Send + Sync + 'static) -> Self {
        match Self::builder(name).build(on_expiry) {
            Ok(timer) => timer,
            Err(error) => panic!("{error}"),
        }
    }

    /// Begins to build a timer with other choices.
    pub fn builder(name: impl Into<String>) -> Builder<Self> {
        Builder::new(name, ())
    }
}

impl<T: Send + 'static, W: Scheme> Builder<Timer<T, W>> {
    /// How deadlines are kept; see [`scheme`](crate::scheme) for what each is good for. Default:
    /// [`HierarchicalWheel`](crate::scheme::HierarchicalWheel).
    pub fn scheme<V: Scheme>(self) -> Builder<Timer<T, V>> {
        Builder {
            settings: self.settings,
            own: (),
        }
    }

    /// Builds the timer and starts its threads. `on_expiry` is called with each payload whose timeout has passed, on
    /// the thread that [`dispatch`](Self::dispatch) says.
    ///
    /// # Errors
    /// [`BuildError`], if [`tick`](Self::tick) or [`wheel_size`](Self::wheel_size) is out of range, or the system
    /// refuses a thread.
    ///
    /// # Panics
    /// If the clock does.
    pub fn build(
        self,
        on_expiry: impl Fn(T) + Send + Sync + 'static,
    ) -> Result<Timer<T, W>, BuildError> {
        let inner = Inner::new(Engine::new(self.settings)?, (), on_expiry);
        Ok(Timer {
            shared: SharedHandle::start(inner),
        })
    }

    /// Builds it with a channel in place of a callback: the receiver gets expired payloads, which are dropped if the
    /// receiver was dropped. There is no completion thread unless [`dispatch`](Self::dispatch) asks for one. The
    /// channel ends when the timer is shut down and its last clone is dropped.
    ///
    /// # Errors
    /// As for [`build`](Self::build).
    ///
    /// # Panics
    /// If the clock does.
    pub fn build_with_channel(mut self) -> Result<(Timer<T, W>, mpsc::Receiver<T>), BuildError> {
        // Sending does not block.
        self.settings.dispatch.get_or_insert(Dispatch::Inline);
        let (sender, receiver) = mpsc::channel();
        let timer = self.build(move |payload| {
            // Without a receiver, the payload is dropped.
            let _ = sender.send(payload);
        })?;
        Ok((timer, receiver))
    }
}
