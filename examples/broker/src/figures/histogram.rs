//! Durations, counted in buckets: any number of them in constant memory, from any number of threads.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Buckets per power of two: quantiles are good to 1/16.
const STEPS: usize = 16;
const STEP_BITS: u32 = STEPS.ilog2();
const BUCKETS: usize = (u64::BITS - STEP_BITS + 1) as usize * STEPS;

/// A histogram of durations in microseconds.
#[derive(Debug)]
pub(crate) struct Histogram {
    buckets: Vec<AtomicU64>,
    max: AtomicU64,
}

impl Histogram {
    pub(crate) fn new() -> Self {
        Self {
            buckets: (0..BUCKETS).map(|_| AtomicU64::new(0)).collect(),
            max: AtomicU64::new(0),
        }
    }

    pub(crate) fn record(&self, duration: Duration) {
        let micros = u64::try_from(duration.as_micros()).unwrap_or(u64::MAX);
        self.buckets[bucket(micros)].fetch_add(1, Ordering::Relaxed);
        self.max.fetch_max(micros, Ordering::Relaxed);
    }

    pub(crate) fn count(&self) -> u64 {
        let count = |bucket: &AtomicU64| bucket.load(Ordering::Relaxed);
        self.buckets.iter().map(count).sum()
    }

    pub(crate) fn max(&self) -> Duration {
        Duration::from_micros(self.max.load(Ordering::Relaxed))
    }

    /// The duration that this share (0 to 1) of all recorded ones does not exceed; `None` if there are none.
    pub(crate) fn quantile(&self, share: f64) -> Option<Duration> {
        let count = self.count();
        if count == 0 {
            return None;
        }
        let rank = ((count as f64 * share).ceil() as u64).clamp(1, count);
        let mut seen = 0;
        let nth = self.buckets.iter().position(|bucket| {
            seen += bucket.load(Ordering::Relaxed);
            seen >= rank
        })?;
        Some(Duration::from_micros(upper_bound(nth)).min(self.max()))
    }
}

/// Values below [`STEPS`] have a bucket each, above that each power of two is divided into [`STEPS`].
fn bucket(value: u64) -> usize {
    let exponent = value.max(1).ilog2().saturating_sub(STEP_BITS);
    exponent as usize * STEPS + (value >> exponent) as usize
}

fn upper_bound(bucket: usize) -> u64 {
    let exponent = (bucket / STEPS).saturating_sub(1);
    let step = (bucket - exponent * STEPS) as u64;
    ((step + 1) << exponent) - 1
}
