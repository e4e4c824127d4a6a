//! The slots: type-stable records of parked operations.
//!
//! # Ground rules
//!
//! A slot has four parts, each with its own rule of access:
//!
//! | part | which threads may use it |
//! |---|---|
//! | `state` | every thread, through [`State`]'s transitions |
//! | `payload` | the *holder* only: the thread that filled the slot or claimed the operation, until it releases the operation or takes it out. [`Held`] and [`Ended`] prove this, and cannot be copied |
//! | `fields` | a thread that has the slab's lock. [`SlabGuard`] proves this |
//! | `link` | every thread (it is atomic). It means something only while the slot is on a free list |
//!
//! Any thread may follow any index, even a stale one, to the state word: state words lie in [`Chunks`] or
//! [`EqualChunks`], never move, and live as long as the slab. The generation in the word tells the occupants of a slot
//! apart. Only a thread that has the slot or the lock may go on to the other parts. Where they lie depends on the slot:
//!
//! * The first slots, the *resident* ones, lie in [`EqualChunks`], each beside its state word. So a small operation and
//!   its state word share one cache line.
//! * The other slots lie in [`Block`](super::chunks::Block)s, apart from their state words. The memory of a block is
//!   allocated when one of its slots is needed. It is freed when all its slots are vacant, except for one spare block
//!   (see [`blocks`](super::blocks)).
//!
//! A slot is *taken* from [`SlabGuard::take_vacant`] until it is put back under the lock. As long as a slot is taken,
//! an operation is parked in it, or a token of it exists ([`Vacant`], [`Held`], [`Ended`], [`Spent`] or [`EndedSlot`]),
//! or it is on the remote free list. The memory of a block is freed under the lock, when none of its slots is taken. So
//! the owner of a token may use the slot, and a thread that has the lock may use every slot that has memory. Every use
//! of a slot happens before the slot is put back (the lock or the remote free list provides this), and so before its
//! memory is freed. A stale address leads only to the state word, where [`State::claim_or_mark`] rejects it, whether
//! the slot has memory or not.
//!
//! An occupant goes through stages, and the token of each stage consumes the token before. [`Held`] comes first. With
//! [`Ended`], the operation is still in its slot, but its addresses are stale. With [`Spent`], the operation was moved
//! out. As long as there is an [`Ended`], the state word already has the generation of the next occupant. That is
//! sound: the slot is on no free list, so no thread can fill it, and no address names it, so no thread can claim it.
//!
//! A thread that has the lock puts a spent slot back by [`SlabGuard::put_back_spent`]. A thread without the lock makes
//! the slot an [`EndedSlot`], and [`Slab::push_remote`] pushes it on the [`RemoteList`] for a later holder of the lock.
//! A token goes back to the slab that gave it out. A slot that has had its last generation stays taken for ever, and
//! the memory of its block stays too.
#![allow(unsafe_code)]
#![allow(unreachable_pub, reason = "the models see it")]

use super::blocks::{Record, Vacancies};
use super::chunks::{Block, Chunks, EqualChunks, Place, Slot, Vacant, Word};
use super::remote::{NIL, RemoteList};
use super::state::{Claim, Mark, State};
use crate::cell::address::Address;
use crate::sync::{CachePadded, LAST_GENERATION, Mutex, MutexGuard, Ordering};
use std::mem::ManuallyDrop;

pub use super::chunks::Held;
pub(crate) use super::chunks::{Ended, EndedSlot, Fields, Spent};

/// If memory was allocated for this many slots, [`SlabGuard::has_grown`] reports it.
const MANY: u32 = 1_024;

/// Slots for payloads `P`, and the data `G` under the same lock.
pub(crate) struct Slab<P, G> {
    /// The slots with the lowest indices. Every check of an operation reads the table of their chunks; only growth of
    /// the slab writes the table.
    resident: EqualChunks<Slot<P>>,
    /// The other slots, in three arrays: their state words, the memory of their other parts, and which of them are
    /// vacant. If many operations end, their slots are visited in no order. In arrays of their own, the small state
    /// words and records stay in the processor's caches.
    words: Chunks<State>,
    blocks: Chunks<Block<Slot<P>>>,
    records: Chunks<Record>,
    /// The number of its timer shard.
    shard: usize,
    // Parks and endings write these two. So each has cache lines of its own, apart from the fields that are mostly
    // read.
    remote: CachePadded<RemoteList>,
    locked: CachePadded<Mutex<Locked<G>>>,
}

struct Locked<G> {
    /// The first vacant resident slot. Each links to the next one.
    free: u32,
    /// The vacant slots in blocks.
    vacancies: Vacancies,
    /// For how many slots in blocks memory was allocated since [`SlabGuard::has_grown`] last returned `true`.
    made: u32,
    /// The first of the slots that were taken off the remote free list, but are not on another free list yet.
    chain: u32,
    beside: G,
}

// SAFETY: by the rules at the head of this file, only one thread at a time uses the raw parts of a slot. The payload
// goes from thread to thread with the holder's exclusive access, which needs `P: Send`. `fields` and `beside` go with
// the lock, which needs `G: Send`.
unsafe impl<P: Send, G: Send> Sync for Slab<P, G> {}
// SAFETY: a slab owns its payloads and `beside`, and both are `Send`.
unsafe impl<P: Send, G: Send> Send for Slab<P, G> {}

impl<P, G> Slab<P, G> {
    const RESIDENT: u32 = Slot::<P>::RESIDENT;
    /// The number of slots in a block.
    const BLOCK: u32 = Block::<Slot<P>>::LEN;

    /// The slots of the timer shard with this number.
    pub(crate) fn new(shard: usize, beside: G) -> Self {
        Self {
            resident: EqualChunks::new(),
            words: Chunks::new(),
            blocks: Chunks::new(),
            records: Chunks::new(),
            shard,
            remote: CachePadded::new(RemoteList::new()),
            locked: CachePadded::new(Mutex::new(Locked {
                free: NIL,
                vacancies: Vacancies::of(Self::BLOCK),
                made: 0,
                chain: NIL,
                beside,
            })),
        }
    }

    /// Takes the lock.
    pub(crate) fn lock(&self) -> SlabGuard<'_, P, G> {
        let locked = self.locked.lock();
        SlabGuard { slab: self, locked }
    }

    /// Takes the lock if it is free.
    #[inline]
    pub(crate) fn try_lock(&self) -> Option<SlabGuard<'_, P, G>> {
        let locked = self.locked.try_lock()?;
        Some(SlabGuard { slab: self, locked })
    }

    /// Claims the operation at `at`: makes this thread the holder. `None` if the operation has ended, or is held
    /// already. A held operation gets `mark`, and its holder acts on the mark.
    #[inline(always)]
    pub(crate) fn claim_or_mark(&self, at: Address, mark: Mark) -> Option<Held<'_, P>> {
        let Some(slot) = self.resident.get(at.index()) else {
            return self.claim_or_mark_in_block(at, mark);
        };
        let hold = || Held {
            place: Place::resident(slot),
            at,
        };
        let state = slot.state_here();
        (state.claim_or_mark(at.generation(), mark) == Claim::Held).then(hold)
    }

    #[cold]
    #[inline(never)]
    fn claim_or_mark_in_block(&self, at: Address, mark: Mark) -> Option<Held<'_, P>> {
        // With a stale address, only the state word may be used: the slot may have no memory.
        let claim = self.word(at.index())?.claim_or_mark(at.generation(), mark);
        (claim == Claim::Held).then(|| {
            // SAFETY: this thread holds the operation in the slot. So the slot is taken until the `Held` below is used
            // up.
            let place = unsafe { self.place(at.index()) };
            let place = place.expect("the slot of an operation has memory");
            Held { place, at }
        })
    }

    /// The state word of the slot at `index`.
    #[inline(always)]
    fn state(&self, index: u32) -> Option<&State> {
        match self.resident.get(index) {
            Some(slot) => Some(slot.state_here()),
            None => self.word(index),
        }
    }

    /// The state word of a slot in a block. For the index of a resident slot that does not exist, the subtraction wraps
    /// to an index without a word.
    fn word(&self, index: u32) -> Option<&State> {
        self.words.get(index.wrapping_sub(Self::RESIDENT))
    }

    /// Where the slot at `index` is. `None` if the slot was never used, or has no memory.
    ///
    /// # Safety
    /// While the result is used, the slot must be taken, or the caller must have the lock and put no slot back.
    #[inline(always)]
    unsafe fn place(&self, index: u32) -> Option<Place<'_, P>> {
        match self.resident.get(index) {
            Some(slot) => Some(Place::resident(slot)),
            // SAFETY: by the contract of this function.
            None => unsafe { self.place_in_block(index) },
        }
    }

    /// The place of a slot in a block.
    ///
    /// # Safety
    /// As for [`place`](Self::place).
    #[cold]
    #[inline(never)]
    unsafe fn place_in_block(&self, index: u32) -> Option<Place<'_, P>> {
        let (block, offset) = Self::in_block(index);
        let slot = self.blocks.get(block)?.get(offset)?;
        // SAFETY: the block has memory now, and keeps it as long as the caller uses the result, by the contract of this
        // function.
        Some(unsafe { Place::in_block(slot) })
    }

    /// The number of a slot's block, and the offset of the slot in that block.
    fn in_block(index: u32) -> (u32, u32) {
        // For the index of a resident slot that does not exist, the subtraction wraps to a block that does not exist.
        let number = index.wrapping_sub(Self::RESIDENT);
        (number / Self::BLOCK, number % Self::BLOCK)
    }

    /// Whether the operation that `at` names has not ended.
    pub(crate) fn is_parked(&self, at: Address) -> bool {
        let state = self.state(at.index());
        state.is_some_and(|state| state.is_parked(at.generation()))
    }

    /// The operation in the slot at `index`, if it has not ended.
    pub(crate) fn occupant(&self, index: u32) -> Option<Address> {
        let generation = self.state(index)?.occupant()?;
        Some(Address::new(self.shard, index, generation))
    }

    /// Loads slots that the caller is about to free. The slots lie far apart. In a loop of their own, the loads overlap
    /// instead of waiting for one another.
    pub(crate) fn prefetch(&self, ended: &[EndedSlot]) {
        for ended in ended {
            // SAFETY: `ended` is a token of the slot, so the slot is taken.
            let place = unsafe { self.place(ended.at.index()) };
            // ORDERING: Relaxed: the value is not used.
            std::hint::black_box(place.map(|place| place.slot().link.load(Ordering::Relaxed)));
            if let Some(record) = self.records.get(Self::in_block(ended.at.index()).0) {
                record.prefetch();
            }
        }
    }

    /// The operations that are in the slab now.
    pub(crate) fn occupants(&self) -> impl Iterator<Item = Address> + '_ {
        (0..self.used()).filter_map(|index| self.occupant(index))
    }

    /// One more than the highest index ever used.
    pub(crate) fn used(&self) -> u32 {
        match self.words.len() {
            0 => self.resident.len(),
            others => Self::RESIDENT + others,
        }
    }

    /// For the loom models: how many slots wait on the remote free list.
    #[cfg(request_purgatory_loom)]
    pub(crate) fn waiting(&self) -> u32 {
        self.remote.len()
    }

    /// For tests: ages the vacant slot at `index`, as if it had had this many occupants.
    #[cfg(all(test, not(request_purgatory_loom)))]
    pub(super) fn age(&self, index: u32, occupants: u32) {
        if let Some(state) = self.state(index) {
            state.skip_to_generation(occupants);
        }
    }

    /// Pushes an ended slot on the remote free list, for a later holder of the lock. Returns the length of the list.
    pub(crate) fn push_remote(&self, ended: EndedSlot) -> usize {
        let index = ended.at.index();
        debug_assert_eq!(ended.at.shard(), self.shard);
        // SAFETY: `ended` is a token of this slab, so the slot is taken until it is on the list. After that, another
        // thread may put the slot back, but this call does not use the slot any more.
        let place = unsafe { self.place(index) };
        place.map_or(0, |place| self.remote.push(index, &place.slot().link))
    }

    /// For tests: the layout of the first chunk of resident slots.
    #[cfg(all(test, not(request_purgatory_loom)))]
    pub(super) fn layout() -> std::alloc::Layout {
        EqualChunks::<Slot<P>>::layout(0)
    }
}

impl<P, G> Drop for Slab<P, G> {
    fn drop(&mut self) {
        for at in self.occupants() {
            if let Some(held) = self.claim_or_mark(at, Mark::ShutDown) {
                drop(held.end());
            }
        }
    }
}

/// The slab's lock, held.
pub(crate) struct SlabGuard<'a, P, G> {
    slab: &'a Slab<P, G>,
    locked: MutexGuard<'a, Locked<G>>,
}

impl<'a, P, G> SlabGuard<'a, P, G> {
    /// The data beside the slots under this lock, and the slots' timer fields.
    pub(crate) fn split(&mut self) -> (&mut G, FieldsView<'_, P, G>) {
        let fields = FieldsView { slab: self.slab };
        (&mut self.locked.beside, fields)
    }

    /// Whether no slot is vacant, and no slots can be added without exceeding `limit`. Slots in blocks are added a
    /// whole block at a time.
    #[inline(always)]
    pub(crate) fn is_full(&self, limit: u32) -> bool {
        self.locked.free == NIL && self.is_full_beyond(limit)
    }

    /// Whether the slab [is full](Self::is_full), if no resident slot is vacant.
    #[cold]
    #[inline(never)]
    fn is_full_beyond(&self, limit: u32) -> bool {
        let resident = self.slab.resident.len();
        let may_add = match resident < Slab::<P, G>::RESIDENT {
            true => resident < limit,
            false => limit.saturating_sub(self.slab.used()) >= Slab::<P, G>::BLOCK,
        };
        !may_add && !self.locked.vacancies.any()
    }

    /// Takes a vacant slot: a resident one, if one is vacant. `None` if the slab [is full](Self::is_full).
    #[inline(always)]
    pub(crate) fn take_vacant(&mut self, limit: u32) -> Option<Vacant<'a, P>> {
        if self.locked.free == NIL {
            return self.take_beyond(limit);
        }
        let index = self.locked.free;
        let slot = self.slab.resident.get(index)?;
        // ORDERING: Relaxed: the link was written under this lock.
        self.locked.free = slot.link.load(Ordering::Relaxed);
        let place = Place::resident(slot);
        Some(Vacant { place, index })
    }

    /// Takes a vacant slot if no resident slot is vacant: adds a resident slot, or takes a slot of a block.
    #[cold]
    #[inline(never)]
    fn take_beyond(&mut self, limit: u32) -> Option<Vacant<'a, P>> {
        if self.is_full_beyond(limit) {
            return None;
        }
        let slab = self.slab;
        if slab.resident.len() < Slab::<P, G>::RESIDENT {
            let here = ManuallyDrop::new(State::vacant());
            let word = Word { here };
            // The slots of a fresh chunk are not all put on the free list: that would take time in proportion to the
            // size of the chunk, under the lock.
            //
            // SAFETY: resident slots are added here only, and this thread has the lock, so no other thread calls `push`
            // at the same time. Another thread can have `&Slab` only if `P`, and with it the slot, is `Send`.
            let index = unsafe { slab.resident.push(Slot::vacant(word)) };
            let place = Place::resident(slab.resident.get(index)?);
            return Some(Vacant { place, index });
        }
        if !self.locked.vacancies.any() {
            self.add_block();
        }
        let number = self.locked.vacancies.first();
        let block = slab.blocks.get(number)?;
        let first = number * Slab::<P, G>::BLOCK;
        if !block.is_made() {
            let slot = |offset| {
                let apart = slab.words.get(first + offset);
                let apart = apart.expect("words are added with their block").into();
                Slot::vacant(Word { apart })
            };
            // SAFETY: this thread has the lock, and the memory of blocks is allocated and freed only under the lock. No
            // slot of this block is taken, so no thread uses one before this call returns it.
            unsafe { block.make(slot) };
            let made = &mut self.locked.made;
            *made = made.saturating_add(Slab::<P, G>::BLOCK);
        }
        let offset = self.locked.vacancies.take(&slab.records)?;
        let index = Slab::<P, G>::RESIDENT + first + offset;
        // SAFETY: `vacancies.take` has taken the slot, and the `Vacant` made below is its token.
        let place = unsafe { slab.place(index)? };
        Some(Vacant { place, index })
    }

    /// Adds a block, which has no memory yet, and the state words of its slots.
    fn add_block(&mut self) {
        let slab = self.slab;
        let record = self.locked.vacancies.record();
        // SAFETY: this thread has the lock, and `push` is called on records, blocks and words only here. Another thread
        // can have `&Slab` only if `P` is `Send`.
        let number = unsafe { slab.records.push(record) };
        // SAFETY: this thread has the lock, as for the records.
        unsafe { slab.blocks.push(Block::new()) };
        for _ in 0..Slab::<P, G>::BLOCK {
            // SAFETY: this thread has the lock, as for the records.
            unsafe { slab.words.push(State::vacant()) };
        }
        self.locked.vacancies.add(&slab.records, number);
    }

    /// Moves `payload` into a vacant slot of this slab. The caller becomes the holder of the operation.
    #[inline(always)]
    pub(crate) fn fill(
        &mut self,
        vacant: Vacant<'a, P>,
        payload: P,
        fields: Fields,
    ) -> Held<'a, P> {
        let Vacant { place, index } = vacant;
        let slot = place.slot();
        slot.fields.with_mut(|place| {
            // SAFETY: this thread has the lock. No `FieldsView` exists, because it would borrow this guard.
            let place = unsafe { &mut *place };
            // Store field by field, each from its register. One wide copy would load the result of narrower stores,
            // which defeats store forwarding.
            place.deadline = fields.deadline;
            place.arrived_at = fields.arrived_at;
            place.position = fields.position;
        });
        slot.payload.with_mut(|place| {
            // SAFETY: the slot is vacant, so no thread holds it, and nothing initialised is overwritten. `vacant` was
            // the only token of this slot, so no other thread fills the slot.
            unsafe { (*place).write(payload) };
        });
        let generation = place.state(index).occupy();
        let at = Address::new(self.slab.shard, index, generation);
        Held { place, at }
    }

    /// Puts a slot back that has no token any more: on the free list, or into its block.
    #[inline(always)]
    fn list(&mut self, place: Place<'a, P>, index: u32) {
        if index >= Slab::<P, G>::RESIDENT {
            return self.list_in_block(index);
        }
        // ORDERING: Relaxed: the link is read under this lock only.
        place.slot().link.store(self.locked.free, Ordering::Relaxed);
        self.locked.free = index;
    }

    #[cold]
    #[inline(never)]
    fn list_in_block(&mut self, index: u32) {
        let (number, offset) = Slab::<P, G>::in_block(index);
        let records = &self.slab.records;
        if self.locked.vacancies.put_back(records, number, offset) {
            self.free(number);
        }
    }

    /// Puts a vacant slot back that was not filled.
    #[inline(always)]
    pub(crate) fn put_back(&mut self, vacant: Vacant<'a, P>) {
        self.list(vacant.place, vacant.index);
    }

    /// Frees the memory of a block. `vacancies` lists this block as absent already.
    fn free(&mut self, number: u32) {
        let Some(block) = self.slab.blocks.get(number) else {
            return;
        };
        #[cfg(request_purgatory_loom)]
        for slot in (0..Block::<Slot<P>>::LEN).filter_map(|offset| block.get(offset)) {
            // SAFETY: as for `block.free` below. By these accesses, loom checks that all uses of the slot happen before
            // the memory is freed.
            let slot = unsafe { slot.as_ref() };
            slot.fields.with_mut(|_| ());
            slot.payload.with_mut(|_| ());
        }
        // SAFETY: this thread has the lock, and the memory of blocks is allocated and freed only under the lock. All
        // slots of the block have been put back, so no token of one exists. Every use of a slot happens before this
        // call: it was made under this lock, or before a push on the remote free list that a holder of this lock has
        // acquired. No `FieldsView` exists, because it would borrow this guard.
        unsafe { block.free() };
    }

    /// Whether memory for [`MANY`] slots was allocated since the last call that returned `true`.
    pub(crate) fn has_grown(&mut self) -> bool {
        let has_grown = self.locked.made >= MANY;
        if has_grown {
            self.locked.made = 0;
        }
        has_grown
    }

    /// Frees the memory of the spare block: the one vacant block whose memory is kept for the next operation.
    pub(crate) fn free_spare(&mut self) {
        if let Some(number) = self.locked.vacancies.give_up_spare(&self.slab.records) {
            self.free(number);
        }
    }

    /// The position in the wheel of the timer of a spent slot of this slab.
    #[inline(always)]
    pub(crate) fn position_of(&mut self, spent: &Spent<'a, P>) -> u32 {
        spent.place.slot().fields.with_mut(|fields| {
            // SAFETY: this thread has the lock. No `FieldsView` exists, because it would borrow this guard.
            unsafe { (*fields).position }
        })
    }

    /// Puts a spent slot of this slab back, unless it has had its last generation.
    #[inline(always)]
    pub(crate) fn put_back_spent(&mut self, spent: Spent<'a, P>) {
        let Spent { place, at } = spent;
        self.put_back_unless_retired(place, at);
    }

    /// Puts a slot of this slab back, as [`put_back_spent`](Self::put_back_spent) does, if the token has no place in
    /// memory.
    #[inline(always)]
    pub(crate) fn put_back_ended(&mut self, ended: EndedSlot) {
        debug_assert_eq!(ended.at.shard(), self.slab.shard);
        // SAFETY: `ended` is a token of this slab, so the slot is taken until it is put back below.
        if let Some(place) = unsafe { self.slab.place(ended.at.index()) } {
            self.put_back_unless_retired(place, ended.at);
        }
    }

    #[inline(always)]
    fn put_back_unless_retired(&mut self, place: Place<'a, P>, ended: Address) {
        // After the last generation the count would begin again, and a stale address could name a new occupant.
        if ended.generation() != LAST_GENERATION {
            self.list(place, ended.index());
        }
    }

    /// Takes one slot off the remote free list. The caller puts it back.
    #[inline(always)]
    pub(crate) fn next_remote(&mut self) -> Option<EndedSlot> {
        if self.locked.chain == NIL {
            self.locked.chain = self.slab.remote.take_all();
            if self.locked.chain == NIL {
                return None;
            }
        }
        let index = self.locked.chain;
        // SAFETY: a slot on the chain is taken until the caller puts the returned token back.
        let place = unsafe { self.slab.place(index)? };
        // ORDERING: Relaxed: `take_all` has acquired all links of the chain, in this hold of the lock or in an earlier
        // one.
        self.locked.chain = place.slot().link.load(Ordering::Relaxed);
        let generation = place.state(index).last_generation();
        let at = Address::new(self.slab.shard, index, generation);
        Some(EndedSlot { at })
    }
}

/// The timer fields of a slab's slots. Lives no longer than the lock is held.
pub(crate) struct FieldsView<'g, P, G> {
    slab: &'g Slab<P, G>,
}

impl<P, G> FieldsView<'_, P, G> {
    /// The slot at `index`, if it was ever used, and has memory.
    #[inline(always)]
    fn slot(&self, index: u32) -> Option<&Slot<P>> {
        // SAFETY: the lock is held as long as there is a view. Putting a slot back and freeing a block need `&mut` of
        // the guard, which the view borrows. So the memory of the block stays as long as there is a view.
        let place = unsafe { self.slab.place(index)? };
        // SAFETY: for the same reason, the slot stays as long as there is a view, and the result borrows the view.
        Some(unsafe { place.slot.as_ref() })
    }

    /// Loads the timer fields and the state words of slots that the caller is about to work on. The slots lie far
    /// apart. In a loop of their own, the loads overlap instead of waiting for one another.
    pub(crate) fn prefetch(&self, indices: impl Iterator<Item = u32>) {
        for index in indices {
            let occupant = self.slab.occupant(index);
            // A resident slot lies beside its state word, which is loaded above.
            let position = (index >= Slot::<P>::RESIDENT).then(|| self.read(index).position);
            std::hint::black_box((occupant, position));
        }
    }

    /// The timer fields of the slot at `index`. All are zero if the slot was never used, or has no memory.
    #[inline(always)]
    pub(crate) fn read(&self, index: u32) -> Fields {
        match self.slot(index) {
            Some(slot) => slot.fields.with_mut(|fields| {
                // SAFETY: a view borrows its guard exclusively, so the lock is held and there is only one view. A write
                // needs `&mut` of the view, which no code has while this call borrows the view.
                unsafe { *fields }
            }),
            None => Fields::default(),
        }
    }

    /// Changes the timer fields of the slot at `index`.
    #[inline(always)]
    pub(crate) fn update(&mut self, index: u32, change: impl FnOnce(&mut Fields)) {
        if let Some(slot) = self.slot(index) {
            slot.fields.with_mut(|fields| {
                // SAFETY: the lock is held, as in `read`. This call borrows the only view exclusively.
                change(unsafe { &mut *fields });
            });
        }
    }
}
