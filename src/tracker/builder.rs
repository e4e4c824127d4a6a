//! The settings of a tracker.

use super::key::TrackedKey;
use crate::dispatch::Dispatch;
use crate::engine::settings::{Settings, setters};
use crate::hash::{KeyHasher, RandomState};
use crate::reaper::Reaper;
use crate::sync::Arc;
use crate::time::Clock;
use std::fmt;
use std::marker::PhantomData;
use std::time::Duration;

/// The settings of a [`Tracker`](super::Tracker), each with a default.
pub struct TrackerBuilder<K, V, S = RandomState> {
    pub(super) settings: Settings,
    pub(super) hasher: S,
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

    setters!();

    /// How keys are hashed. Default: a fast hasher with a random seed, since clients often choose the keys.
    pub fn hasher<H: KeyHasher>(self, hasher: H) -> TrackerBuilder<K, V, H> {
        TrackerBuilder::with(self.settings, hasher)
    }
}

impl<K, V, S> fmt::Debug for TrackerBuilder<K, V, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("TrackerBuilder")
            .field(&self.settings)
            .finish()
    }
}
