//! Durations, counted in buckets of a power of two of microseconds.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

const BUCKETS: usize = 40;

#[derive(Debug)]
pub(crate) struct Histogram {
    /// Bucket `n` counts durations below `2^n` microseconds, and not below half of that.
    buckets: [AtomicU64; BUCKETS],
    max: AtomicU64,
}

impl Histogram {
    pub(crate) fn new() -> Self {
        Self {
            buckets: [const { AtomicU64::new(0) }; BUCKETS],
            max: AtomicU64::new(0),
        }
    }

    pub(crate) fn record(&self, duration: Duration) {
        let micros = u64::try_from(duration.as_micros()).unwrap_or(u64::MAX);
        let bucket = (u64::BITS - micros.leading_zeros()) as usize;
        self.buckets[bucket.min(BUCKETS - 1)].fetch_add(1, Ordering::Relaxed);
        self.max.fetch_max(micros, Ordering::Relaxed);
    }

    /// The bound of the bucket in which this share of all durations ends.
    pub(crate) fn quantile(&self, share: f64) -> Duration {
        let counts = self.counts();
        let total = counts.iter().sum::<u64>();
        let rank = (total as f64 * share).ceil() as u64;
        let mut seen = 0;
        let bucket = counts.iter().position(|count| {
            seen += count;
            seen >= rank
        });
        bound(bucket.unwrap_or(0)).min(self.max())
    }

    pub(crate) fn max(&self) -> Duration {
        Duration::from_micros(self.max.load(Ordering::Relaxed))
    }

    fn counts(&self) -> [u64; BUCKETS] {
        std::array::from_fn(|bucket| self.buckets[bucket].load(Ordering::Relaxed))
    }
}

fn bound(bucket: usize) -> Duration {
    Duration::from_micros(1 << bucket)
}

impl fmt::Display for Histogram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let counts = self.counts();
        let total = counts.iter().sum::<u64>().max(1);
        for (bucket, count) in counts.into_iter().enumerate().filter(|(_, n)| *n > 0) {
            let share = count as f64 * 100.0 / total as f64;
            let bound = format!("{:?}", bound(bucket));
            writeln!(f, "  below {bound:>12} {count:>12} {share:>7.3} %")?;
        }
        Ok(())
    }
}
