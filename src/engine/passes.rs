//! The passes of the time that are in progress.
//!
//! A pass ends payloads and counts them, and runs or hands over their completions only then. A thread that finds no
//! payload parked, and waits for the completions, asks first whether every pass is over. A thread that held a payload
//! when its deadline passed, or at the shutdown, ends that payload in the place of the pass: that is a pass of its own,
//! until the completion is handed over or has run.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering, fence};

/// How many threads expire payloads now.
#[derive(Debug, Default)]
pub(crate) struct Passes(Arc<AtomicUsize>);

/// A pass in progress.
pub(crate) struct Pass(Arc<AtomicUsize>);

impl Passes {
    /// Begins a pass, which lasts until the result is dropped.
    pub(crate) fn begin(&self) -> Pass {
        // ORDERING: Relaxed, then a Release fence, which pairs with the Acquire fence in `are_over`: a thread that has
        // read a count that this pass has made also finds the pass here, or finds it over.
        self.0.fetch_add(1, Ordering::Relaxed);
        fence(Ordering::Release);
        Pass(self.0.clone())
    }

    /// Whether each pass is over whose counts this thread has read.
    pub(crate) fn are_over(&self) -> bool {
        // ORDERING: see `begin`; the load is Acquire and pairs with the Release in `drop`: what a pass has handed over
        // is seen to be so.
        fence(Ordering::Acquire);
        self.0.load(Ordering::Acquire) == 0
    }
}

impl Drop for Pass {
    fn drop(&mut self) {
        // ORDERING: Release, see `are_over`.
        self.0.fetch_sub(1, Ordering::Release);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn g15_passes_are_over_when_all_are() {
        let passes = Passes::default();
        assert!(passes.are_over());
        let first = passes.begin();
        let second = passes.begin();
        drop(first);
        assert!(!passes.are_over());
        drop(second);
        assert!(passes.are_over());
    }
}
