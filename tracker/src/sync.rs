//! The lock of the map's shards: parking_lot's, or the one that the models of `loom-tests` follow.

#[cfg(not(request_purgatory_loom))]
pub(crate) use parking_lot::{Mutex, MutexGuard};
#[cfg(request_purgatory_loom)]
pub(crate) use request_purgatory::model::{Mutex, MutexGuard};

use std::thread::available_parallelism;

/// How many shards a map has: a power of two. A model has one.
pub(crate) fn map_shards() -> usize {
    if cfg!(request_purgatory_loom) {
        return 1;
    }
    let processors = available_parallelism().map_or(1, |processors| processors.get());
    (processors * 16).next_power_of_two().clamp(64, 1_024)
}
