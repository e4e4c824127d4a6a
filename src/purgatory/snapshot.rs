//! The list of parked operations, for an operator who searches for requests that hang.

use super::inner::Inner;
use crate::hash::KeyHasher;
use crate::operation::DelayedOperation;
use crate::time::ticks::NEVER;
use std::collections::HashMap;
use std::time::Duration;

/// One parked operation, as [`Purgatory::snapshot`](crate::Purgatory::snapshot) saw it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ParkedOperation<K> {
    /// The keys that the operation watches, in no particular order.
    pub keys: Vec<K>,
    /// The age of the operation. It counts from the operation's [arrival](crate::DelayedOperation::arrival) or, if the
    /// operation does not know its arrival, from the moment when it was parked.
    pub age: Duration,
    /// The time until the deadline, in whole ticks; zero if the deadline has passed, `None` if the operation never
    /// expires.
    pub remaining: Option<Duration>,
}

impl<Op: DelayedOperation, S: KeyHasher> Inner<Op, S> {
    pub(crate) fn snapshot(&self) -> Vec<ParkedOperation<Op::Key>> {
        // Read the keys from the watch lists, not from the slots. To read a slot, this thread would have to hold the
        // operation, and a check that comes meanwhile could not complete the operation itself. No lock is held while
        // the two collections below grow, so no thread waits for their allocations.
        let present = self.engine.clock.now();
        let now = self.engine.scale.floor(present);
        let mut keys = HashMap::<_, Vec<Op::Key>>::new();
        let all = self.watch.all_keys();
        for key in &all {
            self.watch.visit_all(key, |watcher| {
                keys.entry(watcher).or_default().push(key.clone());
            });
        }
        // If the destructor of a key panics, here or below, the unwinding must not drop other copies of the same key: a
        // second destructor that panics would abort the process.
        let _ = self.engine.guarded(|| drop(all));
        let mut parked = Vec::with_capacity(keys.len());
        for (watcher, keys) in keys {
            let Some((arrived_at, deadline)) = self.times(watcher) else {
                let _ = self.engine.guarded(|| drop(keys));
                continue;
            };
            parked.push(ParkedOperation {
                keys,
                age: present.saturating_since(arrived_at),
                remaining: (deadline != NEVER)
                    .then(|| self.engine.scale.duration(deadline.saturating_sub(now))),
            });
        }
        parked.sort_by_key(|operation| std::cmp::Reverse(operation.age));
        parked
    }
}
