//! The map of the watch lists and of the deferred checks: a dashmap that is accessed shard by shard.
//!
//! In the common case, each access hashes the key once, probes once, and makes none of dashmap's guards.
//!
//! `Hash`, `Eq` and `Clone` of keys run under the lock of a shard. If one of them panics, a guard releases the lock.

use super::key_code::KeyCode;
use super::{AtomicBool, MAX_MAP_SHARDS, MapShards, OnceLock, Ordering};
use super::{for_each_entry, make_shards, shrink};
use dashmap::SharedValue;
use equivalent::Equivalent;
use scopeguard::{ScopeGuard, guard};
use std::hash::{BuildHasher, Hash};

/// One of several changes that are made together: the hash of a key, the key, and the argument of the change.
pub(crate) type Edit<'k, K, T> = (u64, &'k K, T);

/// A concurrent map of small values: every access happens under the lock of the key's shard. The shards are made for
/// the first entry. Each access gets the name of its caller, for [`KeyCode`].
pub(crate) struct ShardedMap<K, V, S> {
    map: OnceLock<MapShards<K, V>>,
    /// Whether a thread has begun to make the map.
    begun: AtomicBool,
    /// Whether a table may be large enough to shrink.
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

    /// The shard of a hash, by bits that the shard's table does not use: the table uses the lowest and the highest
    /// bits.
    pub(crate) fn shard_of(&self, hash: u64) -> usize {
        (hash >> 32) as usize & self.mask
    }

    /// The shards; `None` if no entry was ever added.
    ///
    /// A result of `None` gives the same order as a lookup under the lock of a shard: what this thread did before the
    /// call happens before every later use of the map. So if a check finds no map, a thread that adds the first watcher
    /// later sees the event of the check.
    #[inline(always)]
    fn made(&self) -> Option<&MapShards<K, V>> {
        self.map.get().or_else(|| self.look())
    }

    #[cold]
    #[inline(never)]
    fn look(&self) -> Option<&MapShards<K, V>> {
        // ORDERING: AcqRel. This read-modify-write comes before or after the swap in `begin`. If it comes after, it
        // finds the flag set, and this call returns the map. If it comes before, this Release pairs with the Acquire of
        // the swap: what this thread did happens before the map is made, and before every later use of the map.
        let begun = self.begun.fetch_or(false, Ordering::AcqRel);
        begun.then(|| self.make())
    }

    /// Makes the map for the first value.
    #[cold]
    #[inline(never)]
    fn begin(&self) -> &MapShards<K, V> {
        // ORDERING: AcqRel, as argued in `look`. This swap happens before any thread can find the map.
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
        // A full table hashes its keys again to make room, and `Hash` may panic. During a rehash in place, a panic
        // would drop entries under the lock. During a move to another table, a panic drops none. So a full table always
        // moves: to half its size if its entries fit there (removed entries have filled it), otherwise to a larger
        // table.
        #[cfg(not(any(request_purgatory_loom, request_purgatory_shuttle)))]
        if shard.capacity() == shard.len() {
            // ORDERING: Relaxed, as argued in `shrink`.
            self.has_grown.store(true, Ordering::Relaxed);
            let half = shard.buckets() * 7 / 16;
            if shard.len() < half {
                shard.shrink_to(half, hash_of);
            }
            shard.reserve(1, hash_of);
        }
        shard.insert(hash, entry, hash_of);
    }

    /// Changes the entry of `key`, if it exists, and removes it if `edit` returns `true`, in one hold of the exclusive
    /// lock of its shard. Returns the removed entry, because destructors of keys are user code.
    ///
    /// With `goes`, an entry whose value `goes` accepts is removed without an edit. Such a removal takes one lookup
    /// instead of two, but the edit of any other entry takes two lookups instead of one.
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

    /// Makes several changes in one shard, in one hold of its exclusive lock. If `edit` returns `true`, the entry is
    /// moved to `removed`, because destructors of keys are user code. `prefetch` only reads the value.
    ///
    /// `done` counts the changes. A change is counted before code of its key runs, because that code may panic and end
    /// the call.
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
        // The entries lie far apart. In a loop of their own, the loads overlap instead of waiting for one another.
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

    /// Frees memory of large, nearly empty tables. Removals do not do this, because each of them would have to look.
    ///
    /// Takes no lock if the last call left no large table and no table has grown since. Otherwise tries the lock of
    /// each shard, one after the other, and skips a shard whose lock is taken. If a table shrinks, its few remaining
    /// keys are hashed again under the lock.
    pub(crate) fn shrink(&self) {
        let _code = KeyCode::enter("shrink");
        let hash_of = |(key, _): &(K, SharedValue<V>)| self.hash_of(key);
        let shrink = |map| shrink(map, hash_of);
        // ORDERING: Relaxed: the locks of the shards order the accesses. A table grows under the lock of its shard,
        // after the store of the flag. If this call locks the shard before the growth, this swap happens before the
        // store, so the flag stays set for the next call. If this call locks the shard after the growth, it sees the
        // large table. A shard whose lock is taken counts as one with a large table.
        if self.has_grown.swap(false, Ordering::Relaxed) {
            // Sets the flag again if a large table may be left, or if `Hash` panics.
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

    /// Visits every entry, one shard at a time under its shared lock.
    pub(crate) fn for_each(&self, call: &'static str, visit: impl FnMut(&K, &V)) {
        let _code = KeyCode::enter(call);
        _ = self.made().map(|map| for_each_entry(map, visit));
    }
}
