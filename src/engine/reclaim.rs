//! The reclaim queue: slots, timers and watch entries of expired payloads, which no thread needs any more.
//!
//! Reclaiming takes longer than expiring the payloads. So if many expire at once, their slots, timers and entries are
//! queued, and reclaimed in batches while no timer is due.

use super::Taken;
use crate::sync::Mutex;

/// A queue of this many batches is reclaimed twice as fast.
const LONG: usize = 256;

/// The slot, the timer and the watch entries of one expired payload.
pub(crate) struct Unreclaimed<T> {
    pub(crate) taken: Taken,
    /// Watch entries among `stale`.
    pub(crate) watches: usize,
    /// Its data outside the engine.
    pub(crate) stale: T,
}

/// Payloads to be reclaimed, in batches.
pub(crate) struct ReclaimQueue<T>(Mutex<Vec<Vec<Unreclaimed<T>>>>);

impl<T> ReclaimQueue<T> {
    pub(crate) fn new() -> Self {
        Self(Mutex::new(Vec::new()))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.lock().is_empty()
    }

    pub(crate) fn add(&self, batch: Vec<Unreclaimed<T>>) {
        self.0.lock().push(batch);
    }

    /// The batches to reclaim next, more of them from a longer queue. So the queue stops growing even if payloads
    /// expire faster than they are reclaimed.
    pub(crate) fn take(&self) -> Vec<Unreclaimed<T>> {
        let mut queue = self.0.lock();
        let part = 1 + queue.len() / LONG;
        let rest = queue.len().saturating_sub(part);
        let mut part = queue.split_off(rest);
        if queue.is_empty() {
            // A storm's memory is not kept.
            *queue = Vec::new();
        }
        drop(queue);
        let mut all = part.pop().unwrap_or_default();
        all.extend(part.into_iter().flatten());
        all
    }
}
