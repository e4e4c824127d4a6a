//! The remote free list: slots that were freed by threads without the lock of their slab.
//!
//! A lock-free stack of slot indices, linked through the slots. Threads push one slot at a time; the holder of the lock
//! takes the whole stack at once. So no slot can be popped and pushed again between another thread's load and its
//! exchange: the ABA problem does not arise.

use crate::sync::{AtomicU64, Ordering};
// A std atomic instead of loom's: a link is written under the lock, or before the word that publishes it, and is read
// after that. Loom explores the interleavings of the lock and the word.
use std::sync::atomic::AtomicU32 as Link;

/// End of a list of slots.
pub(super) const NIL: u32 = u32::MAX;
const EMPTY: u64 = NIL as u64;

/// Index of the first slot and length of the list, in one word.
pub(super) struct RemoteList(AtomicU64);

impl RemoteList {
    pub(super) fn new() -> Self {
        Self(AtomicU64::new(EMPTY))
    }

    /// Pushes the slot at `index`; `link` is the link inside that slot. Returns the length of the list.
    pub(super) fn push(&self, index: u32, link: &Link) -> usize {
        let mut length = 0;
        // ORDERING: Release pairs with the Acquire in `take_all`: the link, and everything that the ending thread did
        // with the slot, happen before the slot's reuse. The load is Relaxed because the exchange checks its value.
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

    /// Takes all slots. Returns the index of the first one, which links to the others; [`NIL`] if the list is empty.
    #[inline(always)]
    pub(super) fn take_all(&self) -> u32 {
        // ORDERING: Relaxed: a slot that is being pushed can wait for the next holder of the lock.
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
        // ORDERING: Relaxed: a count for a model. It is a read-modify-write because loom, once a thread has loaded,
        // does not try an exchange of another thread before that load.
        decode(self.0.fetch_or(0, Ordering::Relaxed)).1
    }
}

fn decode(word: u64) -> (u32, u32) {
    (word as u32, (word >> 32) as u32)
}
