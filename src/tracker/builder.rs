//! The settings of a tracker.

use crate::dispatch::Dispatch;
use crate::engine::settings::{Settings, setters};
use crate::hash::{Key, KeyHasher, RandomState};
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
    pub(super) first_token: u64,
    tracker: PhantomData<fn() -> (K, V)>,
}

impl<K: Key, V: Send + 'static> TrackerBuilder<K, V> {
    pub(crate) fn new(name: String) -> Self {
        Self::with(Settings::new(name), RandomState::default(), 1)
    }
}

impl<K: Key, V: Send + 'static, S: KeyHasher> TrackerBuilder<K, V, S> {
    pub(super) fn with(settings: Settings, hasher: S, first_token: u64) -> Self {
        Self {
            settings,
            hasher,
            first_token,
            tracker: PhantomData,
        }
    }

    setters!();

    /// How keys are hashed. Default: a fast hasher with a random seed, since clients often choose the keys.
    pub fn hasher<H: KeyHasher>(self, hasher: H) -> TrackerBuilder<K, V, H> {
        TrackerBuilder::with(self.settings, hasher, self.first_token)
    }

    /// The number of the first [`FencingToken`](super::FencingToken), from 1 to 2^63. Default: 1.
    ///
    /// A tracker forgets its tokens with the process. Where they must grow across restarts, give each start a number
    /// above all that the starts before can have reached: a count of the starts, from a store, in the upper 32 bits; or
    /// the time in microseconds since 1970, where the clock is never set back and there are fewer values than
    /// microseconds.
    pub fn first_token(mut self, number: u64) -> Self {
        self.first_token = number;
        self
    }
}

impl<K, V, S> fmt::Debug for TrackerBuilder<K, V, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("TrackerBuilder")
            .field(&self.settings)
            .finish()
    }
}
