//! A bound on the memory that all groups take together.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Bytes that are left to be taken. A clone is another handle on the same budget.
#[derive(Debug, Clone)]
pub(super) struct Budget(Arc<AtomicUsize>);

/// Bytes that were taken. Dropping it gives them back.
#[derive(Debug)]
pub(super) struct Charge {
    budget: Budget,
    bytes: usize,
}

impl Budget {
    pub(super) fn new(bytes: usize) -> Self {
        Self(Arc::new(AtomicUsize::new(bytes)))
    }

    /// Takes `bytes`, if as many are left.
    pub(super) fn charge(&self, bytes: usize) -> Option<Charge> {
        let less = |left: usize| left.checked_sub(bytes);
        // ORDERING: Relaxed: it is a count, nothing is published by it.
        let (set, fetch) = (Ordering::Relaxed, Ordering::Relaxed);
        self.0.fetch_update(set, fetch, less).ok()?;
        Some(Charge {
            budget: self.clone(),
            bytes,
        })
    }

    #[cfg(test)]
    pub(super) fn left(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        // ORDERING: Relaxed, as above.
        self.budget.0.fetch_add(self.bytes, Ordering::Relaxed);
    }
}
