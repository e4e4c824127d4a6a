//! Keys in the order in which they came, each once.

use crate::sync::{KeyHash, shed};
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
        let value = self.remove(&key)?;
        Some((key, value))
    }

    pub(super) fn remove(&mut self, key: &K) -> Option<V> {
        let (place, value) = self.values.remove(key)?;
        self.order.remove(&place);
        shed(&mut self.values);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_of_keys_leaves_no_memory() {
        let mut queue = Queue::default();
        for key in 0..10_000 {
            queue.push(key, |_| key);
        }
        assert!((0..9_000).all(|key| queue.pop() == Some((key, key))));
        assert!((9_000..9_990).all(|key| queue.remove(&key) == Some(key)));
        assert!(queue.values.capacity() < 100);
        assert!((9_990..10_000).all(|key| queue.pop() == Some((key, key))));
    }

    /// Or one that comes again and again would never come to its turn.
    #[test]
    fn a_key_that_comes_again_keeps_its_place() {
        let mut queue = Queue::default();
        for key in [1, 2, 1] {
            queue.push(key, |_| key);
        }
        assert_eq!(
            [(); 3].map(|()| queue.pop()),
            [Some((1, 1)), Some((2, 2)), None]
        );
    }
}
