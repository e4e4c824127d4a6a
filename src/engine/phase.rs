//! The phases of an engine, and the counts that a drain and a shutdown wait for.

use crate::callbacks::promise::Promise;
use crate::error::RejectReason;
use crate::sync::{Arc, AtomicU32, AtomicU64, Mutex, Ordering, fence};
use std::io;
use std::mem;

/// The phases: open, takes payloads (the default); draining, rejects payloads and lets the parked ones end by
/// themselves; closed, by the calling thread; closed, by a thread in the background.
pub(super) const OPEN: u32 = 0; // the default
pub(super) const DRAINING: u32 = 1;
pub(super) const CLOSED: u32 = 2;
pub(super) const CLOSED_IN_BACKGROUND: u32 = 3;

#[derive(Default)]
pub(crate) struct Phase(AtomicU32);

impl Phase {
    #[inline]
    pub(super) fn now(&self) -> u32 {
        // ORDERING: Acquire pairs with the exchange in `enter`.
        self.0.load(Ordering::Acquire)
    }

    /// Returns whether this call entered `phase`. Phases only move forward, and only one of the two closed phases is
    /// entered.
    pub(super) fn enter(&self, phase: u32) -> bool {
        // ORDERING: AcqRel pairs with the Acquire in `now`; an exchange, so that one caller does the work.
        let (set, fetch) = (Ordering::AcqRel, Ordering::Acquire);
        let enter = |now| (now < phase.min(CLOSED)).then_some(phase);
        self.0.fetch_update(set, fetch, enter).is_ok()
    }

    /// The reason for which payloads are rejected now, if any. Only a shortcut: each shard decides for itself.
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

/// Counts the endings that are under way: passes, the shutdown, and holders that end a payload for a mark of either.
///
/// A pass first ends payloads and counts them, and runs or hands over their completions only then. So a thread that
/// finds no payload parked and waits for the completions asks first whether every such ending is over.
#[derive(Debug, Default)]
pub(crate) struct Underway(Arc<AtomicU64>);

/// One ending under way, until this guard is dropped.
pub(crate) struct UnderwayGuard(Arc<AtomicU64>);

impl Underway {
    pub(crate) fn begin(&self) -> UnderwayGuard {
        // ORDERING: Relaxed, then a Release fence, which pairs with the Acquire fence in `Stats::of`: a thread that has
        // read a count made from here on also finds this ending under way, or finds it over.
        self.0.fetch_add(1, Ordering::Relaxed);
        fence(Ordering::Release);
        UnderwayGuard(self.0.clone())
    }

    /// Of the endings whose counts this thread has read by `Stats::of`: whether all are over.
    pub(crate) fn is_over(&self) -> bool {
        // ORDERING: Acquire pairs with the Release in `drop`: what was handed over is seen as handed over.
        self.0.load(Ordering::Acquire) == 0
    }
}

impl Drop for UnderwayGuard {
    fn drop(&mut self) {
        // ORDERING: Release, see `is_over`.
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
    /// Starts the thread by `spawn`, unless it was started before. `done`, if given, is kept at the [end](Self::finish)
    /// of the shutdown. Returns whether that end has come already.
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
