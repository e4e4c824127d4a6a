//! The phases of an engine (open, draining, closed), and the count of the endings under way, for which a drain and a
//! shutdown wait.

use crate::callbacks::promise::Promise;
use crate::error::RejectReason;
use crate::sync::{Arc, AtomicU32, AtomicU64, Mutex, Ordering, fence};
use std::io;
use std::mem;

/// The engine takes payloads.
pub(super) const OPEN: u32 = 0; // the default
/// A drain: the engine rejects new payloads, and lets the parked ones end by themselves.
pub(super) const DRAINING: u32 = 1;
/// A shutdown on its caller's thread has begun.
pub(super) const CLOSED: u32 = 2;
/// A shutdown on a background thread has begun.
pub(super) const CLOSED_IN_BACKGROUND: u32 = 3;

#[derive(Default)]
pub(crate) struct Phase(AtomicU32);

impl Phase {
    #[inline]
    pub(super) fn now(&self) -> u32 {
        // ORDERING: Acquire pairs with the Release of the exchange in `enter`: what a thread did before it entered a
        // phase happens before what this thread does after it has found that phase.
        self.0.load(Ordering::Acquire)
    }

    /// Enters `phase`, unless the engine is in this phase or in a later one. `CLOSED` and `CLOSED_IN_BACKGROUND`
    /// exclude each other: after one of them was entered, the other cannot be entered. Returns whether this call
    /// entered the phase.
    pub(super) fn enter(&self, phase: u32) -> bool {
        // ORDERING: AcqRel: the Release pairs with the Acquire in `now`. A read-modify-write, not a store, so that only
        // one of several callers enters the phase.
        let (set, fetch) = (Ordering::AcqRel, Ordering::Acquire);
        let enter = |now| (now < phase.min(CLOSED)).then_some(phase);
        self.0.fetch_update(set, fetch, enter).is_ok()
    }

    /// The reason for which the engine rejects payloads now; `None` if it takes them. This is only a shortcut: each
    /// shard decides under its own lock whether it takes a payload.
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

/// Counts the endings that are under way. An ending is under way during each pass (one round of expiry), during a
/// shutdown, and while a thread ends a payload because a pass or the shutdown has left a mark (a request to the thread
/// that holds the payload).
///
/// A pass first ends payloads, and counts them as ended. After that it runs their completions or hands them over. In
/// between, the statistics may show no parked payload and no pending completion, although completions have yet to run.
/// So a thread that waits for all completions also waits until no ending is under way.
#[derive(Debug, Default)]
pub(crate) struct Underway(Arc<AtomicU64>);

/// While this guard exists, [`Underway`] counts one ending: a thread ends payloads (operations or timer values), and
/// has not yet run or handed over all their completions.
pub(crate) struct UnderwayGuard(Arc<AtomicU64>);

impl Underway {
    pub(crate) fn begin(&self) -> UnderwayGuard {
        // ORDERING: Relaxed, then a Release fence, which pairs with the Acquire fence in `Stats::of`. After this call,
        // this thread counts the payloads that it ends. Another thread may read such a count in `Stats::of`, and then
        // call `is_over`. By the two fences, this addition happens before that call of `is_over`. So the call cannot
        // miss this ending: it finds the ending under way, or over.
        self.0.fetch_add(1, Ordering::Relaxed);
        fence(Ordering::Release);
        UnderwayGuard(self.0.clone())
    }

    /// Whether every ending is over: none is under way. If the caller has read the statistics before, by `Stats::of`,
    /// this call misses no ending of a payload that those statistics count as ended: it finds the ending under way, or
    /// over.
    pub(crate) fn is_over(&self) -> bool {
        // ORDERING: Acquire pairs with the Release in `drop`: if this load finds that an ending is over, the hand-over
        // of its completions happens before what follows the load.
        self.0.load(Ordering::Acquire) == 0
    }
}

impl Drop for UnderwayGuard {
    fn drop(&mut self) {
        // ORDERING: Release pairs with the Acquire in `is_over`: what this thread did for the ending happens before a
        // load there that finds the ending over.
        self.0.fetch_sub(1, Ordering::Release);
    }
}

/// The shutdown that runs on a background thread. An engine has at most one such thread.
#[derive(Default)]
pub(crate) struct Background(Mutex<Progress>);

#[derive(Default)]
struct Progress {
    /// Whether the background thread was started.
    begun: bool,
    over: bool,
    /// The promises that are fulfilled when the shutdown is over. Each one resolves a future that awaits the shutdown.
    promises: Vec<Arc<Promise<()>>>,
}

impl Background {
    /// Starts the background thread by `spawn`, unless it was started before. The promise `done`, if given, is stored
    /// until the shutdown [ends](Self::finish). Returns `true` if the shutdown has ended already: then the caller
    /// itself must call `finish`, and fulfil the promises that `finish` returns. `Err` if `spawn` fails.
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

    /// Whether the background thread has ended the shutdown.
    pub(crate) fn is_over(&self) -> bool {
        self.0.lock().over
    }

    /// Records that the shutdown has ended. Returns the stored promises, which the caller must fulfil by
    /// `Promise::keep`.
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
