//! The map below the watch lists: a dashmap that is accessed shard by shard.
//!
//! In the common case each access hashes the key once and probes once, without the guards for single entries.
//!
//! `Hash`, `Eq` and `Clone` of keys run under the lock of a shard. If one panics, the lock's guard releases it.

use super::key_code::KeyCode;
use super::{AtomicBool, MAX_MAP_SHARDS, MapShards, OnceLock, Ordering};
use super::{for_each_entry, make_shards, shrink};
use dashmap::SharedValue;
use equivalent::Equivalent;
use scopeguard::{ScopeGuard, guard};
use std::hash::{BuildHasher, Hash};

/// One of several changes that are made together: the hash of a key, the key, and the argument of the change.
pub(crate) type Edit<'k, K, T> = (u64, &'k K, T);

/// A concurrent map of small values: every access happens under the lock of the key's shard. The shards are made when
/// the first value comes. Each access gets the name of its caller for [`KeyCode`].
pub(crate) struct ShardedMap<K, V, S> {
    map: OnceLock<MapShards<K, V>>,
    /// Whether a thread has begun to make the map.
    begun: AtomicBool,
    /// Whether a table may be large enough to shrink.
    has_grown: AtomicBool,
    hasher: S,
    /// The number of shards, a power of two, less one.
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

    /// The shard of a hash, by bits that the shard's table does not use: the table uses the lowest and the highest
    /// bits.
    pub(crate) fn shard_of(&self, hash: u64) -> usize {
        (hash >> 32) as usize & self.mask
    }

    /// The shards; `None` if no value has come yet.
    ///
    /// `None` orders like a lookup under the lock of a shard: every thread that uses the map later sees what this
    /// thread did before. So an operation that comes to watch sees the event of a check that found no map.
    #[inline(always)]
    fn made(&self) -> Option<&MapShards<K, V>> {
        self.map.get().or_else(|| self.look())
    }

    #[cold]
    #[inline(never)]
    fn look(&self) -> Option<&MapShards<K, V>> {
        // ORDERING: AcqRel, a read-modify-write. If it comes after the one in `begin`, it finds that. Otherwise the one
        // in `begin` comes later, pairs with this one, and is seen by all threads that find the map.
        let begun = self.begun.fetch_or(false, Ordering::AcqRel);
        begun.then(|| self.make())
    }

    /// Makes the map for the first value.
    #[cold]
    #[inline(never)]
    fn begin(&self) -> &MapShards<K, V> {
        // ORDERING: AcqRel, see `look`. The swap comes before the map can be found.
        self.begun.swap(true, Ordering::AcqRel);
        self.make()
    }

    /// Reads the entry of `key` under the shared lock of its shard.
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

    /// The hash of `key`, for the methods that find an entry by its hash.
    pub(crate) fn hash_of<Q: Hash + ?Sized>(&self, key: &Q) -> u64 {
        self.hasher.hash_one(key)
    }

    /// Shows `edit` the entry of `key`, and adds an entry with the value that `edit` returns, if any: all under one
    /// hold of the exclusive lock of the key's shard. The key is cloned only for a new entry.
    #[inline(always)]
    pub(crate) fn update(
        &self,
        call: &'static str,
        key: &K,
        edit: impl FnOnce(Option<&mut V>) -> Option<V>,
    ) where
        K: Clone,
    {
        // Declared first, so that the entry is dropped after the lock is released, even if a key panics.
        let entry;
        let _code = KeyCode::enter(call);
        let map = self.map.get().unwrap_or_else(|| self.begin());
        let hash = self.hash_of(key);
        let mut shard = map.shards()[self.shard_of(hash)].write();
        let found = shard.get_mut(hash, |(other, _)| other == key);
        let Some(value) = edit(found.map(|(_, value)| value.get_mut())) else {
            return;
        };
        entry = (key.clone(), SharedValue::new(value));
        let hash_of = |(key, _): &(K, SharedValue<V>)| self.hash_of(key);
        // `Hash` of other keys may panic. A table that is rehashed in place would then drop entries, under the lock; a
        // table that moves loses none. So a full table always moves: to half its size if its entries fit there (the
        // rest were removed entries), else to a larger one.
        #[cfg(not(any(request_purgatory_loom, request_purgatory_shuttle)))]
        if shard.capacity() == shard.len() {
            // ORDERING: see `shrink`.
            self.has_grown.store(true, Ordering::Relaxed);
            let half = shard.buckets() * 7 / 16;
            if shard.len() < half {
                shard.shrink_to(half, hash_of);
            }
            shard.reserve(1, hash_of);
        }
        shard.insert(hash, entry, hash_of);
    }

    /// Changes the entry of `key`, if it exists, and removes it if `edit` returns `true`, under one hold of the
    /// exclusive lock of its shard. Returns the removed entry, because destructors of keys are user code.
    ///
    /// With `goes`, first looks for an entry that can be removed without an edit: one lookup instead of two if the
    /// entry is removed, and two instead of one if it stays.
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

    /// Makes several changes in one shard, under one hold of its exclusive lock. If `edit` returns `true`, the entry is
    /// removed and added to `removed`, because destructors of keys are user code. `done` counts the changes, including
    /// one that ends the call by a panic of its key. `prefetch` only reads the value.
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
        // The entries lie far apart. Loads in a loop of their own overlap instead of waiting for one another.
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

    /// Gives the memory of large tables back that are empty, or nearly. (Not in a removal: every removal would pay for the
    /// look.) Takes no lock if no table has grown since the last call that left none large; else that of one shard after the
    /// other, where it is free, for as long as it takes to hash the few keys that are left in a large table.
    pub(crate) fn shrink(&self) {
        let _code = KeyCode::enter("shrink");
        let hash_of = |(key, _): &(K, SharedValue<V>)| self.hash_of(key);
        let shrink = |map| shrink(map, hash_of);
        // ORDERING: Relaxed. A table grows under its shard's lock, after the store. If this call has that lock before, the
        // store comes after the swap, and stays for the next call; if it finds the lock taken, a large one may be left.
        if self.has_grown.swap(false, Ordering::Relaxed) {
            // Also where `Hash` panics.
            let left = guard((), |()| self.has_grown.store(true, Ordering::Relaxed));
            if !self.map.get().is_some_and(shrink) {
                ScopeGuard::into_inner(left);
            }
        }
    }

    /// The number of entries. Takes the shared lock of each shard in turn.
    pub(crate) fn len(&self) -> usize {
        self.made().map_or(0, MapShards::len)
    }

    /// Visits every entry, one shard at a time under its shared lock.
    pub(crate) fn for_each(&self, call: &'static str, visit: impl FnMut(&K, &V)) {
        let _code = KeyCode::enter(call);
        _ = self.made().map(|map| for_each_entry(map, visit));
    }
}
