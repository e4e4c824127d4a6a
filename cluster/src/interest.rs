//! Interest in keys.

use crate::error::InterestError;
use crate::key::Key;
use crate::position::Position;
use crate::sync::Arc;
use crate::table::Table;
use crate::table::entry::{Entry, Known};
use std::fmt;

/// Interest in one key or several: while it lives, their versions are kept up to date on this node. It lies in the
/// operation that waits for them, and is dropped with it, on any thread.
///
/// After the last interest in a key, the key stays watched for [`Config::linger`](crate::Config::linger).
pub struct Interest<K: Key> {
    table: Arc<Table<K>>,
    keys: Box<[Watched<K>]>,
}

struct Watched<K> {
    key: K,
    entry: Arc<Entry>,
    /// What was known at first.
    first: Known,
}

impl<K: Key> Interest<K> {
    #[doc(hidden)]
    pub fn new(
        table: &Arc<Table<K>>,
        keys: impl IntoIterator<Item = K>,
    ) -> Result<Self, InterestError> {
        let keys = keys.into_iter();
        // If a later key is refused, or `Clone` of one panics, the earlier ones are left when this is dropped.
        let mut interest = Entering {
            table,
            keys: Vec::with_capacity(keys.size_hint().0),
        };
        for key in keys {
            let entry = table.enter(&key)?;
            let first = entry.known();
            interest.keys.push(Watched { key, entry, first });
        }
        Ok(Self {
            table: table.clone(),
            keys: std::mem::take(&mut interest.keys).into_boxed_slice(),
        })
    }

    /// What is known of the first key.
    pub(crate) fn known_first(&self) -> Option<Known> {
        self.keys.first().map(|it| it.entry.known())
    }

    /// What was known of the first key when the interest began.
    pub(crate) fn first_known(&self) -> Option<Known> {
        self.keys.first().map(|it| it.first)
    }

    pub(crate) fn known(&self, key: &K) -> Option<Known> {
        self.keys
            .iter()
            .find(|it| it.key == *key)
            .map(|it| it.entry.known())
    }

    pub(crate) fn table(&self) -> &Arc<Table<K>> {
        &self.table
    }

    /// The latest version of `key` that this node knows to be committed; what `try_complete` compares with what the
    /// client has seen. 0 until the key was read for the first time, and for a key that this interest is not in.
    ///
    /// Takes the lock of the key's entry for an instant.
    pub fn version(&self, key: &K) -> u64 {
        self.known(key).map_or(0, |known| known.mark)
    }

    /// The latest version and its history. `None` until the store was read, and for a key that this interest is not in.
    ///
    /// Takes the lock of the key's entry for an instant.
    pub fn position(&self, key: &K) -> Option<Position> {
        let known = self.known(key)?;
        Some(Position {
            epoch: known.history.epoch?,
            version: known.mark,
        })
    }

    /// Whether the store has lost its data since this interest began, or has discarded events that may have been of one
    /// of the keys and that this node has not seen. What the client has seen is worth nothing then, and `try_complete`
    /// should say yes, so that the operation can answer that. Read it *after* the [`version`](Self::version), which may
    /// be of the new history. An operation that begins after its events were discarded is told nothing here: a wait of
    /// [`ClusterWaits`](crate::ClusterWaits) past its version is.
    ///
    /// Takes the lock of each key's entry for an instant.
    pub fn is_reset(&self) -> bool {
        self.keys.iter().any(|it| {
            let known = it.entry.known();
            known.history.generation != it.first.history.generation || known.gaps != it.first.gaps
        })
    }

    /// The keys.
    pub fn keys(&self) -> impl Iterator<Item = &K> {
        self.keys.iter().map(|it| &it.key)
    }
}

impl<K: Key> Drop for Interest<K> {
    fn drop(&mut self) {
        for it in &self.keys {
            self.table.leave(&it.key, &it.entry);
        }
    }
}

struct Entering<'a, K: Key> {
    table: &'a Arc<Table<K>>,
    keys: Vec<Watched<K>>,
}

impl<K: Key> Drop for Entering<'_, K> {
    fn drop(&mut self) {
        for it in &self.keys {
            self.table.leave(&it.key, &it.entry);
        }
    }
}

impl<K: Key + fmt::Debug> fmt::Debug for Interest<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.keys()).finish()
    }
}
