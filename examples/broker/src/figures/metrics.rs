//! What the broker counts about its requests, beside what the purgatories count themselves.

use crate::figures::histogram::Histogram;
use std::sync::atomic::{AtomicU64, Ordering};

/// Counters since the start.
#[derive(Debug)]
pub(crate) struct Metrics {
    /// Requests that have to be answered: all but produce requests with acks 0.
    pub(crate) received: Counter,
    /// Answers written to a socket.
    pub(crate) answered: Counter,
    /// Requests whose connection ended before their answer was written.
    pub(crate) abandoned: Counter,
    /// Produce requests with acks 0.
    pub(crate) unacknowledged: Counter,
    /// Connections open now.
    pub(crate) connections: Counter,
    /// From the moment that a record may be read, all replicas having it, to the end of the parked fetch that it
    /// satisfied.
    pub(crate) wake_up: Histogram,
    /// How long after its deadline a fetch or produce request expired.
    pub(crate) lateness: Histogram,
}

impl Metrics {
    pub(crate) fn new() -> Self {
        Self {
            received: Counter::default(),
            answered: Counter::default(),
            abandoned: Counter::default(),
            unacknowledged: Counter::default(),
            connections: Counter::default(),
            wake_up: Histogram::new(),
            lateness: Histogram::new(),
        }
    }
}

/// A number that many threads change.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    /// Adds one, and returns what it was.
    pub(crate) fn increase(&self) -> u64 {
        self.0.fetch_add(1, Ordering::Relaxed)
    }

    pub(crate) fn add(&self, count: u64) {
        self.0.fetch_add(count, Ordering::Relaxed);
    }

    pub(crate) fn decrease(&self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }

    pub(crate) fn value(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}
