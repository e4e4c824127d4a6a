//! The remote free list: slots that were freed by threads that do not have the slab's lock.
//!
//! A lock-free stack of slot indices, linked through the slots. Threads push one slot at a time. A thread that has the
//! lock takes the whole stack by one swap. The swap relies on no earlier load, so the ABA problem does not arise.

use crate::sync::{AtomicU64, Ordering};
// A std atomic under loom as well. The slab's lock, or the push that publishes a slot, makes the write of the slot's
// link happen before each read that uses the link. Loom explores the interleavings of the lock and of the pushes.
use std::sync::atomic::AtomicU32 as Link;

/// End of a list of slots.
pub(super) const NIL: u32 = u32::MAX;
const EMPTY: u64 = NIL as u64;

/// The index of the first slot and the length of the list, in one word.
pub(super) struct RemoteList(AtomicU64);

impl RemoteList {
    pub(super) fn new() -> Self {
        Self(AtomicU64::new(EMPTY))
    }

    /// Pushes the slot at `index`; `link` is the link inside that slot. Returns the length of the list.
    pub(super) fn push(&self, index: u32, link: &Link) -> usize {
        let mut length = 0;
        // ORDERING: Release pairs with the Acquire in `take_all`: the write of the link, and all that this thread did
        // with the slot, happen before the slot's reuse. The load is Relaxed: the exchange compares the loaded value.
        let (set, fetch) = (Ordering::Release, Ordering::Relaxed);
        // `fetch_update` fails only if the closure returns `None`.
        let _ = self.0.fetch_update(set, fetch, |head| {
            let (first, count) = decode(head);
            // ORDERING: Relaxed: the Release of the exchange publishes the link.
            link.store(first, Ordering::Relaxed);
            length = count.saturating_add(1);
            Some(u64::from(length) << 32 | u64::from(index))
        });
        length as usize
    }

    /// Takes all slots. Returns the index of the first one, which links to the others; [`NIL`] if the list is empty.
    #[inline(always)]
    pub(super) fn take_all(&self) -> u32 {
        // ORDERING: Relaxed: a slot whose push this load misses can wait for the next holder of the lock.
        if self.0.load(Ordering::Relaxed) == EMPTY {
            return NIL;
        }
        // ORDERING: Acquire pairs with the Release of every `push` since the list was last empty. Each push is a
        // read-modify-write, so it continues the release sequences of the pushes before it.
        let word = self.0.swap(EMPTY, Ordering::Acquire);
        decode(word).0
    }

    /// For the loom models: the length.
    #[cfg(request_purgatory_loom)]
    pub(super) fn len(&self) -> u32 {
        // ORDERING: Relaxed: a count for a loom model. It is a read-modify-write, because loom does not try every order
        // of a plain load and the exchanges of other threads.
        decode(self.0.fetch_or(0, Ordering::Relaxed)).1
    }
}

fn decode(word: u64) -> (u32, u32) {
    (word as u32, (word >> 32) as u32)
}
