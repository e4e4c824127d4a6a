//! The threading primitives of a normal build: std atomics, parking_lot locks, crossbeam's `Parker` and `CachePadded`,
//! dashmap.

use std::cell::Cell;
use std::hash::{BuildHasherDefault, DefaultHasher, Hash};
use std::sync::LazyLock;
use std::time::Duration;

use super::numbers::Numbers;
pub(crate) use crossbeam::sync::{Parker, Unparker};
pub(crate) use crossbeam::utils::CachePadded;
use dashmap::{DashMap, SharedValue};
pub(crate) use parking_lot::{Condvar, Mutex, MutexGuard};
pub(crate) use std::sync::OnceLock;
pub(crate) use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering, fence};
pub(crate) use std::{thread, thread_local};

/// The number of items (state words, or blocks of slots) in the first two chunks of a slab's storage. Each further pair
/// of chunks has room for twice as many items as the pair before.
pub(crate) const FIRST_CHUNK: u32 = 64;
/// The maximum number of chunks in storage whose pairs of chunks double in size (see [`FIRST_CHUNK`]): enough for every
/// index.
pub(crate) const CHUNKS: usize = 40;
/// The number of slots in a chunk of *resident* slots, whose memory stays as long as the slab.
pub(crate) const RESIDENT_CHUNK: u32 = 256;
/// The maximum number of chunks of resident slots (slots whose memory is never freed).
pub(crate) const RESIDENT_CHUNKS: usize = 64;
/// The maximum number of slots in a block, whose memory is allocated and freed as a whole. It is 64, because a 64-bit
/// word has one bit for each slot of a block.
pub(crate) const BLOCK: usize = 64;
/// The number of watchers that fit into a watch list of the form `Few`, which is one small allocation
/// (`src/watch/list.rs`).
pub(crate) const FEW: usize = 3;
/// The number of watchers that fit into a watch list of the form `Several`, which is one allocation of a cache line
/// (`src/watch/list.rs`).
pub(crate) const SEVERAL: usize = 7;
/// The number of watchers in a chunk of a long watch list.
pub(crate) const LIST_CHUNK: usize = 32;
/// A check copies a watch list to the stack if the list has at most this many watchers.
pub(crate) const COPIED: usize = 16;
/// The maximum number of watchers copied or removed, or of timers taken out of the wheel, in one hold of a lock.
pub(crate) const SLICE: usize = 64;
/// One in this many parks empties the remote free list (slots that were freed without the lock of their timer shard),
/// even if the park finds a vacant slot.
pub(crate) const PARKS_PER_EMPTYING: u32 = 16;
/// The maximum number of times in a row that a holder examines its operation because other threads keep asking for it.
pub(crate) const MAX_EXAMINATIONS: u32 = 16;
/// The last generation of a slot. After it, the slot is retired: it gets no other occupant.
pub(crate) const LAST_GENERATION: u32 = u32::MAX;

/// The maximum number of timer shards in an engine (the core of one purgatory or timer): a power of two.
pub(crate) const MAX_TIMER_SHARDS: usize = 64;

/// The number of timer shards of an engine on a machine with this many processors, before `Shards::new` rounds it up to
/// a power of two.
pub(crate) fn timer_shards(processors: usize) -> usize {
    processors.clamp(8, MAX_TIMER_SHARDS)
}

/// The shards of a map. The caller passes the hash of each key, and the hasher in this type is never used. So the map
/// needs no clone of the user's hasher, whose `clone` is user code.
pub(crate) type MapShards<K, V> = DashMap<K, V, BuildHasherDefault<DefaultHasher>>;

/// The maximum number of shards of a map: a power of two. It is 1 under loom and shuttle.
pub(crate) const MAX_MAP_SHARDS: usize = 1 << 16;

pub(crate) fn make_shards<K: Eq + Hash, V>(count: usize) -> MapShards<K, V> {
    DashMap::with_capacity_and_hasher_and_shard_amount(0, Default::default(), count)
}

/// A table of at most this many buckets is not shrunk, even if it is empty, because the next entries need a table.
const KEPT: usize = 16;

/// A table of more than [`KEPT`] buckets is shrunk if at most one in this many of its buckets has an entry.
const SPARSE: usize = 8;

/// Shrinks large tables (more than [`KEPT`] buckets) that are empty or almost empty. Skips a shard whose lock is taken.
/// Returns whether a large table may be left.
pub(crate) fn shrink<K: Eq + Hash, V>(
    map: &MapShards<K, V>,
    hash_of: impl Fn(&(K, SharedValue<V>)) -> u64,
) -> bool {
    let mut left = false;
    for shard in map.shards() {
        let Some(mut shard) = shard.try_write() else {
            left = true;
            continue;
        };
        let buckets = shard.buckets();
        let len = shard.len();
        if buckets > KEPT && len <= buckets / SPARSE {
            // If `hash_of` panics while the table is moved, the table loses no entry.
            shard.shrink_to(len, &hash_of);
        }
        left |= shard.buckets() > KEPT;
    }
    left
}

/// Visits every entry, one shard at a time under its shared lock.
pub(crate) fn for_each_entry<K: Eq + Hash, V>(
    map: &MapShards<K, V>,
    mut visit: impl FnMut(&K, &V),
) {
    for entry in map {
        visit(entry.key(), entry.value());
    }
}

/// Stores `value` in a word that other threads change by read-modify-write. In loom models a swap takes the place of
/// the store. With a plain store, loom would also try impossible executions, in which a concurrent read-modify-write
/// reads the word before the store, and writes it after the store.
#[inline]
pub(crate) fn overwrite(word: &AtomicU64, value: u64, ordering: Ordering) {
    // ORDERING: the caller passes the ordering, and gives the reason.
    word.store(value, ordering);
}

/// The pointer in an atomic that no other thread uses any more.
pub(crate) fn last_pointer<T>(place: &mut AtomicPtr<T>) -> *mut T {
    *place.get_mut()
}

/// Sleeps for `time` between two polls of a condition.
pub(crate) fn pause(time: Duration) {
    thread::sleep(time);
}

/// The value of a thread's `NUMBER` (below) before the thread takes a number.
const NO_NUMBER: u32 = u32::MAX;
/// The value of a thread's `NUMBER` (below) after the ending thread has given its number back.
const ENDING: u32 = u32::MAX - 1;

thread_local! {
    static NUMBER: Cell<u32> = const { Cell::new(NO_NUMBER) };
}

/// A number that no other living thread of this process has. The lowest free number is taken first. The thread gives it
/// back when it ends. Destructors of thread-local values may run after that: they get [`ENDING`].
#[inline]
pub(crate) fn thread_number() -> u32 {
    match NUMBER.get() {
        NO_NUMBER => take_thread_number(),
        known => known,
    }
}

#[cold]
fn take_thread_number() -> u32 {
    static NUMBERS: LazyLock<Numbers> = LazyLock::new(Numbers::default);
    struct GiveBack(u32);
    impl Drop for GiveBack {
        fn drop(&mut self) {
            NUMBER.set(ENDING);
            NUMBERS.put_back(self.0);
        }
    }
    thread_local! {
        static GIVE_BACK: Cell<Option<GiveBack>> = const { Cell::new(None) };
    }
    let number = NUMBERS.take();
    // This fails if the thread is ending and has destroyed this local value. In that case the number is never given
    // back.
    let _ = GIVE_BACK.try_with(|put_back| put_back.set(Some(GiveBack(number))));
    NUMBER.set(number);
    number
}
