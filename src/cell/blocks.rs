//! Which blocks of slots have vacant slots.
//!
//! Behind the resident slots of a slab, slots lie in [`Block`](super::chunks::Block)s. A block is *empty* if all its
//! slots are vacant. One empty block, the spare one, keeps its memory. The memory of each further empty block is freed,
//! and allocated again when no other slot is vacant. So if many operations end, memory is freed little by little while
//! their slots are vacated. No pass over all slots is needed, and no hold of the lock is longer than usual.
//!
//! | block | slots taken | memory | which list |
//! |---|---|---|---|
//! | full | all | yes | none |
//! | part | some | yes | `part` |
//! | spare | none | yes | none: the field `spare` names it |
//! | absent | none | no | `absent` |
//!
//! Everything in this file is used under the slab's lock, except [`Record::prefetch`].

use super::chunks::Chunks;
use super::remote::NIL;
use crate::sync::Ordering;
use std::sync::atomic::{AtomicU32, AtomicU64};

/// Which slots of one block are vacant, and the neighbours of the block on a list. Written under the slab's lock.
/// Small, because the records of thousands of blocks change when many operations end.
///
/// loom does not model these numbers: the lock orders every use whose result matters.
pub(super) struct Record {
    /// A bit for each vacant slot.
    vacant: AtomicU64,
    before: Neighbour,
    after: Neighbour,
}

impl Record {
    /// Loads the record into the processor's cache, ahead of its use. The caller need not have the lock.
    pub(super) fn prefetch(&self) {
        std::hint::black_box(self.vacant());
    }

    fn vacant(&self) -> u64 {
        // ORDERING: Relaxed: the slab's lock orders all uses of the value but the one in `prefetch`, which ignores it.
        self.vacant.load(Ordering::Relaxed)
    }

    fn set_vacant(&self, slots: u64) {
        // ORDERING: Relaxed: the slab's lock orders, see `vacant`.
        self.vacant.store(slots, Ordering::Relaxed);
    }
}

/// The number of a neighbouring block on a list, or [`NIL`].
struct Neighbour(AtomicU32);

impl Neighbour {
    fn get(&self) -> u32 {
        // ORDERING: Relaxed: every access is under the slab's lock.
        self.0.load(Ordering::Relaxed)
    }

    fn set(&self, block: u32) {
        // ORDERING: Relaxed: every access is under the slab's lock.
        self.0.store(block, Ordering::Relaxed);
    }
}

/// The blocks of a slab that have vacant slots.
pub(super) struct Vacancies {
    /// The value of [`Record::vacant`] if all slots of a block are vacant.
    all: u64,
    /// The first block of each of the two lists.
    part: u32,
    absent: u32,
    /// The empty block that keeps its memory for the next slot that is taken.
    spare: u32,
}

impl Vacancies {
    /// The vacancies of a slab with this many slots in a block.
    pub(super) fn of(slots: u32) -> Self {
        Self {
            all: u64::MAX >> (u64::BITS - slots),
            part: NIL,
            absent: NIL,
            spare: NIL,
        }
    }

    /// Whether there is a vacant slot, with memory or without.
    pub(super) fn any(&self) -> bool {
        self.first() != NIL
    }

    /// The block with the next slot to take: a block in part taken, else the spare one, else one without memory.
    pub(super) fn first(&self) -> u32 {
        match self {
            Self { part, .. } if *part != NIL => *part,
            Self { spare, .. } if *spare != NIL => *spare,
            Self { absent, .. } => *absent,
        }
    }

    /// The record of a block that is to be [added](Self::add).
    pub(super) fn record(&self) -> Record {
        Record {
            vacant: AtomicU64::new(self.all),
            before: Neighbour(AtomicU32::new(NIL)),
            after: Neighbour(AtomicU32::new(NIL)),
        }
    }

    /// Adds a new block, which has no memory yet, as the first of `absent`.
    pub(super) fn add(&mut self, blocks: &Chunks<Record>, number: u32) {
        if let Some(block) = blocks.get(number) {
            self.list_absent(block, number);
        }
    }

    /// Takes a slot of the [first](Self::first) block, which the caller has given memory. Returns the offset of the
    /// slot.
    pub(super) fn take(&mut self, blocks: &Chunks<Record>) -> Option<u32> {
        let number = self.first();
        let block = blocks.get(number)?;
        let vacant = block.vacant();
        let left = vacant & (vacant - 1);
        block.set_vacant(left);
        if vacant == self.all {
            // The block was the spare one, which is on no list, or else the first of `absent`.
            match number == self.spare {
                true => self.spare = NIL,
                false => self.absent = block.after.get(),
            }
            if left != 0 {
                self.link(blocks, number);
            }
        } else if left == 0 {
            self.unlink(blocks, block);
        }
        Some(vacant.trailing_zeros())
    }

    /// Makes the slot vacant again. If this returns `true`, the block is listed as absent, and the caller frees its
    /// memory.
    pub(super) fn put_back(&mut self, blocks: &Chunks<Record>, number: u32, offset: u32) -> bool {
        let Some(block) = blocks.get(number) else {
            return false;
        };
        let before = block.vacant();
        let vacant = before | 1 << offset;
        debug_assert_ne!(before, vacant, "a slot is put back once");
        block.set_vacant(vacant);
        if vacant != self.all {
            if before == 0 {
                self.link(blocks, number);
            }
            return false;
        }
        if before != 0 {
            self.unlink(blocks, block);
        }
        if self.spare == NIL {
            self.spare = number;
            return false;
        }
        self.list_absent(block, number);
        true
    }

    /// Lists the spare block as absent, and returns its number. The caller frees its memory.
    pub(super) fn give_up_spare(&mut self, blocks: &Chunks<Record>) -> Option<u32> {
        let number = std::mem::replace(&mut self.spare, NIL);
        self.list_absent(blocks.get(number)?, number);
        Some(number)
    }

    fn list_absent(&mut self, block: &Record, number: u32) {
        block.after.set(self.absent);
        self.absent = number;
    }

    /// Puts a block at the front of the list `part`.
    fn link(&mut self, blocks: &Chunks<Record>, number: u32) {
        if let Some(block) = blocks.get(number) {
            block.before.set(NIL);
            block.after.set(self.part);
        }
        if let Some(next) = blocks.get(self.part) {
            next.before.set(number);
        }
        self.part = number;
    }

    /// Takes a block off the list `part`.
    fn unlink(&mut self, blocks: &Chunks<Record>, block: &Record) {
        let before = block.before.get();
        let after = block.after.get();
        match blocks.get(before) {
            Some(previous) => previous.after.set(after),
            None => self.part = after,
        }
        if let Some(next) = blocks.get(after) {
            next.before.set(before);
        }
    }
}
