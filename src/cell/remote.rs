//! The remote free list: slots that were freed by threads that do not have the slab's lock.
//!
//! The list is a lock-free stack of slot indices. The link in each slot is the index of the next slot. Threads push one
//! slot at a time. A thread that has the lock takes the whole stack by one swap. The swap relies on no earlier load, so
//! the ABA problem does not arise.

use crate::sync::{AtomicU64, Ordering};
// The link of a slot is a std atomic in loom models too, so loom does not check the order of its accesses. This is
// sound: the slab's lock, or the push that publishes the slot, orders the write of the link before each read that uses
// the link, and loom does check the lock and the pushes.
use std::sync::atomic::AtomicU32 as Link;

/// The end of a list of slots. No slot has this index.
pub(super) const NIL: u32 = u32::MAX;
const EMPTY: u64 = NIL as u64;

/// The list in one word: the index of the first slot in the low 32 bits, and the number of slots in the high 32 bits.
pub(super) struct RemoteList(AtomicU64);

impl RemoteList {
    pub(super) fn new() -> Self {
        Self(AtomicU64::new(EMPTY))
    }

    /// Pushes the slot at `index`; `link` is the link inside that slot. Returns the length of the list, this slot
    /// included.
    pub(super) fn push(&self, index: u32, link: &Link) -> usize {
        let mut length = 0;
        // ORDERING: Release pairs with the Acquire in `take_all`: the write of the link, and all that this thread did
        // with the slot, happen before the next use of the slot. The load is Relaxed: if its value is outdated, the
        // exchange fails.
        let (set, fetch) = (Ordering::Release, Ordering::Relaxed);
        // `fetch_update` fails only if the closure returns `None`.
        let _ = self.0.fetch_update(set, fetch, |head| {
            let (first, count) = decode(head);
            // ORDERING: Relaxed: the exchange that follows this closure publishes the link by its Release.
            link.store(first, Ordering::Relaxed);
            length = count.saturating_add(1);
            Some(u64::from(length) << 32 | u64::from(index))
        });
        length as usize
    }

    /// Takes all slots. Returns the index of the first one, which links to the others; [`NIL`] if the list is empty.
    #[inline(always)]
    pub(super) fn take_all(&self) -> u32 {
        // ORDERING: Relaxed: if this load misses a push, the pushed slot stays on the list for the next holder of the
        // lock.
        if self.0.load(Ordering::Relaxed) == EMPTY {
            return NIL;
        }
        // ORDERING: Acquire pairs with the Release of every `push` since the list was last empty: each push is a
        // read-modify-write, so it continues the release sequences of the earlier pushes. So the links of all taken
        // slots can be read.
        let word = self.0.swap(EMPTY, Ordering::Acquire);
        decode(word).0
    }

    /// For the loom models: the number of slots on the list.
    #[cfg(request_purgatory_loom)]
    pub(super) fn len(&self) -> u32 {
        // ORDERING: Relaxed: only a loom model reads this number. It is read by a read-modify-write, because loom does
        // not try every order of a plain load and the exchanges of other threads.
        decode(self.0.fetch_or(0, Ordering::Relaxed)).1
    }
}

fn decode(word: u64) -> (u32, u32) {
    (word as u32, (word >> 32) as u32)
}
