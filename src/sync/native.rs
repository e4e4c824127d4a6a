//! The real thing: std atomics, parking_lot locks, crossbeam queues, dashmap.

use super::Entry;
use dashmap::{DashMap, SharedValue};
use std::borrow::Borrow;
use std::cell::Cell;
use std::hash::{BuildHasher, Hash};
use std::sync::atomic::AtomicU32 as StdAtomicU32;
use std::time::Duration;

pub(crate) use super::cell::UnsafeCell;
pub(crate) use crossbeam::queue::SegQueue as Queue;
pub(crate) use crossbeam::utils::CachePadded;
pub(crate) use parking_lot::{Mutex, MutexGuard};
pub(crate) use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};
pub(crate) use std::thread_local;

/// Slots in the first chunk of a slab; each further chunk doubles it.
pub(crate) const FIRST_CHUNK: u32 = 64;
/// Timers in a block of a bucket.
pub(crate) const BLOCK: usize = 60;
/// Watchers in the one allocation of a list of few.
pub(crate) const PLACES: usize = 3;
/// Watch lists up to this length are searched, longer ones count their dead.
pub(crate) const SHORT_LIST: usize = 16;
/// Watchers that a visit copies to the stack.
pub(crate) const FEW: usize = 8;
/// Watchers examined, and timers drained, per hold of a lock.
pub(crate) const SLICE: usize = 64;
/// How often in a row a holder looks.
pub(crate) const LOOKS: u32 = 16;
/// How many homes a purgatory may have.
pub(crate) const HOMES: std::ops::RangeInclusive<usize> = 8..=16;
/// The last generation of a slot: after it, the slot is retired.
pub(crate) const LAST_GENERATION: u32 = u32::MAX;

/// A Release store to a word that others change by read-modify-write.
#[inline(always)]
pub(crate) fn overwrite(word: &AtomicU64, value: u64) {
    // ORDERING: Release: what was done before comes before whatever the reader of `value` does, if it reads it with
    // Acquire.
    word.store(value, Ordering::Release);
}

/// A number that no other thread of this process has ever had. Never 0.
#[inline]
pub(crate) fn thread_token() -> u32 {
    static NEXT: StdAtomicU32 = StdAtomicU32::new(1);
    thread_local! {
        static TOKEN: Cell<u32> = const { Cell::new(0) };
    }
    TOKEN.with(|token| match token.get() {
        0 => {
            // ORDERING: Relaxed: all that counts is that no two are equal.
            let fresh = NEXT.fetch_add(1, Ordering::Relaxed);
            token.set(fresh);
            fresh
        }
        known => known,
    })
}

/// Puts a thread to sleep until it is woken or a time has passed. A wake-up that comes first is kept.
#[derive(Debug)]
pub(crate) struct Parker(crossbeam::sync::Parker);

/// Wakes the owner of the [`Parker`] that it came from.
pub(crate) type Unparker = crossbeam::sync::Unparker;

impl Parker {
    pub(crate) fn new() -> Self {
        Self(crossbeam::sync::Parker::new())
    }

    pub(crate) fn unparker(&self) -> Unparker {
        self.0.unparker().clone()
    }

    /// `None` sleeps until woken.
    pub(crate) fn park(&self, timeout: Option<Duration>) {
        match timeout {
            Some(timeout) => self.0.park_timeout(timeout),
            None => self.0.park(),
        }
    }
}

/// A concurrent map of small lists: every access happens under the lock of the key's shard.
///
/// The frequent accesses go to the shards themselves: that hashes the key once, probes once in the common case, and
/// leaves out the guards for single entries.
pub(crate) struct ShardedMap<K, V, S>(DashMap<K, V, S>);

impl<K: Eq + Hash, V, S: BuildHasher + Clone> ShardedMap<K, V, S> {
    pub(crate) fn new(hasher: S, shards: usize) -> Self {
        Self(DashMap::with_capacity_and_hasher_and_shard_amount(
            0, hasher, shards,
        ))
    }

    /// The hash of `key`, and the number of its shard.
    #[inline(always)]
    fn locate<Q: Hash + ?Sized>(&self, key: &Q) -> (u64, usize) {
        let hash = self.0.hasher().hash_one(key);
        (hash, self.0.determine_shard(hash as usize))
    }

    /// Reads the entry of `key` under the shared lock of its shard.
    #[inline(always)]
    pub(crate) fn read<Q, R>(&self, key: &Q, read: impl FnOnce(&V) -> R) -> Option<R>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let (hash, shard) = self.locate(key);
        let shard = self.0.shards()[shard].read();
        let (_, value) = shard.get(hash, |(other, _)| other.borrow() == key)?;
        Some(read(value.get()))
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
        let mut shard = self.0.shards()[shard].write();
        if let Some((_, value)) = shard.get_mut(hash, |(other, _)| *other == key) {
            update(value.get_mut());
            return Some(key);
        }
        let hasher = self.0.hasher();
        let entry = (key, SharedValue::new(insert()));
        shard.insert(hash, entry, |(other, _)| hasher.hash_one(other));
        None
    }

    /// Puts what `place` returns under `key`, if anything, in one hold of the exclusive lock of its shard. `place` is
    /// told what is there.
    pub(crate) fn place(&self, key: K, place: impl FnOnce(Option<&mut V>) -> Option<V>) {
        match self.0.entry(key) {
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
        let mut shard = self.0.shards()[shard].write();
        let removed = shard.remove_entry(hash, |(other, value)| {
            other.borrow() == key && goes(value.get())
        });
        // The destructor of the key is the user's.
        drop(shard);
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
        let mut shard = self.0.shards()[shard].write();
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
        drop(removed);
    }

    /// Visits every entry, one shard at a time under its shared lock.
    pub(crate) fn for_each(&self, mut visit: impl FnMut(&K, &V)) {
        for entry in self.0.iter() {
            visit(entry.key(), entry.value());
        }
    }
}
