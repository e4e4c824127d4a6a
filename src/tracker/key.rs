//! Keys of a tracker.

use std::hash::Hash;

/// The bounds on keys of a [`Tracker`](super::Tracker). Implemented by all types that meet them.
pub trait TrackedKey: Eq + Hash + Clone + Send + Sync + 'static {}

impl<K: Eq + Hash + Clone + Send + Sync + 'static> TrackedKey for K {}
