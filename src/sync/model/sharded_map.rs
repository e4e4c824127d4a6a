//! The map below the watch lists and the trackers, as a list under one lock.

use crate::sync::{Entry, Lazy, Mutex, MutexGuard};
use equivalent::Equivalent;
use std::hash::{BuildHasher, Hash};

/// A change to an entry of the map.
#[derive(Debug)]
pub(crate) struct Edit<'k, K, T> {
    key: &'k K,
    what: T,
}

impl<K, T> Edit<'_, K, T> {
    pub(crate) fn shard(&self) -> usize {
        0
    }
}

/// The map with a single shard. (A model has a handful of keys: they are searched one after the other.)
pub(crate) struct ShardedMap<K, V, S> {
    entries: Lazy<Mutex<Vec<(K, V)>>>,
    hasher: S,
}

impl<K: Eq + Hash, V, S: BuildHasher> ShardedMap<K, V, S> {
    pub(crate) fn new(hasher: S, _shards: usize) -> Self {
        Self {
            entries: Lazy::new(),
            hasher,
        }
    }

    fn made(&self) -> Option<MutexGuard<'_, Vec<(K, V)>>> {
        let entries = self.entries.get(Mutex::default)?;
        Some(entries.lock())
    }

    pub(crate) fn read<Q, R>(&self, key: &Q, read: impl FnOnce(&V) -> R) -> Option<R>
    where
        Q: Hash + Equivalent<K> + ?Sized,
    {
        let entries = self.made()?;
        let found = entries.iter().find(|(other, _)| key.equivalent(other));
        found.map(|(_, value)| read(value))
    }

    pub(crate) fn read_key<Q, R>(&self, key: &Q, read: impl FnOnce(&K) -> R) -> Option<R>
    where
        Q: Hash + Equivalent<K> + ?Sized,
    {
        let entries = self.made()?;
        let found = entries.iter().find(|(other, _)| key.equivalent(other));
        found.map(|(stored, _)| read(stored))
    }

    pub(crate) fn hash_of<Q: Hash + ?Sized>(&self, key: &Q) -> u64 {
        self.hasher.hash_one(key)
    }

    pub(crate) fn read_where<R>(
        &self,
        _hash: u64,
        mut is_it: impl FnMut(&K, &V) -> bool,
        read: impl FnOnce(&V) -> R,
    ) -> Option<R> {
        let entries = self.made()?;
        let found = entries.iter().find(|(key, value)| is_it(key, value));
        found.map(|(_, value)| read(value))
    }

    pub(crate) fn take_where(
        &self,
        _hash: u64,
        mut is_it: impl FnMut(&K, &V) -> bool,
    ) -> Option<(K, V)> {
        let mut entries = self.made()?;
        let place = entries.iter().position(|(key, value)| is_it(key, value))?;
        Some(entries.remove(place))
    }

    pub(crate) fn edit_current(
        &self,
        _hash: u64,
        key: K,
        is_current: impl Fn(&V) -> bool,
        edit: impl FnOnce(Option<&mut V>) -> Option<V>,
        _hash_of: impl Fn(&V) -> u64,
    ) -> Option<K> {
        let mut entries = self.entries.get_or_make(Mutex::default).lock();
        let found = entries
            .iter_mut()
            .find(|(other, value)| *other == key && is_current(value));
        match edit(found.map(|(_, value)| value)) {
            Some(value) => {
                entries.push((key, value));
                None
            }
            None => Some(key),
        }
    }

    pub(crate) fn place(
        &self,
        key: K,
        place: impl FnOnce(Option<&mut V>) -> Option<V>,
    ) -> Option<K> {
        let mut entries = self.entries.get_or_make(Mutex::default).lock();
        if let Some((_, value)) = entries.iter_mut().find(|(other, _)| *other == key) {
            if let Some(other) = place(Some(value)) {
                *value = other;
            }
            return Some(key);
        }
        match place(None) {
            Some(value) => {
                entries.push((key, value));
                None
            }
            None => Some(key),
        }
    }

    pub(crate) fn edit<Q>(
        &self,
        key: &Q,
        goes: Option<impl Fn(&V) -> bool>,
        edit: impl FnOnce(&mut V) -> Entry,
    ) -> Option<K>
    where
        Q: Hash + Equivalent<K> + ?Sized,
    {
        let mut entries = self.made()?;
        let place = entries
            .iter()
            .position(|(other, _)| key.equivalent(other))?;
        let value = &mut entries[place].1;
        match goes.is_some_and(|goes| goes(value)) || edit(value) == Entry::Remove {
            true => Some(entries.remove(place).0),
            false => None,
        }
    }

    pub(crate) fn prepare<'k, T>(&self, key: &'k K, what: T) -> Edit<'k, K, T> {
        Edit { key, what }
    }

    pub(crate) fn edit_all<T: Copy>(
        &self,
        edits: &[Edit<'_, K, T>],
        _prefetch: impl Fn(&V) -> bool,
        mut edit: impl FnMut(&mut V, T) -> Entry,
        done: &mut usize,
        removed: &mut Vec<(K, V)>,
    ) {
        let Some(mut entries) = self.made() else {
            return;
        };
        for &Edit { key, what, .. } in edits {
            *done += 1;
            let Some(place) = entries.iter().position(|(other, _)| other == key) else {
                continue;
            };
            if edit(&mut entries[place].1, what) == Entry::Remove {
                removed.push(entries.remove(place));
            }
        }
    }

    /// A handful of entries is not worth giving back; only the look at them is modelled.
    pub(crate) fn give_back(&self) {
        let _ = self.entries.get_made();
    }

    pub(crate) fn len(&self) -> usize {
        self.made().map_or(0, |entries| entries.len())
    }

    pub(crate) fn for_each(&self, mut visit: impl FnMut(&K, &V)) {
        for (key, value) in self.made().iter().flat_map(|entries| entries.iter()) {
            visit(key, value);
        }
    }
}
