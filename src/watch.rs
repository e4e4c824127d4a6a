//! The watch lists: for each key, the operations that watch it (its *watchers*).
//!
//! This module sees no operation: a watcher is an [`Address`], the 64-bit name of a parked operation. The map has an
//! entry for each key that is watched or [resolved] (looked up once, for a `ResolvedKey`). The entry of a plain key
//! contains the key's list. The entry of a resolved key contains the number of a list outside the map. For the lists in
//! the map, the lock of the key's map shard gives these guarantees:
//!
//! * No watcher is added to a list that is being removed, because adding a watcher and removing an empty list both hold
//!   the lock exclusively.
//! * No event (the change that a check announces) is lost between a check and a park. A check takes the lock shared to
//!   look the key up, even if the map has no entry for the key. If the lookup misses a watcher, the lookup happens
//!   before the parking thread adds the watcher. The parking thread then examines the operation once more, and this
//!   examination sees the event of the check. Before the first watcher is added there is no map to lock. Until then
//!   `ShardedMap::look` gives the same guarantee, by an atomic flag in place of the lock.
//!
//! Lock order: a thread may lock a resolved list while it holds the lock of a map shard, never the other way round.
//! Otherwise two threads could wait for each other without end.

mod arrivals;
pub(crate) mod bound;
pub(crate) mod list;
pub(crate) mod resolved;
pub(crate) mod sweep;
pub(crate) mod watchers;

use crate::callbacks::panics::Panics;
use crate::cell::address::Address;
use crate::sync::{Arc, ShardedMap};
use bound::{CheckBound, Order};
use equivalent::Equivalent;
use list::WatchList;
use resolved::{ListNumber, ResolvedList, ResolvedLists};
use scopeguard::{ScopeGuard, guard};
use std::cell::Cell;
use std::hash::{BuildHasher, Hash};
use std::slice::from_ref;
use watchers::{ByLookUp, Copies, Found, Room, Walking, Watchers};

/// A key that an operation watches: the key itself, or the number of the key's list if the operation names the key by a
/// `ResolvedKey`.
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

/// The value of a map entry: where the watch list of the key is.
enum Location {
    /// In the map entry itself.
    Here(WatchList),
    /// Outside the map, in `WatchMap::resolved`, under this number: the key was resolved (looked up once, for a
    /// `ResolvedKey`).
    Resolved(ListNumber),
}

impl Location {
    /// Drops the value of a removed entry, and with it the key's list if the list is in the entry. In the common case
    /// this is a list with a single watcher. Such a list has no memory of its own, so no destructor is called.
    #[inline(always)]
    fn discard(self) {
        match self {
            Self::Here(WatchList::One(_)) => std::mem::forget(self),
            other => other.discard_longer(),
        }
    }

    #[cold]
    #[inline(never)]
    fn discard_longer(self) {
        drop(self);
    }
}

/// The watch lists of all keys.
pub(crate) struct WatchMap<K, S> {
    lists: ShardedMap<K, Location, S>,
    resolved: ResolvedLists<K>,
    /// The maximum number of watchers of a list.
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

    /// Adds `watcher` to the list of `target`, at the place that `order` gives. Returns `false`, and adds nothing, if
    /// the list has `max_watchers` watchers already.
    #[inline(always)]
    #[must_use]
    pub(crate) fn add(&self, target: Target<&K>, order: Order<'_>, watcher: Address) -> bool {
        let max = self.max_watchers;
        match target {
            Target::Key(key) => {
                let mut added = true;
                self.lists.update(
                    "try_complete_else_watch",
                    key,
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
                added
            }
            Target::Resolved(number) => self.resolved.get(number).add(max, watcher, order),
        }
    }

    /// The key to which the resolved list (one outside the map, for a key with a `ResolvedKey`) with this number
    /// belongs. `None` if the list is vacant: it belongs to no key.
    pub(crate) fn resolved_key(&self, number: ListNumber) -> Option<Arc<K>> {
        self.resolved.get(number).key()
    }

    /// Frees the memory of map shards that were large and are nearly empty now.
    pub(crate) fn shrink(&self) {
        self.lists.shrink();
    }

    /// The number of watchers of `key`.
    pub(crate) fn count<Q: Hash + Equivalent<K> + ?Sized>(&self, key: &Q) -> usize {
        let count = self
            .lists
            .read("watchers", key, |_, location| self.count_at(location));
        count.unwrap_or_default()
    }

    fn count_at(&self, location: &Location) -> usize {
        match location {
            Location::Here(list) => list.count(),
            Location::Resolved(number) => self.resolved.get(*number).count(),
        }
    }

    /// Removes a watcher that was added with these arguments. If it was the last one, also removes the entry of the
    /// key, unless the key is resolved (has a `ResolvedKey`). Does nothing if the watcher is not in the list.
    #[inline(always)]
    pub(crate) fn remove(&self, target: Target<&K>, order: Order<'_>, watcher: Address) {
        let orphan = match target {
            Target::Key(key) => self.remove_from_map(key, order, watcher),
            Target::Resolved(number) => self.resolved.get(number).remove(watcher, order),
        };
        if let Some(key) = orphan {
            self.retire(key);
        }
    }

    /// [Removes](Self::remove) a watcher that was added by a plain key, not by a `ResolvedKey`. If the list of the key
    /// lies outside the map, and after the removal has neither a watcher nor a `ResolvedKey`, returns the key: the
    /// caller must then retire the list.
    #[inline(always)]
    fn remove_from_map(&self, key: &K, order: Order<'_>, watcher: Address) -> Option<Arc<K>> {
        let mut orphan = None;
        let goes =
            |location: &Location| matches!(location, Location::Here(list) if list.is_only(watcher));
        let removed = self.lists.edit(
            "the end of an operation",
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
        if let Some((key, location)) = removed {
            location.discard();
            drop(key);
        }
        orphan
    }

    /// A clone of the stored key that is equal to `key`. `None` if that key is neither watched nor resolved (has no
    /// `ResolvedKey`).
    pub(crate) fn key<Q: Hash + Equivalent<K> + ?Sized>(&self, key: &Q) -> Option<K> {
        self.lists
            .read("check_and_complete", key, |stored, _| stored.clone())
    }

    /// Finds the watchers of `key`. `None` if there are none. Copies a short list to `room`, so that the check examines
    /// the watchers with no lock held.
    #[inline(always)]
    pub(crate) fn find<'r, Q>(&self, key: &Q, room: &'r mut Room) -> Option<Found<'r>>
    where
        Q: Hash + Equivalent<K> + ?Sized,
    {
        let found = self.lists.read(
            "check_and_complete",
            key,
            #[inline(always)]
            |_, location| match location {
                Location::Here(WatchList::One(watcher)) => {
                    room.one = *watcher;
                    Some(Found::Few(from_ref(&room.one)))
                }
                _ => self.find_more(location, room),
            },
        );
        found.flatten()
    }

    /// The slow path of [`find`](Self::find): the list is outside the map, or it has several watchers, or one with a
    /// rank. Called under the lock of the key's map shard.
    #[inline(never)]
    fn find_more<'r>(&self, location: &Location, room: &'r mut Room) -> Option<Found<'r>> {
        match location {
            Location::Here(list) => Some(match Copies::of(list) {
                Some(copies) => Found::Few(room.more.insert(copies).watchers()),
                None => Found::Long,
            }),
            Location::Resolved(number) => {
                let seen = self.resolved.get(*number).peek_published();
                if seen.is_empty() {
                    return None;
                }
                Some(match seen.only() {
                    Some(only) => {
                        room.one = only;
                        Found::Few(from_ref(&room.one))
                    }
                    None => Found::Long,
                })
            }
        }
    }

    /// Walks over the long list of `key` slice by slice (at most 64 watchers), and holds the lock only while a slice is
    /// copied. The result is every watcher that stays in the list during the whole walk, and perhaps some that leave
    /// during the walk. First come the watchers with a rank up to the rank of `bound`, in the order of ranks. The
    /// watchers without a rank follow, in the order of their arrival. `pause` is called between slices.
    pub(crate) fn walk<'m, Q>(
        &'m self,
        key: &'m Q,
        bound: CheckBound,
        pause: impl FnMut() + 'm,
    ) -> impl Watchers + 'm
    where
        Q: Hash + Equivalent<K> + ?Sized,
    {
        ByLookUp {
            walking: Walking::new(bound),
            read: move |read: &mut dyn FnMut(&WatchList)| {
                self.lists
                    .read("check_and_complete", key, |_, location| match location {
                        Location::Here(list) => read(list),
                        Location::Resolved(number) => self.resolved.get(*number).read(read),
                    });
            },
            pause,
        }
    }

    /// Calls `each` for every watcher of `key`, with no lock held.
    pub(crate) fn visit_all<Q>(&self, key: &Q, mut each: impl FnMut(Address))
    where
        Q: Hash + Equivalent<K> + ?Sized,
    {
        let mut room = Room::default();
        match self.find(key, &mut room) {
            None => {}
            Some(Found::Few(watchers)) => watchers.iter().copied().for_each(each),
            Some(Found::Long) => {
                let mut watchers = self.walk(key, CheckBound::all(), || ());
                while let Some(watcher) = watchers.next(false) {
                    each(watcher);
                }
            }
        }
    }

    /// Copies of all keys that are watched, or resolved (have a `ResolvedKey`).
    pub(crate) fn all_keys(&self) -> Vec<K> {
        // Reserve room first, so that the vector hardly ever grows under a lock.
        let mut keys = Vec::with_capacity(self.lists.len());
        self.lists
            .for_each("check_where", |key, _| keys.push(key.clone()));
        keys
    }

    /// Resolves `key`, for a new `ResolvedKey`: moves the key's list out of the map, to the resolved lists. The list
    /// stays there until every `ResolvedKey` of this key was [released](Self::release) and no watcher is left.
    pub(crate) fn resolve(&self, key: &Arc<K>) -> (ListNumber, Arc<ResolvedList<K>>) {
        // Take a vacant list (one that belongs to no key) before the map shard is locked. If no list is vacant, this
        // may allocate places for as many lists as there are already. Under the lock, that would delay other threads.
        // The guard gives the list back if the key has a list outside the map already, or if a method of the key
        // panics.
        let fresh = guard(self.resolved.occupy(key.clone()), |unused| {
            drop(self.resolved.unpin(unused));
        });
        let mut known = None;
        self.lists.update("resolve", &**key, |location| {
            match location {
                None => return Some(Location::Resolved(*fresh)),
                Some(Location::Resolved(number)) => {
                    self.resolved.get(*number).pin();
                    known = Some(*number);
                }
                Some(here) => {
                    let before = std::mem::replace(here, Location::Resolved(*fresh));
                    if let Location::Here(list) = before {
                        self.resolved.get(*fresh).adopt(list);
                    }
                }
            }
            None
        });
        let number = known.unwrap_or_else(|| ScopeGuard::into_inner(fresh));
        (number, self.resolved.get(number).clone())
    }

    /// Called when a `ResolvedKey` of `key` is dropped. If it was the last one, and the key's list has no watchers,
    /// removes the list and the entry of the key.
    pub(crate) fn release(&self, key: &K, number: ListNumber) {
        let unpin = |found: ListNumber| (found == number).then(|| self.resolved.unpin(number))?;
        self.vacate(key, unpin);
    }

    /// Removes the resolved list of `key` (its list outside the map, made for a `ResolvedKey`) and the entry of the
    /// key, if the key has neither a `ResolvedKey` nor a watcher. Called with no lock held, after the last watcher has
    /// left, so another thread may have come first. That thread may have made a `ResolvedKey` of the key again. Or it
    /// may have retired the list, and the key may have another list by now. So this call looks up which list the key
    /// has now.
    #[cold]
    fn retire(&self, key: Arc<K>) {
        // If the destructor of the key in the map panics, the unwinding must not drop `key`: the destructor of this
        // copy would panic too, and abort the process.
        let mut panics = Panics::default();
        panics.catch(|| self.vacate(&key, |number| self.resolved.retire(number)));
        panics.catch(|| drop(key));
        panics.resume();
    }

    /// Retires the list of `key` by the closure `retire`, if the list lies outside the map. Calls `retire` with the
    /// number of the list, under the lock of the key's map shard. If `retire` returns `None`, `key` keeps the list.
    /// Otherwise `retire` has made the list vacant, so that another key can use the list, and returns the key that the
    /// list had. This call then removes the entry of `key` from the map.
    fn vacate(&self, key: &K, retire: impl FnOnce(ListNumber) -> Option<Arc<K>>) {
        let retire = Cell::new(Some(retire));
        let retired = Cell::new(None);
        // One lookup retires the list and removes the entry. If `Eq` of the key could run in between, its panic would
        // leave an entry behind, and this entry would lead to a list that soon belongs to another key.
        let goes = |location: &Location| {
            let Location::Resolved(number) = location else {
                return false;
            };
            let listed = retire.take().and_then(|retire| retire(*number));
            let is_vacant = listed.is_some();
            if is_vacant {
                retired.set(listed);
            }
            is_vacant
        };
        let what = "the drop of a resolved key";
        let entry = self.lists.edit(what, key, Some(goes), |_| false);
        // Drop the keys of the entry and of the list with no lock held, because destructors of keys are user code. They
        // are two copies of one key. If its destructor panics, the second panic must not come while the first unwinds.
        let mut panics = Panics::default();
        panics.catch(|| drop(entry));
        panics.catch(|| drop(retired));
        panics.resume();
    }

    /// The number of keys that have watchers.
    pub(crate) fn keys(&self) -> usize {
        let mut keys = 0;
        self.lists.for_each("watched_keys", |_, location| {
            keys += usize::from(self.count_at(location) > 0)
        });
        keys
    }
}

#[cfg(all(test, not(request_purgatory_loom)))]
mod tests;
