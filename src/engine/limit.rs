//! The bound on payloads that are parked, or whose completion has not run yet.

use std::sync::atomic::{AtomicUsize, Ordering};

/// Its one counter is written by every park, so it exists only if asked for.
#[derive(Debug)]
pub(crate) struct Limit {
    max: usize,
    taken: AtomicUsize,
}

impl Limit {
    pub(crate) fn new(max: usize) -> Self {
        Self {
            max,
            taken: AtomicUsize::new(0),
        }
    }

    /// Takes a place, if there is one.
    pub(crate) fn take(&self) -> bool {
        // ORDERING: Relaxed: a count guards no memory.
        self.taken
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |taken| {
                (taken < self.max).then_some(taken + 1)
            })
            .is_ok()
    }

    pub(crate) fn free(&self) {
        // ORDERING: Relaxed, as in `take`.
        self.taken.fetch_sub(1, Ordering::Relaxed);
    }
}
