//! Percentiles of many durations in little memory.

use std::time::Duration;

/// Values below this are counted exactly; above, within 1/64 of themselves.
const EXACT: u64 = 1 << (BITS + 1);
const BITS: u32 = 6;

/// Counts of nanoseconds, in buckets 1/64 of their value wide.
pub(crate) struct Histogram {
    counts: Vec<u64>,
    total: u64,
    max: u64,
}

impl Histogram {
    pub(crate) fn new() -> Self {
        let buckets = bucket(u64::MAX) + 1;
        Self {
            counts: vec![0; buckets],
            total: 0,
            max: 0,
        }
    }

    pub(crate) fn record(&mut self, duration: Duration) {
        let nanos = duration.as_nanos() as u64;
        self.counts[bucket(nanos)] += 1;
        self.total += 1;
        self.max = self.max.max(nanos);
    }

    /// The value that `share` of all are at or below, in nanoseconds; NaN if there are none.
    pub(crate) fn quantile(&self, share: f64) -> f64 {
        let rank = (self.total as f64 * share).ceil() as u64;
        let mut seen = 0;
        for (bucket, count) in self.counts.iter().enumerate() {
            seen += count;
            if seen >= rank && seen > 0 {
                return upper_bound(bucket).min(self.max) as f64;
            }
        }
        f64::NAN
    }

    /// In nanoseconds.
    pub(crate) fn max(&self) -> f64 {
        self.max as f64
    }
}

fn bucket(nanos: u64) -> usize {
    if nanos < EXACT {
        return nanos as usize;
    }
    let shift = nanos.ilog2() - BITS;
    ((shift as usize) << BITS) + (nanos >> shift) as usize
}

/// The largest value in a bucket.
fn upper_bound(bucket: usize) -> u64 {
    if (bucket as u64) < EXACT {
        return bucket as u64;
    }
    let shift = (bucket >> BITS) as u32 - 1;
    let mantissa = (bucket & ((1 << BITS) - 1)) as u64 + (1 << BITS);
    (mantissa << shift) + ((1 << shift) - 1)
}
