//! The engine within one process: for tests, and for a program that runs on one node today and on several tomorrow.
//!
//! It keeps versions in a map and tells sessions over channels. Clones are the same store, so that each node of a test
//! has one. Tests can [cut](MemoryEngine::cut), [silence](MemoryEngine::mute), [block](MemoryEngine::refuse_reads) and
//! [flush](MemoryEngine::flush) it.

mod session;
mod store;

use crate::config::Config;
use crate::error::{EngineError, FeedError};
use crate::feed::{Change, Feed};
use crate::key::Key;
use crate::position::{Epoch, Position};
use crate::source::{Reading, Source};
use parking_lot::Mutex;
pub use session::{MemoryChanges, MemoryInterests};
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use store::{CAPACITY, Store};

/// A store and a feed in memory.
pub struct MemoryEngine<K> {
    store: Arc<Mutex<Store<K>>>,
}

impl<K: Key> MemoryEngine<K> {
    /// An empty one.
    pub fn new() -> Self {
        Self {
            store: Arc::new(Mutex::new(Store {
                epoch: Epoch(fastrand::u64(..)),
                versions: HashMap::new(),
                subscribers: HashMap::new(),
                sessions: 0,
                is_muted: false,
                refuses_reads: false,
                capacity: CAPACITY,
            })),
        }
    }

    /// Commits an event of `key`: its version grows by one. Returns where it is now.
    pub fn commit(&self, key: K) -> Position {
        let mut store = self.store.lock();
        let epoch = store.epoch;
        let version = store.versions.entry(key.clone()).or_insert(0);
        *version += 1;
        let version = *version;
        if !store.is_muted {
            let change = Change {
                key,
                version,
                epoch: Some(epoch),
            };
            for subscriber in store.subscribers.values_mut() {
                if subscriber.watched.contains(&change.key) {
                    subscriber.lagged |= subscriber.changes.try_send(change.clone()).is_err();
                }
            }
        }
        Position { epoch, version }
    }

    /// Ends all sessions.
    pub fn cut(&self) {
        self.store.lock().subscribers.clear();
    }

    /// From now on sessions are told of nothing, and stay open; or are told again.
    pub fn mute(&self, is_muted: bool) {
        self.store.lock().is_muted = is_muted;
    }

    /// From now on reads fail; or succeed again.
    pub fn refuse_reads(&self, refuses: bool) {
        self.store.lock().refuses_reads = refuses;
    }

    /// Loses all data, and begins another history.
    pub fn flush(&self) {
        let mut store = self.store.lock();
        store.versions.clear();
        store.epoch = Epoch(store.epoch.0.wrapping_add(1));
    }

    /// How many changes wait in a session that does not listen before it ends, from the next session on.
    pub fn set_capacity(&self, capacity: usize) {
        self.store.lock().capacity = capacity;
    }

    /// All versions, to be [restored](Self::restore).
    pub fn backup(&self) -> HashMap<K, u64> {
        self.store.lock().versions.clone()
    }

    /// An older copy takes over, in the same history.
    pub fn restore(&self, versions: HashMap<K, u64>) {
        self.store.lock().versions = versions;
    }
}

impl<K: Key> Default for MemoryEngine<K> {
    fn default() -> Self {
        Self::new()
    }
}

impl<K> Clone for MemoryEngine<K> {
    fn clone(&self) -> Self {
        Self {
            store: self.store.clone(),
        }
    }
}

impl<K> fmt::Debug for MemoryEngine<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let store = self.store.lock();
        f.debug_struct("MemoryEngine")
            .field("epoch", &store.epoch)
            .field("keys", &store.versions.len())
            .field("sessions", &store.subscribers.len())
            .finish_non_exhaustive()
    }
}

impl<K: Key> Source<K> for MemoryEngine<K> {
    async fn versions(&self, keys: &[K]) -> Result<Reading, EngineError> {
        let store = self.store.lock();
        if store.refuses_reads {
            return Err("the store refuses reads".into());
        }
        let version = |key| Some(store.versions.get(key).copied().unwrap_or(0));
        Ok(Reading {
            epoch: store.epoch,
            versions: keys.iter().map(version).collect(),
            head: None,
            floor: None,
        })
    }
}

impl<K: Key> Feed<K> for MemoryEngine<K> {
    type Interests = MemoryInterests<K>;
    type Changes = MemoryChanges<K>;

    async fn open(&self, _: &Config) -> Result<(MemoryInterests<K>, MemoryChanges<K>), FeedError> {
        Ok(session::open(&self.store))
    }
}
