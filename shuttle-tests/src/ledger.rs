//! What becomes of every operation, seen from outside.

use shuttle::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

/// One operation's page.
#[derive(Debug, Default)]
pub struct Page {
    /// What it waits for has happened.
    event: AtomicBool,
    /// A thread checks it after the event. (Relaxed stores suffice: shuttle runs one thread at a time.)
    checked: AtomicBool,
    inside: AtomicBool,
    /// (Counted while a panic unwinds, too, when shuttle must not change threads: so it is a plain counter.)
    ends: AtomicUsize,
    /// Hooks that overlapped, or ran after the end.
    violations: AtomicUsize,
}

impl Page {
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    pub fn happen(&self) {
        self.event.store(true, Ordering::Relaxed);
    }

    pub fn has_happened(&self) -> bool {
        self.event.load(Ordering::Relaxed)
    }

    /// A check that began after the event is over.
    pub fn checked(&self) {
        self.checked.store(true, Ordering::Relaxed);
    }

    /// Around each hook; other threads run within.
    pub fn hook<R>(&self, body: impl FnOnce() -> R) -> R {
        self.enter();
        let result = body();
        self.leave();
        result
    }

    /// A hook begins.
    pub fn enter(&self) {
        let overlap = self.inside.swap(true, Ordering::Relaxed);
        let ended = self.ends.load(Ordering::Relaxed) > 0;
        if overlap || ended {
            self.violations.fetch_add(1, Ordering::Relaxed);
        }
        shuttle::thread::yield_now();
    }

    pub fn leave(&self) {
        self.inside.store(false, Ordering::Relaxed);
    }

    /// It has ended, in whatever way.
    pub fn end(&self) {
        self.ends.fetch_add(1, Ordering::Relaxed);
    }

    pub fn has_ended(&self) -> bool {
        self.ends.load(Ordering::Relaxed) > 0
    }

    /// With all threads at rest, but before the shutdown.
    pub fn assert_no_event_is_lost(&self) {
        let checked = self.checked.load(Ordering::Relaxed);
        assert!(!checked || self.has_ended(), "an event was lost: {self:?}");
    }

    /// After the shutdown.
    pub fn assert_ended_once(&self) {
        assert_eq!(self.ends.load(Ordering::Relaxed), 1, "{self:?}");
        assert_eq!(self.violations.load(Ordering::Relaxed), 0, "{self:?}");
    }
}
