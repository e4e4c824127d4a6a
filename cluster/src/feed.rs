//! The hint: which keys changed.

use crate::config::Config;
use crate::error::FeedError;
use crate::key::Key;
use crate::position::Epoch;
use std::future::Future;

/// A key that reached a version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change<K> {
    /// The key.
    pub key: K,
    /// A version of it that was committed. Repeats and older versions do no harm.
    pub version: u64,
    /// The history that the version belongs to, where the feed knows. Another one than the cluster knows ends the
    /// session, and the version is not believed.
    pub epoch: Option<Epoch>,
}

/// Opens sessions with an engine that tells which keys changed.
pub trait Feed<K: Key>: Send + Sync + 'static {
    /// The half of a session that says what to watch.
    type Interests: Interests<K>;
    /// The half of a session that hears.
    type Changes: Changes<K>;

    /// Opens one session. A session never reconnects by itself: what is missed during a reconnect is missed silently.
    ///
    /// Must end by itself when the engine does not answer.
    ///
    /// # Errors
    /// Why there is no session. The cluster tries again after [`Config::backoff`](crate::Config::backoff).
    fn open(
        &self,
        config: &Config,
    ) -> impl Future<Output = Result<(Self::Interests, Self::Changes), FeedError>> + Send;

    /// What the operator of the engine should change, in a sentence: asked for after each [`open`](Self::open), logged
    /// once, and told in [`Stats::advice`](crate::Stats::advice).
    fn advice(&self) -> Option<std::sync::Arc<str>> {
        None
    }
}

/// What one session watches.
pub trait Interests<K: Key>: Send + 'static {
    /// Watches `keys`, and returns only when changes committed from now on *will be heard*. A key that is watched
    /// already stays watched.
    ///
    /// # Errors
    /// Any error ends the session.
    fn watch(&mut self, keys: &[K]) -> impl Future<Output = Result<(), FeedError>> + Send;

    /// Ends the watches of `keys`. Changes of them may still be heard for a while. A key that is not watched is left
    /// alone.
    ///
    /// # Errors
    /// Any error ends the session.
    fn unwatch(&mut self, keys: &[K]) -> impl Future<Output = Result<(), FeedError>> + Send;

    /// Whether [`watch`](Self::watch) keeps its contract to the letter. Where it cannot, because other servers learn of
    /// the watch a little later, the cluster reads the keys once more after
    /// [`Config::settle`](crate::Config::settle).
    fn is_exact(&self) -> bool {
        true
    }
}

/// What one session hears.
pub trait Changes<K: Key>: Send + 'static {
    /// Waits for changes.
    ///
    /// # Errors
    /// The session is over: the connection is cut, this node was too slow and something was dropped, or the engine has
    /// been silent for longer than [`Config::ping`](crate::Config::ping) allows.
    fn next(&mut self) -> impl Future<Output = Result<Vec<Change<K>>, FeedError>> + Send;
}
