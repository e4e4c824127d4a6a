//! The remote free list: slots that were freed by threads without the lock of their slab.
//!
//! A lock-free stack of slot indices, linked through the slots. Threads push one slot at a time; the thread that has
//! the lock takes all of them at once, so no slot can be popped and pushed again between a load and its exchange.

use crate::sync::{AtomicU64, Ordering};
// A link is written before the word that publishes it, or under the lock, and read after that: loom, which interleaves
// those, need not know it.
use std::sync::atomic::AtomicU32 as Link;

/// End of a list of slots.
pub(super) const NIL: u32 = u32::MAX;
const EMPTY: u64 = NIL as u64;

/// Index of the first slot, and the length, in one word.
pub(super) struct RemoteList(AtomicU64);

impl RemoteList {
    pub(super) fn new() -> Self {
        Self(AtomicU64::new(EMPTY))
    }

    /// Pushes the slot at `index`, whose link this is. Returns the length.
    pub(super) fn push(&self, index: u32, link: &Link) -> usize {
        let mut length = 0;
        // ORDERING: Release pairs with the Acquire in `take_all`: the link, and everything that the ending thread did with
        // the slot, come before its reuse. The load is Relaxed: the exchange checks it.
        let (set, fetch) = (Ordering::Release, Ordering::Relaxed);
        // A closure that always has a next value never fails.
        let _ = self.0.fetch_update(set, fetch, |head| {
            let (first, count) = decode(head);
            // ORDERING: Relaxed: published by the Release above.
            link.store(first, Ordering::Relaxed);
            length = count.saturating_add(1);
            Some(u64::from(length) << 32 | u64::from(index))
        });
        length as usize
    }

    /// Takes all slots: returns the first, which leads to the others by its link. [`NIL`] if there are none.
    #[inline(always)]
    pub(super) fn take_all(&self) -> u32 {
        // ORDERING: Relaxed: a slot pushed just now may as well wait for the next holder of the lock.
        if self.0.load(Ordering::Relaxed) == EMPTY {
            return NIL;
        }
        // ORDERING: Acquire pairs with the Release of every `push` (each is a read-modify-write, so the last one
        // continues the release sequences of those before it).
        let word = self.0.swap(EMPTY, Ordering::Acquire);
        decode(word).0
    }

    /// For models: the length.
    #[cfg(request_purgatory_loom)]
    pub(super) fn len(&self) -> u32 {
        // ORDERING: Relaxed: a count for a model. A read-modify-write, because loom does not try to let another
        // thread's exchange come before a load if that thread loads first.
        decode(self.0.fetch_or(0, Ordering::Relaxed)).1
    }
}

fn decode(word: u64) -> (u32, u32) {
    (word as u32, (word >> 32) as u32)
}
