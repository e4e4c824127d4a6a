//! Which blocks of slots have vacant slots.
//!
//! Behind the resident slots of a slab, slots lie in [`Block`]s. A block of vacant slots is *empty*; its memory goes
//! when another one is empty already, and is made again when no other slot is vacant. So the slots of a storm go as
//! they are vacated, in steps that do not grow with it: no pass over the slots, and no longer hold of the lock.
//!
//! | block | slots taken | memory | on the list |
//! |---|---|---|---|
//! | full | all | yes | none |
//! | part | some | yes | `part` |
//! | spare | none | yes | none: it is `spare`, one at most |
//! | absent | none | no | `absent` |
//!
//! All of it is used under the slab's lock.

use super::chunks::Chunks;
use super::remote::NIL;
use crate::sync::Ordering;
use std::sync::atomic::{AtomicU32, AtomicU64};

/// What is known of one block: which of its slots are vacant, and its neighbours on a list. Written under the slab's
/// lock. Small, because a storm vacates slots of thousands of blocks in turn.
///
/// loom does not model these numbers: the lock orders every use whose result matters.
pub(super) struct Record {
    /// A bit for each vacant slot.
    vacant: AtomicU64,
    before: Neighbour,
    after: Neighbour,
}

impl Record {
    /// Loads the record ahead of its use. The caller need not have the lock.
    pub(super) fn prefetch(&self) {
        std::hint::black_box(self.vacant());
    }

    fn vacant(&self) -> u64 {
        // ORDERING: Relaxed: the lock orders.
        self.vacant.load(Ordering::Relaxed)
    }

    fn set_vacant(&self, slots: u64) {
        // ORDERING: Relaxed: the lock orders.
        self.vacant.store(slots, Ordering::Relaxed);
    }
}

/// The number of a neighbour on a list, or [`NIL`].
struct Neighbour(AtomicU32);

impl Neighbour {
    fn get(&self) -> u32 {
        // ORDERING: Relaxed: the lock orders.
        self.0.load(Ordering::Relaxed)
    }

    fn set(&self, block: u32) {
        // ORDERING: Relaxed: the lock orders.
        self.0.store(block, Ordering::Relaxed);
    }
}

/// The blocks of a slab that have vacant slots.
pub(super) struct Vacancies {
    /// What [`Record::vacant`] is when no slot of a block is taken.
    all: u64,
    /// The first block of each list.
    part: u32,
    absent: u32,
    /// The empty block whose memory stays, for the next slot that is taken.
    spare: u32,
}

impl Vacancies {
    /// For blocks of this many slots.
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

    /// The block with the next slot to take. Blocks with memory come first, and those in use before the spare one.
    pub(super) fn first(&self) -> u32 {
        match self {
            Self { part, .. } if *part != NIL => *part,
            Self { spare, .. } if *spare != NIL => *spare,
            Self { absent, .. } => *absent,
        }
    }

    /// A block without memory that comes to the others.
    pub(super) fn record(&mut self, number: u32) -> Record {
        let after = std::mem::replace(&mut self.absent, number);
        Record {
            vacant: AtomicU64::new(self.all),
            before: Neighbour(AtomicU32::new(NIL)),
            after: Neighbour(AtomicU32::new(after)),
        }
    }

    /// Takes a slot of the [first](Self::first) block, which has memory now. Returns its offset.
    pub(super) fn take(&mut self, blocks: &Chunks<Record>) -> Option<u32> {
        let number = self.first();
        let block = blocks.get(number)?;
        let vacant = block.vacant();
        let left = vacant & (vacant - 1);
        block.set_vacant(left);
        if vacant == self.all {
            // It was on no list if it was the spare one; else it was the first of `absent`.
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

    /// The slot is vacant again. Returns whether the memory of its block is to be freed: from here on it counts as
    /// gone.
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

    /// Gives the spare block up, whose memory is to be freed: from here on it counts as gone. Returns its number.
    pub(super) fn give_up_spare(&mut self, blocks: &Chunks<Record>) -> Option<u32> {
        let number = std::mem::replace(&mut self.spare, NIL);
        self.list_absent(blocks.get(number)?, number);
        Some(number)
    }

    fn list_absent(&mut self, block: &Record, number: u32) {
        block.after.set(self.absent);
        self.absent = number;
    }

    /// Puts a block on the list of those in part taken, as the first.
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

    /// Takes a block off that list.
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
