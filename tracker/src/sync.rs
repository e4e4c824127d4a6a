//! The lock of the map shards: parking_lot's mutex or, in the tests under the model checker loom, an instrumented
//! mutex.

#[cfg(not(request_purgatory_loom))]
pub(crate) use parking_lot::{Mutex, MutexGuard};
#[cfg(request_purgatory_loom)]
pub(crate) use request_purgatory::model::{Mutex, MutexGuard};

use std::thread::available_parallelism;

/// The number of shards of a map: 16 for each processor, from 64 to 1,024, and a power of two. Under loom there is one
/// shard.
pub(crate) fn map_shards() -> usize {
    if cfg!(request_purgatory_loom) {
        return 1;
    }
    let processors = available_parallelism().map_or(1, |processors| processors.get());
    (processors * 16).next_power_of_two().clamp(64, 1_024)
}
