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

use super::chunks::{Block, Chunks};
use super::remote::NIL;
use crate::sync::Ordering;
use std::sync::atomic::AtomicU64;

/// A number that is used under the slab's lock only. (Not modelled by loom.)
struct Number(AtomicU64);

impl Number {
    fn get(&self) -> u64 {
        // ORDERING: Relaxed: under the lock.
        self.0.load(Ordering::Relaxed)
    }

    fn set(&self, number: u64) {
        // ORDERING: Relaxed: under the lock.
        self.0.store(number, Ordering::Relaxed);
    }

    /// Of a block.
    fn block(&self) -> u32 {
        self.get() as u32
    }

    fn set_block(&self, number: u32) {
        self.set(number.into());
    }
}

/// A block, and its place among the others.
pub(super) struct Record<T> {
    pub(super) slots: Block<T>,
    /// A bit for each vacant slot.
    vacant: Number,
    /// Its neighbours on a list.
    before: Number,
    after: Number,
}

impl<T> Record<T> {
    /// What [`Record::vacant`] is when no slot is taken.
    const ALL: u64 = u64::MAX >> (u64::BITS - Block::<T>::LEN);

    fn absent() -> Self {
        Self {
            slots: Block::new(),
            vacant: Number(AtomicU64::new(Self::ALL)),
            before: Number(AtomicU64::new(NIL.into())),
            after: Number(AtomicU64::new(NIL.into())),
        }
    }
}

/// The blocks of a slab that have vacant slots.
pub(super) struct Vacancies {
    /// The first block of each list.
    part: u32,
    absent: u32,
    /// The empty block whose memory stays, for the next slot that is taken.
    spare: u32,
}

impl Vacancies {
    pub(super) fn new() -> Self {
        Self {
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
    pub(super) fn record<T>(&mut self, number: u32) -> Record<T> {
        let record = Record::absent();
        record.after.set_block(self.absent);
        self.absent = number;
        record
    }

    /// Takes a slot of the [first](Self::first) block, which has memory now. Returns its offset.
    pub(super) fn take<T>(&mut self, blocks: &Chunks<Record<T>>) -> Option<u32> {
        let number = self.first();
        let block = blocks.get(number)?;
        let vacant = block.vacant.get();
        let left = vacant & (vacant - 1);
        block.vacant.set(left);
        if vacant == Record::<T>::ALL {
            // It was on no list if it was the spare one; else it was the first of `absent`.
            match number == self.spare {
                true => self.spare = NIL,
                false => self.absent = block.after.block(),
            }
            if left != 0 {
                self.link(blocks, number);
            }
        } else if left == 0 {
            self.unlink(blocks, block);
        }
        Some(vacant.trailing_zeros())
    }

    /// The slot is vacant again. Returns whether the memory of its block is to be freed: from here on it counts as gone.
    pub(super) fn put_back<T>(
        &mut self,
        blocks: &Chunks<Record<T>>,
        number: u32,
        offset: u32,
    ) -> bool {
        let Some(block) = blocks.get(number) else {
            return false;
        };
        let before = block.vacant.get();
        let vacant = before | 1 << offset;
        debug_assert_ne!(before, vacant, "a slot is put back once");
        block.vacant.set(vacant);
        if vacant != Record::<T>::ALL {
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

    /// Gives the spare block up, whose memory is to be freed: from here on it counts as gone.
    pub(super) fn give_up_spare<'b, T>(
        &mut self,
        blocks: &'b Chunks<Record<T>>,
    ) -> Option<&'b Block<T>> {
        let number = std::mem::replace(&mut self.spare, NIL);
        let block = blocks.get(number)?;
        self.list_absent(block, number);
        Some(&block.slots)
    }

    fn list_absent<T>(&mut self, block: &Record<T>, number: u32) {
        block.after.set_block(self.absent);
        self.absent = number;
    }

    /// Puts a block on the list of those in part taken, as the first.
    fn link<T>(&mut self, blocks: &Chunks<Record<T>>, number: u32) {
        if let Some(block) = blocks.get(number) {
            block.before.set_block(NIL);
            block.after.set_block(self.part);
        }
        if let Some(next) = blocks.get(self.part) {
            next.before.set_block(number);
        }
        self.part = number;
    }

    /// Takes a block off that list.
    fn unlink<T>(&mut self, blocks: &Chunks<Record<T>>, block: &Record<T>) {
        let before = block.before.block();
        let after = block.after.block();
        match blocks.get(before) {
            Some(previous) => previous.after.set_block(after),
            None => self.part = after,
        }
        if let Some(next) = blocks.get(after) {
            next.before.set_block(before);
        }
    }
}
