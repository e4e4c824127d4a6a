//! Building a tracker.

use super::core::Core;
use super::{TrackedKey, Tracker};
use crate::RandomState;
use crate::completions::Completions;
use crate::engine::Engine;
use crate::engine::owner::Face;
use crate::engine::settings::{Settings, knobs};
use crate::error::BuildError;
use crate::operation::KeyHasher;
use crate::reaper::Reaper;
use crate::sync::Arc;
use crate::time::Clock;
use std::fmt;
use std::marker::PhantomData;
use std::time::Duration;

/// The knobs of a [`Tracker`], each with a sensible default.
pub struct TrackerBuilder<K, V, S = RandomState> {
    settings: Settings,
    hasher: S,
    tracker: PhantomData<fn() -> (K, V)>,
}

impl<K: TrackedKey, V: Send + 'static> TrackerBuilder<K, V> {
    pub(crate) fn new(name: String) -> Self {
        Self::with(Settings::new(name), RandomState::default())
    }
}

impl<K: TrackedKey, V: Send + 'static, S: KeyHasher> TrackerBuilder<K, V, S> {
    pub(super) fn with(settings: Settings, hasher: S) -> Self {
        Self {
            settings,
            hasher,
            tracker: PhantomData,
        }
    }

    knobs!();

    /// How keys are hashed. Default: a fast hasher with a random seed, since keys are often chosen by others.
    pub fn hasher<H: KeyHasher>(self, hasher: H) -> TrackerBuilder<K, V, H> {
        TrackerBuilder::with(self.settings, hasher)
    }

    /// Builds the tracker and starts its threads. `on_expiry` gets each value whose timeout has passed, with its key,
    /// on the thread that [`completions`](Self::completions) says.
    ///
    /// # Errors
    /// [`BuildError`] if the tick or the wheel's size make no sense, or the system refuses a thread.
    ///
    /// # Panics
    /// If the clock does.
    pub fn build(
        self,
        on_expiry: impl Fn(K, V) + Send + Sync + 'static,
    ) -> Result<Tracker<K, V, S>, BuildError> {
        let engine = Engine::new(self.settings)?;
        Ok(Tracker {
            face: Face::start(Core::new(engine, self.hasher, on_expiry)),
        })
    }
}

impl<K, V, S> fmt::Debug for TrackerBuilder<K, V, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("TrackerBuilder")
            .field(&self.settings)
            .finish()
    }
}
