//! Histograms, beside what the purgatories count themselves.

use parking_lot::Mutex;
use std::time::Duration;

/// Durations, any number of them in little memory.
#[derive(Debug)]
pub(crate) struct Histogram(Mutex<hdrhistogram::Histogram<u64>>);

impl Default for Histogram {
    fn default() -> Self {
        const HOUR: u64 = 3_600_000_000;
        // What is longer counts as an hour. INVARIANT: these are bounds, and a precision, that there are.
        let histogram = hdrhistogram::Histogram::new_with_bounds(1, HOUR, 2);
        Self(Mutex::new(histogram.expect("good bounds")))
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
