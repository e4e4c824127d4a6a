//! The map below the watch lists and the trackers: dashmap, entered by its shards.
//!
//! That hashes the key once and probes once in the common case, and leaves out the guards for single entries.

use super::{Entry, Lazy, Shards, for_each_entry, make_shards, map_shards, shrink};
use dashmap::SharedValue;
use equivalent::Equivalent;
use std::hash::{BuildHasher, Hash};

/// A change to the map's entry of `key`, prepared to be made together with others.
pub(crate) struct Edit<'k, K, T> {
    key: &'k K,
    hash: u64,
    shard: usize,
    /// What it is about.
    what: T,
}

impl<K, T> Edit<'_, K, T> {
    /// Those of one shard are to be made together.
    pub(crate) fn shard(&self) -> usize {
        self.shard
    }
}

/// A concurrent map of small values: every access happens under the lock of the key's shard. The shards are made when
/// the first value comes.
pub(crate) struct ShardedMap<K, V, S> {
    map: Lazy<Shards<K, V>>,
    hasher: S,
    /// How many shards there are, a power of two, less one.
    mask: usize,
}

impl<K: Eq + Hash, V, S: BuildHasher> ShardedMap<K, V, S> {
    pub(crate) fn new(hasher: S, shards: usize) -> Self {
        Self {
            map: Lazy::new(),
            hasher,
            mask: map_shards(shards) - 1,
        }
    }

    fn make(&self) -> Shards<K, V> {
        make_shards(self.mask + 1)
    }

    /// By bits that choose no place in a shard's table: those are the lowest and the highest ones.
    #[inline]
    fn shard_of(&self, hash: u64) -> usize {
        (hash >> 32) as usize & self.mask
    }

    /// `None` if no value has come yet.
    #[inline(always)]
    fn made(&self) -> Option<&Shards<K, V>> {
        self.map.get(|| self.make())
    }

    /// Reads the entry of `key` under the shared lock of its shard.
    #[inline(always)]
    pub(crate) fn read<Q, R>(&self, key: &Q, read: impl FnOnce(&K, &V) -> R) -> Option<R>
    where
        Q: Hash + Equivalent<K> + ?Sized,
    {
        let map = self.made()?;
        let hash = self.hash_of(key);
        let shard = map.shards()[self.shard_of(hash)].read();
        let (stored, value) = shard.get(hash, |(other, _)| key.equivalent(other))?;
        Some(read(stored, value.get()))
    }

    /// The hash of `key`, for the methods that find an entry by it.
    #[inline]
    pub(crate) fn hash_of<Q: Hash + ?Sized>(&self, key: &Q) -> u64 {
        self.hasher.hash_one(key)
    }

    /// Reads the entry that `is_it`, among those with this hash, under the shared lock of their shard.
    #[inline]
    pub(crate) fn read_where<R>(
        &self,
        hash: u64,
        mut is_it: impl FnMut(&K, &V) -> bool,
        read: impl FnOnce(&V) -> R,
    ) -> Option<R> {
        let map = self.made()?;
        let shard = map.shards()[self.shard_of(hash)].read();
        let (_, value) = shard.get(hash, |(key, value)| is_it(key, value.get()))?;
        Some(read(value.get()))
    }

    /// Takes the entry that `is_it` out, among those with this hash, under the exclusive lock of their shard.
    #[inline]
    pub(crate) fn take_where(
        &self,
        hash: u64,
        mut is_it: impl FnMut(&K, &V) -> bool,
    ) -> Option<(K, V)> {
        let map = self.made()?;
        let mut shard = map.shards()[self.shard_of(hash)].write();
        let taken = shard.remove_entry(hash, |(key, value)| is_it(key, value.get()));
        drop(shard);
        taken.map(|(key, value)| (key, value.into_inner()))
    }

    /// Shows `edit` the entry of `key` that `is_current`, and adds an entry with what `edit` returns, if anything: all
    /// of it under one hold of the exclusive lock of the key's shard. The others of the key stay where they are. `hash`
    /// is the hash of `key`, and `hash_of` that of an entry that is there already. Returns `key` if it is not needed.
    #[inline(always)]
    pub(crate) fn place(
        &self,
        (hash, key): (u64, K),
        is_current: impl Fn(&V) -> bool,
        edit: impl FnOnce(Option<&mut V>) -> Option<V>,
        hash_of: impl Fn(&K, &V) -> u64,
    ) -> Option<K> {
        let map = self.map.get_or_make(|| self.make());
        let mut shard = map.shards()[self.shard_of(hash)].write();
        let hash_of = |(key, value): &(K, SharedValue<V>)| hash_of(key, value.get());
        // `Hash` of other keys may panic. If it does while a table is hashed anew in place, entries are dropped under the
        // lock, and their destructors are the user's; a table that moves loses none. So one whose places are taken by
        // removed entries moves to half its size, if its entries fit there, and to a larger one as soon as that is full.
        #[cfg(not(any(loom, shuttle)))]
        if shard.capacity() == shard.len() {
            let half = shard.buckets() * 7 / 16;
            if shard.len() < half {
                shard.shrink_to(half, hash_of);
            }
            shard.reserve(1, hash_of);
        }
        let found = shard.get_mut(hash, |(other, value)| {
            *other == key && is_current(value.get())
        });
        match edit(found.map(|(_, value)| value.get_mut())) {
            Some(value) => {
                shard.insert(hash, (key, SharedValue::new(value)), hash_of);
                None
            }
            None => Some(key),
        }
    }

    /// Changes the entry of `key`, if there is one, and removes it if so told, under one hold of the exclusive lock of
    /// its shard. Returns what was removed: destructors of keys are the user's.
    ///
    /// If it is told which entry `goes` without an edit, it looks for that first: one look instead of two where the entry
    /// goes, and two instead of one where it stays.
    #[inline(always)]
    pub(crate) fn edit<Q: Hash + Equivalent<K> + ?Sized>(
        &self,
        key: &Q,
        goes: Option<impl Fn(&V) -> bool>,
        edit: impl FnOnce(&mut V) -> Entry,
    ) -> Option<K> {
        let map = self.made()?;
        let hash = self.hash_of(key);
        let mut shard = map.shards()[self.shard_of(hash)].write();
        let mut removed = goes.and_then(|goes| {
            shard.remove_entry(hash, |(other, value)| {
                key.equivalent(other) && goes(value.get())
            })
        });
        if removed.is_none() {
            let entry = shard.get_mut(hash, |(other, _)| key.equivalent(other));
            if entry.map(|(_, value)| edit(value.get_mut())) == Some(Entry::Remove) {
                removed = shard.remove_entry(hash, |(other, _)| key.equivalent(other));
            }
        }
        drop(shard);
        removed.map(|(key, _)| key)
    }

    /// Prepares a change to the entry of `key`, if there is one.
    pub(crate) fn prepare<'k, T>(&self, key: &'k K, what: T) -> Edit<'k, K, T> {
        let hash = self.hash_of(key);
        let shard = self.shard_of(hash);
        Edit {
            key,
            hash,
            shard,
            what,
        }
    }

    /// Makes changes that were prepared, all in one shard, under one hold of its exclusive lock; each may remove its
    /// entry, which is added to `removed`: destructors of keys are the user's. `done` counts the changes, and among
    /// them the one in which a panic of the key's ends the call. `prefetch` just reads the value.
    pub(crate) fn edit_all<T: Copy>(
        &self,
        edits: &[Edit<'_, K, T>],
        prefetch: impl Fn(&V) -> bool,
        mut edit: impl FnMut(&mut V, T) -> Entry,
        done: &mut usize,
        removed: &mut Vec<(K, V)>,
    ) {
        let (Some(first), Some(map)) = (edits.first(), self.made()) else {
            return;
        };
        removed.reserve(edits.len());
        let mut shard = map.shards()[first.shard].write();
        // The entries lie far apart. In a loop of their own, these loads do not wait for one another.
        for &Edit { hash, .. } in edits {
            let likely = shard.get(hash, |_| true);
            std::hint::black_box(likely.is_some_and(|(_, value)| prefetch(value.get())));
        }
        for &Edit {
            key, hash, what, ..
        } in edits
        {
            *done += 1;
            let entry = shard.get_mut(hash, |(other, _)| other == key);
            if entry.map(|(_, value)| edit(value.get_mut(), what)) == Some(Entry::Remove) {
                let entry = shard.remove_entry(hash, |(other, _)| other == key);
                removed.extend(entry.map(|(key, value)| (key, value.into_inner())));
            }
        }
    }

    /// Gives the memory of tables back that are large and empty. (A removal that looked would cost every removal that.)
    pub(crate) fn shrink(&self) {
        if let Some(shards) = self.map.get_made() {
            shrink(shards);
        }
    }

    /// The number of entries. Takes the shared lock of each shard in turn.
    pub(crate) fn len(&self) -> usize {
        self.made().map_or(0, Shards::len)
    }

    /// Visits every entry, one shard at a time under its shared lock.
    pub(crate) fn for_each(&self, visit: impl FnMut(&K, &V)) {
        if let Some(map) = self.made() {
            for_each_entry(map, visit);
        }
    }
}
