//! Counters and histograms, beside what the purgatories count themselves.

use parking_lot::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// A number that many threads change.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

// ORDERING: Relaxed throughout: a counter publishes nothing but itself.
impl Counter {
    /// Adds one, and returns what it was.
    pub(crate) fn increase(&self) -> u64 {
        self.0.fetch_add(1, Ordering::Relaxed)
    }

    pub(crate) fn add(&self, count: u64) {
        self.0.fetch_add(count, Ordering::Relaxed);
    }

    pub(crate) fn value(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Durations, any number of them in little memory.
#[derive(Debug)]
pub(crate) struct Histogram(Mutex<hdrhistogram::Histogram<u64>>);

impl Default for Histogram {
    fn default() -> Self {
        // INVARIANT: two significant digits are a precision that there is.
        Self(Mutex::new(
            hdrhistogram::Histogram::new(2).expect("two digits"),
        ))
    }
}

impl Histogram {
    pub(crate) fn record(&self, duration: Duration) {
        let micros = u64::try_from(duration.as_micros()).unwrap_or(u64::MAX);
        self.0.lock().saturating_record(micros);
    }

    /// The milliseconds that this share (0 to 1) of all recorded durations does not exceed.
    pub(crate) fn quantile(&self, share: f64) -> String {
        let micros = self.0.lock().value_at_quantile(share);
        format!("{:.2} ms", micros as f64 / 1e3)
    }
}
