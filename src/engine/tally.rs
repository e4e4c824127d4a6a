//! What threads count without a lock.
//!
//! A thread whose number is that of a shard is the only one that writes to the shard's own counters, so it needs no
//! locked instruction. Threads with higher numbers, of which several may come to one shard, share counters.

use crate::stats::{Count, Counters, Events};
use crate::sync::CachePadded;

/// The counters of one thread, or of several that share them.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub(crate) counters: Counters,
    pub(crate) events: Events,
}

/// Those of a shard.
#[derive(Debug, Default)]
pub(crate) struct Tallies {
    own: CachePadded<Tally>,
    shared: CachePadded<Tally>,
}

impl Tallies {
    /// `is_owner` tells whether the calling thread has the number of the shard.
    ///
    /// INVARIANT: no two threads have one number at the same time, and a thread that gets the number of one that has
    /// ended sees all that the other counted (`src/sync/thread_numbers.rs`).
    #[inline]
    pub(crate) fn count(&self, is_owner: bool, which: impl FnOnce(&Tally) -> &Count, n: u64) {
        if is_owner {
            which(&self.own).add_exclusively(n);
        } else {
            which(&self.shared).add(n);
        }
    }

    /// For counters that several threads write in any case.
    pub(crate) fn shared(&self) -> &Tally {
        &self.shared
    }

    pub(crate) fn all(&self) -> [&Tally; 2] {
        [&self.own, &self.shared]
    }
}
