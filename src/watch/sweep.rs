//! Taking many watchers off their lists at once, when a batch of expired operations is reclaimed.
//!
//! The lists of plain keys lie far apart in memory. A look-up of each under a lock of its own waits for memory a
//! million times. Sorted by shard, the watches of one shard are removed by slices, each under one hold of its lock, and
//! their entries are close together.

use super::bound::Order;
use super::{Location, Target, WatchMap};
use crate::cell::address::Address;
use crate::sync::{Arc, Edit, SLICE};
use std::hash::{BuildHasher, Hash};

/// The watches to be taken off.
///
/// `Hash`, `Eq` and destructors of the keys are the user's and may panic. Then one watch stays as a dead entry, or one
/// key is dropped, and the caller goes on with the others.
pub(crate) struct Sweep<'m, K, S> {
    map: &'m WatchMap<K, S>,
    /// Each with the watcher that leaves, and its place in the order.
    edits: Vec<Edit<'m, K, (Address, Order<'m>)>>,
    done: usize,
    /// Entries of keys without watchers, to be dropped.
    removed: Vec<(K, Location)>,
    /// Keys whose resolved lists can be retired.
    orphans: Vec<Arc<K>>,
}

impl<'m, K: Eq + Hash + Clone + 'static, S: BuildHasher + Clone> Sweep<'m, K, S> {
    /// With room for this many watches.
    pub(crate) fn of(map: &'m WatchMap<K, S>, watches: usize) -> Self {
        Self {
            map,
            edits: Vec::with_capacity(watches),
            done: 0,
            removed: Vec::new(),
            orphans: Vec::new(),
        }
    }

    /// One more watch. (On a resolved key, it is taken off at once: there is nothing to look up.)
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

    /// All have been added.
    pub(crate) fn sort(&mut self) {
        let lists = &self.map.lists;
        self.edits
            .sort_unstable_by_key(|&(hash, ..)| lists.shard_of(hash));
    }

    /// Whether all watches are removed and all keys dropped. A watch or key that panicked counts as done.
    pub(crate) fn is_done(&self) -> bool {
        self.done == self.edits.len() && self.removed.is_empty() && self.orphans.is_empty()
    }

    /// Removes the watches of one shard, or a slice of them. To be repeated until it is [done](Self::is_done), also
    /// after a panic.
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
        // No lock is held. A value that panics is out of its vector already, and the others wait for the next step.
        while let Some(entry) = self.removed.pop() {
            drop(entry);
        }
        while let Some(key) = self.orphans.pop() {
            self.map.retire(&key);
        }
    }
}

#[cfg(all(test, not(request_purgatory_loom)))]
mod tests {
    use super::*;
    use std::cell::Cell;
    use std::hash::{BuildHasherDefault, Hasher};

    /// The keys lie in two shards, by turns.
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

    /// Other threads get the lock of a shard between two slices of its keys, and no hold of it is for less.
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
