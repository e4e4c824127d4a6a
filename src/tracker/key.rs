//! What can be tracked.

use std::hash::Hash;

/// What the keys of a [`Tracker`](super::Tracker) must be. Implemented by all types that can be.
pub trait TrackedKey: Eq + Hash + Clone + Send + Sync + 'static {}

impl<K: Eq + Hash + Clone + Send + Sync + 'static> TrackedKey for K {}
