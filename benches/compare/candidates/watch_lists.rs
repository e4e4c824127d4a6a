//! The map from keys to waiting entries that the hand-made candidates share.

use std::sync::Arc;

use dashmap::DashMap;
use smallvec::SmallVec;

/// Two entries fit where the vector's heap pointer would be: short lists allocate nothing.
type List<E> = SmallVec<[Arc<E>; 2]>;

/// `DashMap` from key to the entries that watch it; a key without entries is not in the map.
///
/// Hashed with foldhash, as the library does by default, so that no candidate pays for SipHash.
pub(crate) struct WatchLists<E>(DashMap<u64, List<E>, foldhash::fast::RandomState>);

impl<E> WatchLists<E> {
    pub(crate) fn new() -> Self {
        Self(DashMap::default())
    }

    pub(crate) fn watch(&self, key: u64, entry: &Arc<E>) {
        self.0.entry(key).or_default().push(Arc::clone(entry));
    }

    /// Takes `entry` off the key's list, and the key off the map with its last entry; both under
    /// one shard lock, so that no `watch` can fall between.
    pub(crate) fn unwatch(&self, key: u64, entry: &Arc<E>) {
        self.0.remove_if_mut(&key, |_, list| {
            if let Some(found) = list.iter().position(|other| Arc::ptr_eq(other, entry)) {
                list.swap_remove(found);
            }
            list.is_empty()
        });
    }

    /// The entries under `key` now, copied so that trying them holds no lock of the map.
    pub(crate) fn watchers(&self, key: u64) -> SmallVec<[Arc<E>; 4]> {
        self.0
            .get(&key)
            .map(|list| list.iter().cloned().collect())
            .unwrap_or_default()
    }

    pub(crate) fn len(&self) -> usize {
        self.0.iter().map(|list| list.len()).sum()
    }
}
