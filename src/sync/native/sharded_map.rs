//! The map below the watch lists and the trackers: dashmap, entered by its shards.
//!
//! That hashes the key once, probes once in the common case, and lets this file see who waits. A shard's lock goes to
//! whoever comes first: a thread that takes a million watchers off one list takes it a million times, and could shut out
//! all others of the shard meanwhile. So whoever has to wait says so, and those that release a lock give way now and
//! then.

use super::CachePadded;
use crate::sync::Entry;
use dashmap::{DashMap, SharedValue};
use std::borrow::Borrow;
use std::hash::{BuildHasher, Hash};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

/// A concurrent map of small values: every access happens under the lock of the key's shard.
pub(crate) struct ShardedMap<K, V, S> {
    map: DashMap<K, V, S>,
    fairness: CachePadded<Fairness>,
}

impl<K: Eq + Hash, V, S: BuildHasher + Clone> ShardedMap<K, V, S> {
    pub(crate) fn new(hasher: S, shards: usize) -> Self {
        Self {
            map: DashMap::with_capacity_and_hasher_and_shard_amount(0, hasher, shards),
            fairness: CachePadded::default(),
        }
    }

    /// The hash of `key`, and the number of its shard.
    #[inline(always)]
    fn locate<Q: Hash + ?Sized>(&self, key: &Q) -> (u64, usize) {
        let hash = self.map.hasher().hash_one(key);
        (hash, self.map.determine_shard(hash as usize))
    }

    /// Reads the entry of `key` under the shared lock of its shard.
    #[inline(always)]
    pub(crate) fn read<Q, R>(&self, key: &Q, read: impl FnOnce(&V) -> R) -> Option<R>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let (hash, shard) = self.locate(key);
        let lock = &self.map.shards()[shard];
        let shard = self.fairness.enter(lock.try_read(), || lock.read());
        let entry = shard.get(hash, |(other, _)| other.borrow() == key);
        let answer = entry.map(|(_, value)| read(value.get()));
        drop(shard);
        self.fairness.released();
        answer
    }

    /// Changes the entry of `key`, or inserts one, under one hold of the exclusive lock of its shard. Returns `key` if
    /// it is not needed.
    #[inline(always)]
    pub(crate) fn upsert(
        &self,
        key: K,
        insert: impl FnOnce() -> V,
        update: impl FnOnce(&mut V),
    ) -> Option<K> {
        let (hash, shard) = self.locate(&key);
        let lock = &self.map.shards()[shard];
        let mut shard = self.fairness.enter(lock.try_write(), || lock.write());
        let spare = match shard.get_mut(hash, |(other, _)| *other == key) {
            Some((_, value)) => {
                update(value.get_mut());
                Some(key)
            }
            None => {
                let hasher = self.map.hasher();
                let entry = (key, SharedValue::new(insert()));
                shard.insert(hash, entry, |(other, _)| hasher.hash_one(other));
                None
            }
        };
        drop(shard);
        self.fairness.released();
        spare
    }

    /// Puts what `place` returns under `key`, if anything, in one hold of the exclusive lock of its shard. `place` is
    /// told what is there.
    pub(crate) fn place(&self, key: K, place: impl FnOnce(Option<&mut V>) -> Option<V>) {
        match self.map.entry(key) {
            dashmap::Entry::Occupied(mut entry) => {
                if let Some(value) = place(Some(entry.get_mut())) {
                    drop(entry.insert(value));
                }
            }
            dashmap::Entry::Vacant(entry) => {
                if let Some(value) = place(None) {
                    drop(entry.insert(value));
                }
            }
        }
    }

    /// Removes the entry of `key` if it `goes`, and returns its value.
    #[inline]
    pub(crate) fn remove_if<Q>(&self, key: &Q, goes: impl Fn(&V) -> bool) -> Option<V>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let (hash, shard) = self.locate(key);
        let lock = &self.map.shards()[shard];
        let mut shard = self.fairness.enter(lock.try_write(), || lock.write());
        let removed = shard.remove_entry(hash, |(other, value)| {
            other.borrow() == key && goes(value.get())
        });
        // The destructor of the key is the user's: not under the lock.
        drop(shard);
        self.fairness.released();
        removed.map(|(_, value)| value.into_inner())
    }

    /// Removes the entry of `key` if it `goes`; if there is another one, changes it, and removes it if so told. All of
    /// it happens under one hold of the exclusive lock of its shard. What was removed is dropped after the lock is
    /// released.
    #[inline(always)]
    pub(crate) fn edit<Q>(
        &self,
        key: &Q,
        goes: impl Fn(&V) -> bool,
        edit: impl FnOnce(&mut V) -> Entry,
    ) where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let (hash, shard) = self.locate(key);
        let lock = &self.map.shards()[shard];
        let mut shard = self.fairness.enter(lock.try_write(), || lock.write());
        let mut removed = shard.remove_entry(hash, |(other, value)| {
            other.borrow() == key && goes(value.get())
        });
        if removed.is_none() {
            let entry = shard.get_mut(hash, |(other, _)| other.borrow() == key);
            if entry.map(|(_, value)| edit(value.get_mut())) == Some(Entry::Remove) {
                removed = shard.remove_entry(hash, |(other, _)| other.borrow() == key);
            }
        }
        drop(shard);
        self.fairness.released();
        drop(removed);
    }

    /// Visits every entry, one shard at a time under its shared lock.
    pub(crate) fn for_each(&self, mut visit: impl FnMut(&K, &V)) {
        for entry in self.map.iter() {
            visit(entry.key(), entry.value());
        }
    }
}

/// Makes the shards' locks eventually fair. Not part of any protocol: all of it is hints.
#[derive(Debug, Default)]
struct Fairness {
    /// Threads that found a lock taken. Written only by such.
    waiting: AtomicUsize,
    /// Releases while there were any.
    releases: AtomicUsize,
}

// ORDERING: Relaxed throughout: a hint that comes late only makes somebody wait a little longer.
impl Fairness {
    /// One release in so many gives way: each time would cost both sides more than the wait.
    const ONE_IN: usize = 32;
    /// Whoever sleeps needs some ten microseconds to come; so often the other yields at most.
    const YIELDS: usize = 128;

    /// What an attempt got, or else what waiting gets.
    #[inline(always)]
    fn enter<G>(&self, attempt: Option<G>, wait: impl FnOnce() -> G) -> G {
        match attempt {
            Some(guard) => guard,
            None => self.wait(wait),
        }
    }

    #[cold]
    fn wait<G>(&self, wait: impl FnOnce() -> G) -> G {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let guard = wait();
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        guard
    }

    /// After a release: lets those that wait come first, now and then.
    #[inline(always)]
    fn released(&self) {
        if self.waiting.load(Ordering::Relaxed) != 0 {
            self.give_way();
        }
    }

    #[cold]
    fn give_way(&self) {
        if self.releases.fetch_add(1, Ordering::Relaxed) % Self::ONE_IN != 0 {
            return;
        }
        for _ in 0..Self::YIELDS {
            if self.waiting.load(Ordering::Relaxed) == 0 {
                return;
            }
            thread::yield_now();
        }
    }
}
