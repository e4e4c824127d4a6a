//! Keys in the order in which they came, each once.

use crate::sync::KeyHash;
use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;

/// A queue of keys with something to do for each. A key that comes again keeps its place, and one that is removed leaves
/// none: the queue is as long as there are keys in it, however often they come and go.
pub(super) struct Queue<K, V> {
    order: BTreeMap<u64, K>,
    values: HashMap<K, (u64, V), KeyHash>,
    /// How many places were given.
    places: u64,
}

impl<K: Eq + Hash + Clone, V> Queue<K, V> {
    /// `merge` makes the value from the one that stands there.
    pub(super) fn push(&mut self, key: K, merge: impl FnOnce(Option<&V>) -> V) {
        match self.values.get_mut(&key) {
            Some((_, value)) => *value = merge(Some(value)),
            None => {
                self.places += 1;
                self.values.insert(key.clone(), (self.places, merge(None)));
                self.order.insert(self.places, key);
            }
        }
    }

    pub(super) fn first(&self) -> Option<&V> {
        let (_, key) = self.order.first_key_value()?;
        self.values.get(key).map(|(_, value)| value)
    }

    pub(super) fn pop(&mut self) -> Option<(K, V)> {
        let (_, key) = self.order.pop_first()?;
        let (_, value) = self.values.remove(&key)?;
        Some((key, value))
    }

    pub(super) fn remove(&mut self, key: &K) -> Option<V> {
        let (place, value) = self.values.remove(key)?;
        self.order.remove(&place);
        Some(value)
    }
}

impl<K, V> Default for Queue<K, V> {
    fn default() -> Self {
        Self {
            order: BTreeMap::new(),
            values: HashMap::default(),
            places: 0,
        }
    }
}
