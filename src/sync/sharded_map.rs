//! The type of three maps: from keys to watch lists, and from keys and from single operations to deferred checks (checks
//! that wait until a thread drives the timer). It is a dashmap that is accessed shard by shard.
//!
//! In the common case, each access hashes the key once, looks it up once, and makes none of dashmap's guards.
//!
//! `Hash`, `Eq` and `Clone` of keys may run under the lock of a shard. If one of them panics, the unwinding releases
//! the lock.

use super::key_code::KeyCode;
use super::{AtomicBool, MAX_MAP_SHARDS, MapShards, OnceLock, Ordering};
use super::{for_each_entry, make_shards, shrink};
use dashmap::SharedValue;
use equivalent::Equivalent;
use scopeguard::{ScopeGuard, guard};
use std::hash::{BuildHasher, Hash};

/// One of the changes that a call of [`ShardedMap::edit_all`] makes: the hash of a key, the key, and what the closure
/// `edit` gets beside the value of that key.
pub(crate) type Edit<'k, K, T> = (u64, &'k K, T);

/// A concurrent map of small values. Every access happens under the lock of the key's shard. The shards are made when
/// the first entry is added. Many methods have an argument `call`: the name of the user's call, for the panic message
/// of [`KeyCode`].
pub(crate) struct ShardedMap<K, V, S> {
    map: OnceLock<MapShards<K, V>>,
    /// Whether a thread has begun to make the shards.
    begun: AtomicBool,
    /// Whether some table may be large enough to shrink.
    has_grown: AtomicBool,
    hasher: S,
    /// The number of shards (a power of two) minus one.
    mask: usize,
}

impl<K: Eq + Hash, V, S: BuildHasher> ShardedMap<K, V, S> {
    pub(crate) fn new(hasher: S, shards: usize) -> Self {
        Self {
            map: OnceLock::new(),
            begun: AtomicBool::new(false),
            has_grown: AtomicBool::new(false),
            hasher,
            mask: shards.min(MAX_MAP_SHARDS) - 1,
        }
    }

    fn make(&self) -> &MapShards<K, V> {
        self.map.get_or_init(|| make_shards(self.mask + 1))
    }

    /// The number of the shard for a hash: some bits in the middle of the hash. The lowest and the highest bits are
    /// left to the table of the shard, which tells its keys apart by these bits.
    pub(crate) fn shard_of(&self, hash: u64) -> usize {
        (hash >> 32) as usize & self.mask
    }

    /// The shards. `None` if no entry was ever added.
    ///
    /// If this returns `None`, all that this thread did before the call happens before the shards are made, and so
    /// before every use of the shards. If the shards exist, the lock of a key's shard gives the same order.
    ///
    /// The user's threads rely on this order: a thread changes data, and then checks a key. If the check finds no
    /// shards, a thread that adds the first watcher later sees the change.
    #[inline(always)]
    fn made(&self) -> Option<&MapShards<K, V>> {
        self.map.get().or_else(|| self.look())
    }

    #[cold]
    #[inline(never)]
    fn look(&self) -> Option<&MapShards<K, V>> {
        // ORDERING: AcqRel. This read-modify-write comes either before or after the swap in `begin`:
        //
        // * If it comes after the swap, it finds the flag set, and this call returns the map.
        // * If it comes before the swap, this Release pairs with the Acquire of the swap: what this thread did happens
        //   before the map is made, and so before every later use of the map.
        let begun = self.begun.fetch_or(false, Ordering::AcqRel);
        begun.then(|| self.make())
    }

    /// Makes the shards for the first entry.
    #[cold]
    #[inline(never)]
    fn begin(&self) -> &MapShards<K, V> {
        // ORDERING: AcqRel. The Acquire pairs with the Release in `look`. If a call of `look` comes before this swap,
        // it finds no map, and what its thread did before the call happens before this thread makes the map. The map is
        // made only after this swap, so no thread can find the map before.
        self.begun.swap(true, Ordering::AcqRel);
        self.make()
    }

    /// Calls `read` with the entry of `key`, under the shared lock of its shard. `None` if there is no entry.
    #[inline(always)]
    pub(crate) fn read<Q, R>(
        &self,
        call: &'static str,
        key: &Q,
        read: impl FnOnce(&K, &V) -> R,
    ) -> Option<R>
    where
        Q: Hash + Equivalent<K> + ?Sized,
    {
        let _code = KeyCode::enter(call);
        let hash = self.hash_of(key);
        let map = self.made()?;
        let shard = map.shards()[self.shard_of(hash)].read();
        let (key, value) = shard.get(hash, |(other, _)| key.equivalent(other))?;
        Some(read(key, value.get()))
    }

    /// The hash of `key`. The map and its tables find an entry by this hash.
    pub(crate) fn hash_of<Q: Hash + ?Sized>(&self, key: &Q) -> u64 {
        self.hasher.hash_one(key)
    }

    /// Calls `edit` with the value of `key`, or with `None` if there is no entry. If `edit` returns a value, adds an
    /// entry with this value and a clone of the key. Both happen in one hold of the exclusive lock of the key's shard.
    #[inline(always)]
    pub(crate) fn update(
        &self,
        call: &'static str,
        key: &K,
        edit: impl FnOnce(Option<&mut V>) -> Option<V>,
    ) where
        K: Clone,
    {
        // Declared first, so that the entry is dropped last: after the lock is released, even if `Hash` of a key panics
        // below.
        let unplaced;
        let _code = KeyCode::enter(call);
        let map = self.map.get().unwrap_or_else(|| self.begin());
        let hash = self.hash_of(key);
        let mut shard = map.shards()[self.shard_of(hash)].write();
        let found = shard.get_mut(hash, |(other, _)| other == key);
        let Some(value) = edit(found.map(|(_, value)| value.get_mut())) else {
            return;
        };
        let entry = (key.clone(), SharedValue::new(value));
        let Err(entry) = shard.try_insert_no_grow(hash, entry) else {
            return;
        };
        unplaced = entry;
        let hash_of = |(key, _): &(K, SharedValue<V>)| self.hash_of(key);
        // To make room, a full table hashes its keys again, and `Hash` may panic. If the table hashes its entries again
        // in place, a panic drops entries, here under the lock. If the table moves its entries to another table, a
        // panic drops none. So make a full table move its entries to another table:
        //
        // * to one of half the size, if the entries fit there: then tombstones of removed entries have filled the table
        // * otherwise, to a larger one
        #[cfg(not(any(request_purgatory_loom, request_purgatory_shuttle)))]
        {
            // ORDERING: Relaxed. `shrink` clears this flag, and then looks for large tables, under the lock of one
            // shard after another. This store and the growth of the table happen in one hold of the shard's lock. So
            // the present call of `shrink` finds the large table, or the flag is set for the next call (see the three
            // cases there).
            self.has_grown.store(true, Ordering::Relaxed);
            let half = shard.buckets() * 7 / 16;
            if shard.len() < half {
                shard.shrink_to(half, hash_of);
            }
            shard.reserve(1, hash_of);
        }
        shard.insert(hash, unplaced, hash_of);
    }

    /// Calls `edit` with the value of `key`, if there is an entry, and removes the entry if `edit` returns `true`. Both
    /// happen in one hold of the exclusive lock of the key's shard. Returns the removed entry, so that the caller drops
    /// it without the lock: destructors of keys are user code.
    ///
    /// If the closure `goes` is given and returns `true` for the value, the entry is removed without a call of `edit`.
    /// Such a removal takes one lookup instead of two, but the edit of any other entry takes two lookups instead of
    /// one.
    #[inline(always)]
    pub(crate) fn edit<Q: Hash + Equivalent<K> + ?Sized>(
        &self,
        call: &'static str,
        key: &Q,
        goes: Option<impl Fn(&V) -> bool>,
        edit: impl FnOnce(&mut V) -> bool,
    ) -> Option<(K, V)> {
        let map = self.made()?;
        let _code = KeyCode::enter(call);
        let hash = self.hash_of(key);
        let mut shard = map.shards()[self.shard_of(hash)].write();
        let mut removed = goes.and_then(|goes| {
            shard.remove_entry(hash, |(other, value)| {
                key.equivalent(other) && goes(value.get())
            })
        });
        if removed.is_none() {
            let entry = shard.get_mut(hash, |(other, _)| key.equivalent(other));
            if entry.is_some_and(|(_, value)| edit(value.get_mut())) {
                removed = shard.remove_entry(hash, |(other, _)| key.equivalent(other));
            }
        }
        drop(shard);
        removed.map(|(key, value)| (key, value.into_inner()))
    }

    /// Makes several changes in one shard, in one hold of its exclusive lock. All `edits` must be for keys of the same
    /// shard. If `edit` returns `true`, the entry is moved to `removed`, so that the caller drops it without the lock:
    /// destructors of keys are user code. `prefetch` only loads the value into the processor's cache.
    ///
    /// `done` counts the changes. A change is counted before code of its key runs. If that code panics and so ends the
    /// call, `done` includes this change, and the caller can continue with the next one.
    pub(crate) fn edit_all<T: Copy>(
        &self,
        edits: &[Edit<'_, K, T>],
        prefetch: impl Fn(&V) -> bool,
        mut edit: impl FnMut(&mut V, T) -> bool,
        done: &mut usize,
        removed: &mut Vec<(K, V)>,
    ) {
        let (Some(&(first, ..)), Some(map)) = (edits.first(), self.made()) else {
            return;
        };
        removed.reserve(edits.len());
        let _code = KeyCode::enter("the end of operations");
        let mut shard = map.shards()[self.shard_of(first)].write();
        // The entries lie far apart, so that each load misses the cache. In a loop of their own, the loads overlap
        // instead of waiting for one another.
        for &(hash, ..) in edits {
            let likely = shard.get(hash, |_| true);
            std::hint::black_box(likely.is_some_and(|(_, value)| prefetch(value.get())));
        }
        for &(hash, key, what) in edits {
            *done += 1;
            let entry = shard.get_mut(hash, |(other, _)| other == key);
            if entry.is_some_and(|(_, value)| edit(value.get_mut(), what)) {
                let entry = shard.remove_entry(hash, |(other, _)| other == key);
                removed.extend(entry.map(|(key, value)| (key, value.into_inner())));
            }
        }
    }

    /// Frees memory of large tables that are nearly empty. Removals do not shrink a table, because each removal would
    /// have to compare the sizes.
    ///
    /// Takes no lock if the last call left no large table and no table has grown since. Otherwise tries the lock of
    /// each shard, one after the other, and skips a shard whose lock is taken. If a table shrinks, its few remaining
    /// keys are hashed again under the lock.
    pub(crate) fn shrink(&self) {
        let _code = KeyCode::enter("shrink");
        let hash_of = |(key, _): &(K, SharedValue<V>)| self.hash_of(key);
        let shrink = |map| shrink(map, hash_of);
        // ORDERING: Relaxed: the locks of the shards order what matters. A thread that grows a table stores the flag
        // and grows the table while it has the shard's lock. There are three cases:
        //
        // * This call gets that lock before the other thread. Then this swap happens before the other thread's store,
        //   and the flag stays set for the next call.
        // * This call gets the lock after the other thread. Then it sees the large table.
        // * This call does not get the lock. Then it counts the shard as one with a large table, and sets the flag
        //   again.
        if self.has_grown.swap(false, Ordering::Relaxed) {
            // This guard sets the flag again if a large table may be left, or if `Hash` panics.
            let left = guard((), |()| self.has_grown.store(true, Ordering::Relaxed));
            if !self.map.get().is_some_and(shrink) {
                ScopeGuard::into_inner(left);
            }
        }
    }

    /// The number of entries. Takes the shared locks of the shards, one after the other.
    pub(crate) fn len(&self) -> usize {
        self.made().map_or(0, MapShards::len)
    }

    /// Calls `visit` with every entry, under the shared lock of one shard at a time.
    pub(crate) fn for_each(&self, call: &'static str, visit: impl FnMut(&K, &V)) {
        let _code = KeyCode::enter(call);
        _ = self.made().map(|map| for_each_entry(map, visit));
    }
}
