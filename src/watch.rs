//! The watch lists: which operations wait for which key.
//!
//! This module does not know operations: an [`Address`] is a number. The list of a key lies in the map, under the lock
//! of the key's shard: adding to it and removing it when it is empty happen under the same lock, so a watch can never
//! be added to a list that is about to vanish. A look takes that lock, shared, even if it finds nothing: a watch that
//! it does not find is added after it, and the parker, which examines once more, sees the event of that check. (Before
//! the first watch there is no map: then `ShardedMap::look` orders the two.) The list of a key that is [resolved] lies
//! apart, where it is found without the map.
//!
//! The lock of a resolved list may be taken within that of a shard, never the other way round.

mod arrivals;
pub(crate) mod bound;
pub(crate) mod list;
pub(crate) mod resolved;
pub(crate) mod sweep;

use crate::address::Address;
use crate::sync::{Arc, COPIED, ShardedMap};
use crate::trampoline::{drop_user_value, drop_user_values};
use bound::{Bound, Order};
use equivalent::Equivalent;
use list::{Walk, WatchList};
use resolved::{ListNumber, ResolvedList, ResolvedLists};
use std::hash::{BuildHasher, Hash};
use std::ops::ControlFlow;

/// A key that an operation watches: the key, or the number of its resolved list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Target<K> {
    Key(K),
    Resolved(ListNumber),
}

impl<K> Target<K> {
    pub(crate) fn as_ref(&self) -> Target<&K> {
        match self {
            Self::Key(key) => Target::Key(key),
            Self::Resolved(number) => Target::Resolved(*number),
        }
    }
}

/// Where the list of a key is.
enum Location {
    /// Here.
    Here(WatchList),
    /// With the resolved ones.
    Resolved(ListNumber),
}

/// Room for the watchers of a short list. Most checks find none, so it is made when it is needed.
pub(crate) type Copied = Option<[Address; COPIED]>;

/// The watchers of a key, as a check first finds them.
pub(crate) enum Found {
    One(Address),
    /// This many watchers, copied.
    Copied(usize),
    /// Not copied: more than there is room for, some with a rank, or the list of a resolved key behind its lock.
    Long,
}

/// Lists of watchers by key.
pub(crate) struct WatchMap<K, S> {
    lists: ShardedMap<K, Location, S>,
    resolved: ResolvedLists<K>,
    /// No list has more watchers.
    max_watchers: usize,
}

impl<K: Eq + Hash + Clone + 'static, S: BuildHasher + Clone> WatchMap<K, S> {
    pub(crate) fn new(hasher: S, shards: usize, max_watchers: usize) -> Self {
        Self {
            lists: ShardedMap::new(hasher, shards),
            resolved: ResolvedLists::new(),
            max_watchers,
        }
    }

    /// Adds `watcher` to the list of `target`, in this order. `false` if the list has `max_watchers` already. Also
    /// returns a copy of the key that was not needed, if any: its destructor may panic, and the caller drops it.
    #[inline(always)]
    #[must_use]
    pub(crate) fn add(
        &self,
        target: Target<&K>,
        order: Order<'_>,
        watcher: Address,
    ) -> (bool, Option<K>) {
        let max = self.max_watchers;
        let mut added = true;
        match target {
            Target::Key(key) => {
                let spare = self.upsert(
                    key.clone(),
                    #[inline(always)]
                    |location| {
                        added = match location {
                            None if max > 0 => {
                                return Some(Location::Here(WatchList::new(watcher, order)));
                            }
                            None => false,
                            Some(Location::Here(list)) => list.add_up_to(max, watcher, order),
                            Some(Location::Resolved(number)) => {
                                self.resolved.get(*number).add(max, watcher, order)
                            }
                        };
                        None
                    },
                );
                (added, spare)
            }
            Target::Resolved(number) => (self.resolved.get(number).add(max, watcher, order), None),
        }
    }

    /// Shows `edit` where the list of `key` is, and puts it there if it is nowhere yet. Returns `key` if it is not needed.
    #[inline(always)]
    fn upsert(
        &self,
        key: K,
        edit: impl FnOnce(Option<&mut Location>) -> Option<Location>,
    ) -> Option<K> {
        let hash = self.lists.hash_of(&key);
        let hash_of = |key: &K, _: &Location| self.lists.hash_of(key);
        self.lists.upsert((hash, key), |_| true, edit, hash_of)
    }

    /// The key of a resolved list.
    pub(crate) fn resolved_key(&self, number: ListNumber) -> Option<Arc<K>> {
        self.resolved.get(number).key()
    }

    /// Gives memory back that no watcher needs.
    pub(crate) fn shrink(&self) {
        self.lists.shrink();
    }

    /// How many watchers `key` has.
    pub(crate) fn count<Q: Hash + Equivalent<K> + ?Sized>(&self, key: &Q) -> usize {
        let count = self.lists.read(key, |_, location| self.count_at(location));
        count.unwrap_or_default()
    }

    fn count_at(&self, location: &Location) -> usize {
        match location {
            Location::Here(list) => list.count(),
            Location::Resolved(number) => self.resolved.get(*number).count(),
        }
    }

    /// Removes a watcher that was added with these arguments; does nothing if it was not added.
    #[inline(always)]
    pub(crate) fn remove(&self, target: Target<&K>, order: Order<'_>, watcher: Address) {
        let mut orphan = None;
        match target {
            Target::Key(key) => {
                let goes = |location: &Location| matches!(location, Location::Here(list) if list.is_only(watcher));
                let removed = self.lists.edit(
                    key,
                    order.came_first().then_some(goes),
                    #[inline(always)]
                    |location| match location {
                        Location::Here(list) => list.remove(watcher, order),
                        Location::Resolved(number) => {
                            orphan = self.resolved.get(*number).remove(watcher, order);
                            false
                        }
                    },
                );
                drop_user_value(removed);
            }
            Target::Resolved(number) => orphan = self.resolved.get(number).remove(watcher, order),
        }
        if let Some(key) = orphan {
            self.retire(key);
        }
    }

    /// A copy of `key`, if it is watched or resolved.
    pub(crate) fn key<Q: Hash + Equivalent<K> + ?Sized>(&self, key: &Q) -> Option<K> {
        self.lists.read(key, |stored, _| stored.clone())
    }

    /// The watchers of `key`; `None` if there are none. A short list is `copied`. Of a long one, this only says that it
    /// is long.
    #[inline(always)]
    pub(crate) fn find<Q>(&self, key: &Q, copied: &mut Copied) -> Option<Found>
    where
        Q: Hash + Equivalent<K> + ?Sized,
    {
        let found = self.lists.read(
            key,
            #[inline(always)]
            |_, location| match location {
                Location::Here(WatchList::One(watcher)) => Some(Found::One(*watcher)),
                _ => self.find_more(location, copied),
            },
        );
        found.flatten()
    }

    /// Finds what is not one watcher, under the lock of the key's shard.
    #[inline(never)]
    fn find_more(&self, location: &Location, copied: &mut Copied) -> Option<Found> {
        match location {
            Location::Here(list) => {
                let room = copied.insert(Default::default());
                Some(list.copy_few(room).map_or(Found::Long, Found::Copied))
            }
            Location::Resolved(number) => {
                let seen = self.resolved.get(*number).peek_published();
                (!seen.is_empty()).then(|| seen.only().map_or(Found::Long, Found::One))
            }
        }
    }

    /// Calls `each` for every watcher that `key` has during the whole visit, and perhaps for some that leave meanwhile,
    /// until it breaks: those with a rank up to that of `bound`, in its order, then those without, in the order of
    /// their arrival. No lock is held during the calls, and `pause` is called between slices of a long list. The visit
    /// begins with what was [found](Self::find).
    #[inline(always)]
    pub(crate) fn visit<Q: Hash + Equivalent<K> + ?Sized>(
        &self,
        key: &Q,
        (found, copied): (Found, &Copied),
        bound: Bound,
        mut each: impl FnMut(Address) -> ControlFlow<()>,
        pause: impl FnMut(),
    ) {
        match found {
            // It was the only one, so there is nothing to break off.
            Found::One(watcher) => _ = each(watcher),
            Found::Copied(count) => {
                let copied = copied.as_ref().map_or(&[][..], |copied| &copied[..count]);
                _ = copied.iter().copied().try_for_each(each);
            }
            Found::Long => Walk::new(bound).visit(each, pause, |read| {
                self.lists.read(key, |_, location| match location {
                    Location::Here(list) => read(list),
                    Location::Resolved(number) => self.resolved.get(*number).read(read),
                });
            }),
        }
    }

    /// Calls `each` for every watcher of `key`.
    pub(crate) fn visit_all<Q>(&self, key: &Q, mut each: impl FnMut(Address))
    where
        Q: Hash + Equivalent<K> + ?Sized,
    {
        let mut copied = Copied::default();
        if let Some(found) = self.find(key, &mut copied) {
            let each = |watcher| {
                each(watcher);
                ControlFlow::Continue(())
            };
            self.visit(key, (found, &copied), Bound::all(), each, || ());
        }
    }

    /// Copies of all keys that are watched or resolved.
    pub(crate) fn all_keys(&self) -> Vec<K> {
        // So that it hardly ever grows under a lock.
        let mut keys = Vec::with_capacity(self.lists.len());
        self.lists.for_each(|key, _| keys.push(key.clone()));
        keys
    }

    /// Moves the list of `key` to the resolved ones, until every resolution of it has been [released](Self::release).
    pub(crate) fn resolve(&self, key: &Arc<K>) -> (ListNumber, Arc<ResolvedList<K>>) {
        let mut resolved = None;
        let spare = self.upsert(K::clone(key), |location| {
            let occupy = |list| self.resolved.occupy(key.clone(), list);
            let Some(there) = location else {
                let number = *resolved.insert(occupy(None));
                return Some(Location::Resolved(number));
            };
            resolved = Some(match there {
                Location::Resolved(number) => {
                    self.resolved.get(*number).pin();
                    *number
                }
                Location::Here(list) => {
                    let list = std::mem::replace(list, WatchList::One(Address::NONE));
                    let number = occupy(Some(list));
                    *there = Location::Resolved(number);
                    number
                }
            });
            None
        });
        drop_user_value(spare);
        let Some(number) = resolved else {
            unreachable!("the change was made")
        };
        (number, self.resolved.get(number).clone())
    }

    /// One resolution less. With the last, a list without watchers vanishes.
    pub(crate) fn release(&self, key: &K, number: ListNumber) {
        let unpin = |found: ListNumber| (found == number).then(|| self.resolved.unpin(number))?;
        drop_user_values(self.vacate(key, unpin));
    }

    /// Removes the list of `key`, if that is resolved no more and has no watcher. (It may be resolved again, or have
    /// another list.)
    #[cold]
    fn retire(&self, key: Arc<K>) {
        let [entry, list] = self.vacate(&key, |number| self.resolved.retire(number));
        drop_user_values([entry, list, Some(key)]);
    }

    /// Removes the entry of `key`, if its list can be `retired`. Returns the keys of the entry and of the list, to be
    /// dropped under no lock.
    fn vacate(
        &self,
        key: &K,
        retire: impl FnOnce(ListNumber) -> Option<Arc<K>>,
    ) -> [Option<Arc<K>>; 2] {
        let mut retired = None;
        let goes = None::<fn(&Location) -> bool>;
        let removed = self.lists.edit(key, goes, |location| {
            if let Location::Resolved(number) = location {
                retired = retire(*number);
            }
            retired.is_some()
        });
        [removed.map(Arc::new), retired]
    }

    /// The number of keys that are watched.
    pub(crate) fn keys(&self) -> usize {
        let mut keys = 0;
        self.lists
            .for_each(|_, location| keys += usize::from(self.count_at(location) > 0));
        keys
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
