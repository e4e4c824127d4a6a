//! Durations, all of them kept: the worst one is the point.

use std::time::Duration;

#[derive(Debug, Default)]
pub(crate) struct Samples(Vec<Duration>);

impl Samples {
    pub(crate) fn with_capacity(capacity: usize) -> Self {
        Self(Vec::with_capacity(capacity))
    }

    pub(crate) fn push(&mut self, duration: Duration) {
        self.0.push(duration);
    }

    pub(crate) fn sort(&mut self) {
        self.0.sort_unstable();
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Of sorted samples: what this share does not exceed.
    pub(crate) fn quantile(&self, share: f64) -> Duration {
        let rank = (self.0.len() as f64 * share).ceil() as usize;
        let sample = self.0.get(rank.saturating_sub(1));
        sample.copied().unwrap_or_default()
    }

    pub(crate) fn max(&self) -> Duration {
        self.0.last().copied().unwrap_or_default()
    }
}
