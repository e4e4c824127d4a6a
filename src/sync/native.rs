//! The real thing: std atomics, parking_lot locks, crossbeam queues, dashmap.

use super::Entry;
use dashmap::DashMap;
use std::borrow::Borrow;
use std::cell::Cell;
use std::hash::{BuildHasher, Hash};
use std::sync::atomic::AtomicU32 as StdAtomicU32;
use std::time::Duration;

pub(crate) use crossbeam::queue::SegQueue as Queue;
pub(crate) use crossbeam::utils::CachePadded;
pub(crate) use parking_lot::{Mutex, MutexGuard};
pub(crate) use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
pub(crate) use std::thread_local;

/// Slots in the first chunk of a slab; each further chunk doubles it.
pub(crate) const FIRST_CHUNK: u32 = 64;
/// Timers in a block of a bucket.
pub(crate) const BLOCK: usize = 60;
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

/// `std::cell::UnsafeCell` in the shape of loom's: every access goes through a closure.
#[derive(Debug)]
pub(crate) struct UnsafeCell<T>(std::cell::UnsafeCell<T>);

impl<T> UnsafeCell<T> {
    pub(crate) const fn new(value: T) -> Self {
        Self(std::cell::UnsafeCell::new(value))
    }

    #[inline(always)]
    pub(crate) fn with_mut<R>(&self, access: impl FnOnce(*mut T) -> R) -> R {
        access(self.0.get())
    }
}

/// A Release store to a word that others change by read-modify-write.
#[inline(always)]
pub(crate) fn overwrite(word: &AtomicU64, value: u64) {
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
pub(crate) struct ShardedMap<K, V, S>(DashMap<K, V, S>);

impl<K: Eq + Hash, V, S: BuildHasher + Clone> ShardedMap<K, V, S> {
    pub(crate) fn new(hasher: S, shards: usize) -> Self {
        Self(DashMap::with_capacity_and_hasher_and_shard_amount(
            0, hasher, shards,
        ))
    }

    /// Reads the entry of `key` under the shared lock of its shard.
    #[inline]
    pub(crate) fn read<Q, R>(&self, key: &Q, read: impl FnOnce(&V) -> R) -> Option<R>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        self.0.get(key).map(|entry| read(entry.value()))
    }

    /// Changes the entry of `key`, or inserts one, under one hold of the exclusive lock of its shard. Returns `key` if
    /// it is not needed.
    #[inline]
    pub(crate) fn upsert(
        &self,
        key: K,
        insert: impl FnOnce() -> V,
        update: impl FnOnce(&mut V),
    ) -> Option<K> {
        match self.0.entry(key) {
            dashmap::Entry::Occupied(mut entry) => {
                update(entry.get_mut());
                Some(entry.into_key())
            }
            dashmap::Entry::Vacant(entry) => {
                drop(entry.insert(insert()));
                None
            }
        }
    }

    /// Puts what `place` returns under `key`, if anything, in one hold of the exclusive lock of its shard. `place` is
    /// told what is there.
    #[inline]
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

    /// Changes the entry of `key`, if there is one, and removes it if so told, under one hold of the exclusive lock
    /// of its shard. What was removed is dropped after the lock is released.
    #[inline]
    pub(crate) fn edit<Q>(&self, key: &Q, edit: impl FnOnce(&mut V) -> Entry)
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        drop(
            self.0
                .remove_if_mut(key, |_, value| edit(value) == Entry::Remove),
        );
    }

    /// Visits every entry, one shard at a time under its shared lock.
    pub(crate) fn for_each(&self, mut visit: impl FnMut(&K, &V)) {
        for entry in self.0.iter() {
            visit(entry.key(), entry.value());
        }
    }
}
