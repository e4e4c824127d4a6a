//! What a node says of itself: `/stats`.

use serde::{Deserialize, Serialize};
use std::sync::atomic::{AtomicU64, Ordering};

/// Counters begin with the node and only grow.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Stats {
    pub name: String,
    pub engine: String,
    /// Base URLs of the other nodes.
    pub peers: Vec<String>,
    pub uptime_ms: u64,
    pub cpu_ms: f64,
    /// Polls that wait now.
    pub parked: usize,
    pub posts: u64,
    /// Posts that the store did not acknowledge.
    pub posts_failed: u64,
    /// Polls answered with events.
    pub woken: u64,
    /// Polls whose time passed.
    pub expired: u64,
    /// Polls answered with 410.
    pub gone: u64,
    /// Polls answered with 503: the node is full or leaves, or the store could not be read.
    pub refused: u64,
    /// Reads of bodies.
    pub fetches: u64,
    pub watched_topics: usize,
    pub sessions: u64,
    pub gaps: u64,
    pub failed: u64,
    pub heard: u64,
    pub healed: u64,
    pub resets: u64,
    pub reads: u64,
    /// For how long the node has not been in step with the store.
    pub lag_ms: u64,
}

/// A counter for people.
#[derive(Debug, Default)]
pub(crate) struct Count(AtomicU64);

impl Count {
    // ORDERING: Relaxed: nothing follows from a counter.
    pub(crate) fn one(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn read(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(crate) posts: Count,
    pub(crate) posts_failed: Count,
    pub(crate) woken: Count,
    pub(crate) expired: Count,
    pub(crate) gone: Count,
    pub(crate) refused: Count,
}
