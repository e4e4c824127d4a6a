//! One session with the engine in memory.

use super::store::{Store, Subscriber};
use crate::config::channel_capacity;
use crate::error::FeedError;
use crate::feed::{Change, Changes, Interests};
use crate::key::Key;
use parking_lot::Mutex;
use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;
use tokio::sync::mpsc;

/// A number of a session in a store.
struct Membership<K> {
    store: Arc<Mutex<Store<K>>>,
    number: u64,
}

impl<K: Key> Membership<K> {
    fn change(&self, change: impl FnOnce(&mut Subscriber<K>)) -> Result<(), FeedError> {
        let mut store = self.store.lock();
        let subscriber = store.subscribers.get_mut(&self.number);
        subscriber
            .map(change)
            .ok_or_else(|| FeedError::Cut("the session was cut".into()))
    }
}

pub(super) fn open<K: Key>(store: &Arc<Mutex<Store<K>>>) -> (MemoryInterests<K>, MemoryChanges<K>) {
    let mut locked = store.lock();
    locked.sessions += 1;
    let number = locked.sessions;
    let (sender, changes) = mpsc::channel(channel_capacity(locked.capacity));
    let subscriber = Subscriber {
        watched: HashSet::new(),
        changes: sender,
        lagged: false,
    };
    locked.subscribers.insert(number, subscriber);
    let membership = || Membership {
        store: store.clone(),
        number,
    };
    let interests = MemoryInterests(membership());
    let changes = MemoryChanges {
        membership: membership(),
        changes,
    };
    (interests, changes)
}

/// What one session watches.
pub struct MemoryInterests<K: Key>(Membership<K>);

impl<K: Key> Interests<K> for MemoryInterests<K> {
    async fn watch(&mut self, keys: &[K]) -> Result<(), FeedError> {
        self.0.change(|it| it.watched.extend(keys.iter().cloned()))
    }

    async fn unwatch(&mut self, keys: &[K]) -> Result<(), FeedError> {
        self.0.change(|it| {
            for key in keys {
                it.watched.remove(key);
            }
        })
    }
}

/// What one session hears.
pub struct MemoryChanges<K: Key> {
    membership: Membership<K>,
    changes: mpsc::Receiver<Change<K>>,
}

impl<K: Key> Changes<K> for MemoryChanges<K> {
    async fn next(&mut self) -> Result<Vec<Change<K>>, FeedError> {
        let mut lagged = false;
        self.membership.change(|it| lagged = it.lagged)?;
        if lagged {
            return Err(FeedError::Lagged);
        }
        let mut changes = Vec::new();
        match self.changes.recv_many(&mut changes, 256).await {
            0 => Err(FeedError::Cut("the session was cut".into())),
            _ => Ok(changes),
        }
    }
}

impl<K: Key> Drop for MemoryChanges<K> {
    fn drop(&mut self) {
        let membership = &self.membership;
        membership
            .store
            .lock()
            .subscribers
            .remove(&membership.number);
    }
}

impl<K: Key> fmt::Debug for MemoryInterests<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryInterests").finish_non_exhaustive()
    }
}

impl<K: Key> fmt::Debug for MemoryChanges<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryChanges").finish_non_exhaustive()
    }
}
