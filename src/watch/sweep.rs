//! Removes many watches (places of operations in the lists of their keys) at once, after a batch of operations has
//! expired.
//!
//! The lists of plain keys (keys without a `ResolvedKey`) lie far apart in memory. A million removals, each with a
//! lookup and a hold of a lock, would be a million cache misses in a row. So the sweep sorts the watches by map shard.
//! It removes the watches of one shard in slices of at most 64 watches. Each slice takes the shard's lock once, and its
//! entries lie close together.

use super::bound::Order;
use super::{Location, Target, WatchMap};
use crate::cell::address::Address;
use crate::sync::{Arc, Edit, SLICE};
use std::hash::{BuildHasher, Hash};

/// The watches to remove, and how far the removal has come.
///
/// `Hash`, `Eq` and destructors of the keys are user code and may panic. If `Hash` or `Eq` panics, the watch of that
/// key stays in its list as a dead entry, which checks skip. If a destructor panics, its key counts as dropped. After a
/// panic, the caller calls [`step`](Self::step) again, and the sweep continues with the other watches.
pub(crate) struct Sweep<'m, K, S> {
    map: &'m WatchMap<K, S>,
    /// The watches on plain keys: those that the operation does not name by a `ResolvedKey`. Each edit names the key,
    /// the watcher to remove, and the watcher's place in the list of the key.
    edits: Vec<Edit<'m, K, (Address, Order<'m>)>>,
    done: usize,
    /// Map entries that have lost their last watcher. They are dropped after the lock was released, because destructors
    /// of keys are user code.
    removed: Vec<(K, Location)>,
    /// Keys whose resolved lists have lost the last watcher, and that have no `ResolvedKey` any more. Their lists can
    /// be reused for other keys.
    orphans: Vec<Arc<K>>,
}

impl<'m, K: Eq + Hash + Clone + 'static, S: BuildHasher + Clone> Sweep<'m, K, S> {
    /// A sweep (the removal of many watches at once) with room for this number of watches.
    pub(crate) fn of(map: &'m WatchMap<K, S>, watches: usize) -> Self {
        Self {
            map,
            edits: Vec::with_capacity(watches),
            done: 0,
            removed: Vec::new(),
            orphans: Vec::new(),
        }
    }

    /// Adds a watch to the sweep. A watch on a resolved key is removed at once: its list is found by a number, so to
    /// sort these watches and look them up together would save nothing.
    pub(crate) fn add(&mut self, target: Target<&'m K>, order: Order<'m>, watcher: Address) {
        match target {
            Target::Key(key) => {
                let hash = self.map.lists.hash_of(key);
                self.edits.push((hash, key, (watcher, order)));
            }
            Target::Resolved(number) => {
                let list = self.map.resolved.get(number);
                self.orphans.extend(list.remove(watcher, order));
            }
        }
    }

    /// Sorts the watches by map shard. Called once, after all watches have been added.
    pub(crate) fn sort(&mut self) {
        let lists = &self.map.lists;
        self.edits
            .sort_unstable_by_key(|&(hash, ..)| lists.shard_of(hash));
    }

    /// Whether all watches are removed and all keys dropped. A watch or key whose code has panicked counts as done.
    pub(crate) fn is_done(&self) -> bool {
        self.done == self.edits.len() && self.removed.is_empty() && self.orphans.is_empty()
    }

    /// How much is left to do: the numbers of watches to remove, of map entries to drop, and of keys whose lists can be
    /// reused. Each step changes at least one of these numbers, unless the step panics before it has changed anything.
    /// In that case every further step would panic too, so the caller gives up.
    pub(crate) fn left(&self) -> (usize, usize, usize) {
        let watches = self.edits.len() - self.done;
        (watches, self.removed.len(), self.orphans.len())
    }

    /// Removes watches of one map shard, at most a slice of them (64), in one hold of the shard's lock. The caller
    /// repeats this call until the sweep is [done](Self::is_done), also after a panic.
    pub(crate) fn step(&mut self) {
        let (map, orphans) = (self.map, &mut self.orphans);
        let slice = &self.edits[self.done..];
        let slice = &slice[..slice.len().min(SLICE)];
        let shard_of = |edit: &Edit<'_, K, _>| map.lists.shard_of(edit.0);
        let mut by_shard = slice.chunk_by(|one, next| shard_of(one) == shard_of(next));
        map.lists.edit_all(
            by_shard.next().unwrap_or_default(),
            |location| matches!(location, Location::Here(_)),
            |location, (watcher, order)| match location {
                Location::Here(list) => list.remove(watcher, order),
                Location::Resolved(number) => {
                    orphans.extend(map.resolved.get(*number).remove(watcher, order));
                    false
                }
            },
            &mut self.done,
            &mut self.removed,
        );
        // Drop the entries with no lock held. If a destructor panics, its entry has left the vector already, and the
        // next step drops the other entries.
        while let Some(entry) = self.removed.pop() {
            drop(entry);
        }
        while let Some(key) = self.orphans.pop() {
            self.map.retire(key);
        }
    }
}

#[cfg(all(test, not(request_purgatory_loom)))]
mod tests {
    use super::*;
    use std::cell::Cell;
    use std::hash::{BuildHasherDefault, Hasher};

    /// A hasher that spreads the keys over two shards, alternately.
    #[derive(Default)]
    struct ByTurns(u64);

    impl Hasher for ByTurns {
        fn finish(&self) -> u64 {
            (self.0 % 2) << 32
        }

        fn write(&mut self, bytes: &[u8]) {
            self.0 += bytes.iter().map(|byte| u64::from(*byte)).sum::<u64>();
        }
    }

    /// Between two slices of a shard's keys, other threads can take the shard's lock. Each hold of the lock removes a
    /// whole slice.
    #[test]
    fn g20_one_hold_of_a_shards_lock_takes_off_one_slice() {
        let map = WatchMap::new(BuildHasherDefault::<ByTurns>::default(), 64, usize::MAX);
        let keys = (0..10 * SLICE as u32).collect::<Vec<_>>();
        let watcher = |key: &u32| Address::new(0, *key, 0);
        let mut sweep = Sweep::of(&map, keys.len());
        let ticket = Cell::default();
        for key in &keys {
            let (target, order) = (Target::Key(key), Order::Arrived(&ticket));
            assert!(map.add(target, order, watcher(key)));
            sweep.add(target, order, watcher(key));
        }
        sweep.sort();
        let mut done = 0;
        while !sweep.is_done() {
            sweep.step();
            let together = sweep.done - done;
            assert_eq!(together, SLICE, "in one hold");
            done = sweep.done;
        }
        assert_eq!((done, map.keys()), (keys.len(), 0));
    }
}
