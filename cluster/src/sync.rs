//! The lock and the counters of what several threads share: parking_lot's and std's, or shuttle's in a build with
//! `--cfg request_purgatory_shuttle`. The only module that knows about shuttle.

#[cfg(not(request_purgatory_shuttle))]
pub(crate) use native::*;
#[cfg(request_purgatory_shuttle)]
pub(crate) use shuttled::*;
use std::collections::HashMap;
use std::hash::{BuildHasher, Hash};
pub(crate) use std::sync::Arc;

/// Hashes keys: with a random seed, since clients choose them; with a fixed one in a build for tests, so that a run of
/// the simulation can be repeated.
#[cfg(not(any(feature = "rules", request_purgatory_shuttle)))]
pub(crate) type KeyHash = foldhash::fast::RandomState;
#[cfg(any(feature = "rules", request_purgatory_shuttle))]
pub(crate) type KeyHash = foldhash::fast::FixedState;

/// Gives back the room of a map of which less than a quarter is in use: so what a burst of keys took goes with them.
/// The next call that moves the entries comes after half of them were removed, or as many were added.
pub(crate) fn shed<K: Eq + Hash, V, S: BuildHasher>(map: &mut HashMap<K, V, S>) {
    if map.len() < map.capacity() / 4 {
        map.shrink_to(2 * map.len());
    }
}

#[cfg(not(request_purgatory_shuttle))]
mod native {
    pub(crate) use parking_lot::Mutex;
    pub(crate) use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

    /// Parts of the table, each with a lock of its own: enough that the threads of a large machine seldom meet, few
    /// enough that the driver looks through all of them each time it wakes.
    pub(crate) const SHARDS: usize = 16;
}

#[cfg(request_purgatory_shuttle)]
mod shuttled {
    pub(crate) use shuttle::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

    pub(crate) const SHARDS: usize = 1;

    /// shuttle's lock with parking_lot's signature.
    #[derive(Debug, Default)]
    pub(crate) struct Mutex<T>(shuttle::sync::Mutex<T>);

    impl<T> Mutex<T> {
        pub(crate) fn new(value: T) -> Self {
            Self(shuttle::sync::Mutex::new(value))
        }

        pub(crate) fn lock(&self) -> shuttle::sync::MutexGuard<'_, T> {
            match self.0.lock() {
                Ok(guard) => guard,
                Err(poisoned) => poisoned.into_inner(),
            }
        }
    }
}
