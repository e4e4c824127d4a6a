//! Durations on a machine where other things run too.

use std::time::Duration;

/// Asserts that the median of several tries is below `limit`. A single one may be late for reasons of its own.
pub(crate) fn assert_median_below(
    limit: Duration,
    tries: usize,
    mut run: impl FnMut() -> Duration,
) {
    let mut durations = Vec::new();
    while durations.len() < tries {
        durations.push(run());
        let late = durations
            .iter()
            .filter(|duration| **duration >= limit)
            .count();
        assert!(
            late <= tries / 2,
            "most are not below {limit:?}: {durations:?}"
        );
    }
}
