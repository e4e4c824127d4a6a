//! Keeps track of which blocks have vacant slots. A *block* is a group of at most 64 slots whose memory is allocated
//! and freed as a whole.
//!
//! The first slots of a slab are *resident*: their memory is never freed. All further slots lie in
//! [`Block`](super::chunks::Block)s. A block is *empty* if all its slots are vacant. One empty block, the *spare*
//! block, keeps its memory, so that the next slot can be taken without an allocation. The memory of every other empty
//! block is freed at once, and allocated again when a thread needs a slot and no slot with memory is vacant. So if many
//! operations end, memory is freed little by little while their slots are vacated: no thread has to visit all slots,
//! and no thread holds the lock for longer than usual.
//!
//! | block | slots taken | memory | which list |
//! |---|---|---|---|
//! | full | all | yes | none |
//! | part | some | yes | `part` |
//! | spare | none | yes | none: the field `spare` names it |
//! | absent | none | no | `absent` |
//!
//! All data in this file is accessed under the slab's lock. The only exception is [`Record::prefetch`].

use super::chunks::Chunks;
use super::remote::NIL;
use crate::sync::Ordering;
use std::sync::atomic::{AtomicU32, AtomicU64};

/// Which slots of one block are vacant, and the neighbours of the block on its list. Written under the slab's lock.
/// When many operations end together, the records of thousands of blocks change. Records are small, so that thousands
/// of them fit into the processor's caches.
///
/// The atomics are std's in loom models too, so loom does not check their order. This is sound: the slab's lock orders
/// every access, except the one in [`prefetch`](Record::prefetch), whose result is not used.
pub(super) struct Record {
    /// One bit for each slot of the block. The bit is set if the slot is vacant.
    vacant: AtomicU64,
    before: Neighbour,
    after: Neighbour,
}

impl Record {
    /// Loads the record into the processor's cache before the record is needed. The caller need not have the slab's
    /// lock, because the loaded value is not used.
    pub(super) fn prefetch(&self) {
        std::hint::black_box(self.vacant());
    }

    fn vacant(&self) -> u64 {
        // ORDERING: Relaxed: the slab's lock orders all uses of the value, except the one in `prefetch`, which ignores
        // the value.
        self.vacant.load(Ordering::Relaxed)
    }

    fn set_vacant(&self, slots: u64) {
        // ORDERING: Relaxed: the slab's lock orders this store and every load whose value is used.
        self.vacant.store(slots, Ordering::Relaxed);
    }
}

/// The number of a neighbouring block on a list, or [`NIL`] if there is no neighbour on that side.
struct Neighbour(AtomicU32);

impl Neighbour {
    fn get(&self) -> u32 {
        // ORDERING: Relaxed: the slab's lock orders all accesses.
        self.0.load(Ordering::Relaxed)
    }

    fn set(&self, block: u32) {
        // ORDERING: Relaxed: the slab's lock orders all accesses.
        self.0.store(block, Ordering::Relaxed);
    }
}

/// The blocks of a slab that have vacant slots.
pub(super) struct Vacancies {
    /// The value of [`Record::vacant`] for a block whose slots are all vacant.
    all: u64,
    /// The first block on the list of partly taken blocks, or [`NIL`].
    part: u32,
    /// The first block on the list of blocks without memory. [`NIL`] if all blocks have memory.
    absent: u32,
    /// The empty block that keeps its memory for the next slot that is taken, or [`NIL`].
    spare: u32,
}

impl Vacancies {
    /// The vacancies of a new slab, which has no block yet. `slots` is the number of slots in each block.
    pub(super) fn of(slots: u32) -> Self {
        Self {
            all: u64::MAX >> (u64::BITS - slots),
            part: NIL,
            absent: NIL,
            spare: NIL,
        }
    }

    /// Whether any block has a vacant slot. A block whose memory is freed, or not allocated yet, counts too: its slots
    /// keep their numbers, and all of them are vacant.
    pub(super) fn any(&self) -> bool {
        self.first() != NIL
    }

    /// The number of the block from which the next slot is taken: a partly taken block, else the spare block, else a
    /// block without memory. [`NIL`] if no block has a vacant slot.
    pub(super) fn first(&self) -> u32 {
        match self {
            Self { part, .. } if *part != NIL => *part,
            Self { spare, .. } if *spare != NIL => *spare,
            Self { absent, .. } => *absent,
        }
    }

    /// Makes the record of a new block. The caller stores the record and then [adds](Self::add) the block.
    pub(super) fn record(&self) -> Record {
        Record {
            vacant: AtomicU64::new(self.all),
            before: Neighbour(AtomicU32::new(NIL)),
            after: Neighbour(AtomicU32::new(NIL)),
        }
    }

    /// Puts a new block, which has no memory yet, at the front of the list `absent`.
    pub(super) fn add(&mut self, blocks: &Chunks<Record>, number: u32) {
        if let Some(block) = blocks.get(number) {
            self.list_absent(block, number);
        }
    }

    /// Takes a vacant slot from the [first](Self::first) block, whose memory the caller has allocated if it had none.
    /// Returns the offset of the slot in the block, or `None` if no block has a vacant slot.
    pub(super) fn take(&mut self, blocks: &Chunks<Record>) -> Option<u32> {
        let number = self.first();
        let block = blocks.get(number)?;
        let vacant = block.vacant();
        let left = vacant & (vacant - 1);
        block.set_vacant(left);
        if vacant == self.all {
            // All slots of the block were vacant. So until now the block was either the spare block (an empty block
            // that keeps its memory), which is on no list, or the first block on `absent`, the list of blocks without
            // memory.
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

    /// Makes a slot vacant again: the slot at `offset` in block `number`. Returns `true` if the caller must free the
    /// memory of the block: all its slots are vacant, and this call has put the block on `absent`, the list of blocks
    /// without memory. Returns `false` if the block keeps its memory.
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

    /// Moves the spare block (the empty block that still has memory) to the list of blocks without memory, and returns
    /// its number. The caller must free its memory. `None` if there is no spare block.
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

    /// Takes a block off the list `part` (the blocks of which some slots are taken, and some vacant).
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
