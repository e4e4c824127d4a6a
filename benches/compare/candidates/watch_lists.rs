//! The map from keys to waiting entries that the hand-made candidates share.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use dashmap::DashMap;
use smallvec::SmallVec;

type Hasher = foldhash::fast::RandomState;

/// As long as a search of a list is faster than a look-up.
const SHORT: usize = 24;

/// The entries under one key: short lists allocate nothing, long ones are searched in no time. As
/// large as a vector.
enum List<E> {
    Two([Option<Arc<E>>; 2]),
    Short(Vec<Arc<E>>),
    /// By address.
    #[expect(clippy::box_collection, reason = "a map is twice as large as a vector")]
    Long(Box<HashMap<usize, Arc<E>, Hasher>>),
}

const _: () = assert!(size_of::<List<()>>() == size_of::<Vec<()>>());

impl<E> Default for List<E> {
    fn default() -> Self {
        Self::Two([None, None])
    }
}

fn address<E>(entry: &Arc<E>) -> usize {
    Arc::as_ptr(entry) as usize
}

impl<E> List<E> {
    fn push(&mut self, entry: Arc<E>) {
        match self {
            Self::Two(places) => match places.iter_mut().find(|place| place.is_none()) {
                Some(free) => *free = Some(entry),
                None => {
                    let mut list = Vec::with_capacity(4);
                    list.extend(places.iter_mut().filter_map(Option::take));
                    list.push(entry);
                    *self = Self::Short(list);
                }
            },
            Self::Short(list) if list.len() < SHORT => list.push(entry),
            Self::Short(list) => {
                let mut map: HashMap<_, _, _> = list
                    .drain(..)
                    .map(|entry| (address(&entry), entry))
                    .collect();
                map.insert(address(&entry), entry);
                *self = Self::Long(Box::new(map));
            }
            Self::Long(map) => {
                map.insert(address(&entry), entry);
            }
        }
    }

    fn remove(&mut self, entry: &Arc<E>) {
        let is_it = |other: &Arc<E>| Arc::ptr_eq(other, entry);
        match self {
            Self::Two(places) => {
                let place = places
                    .iter_mut()
                    .find(|place| place.as_ref().is_some_and(is_it));
                if let Some(place) = place {
                    *place = None;
                }
            }
            Self::Short(list) => {
                if let Some(found) = list.iter().position(is_it) {
                    list.swap_remove(found);
                }
            }
            Self::Long(map) => {
                map.remove(&address(entry));
            }
        }
    }

    fn len(&self) -> usize {
        match self {
            Self::Two(places) => places.iter().flatten().count(),
            Self::Short(list) => list.len(),
            Self::Long(map) => map.len(),
        }
    }

    fn entries(&self) -> SmallVec<[Arc<E>; 4]> {
        match self {
            Self::Two(places) => places.iter().flatten().cloned().collect(),
            Self::Short(list) => list.iter().cloned().collect(),
            Self::Long(map) => map.values().cloned().collect(),
        }
    }
}

/// `DashMap` from key to the entries that watch it; a key without entries is not in the map.
///
/// Hashed with foldhash, as the library does by default, so that no candidate pays for SipHash.
pub(crate) struct WatchLists<E>(DashMap<u64, List<E>, Hasher>);

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
            list.remove(entry);
            list.len() == 0
        });
    }

    /// The entries under `key` now, copied so that trying them holds no lock of the map.
    pub(crate) fn watchers(&self, key: u64) -> SmallVec<[Arc<E>; 4]> {
        self.0
            .get(&key)
            .map(|list| list.entries())
            .unwrap_or_default()
    }

    pub(crate) fn len(&self) -> usize {
        self.0.iter().map(|list| list.len()).sum()
    }

    /// How many entries there are, whatever the number of their keys.
    pub(crate) fn distinct(&self) -> usize {
        let lists = self.0.iter();
        let entries =
            lists.flat_map(|list| list.entries().into_iter().map(|entry| address(&entry)));
        entries.collect::<HashSet<_, Hasher>>().len()
    }
}
