//! Durations on a machine where other things run too.

use std::time::Duration;

/// Asserts that the median of several tries is below `limit`. A single one may be late for reasons of its own.
pub(crate) fn assert_median_below(
    limit: Duration,
    tries: usize,
    mut run: impl FnMut() -> Duration,
) {
    let mut durations: Vec<_> = (0..tries).map(|_| run()).collect();
    durations.sort();
    assert!(durations[tries / 2] < limit, "median of {durations:?}");
}
