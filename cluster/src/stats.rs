//! What a node counts.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// A counter. Not part of the protocol, so it is the same under shuttle.
#[derive(Debug, Default)]
pub(crate) struct Count(AtomicU64);

// ORDERING: Relaxed throughout: counters are read for people, and nothing follows from them.
impl Count {
    pub(crate) fn add(&self, n: u64) {
        self.0.fetch_add(n, Ordering::Relaxed);
    }

    pub(crate) fn read(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) sessions: Count,
    pub(crate) gaps: Count,
    pub(crate) failed: Count,
    pub(crate) heard: Count,
    pub(crate) healed: Count,
    pub(crate) resets: Count,
    pub(crate) reads: Count,
}

/// What a node has seen so far. Counters begin with the cluster and only grow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Keys that are watched now, those that linger included.
    pub watched_keys: usize,
    /// Sessions that were opened.
    pub sessions: u64,
    /// Sessions that ended, other than by the shutdown: times in which nothing was heard.
    pub gaps: u64,
    /// Attempts to open a session that failed.
    pub failed: u64,
    /// Changes of watched keys that the feed told.
    pub heard: u64,
    /// Versions that a read found before the feed told of them. A few are news on the way; many mean that the feed
    /// loses messages.
    pub healed: u64,
    /// Times that the store lost its data, so that waits ended with `Reset`.
    pub resets: u64,
    /// Reads of the store that returned.
    pub reads: u64,
    /// For how long this node has not been in step with the store. Zero while a session is live: every watched key is
    /// watched and was read.
    pub lag: Duration,
}
