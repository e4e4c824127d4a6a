//! The truth: versions, kept by a store.

use crate::error::{EngineError, KeyError};
use crate::key::Key;
use crate::position::Epoch;
use std::future::Future;

/// What a [`Source`] read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reading {
    /// The history that the versions belong to.
    pub epoch: Epoch,
    /// One for each key, in the order asked for. 0: nothing was committed to this key. `None`: the store does not say,
    /// because it may have discarded the key's last event.
    pub versions: Vec<Option<u64>>,
    /// The highest version of all keys, where the store gives all of them from one sequence. A mark above it shows that
    /// the store went back, also for keys whose version it does not say.
    pub head: Option<u64>,
    /// Where `head` is given: the highest version that the store may have discarded. A key whose version it does not say
    /// has none above this one, up to the head.
    pub floor: Option<u64>,
}

/// Where versions are read.
///
/// The contract: a reading that begins after a commit was acknowledged shows that commit or a later one. So a replica
/// that may lag is no source.
pub trait Source<K: Key>: Send + Sync + 'static {
    /// Reads the epoch and the versions of `keys`; without keys, the epoch alone.
    ///
    /// Runs in tasks of the runtime that the cluster was started on, at most
    /// [`Config::concurrent_reads`](crate::Config::concurrent_reads) at once, and one without keys beside them as a
    /// session opens. Must end by itself when the store does not answer: the cluster has no timeout of its own for it.
    ///
    /// # Errors
    /// The keys are read again, after [`Config::backoff`](crate::Config::backoff).
    fn versions(&self, keys: &[K]) -> impl Future<Output = Result<Reading, EngineError>> + Send;

    /// Whether the store can hold this key. Asked before the key is watched, since one key that the store refuses would
    /// end every session.
    ///
    /// # Errors
    /// Why it cannot.
    fn admit(&self, key: &K) -> Result<(), KeyError> {
        let _ = key;
        Ok(())
    }
}
