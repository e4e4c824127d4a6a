//! Keys in the order in which they came, each once.

use crate::sync::KeyHash;
use std::collections::{HashMap, VecDeque};
use std::hash::Hash;

/// A queue of keys with something to do for each. A key that comes again keeps its place, so the queue is bounded by
/// the number of keys however often they come.
pub(super) struct Queue<K, V> {
    order: VecDeque<K>,
    values: HashMap<K, V, KeyHash>,
}

impl<K: Eq + Hash + Clone, V> Queue<K, V> {
    /// `merge` makes the value from the one that stands there.
    pub(super) fn push(&mut self, key: K, merge: impl FnOnce(Option<&V>) -> V) {
        match self.values.get_mut(&key) {
            Some(value) => *value = merge(Some(value)),
            None => {
                self.values.insert(key.clone(), merge(None));
                self.order.push_back(key);
            }
        }
    }

    pub(super) fn first(&self) -> Option<&V> {
        self.values.get(self.order.front()?)
    }

    pub(super) fn pop(&mut self) -> Option<(K, V)> {
        self.values.remove_entry(&self.order.pop_front()?)
    }
}

impl<K, V> Default for Queue<K, V> {
    fn default() -> Self {
        Self {
            order: VecDeque::new(),
            values: HashMap::default(),
        }
    }
}
