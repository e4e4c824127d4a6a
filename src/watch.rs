//! The watcher map: which operations wait for which key.
//!
//! Nothing here knows what an operation is: a [`Watcher`] is two numbers, and whether it is alive is asked from
//! outside. Adding to a key's list and removing an empty list happen under the same lock of the key's shard, so a
//! watch can never be added to a list that is about to vanish.

pub(crate) mod list;

use crate::sync::{Entry, FEW, SLICE, ShardedMap};
use list::WatchList;
use std::borrow::Borrow;
use std::hash::{BuildHasher, Hash};

/// Names an operation in the lists.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(crate) struct Watcher {
    pub(crate) id: u32,
    pub(crate) generation: u32,
}

/// What a visit finds at first.
enum Found {
    One(Watcher),
    /// So many, copied.
    Few(usize),
    Many,
}

/// Lists of watchers by key.
pub(crate) struct WatchMap<K, S> {
    lists: ShardedMap<K, WatchList, S>,
}

impl<K: Eq + Hash + Clone, S: BuildHasher + Clone> WatchMap<K, S> {
    pub(crate) fn new(hasher: S, shards: usize) -> Self {
        Self {
            lists: ShardedMap::new(hasher, shards),
        }
    }

    /// From now on, a visit of `key` finds `watcher`.
    #[inline(always)]
    pub(crate) fn add(&self, key: &K, watcher: Watcher) {
        self.lists.upsert(
            key.clone(),
            || WatchList::One(watcher),
            |list| list.push(watcher),
        );
    }

    /// Takes one watcher off one key. `is_live` tells whether some other watcher's operation has not ended; it is
    /// called under the lock of the shard.
    #[inline(always)]
    pub(crate) fn remove(&self, key: &K, watcher: Watcher, is_live: impl Fn(Watcher) -> bool) {
        self.lists.edit(key, |list| {
            if list.remove(watcher, is_live) {
                Entry::Remove
            } else {
                Entry::Keep
            }
        });
    }

    /// Calls `each` for every watcher that `key` has during the whole visit, and perhaps for some that come or go
    /// meanwhile; a few may be visited twice. No lock is held during the calls.
    #[inline(always)]
    pub(crate) fn visit<Q>(&self, key: &Q, mut each: impl FnMut(Watcher))
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let mut few = [Watcher::default(); FEW];
        let found = self.lists.read(key, |list| match list {
            WatchList::One(watcher) => Found::One(*watcher),
            WatchList::Many(many) => match few.get_mut(..many.watchers().len()) {
                Some(copies) => {
                    copies.copy_from_slice(many.watchers());
                    Found::Few(copies.len())
                }
                None => Found::Many,
            },
        });
        match found {
            None => {}
            Some(Found::One(watcher)) => each(watcher),
            Some(Found::Few(count)) => few[..count].iter().copied().for_each(each),
            Some(Found::Many) => self.visit_slices(key, each),
        }
    }

    /// The same for a long list, a slice at a time.
    fn visit_slices<Q>(&self, key: &Q, mut each: impl FnMut(Watcher))
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let mut slice = Vec::with_capacity(SLICE);
        // Watchers from this place on have been visited. Lists only ever move their last watcher to a lower place,
        // so walking down from the end meets everyone who stays.
        let mut end = usize::MAX;
        while end > 0 {
            slice.clear();
            self.lists.read(key, |list| {
                let watchers = match list {
                    WatchList::One(watcher) => std::slice::from_ref(watcher),
                    WatchList::Many(many) => many.watchers(),
                };
                end = end.min(watchers.len());
                let start = end.saturating_sub(SLICE);
                slice.extend_from_slice(&watchers[start..end]);
                end = start;
            });
            if slice.is_empty() {
                return;
            }
            slice.iter().copied().for_each(&mut each);
        }
    }

    /// Visits every key and its watchers, one shard at a time under its lock.
    pub(crate) fn for_each(&self, mut visit: impl FnMut(&K, Watcher)) {
        self.lists.for_each(|key, list| match list {
            WatchList::One(watcher) => visit(key, *watcher),
            WatchList::Many(many) => {
                for watcher in many.watchers() {
                    visit(key, *watcher);
                }
            }
        });
    }

    /// Number of keys that somebody watches.
    pub(crate) fn keys(&self) -> usize {
        self.lists.len()
    }
}
