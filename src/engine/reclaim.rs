//! The reclaim queue: slots, timers and watch entries of expired payloads, which no thread needs any more.
//!
//! To reclaim them takes longer than to expire the payloads. So when many expire at once they are queued, and reclaimed
//! in batches while no timer is due.

use super::Taken;
use crate::sync::Mutex;

/// Of a queue of this many batches, two are reclaimed before anything else is done.
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

    /// The batches to reclaim next: the longer the queue, the more. So it stops growing, however long payloads expire
    /// faster than one batch at a time is reclaimed.
    pub(crate) fn take(&self) -> Vec<Vec<Unreclaimed<T>>> {
        let mut queue = self.0.lock();
        let rest = queue.len().saturating_sub(1 + queue.len() / LONG);
        let part = queue.split_off(rest);
        if queue.is_empty() {
            // A storm's memory is not kept.
            *queue = Vec::new();
        }
        part
    }
}
