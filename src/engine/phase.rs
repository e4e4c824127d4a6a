//! The phases of an engine, and the counts that a drain and a shutdown wait for.

use crate::callbacks::promise::Promise;
use crate::error::RejectReason;
use crate::sync::{Arc, AtomicU32, AtomicU64, Mutex, Ordering, fence};
use std::io;
use std::mem;

/// Takes payloads.
pub(super) const OPEN: u32 = 0; // the default
/// Rejects payloads, and lets the parked ones end by themselves.
pub(super) const DRAINING: u32 = 1;
/// Shut down by the calling thread.
pub(super) const CLOSED: u32 = 2;
/// Shut down by a background thread.
pub(super) const CLOSED_IN_BACKGROUND: u32 = 3;

#[derive(Default)]
pub(crate) struct Phase(AtomicU32);

impl Phase {
    #[inline]
    pub(super) fn now(&self) -> u32 {
        // ORDERING: Acquire pairs with the Release of the exchange in `enter`: what a thread did before it entered the
        // phase happens before what follows this load.
        self.0.load(Ordering::Acquire)
    }

    /// Enters `phase`, unless the engine is in this phase or in a later one. The two closed phases exclude each other.
    /// Returns whether this call entered the phase.
    pub(super) fn enter(&self, phase: u32) -> bool {
        // ORDERING: AcqRel: the Release pairs with the Acquire in `now`. An exchange, not a store, so that only one of
        // several callers enters the phase.
        let (set, fetch) = (Ordering::AcqRel, Ordering::Acquire);
        let enter = |now| (now < phase.min(CLOSED)).then_some(phase);
        self.0.fetch_update(set, fetch, enter).is_ok()
    }

    /// The reason for which payloads are rejected now, if any. This is only a shortcut: each shard decides, under its
    /// own lock, whether it takes a payload.
    #[inline(always)]
    pub(crate) fn reject_reason(&self) -> Option<RejectReason> {
        match self.now() {
            OPEN => None,
            DRAINING => Some(RejectReason::Draining),
            _ => Some(RejectReason::ShutDown),
        }
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.now() >= CLOSED
    }
}

/// Counts the endings that are under way: passes, the shutdown, and holders that end a payload because a pass or the
/// shutdown has left a mark.
///
/// A pass first ends payloads and counts them. After that it runs their completions or hands them over. In between, the
/// counts may show no parked payload and no pending completion, although completions have still to run. So a thread
/// that waits for the completions also waits until no ending is under way.
#[derive(Debug, Default)]
pub(crate) struct Underway(Arc<AtomicU64>);

/// One ending under way, until this guard is dropped.
pub(crate) struct UnderwayGuard(Arc<AtomicU64>);

impl Underway {
    pub(crate) fn begin(&self) -> UnderwayGuard {
        // ORDERING: Relaxed, then a Release fence, which pairs with the Acquire fence in `Stats::of`. If a thread has
        // read a count that was made after this fence, then this addition happens before the thread's load in
        // `is_over`. So the thread finds this ending under way, or over.
        self.0.fetch_add(1, Ordering::Relaxed);
        fence(Ordering::Release);
        UnderwayGuard(self.0.clone())
    }

    /// Whether no ending is under way. If `Stats::of` has shown an ending to this thread, the answer takes that ending
    /// into account.
    pub(crate) fn is_over(&self) -> bool {
        // ORDERING: Acquire pairs with the Release in `drop`: if this load finds an ending over, the hand-over of its
        // completions happens before the load.
        self.0.load(Ordering::Acquire) == 0
    }
}

impl Drop for UnderwayGuard {
    fn drop(&mut self) {
        // ORDERING: Release pairs with the Acquire in `is_over`.
        self.0.fetch_sub(1, Ordering::Release);
    }
}

/// The shutdown on a thread of its own. An engine has at most one such thread.
#[derive(Default)]
pub(crate) struct Background(Mutex<Progress>);

#[derive(Default)]
struct Progress {
    /// Whether the thread was started.
    begun: bool,
    over: bool,
    /// The promises to keep when the shutdown is over.
    promises: Vec<Arc<Promise<()>>>,
}

impl Background {
    /// Starts the thread by `spawn`, unless it was started before. The promise `done`, if given, is kept when the
    /// shutdown [ends](Self::finish). Returns whether the shutdown has ended already.
    pub(crate) fn begin(
        &self,
        done: Option<&Arc<Promise<()>>>,
        spawn: impl FnOnce() -> io::Result<()>,
    ) -> io::Result<bool> {
        let mut progress = self.0.lock();
        if !progress.begun {
            spawn()?;
            progress.begun = true;
        }
        progress.promises.extend(done.cloned());
        Ok(progress.over)
    }

    /// Notes the end of the shutdown. Returns the promises to keep.
    pub(crate) fn finish(&self) -> Vec<Arc<Promise<()>>> {
        let mut progress = self.0.lock();
        progress.over = true;
        mem::take(&mut progress.promises)
    }
}

#[cfg(all(test, not(request_purgatory_loom)))]
mod tests {
    use super::*;

    #[test]
    fn g15_what_is_under_way_is_over_when_all_of_it_is() {
        let underway = Underway::default();
        assert!(underway.is_over());
        let first = underway.begin();
        let second = underway.begin();
        drop(first);
        assert!(!underway.is_over());
        drop(second);
        assert!(underway.is_over());
    }
}
