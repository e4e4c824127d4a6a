//! The slots: type-stable records of parked operations.
//!
//! # Ground rules
//!
//! A slot has four parts, each with its own rule of access:
//!
//! | part | which threads may use it |
//! |---|---|
//! | `state` | every thread, through [`State`]'s transitions |
//! | `payload` | the holder only: the thread that filled the slot, or got [`Held`] by a claim, until it releases the operation or takes it out. [`Held`] and [`Ended`] are the proof, and cannot be copied |
//! | `fields` | the thread that has the slab's lock. [`SlabGuard`] is the proof |
//! | `link` | every thread (it is atomic); it means something only while the slot is on a free list |
//!
//! Any thread may follow any index, however stale, to the state word: the words lie in [`Chunks`], never move and live
//! as long as the slab. The generation in the word tells the occupants of a slot apart. The other parts are found
//! beside it only by a thread that has the slot, or the lock:
//!
//! * The first slots, the *resident* ones, lie in [`Chunks`] as a whole, word and all. So an operation is one cache
//!   line.
//! * The slots behind them lie in a [`Block`](super::chunks::Block), their words apart. Its memory comes with the
//!   first slot taken, and goes when all its slots are vacant and another block is empty already (see
//!   [`blocks`](super::blocks)).
//!
//! A slot is *taken* as long as it is on no free list: from [`SlabGuard::take_vacant`] until [`SlabGuard::put_back`].
//! All that time there is a token of it, one of [`Vacant`], [`Held`], [`Ended`], [`Spent`] and [`EndedSlot`], or an
//! operation parked, or it is on the remote free list. The memory of a block is freed under the lock, when none of its
//! slots is taken. So a token may use its slot, and so may whoever has the lock use every slot that has memory. What a
//! thread did with a slot comes before the slot is put back, by the lock or by the remote free list, and so before the
//! memory goes. A stale address leads to the word and no further: [`State::claim_or_mark`] says no, whatever has become
//! of the memory.
//!
//! The stages of an occupant are tokens that consume one another: [`Held`], then [`Ended`] (its addresses are stale,
//! and it is still in its slot), then [`Spent`] (it was moved out). While an operation is ended in place, the
//! generation in the state word is already that of the next occupant. That is sound because the slot is on no free
//! list, so no thread can fill it, and no address names it, so no thread can claim it.
//!
//! A spent slot goes back under the lock ([`SlabGuard::put_back_spent`]) or, by a thread without it, as an
//! [`EndedSlot`] by [`Slab::push_remote`], which pushes it on the [`RemoteList`] for a later holder of the lock. Tokens
//! go back to the slab that gave them out. (A slot that has had its last generation stays taken, and so does the memory
//! of its block.)
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

/// Memory for this many slots is worth a look at what lies beside them.
const MANY: u32 = 1_024;

/// Slots for payloads `P`, with `G` beside them under the same lock.
pub(crate) struct Slab<P, G> {
    /// The slots with the lowest indices. The table of their chunks is what every check of an operation reads, and only
    /// the growth of the slab writes.
    resident: EqualChunks<Slot<P>>,
    /// Of the slots behind them: the state words, the memory of the rest, and which are vacant. Apart from one another,
    /// because a storm meets the slots in no order, and what lies close together stays in the processor's caches.
    words: Chunks<State>,
    blocks: Chunks<Block<Slot<P>>>,
    records: Chunks<Record>,
    /// The number of its timer shard.
    shard: usize,
    // These two are written by every park, and have cache lines of their own.
    remote: CachePadded<RemoteList>,
    locked: CachePadded<Mutex<Locked<G>>>,
}

struct Locked<G> {
    /// Vacant resident slots.
    free: u32,
    /// Other vacant slots.
    vacancies: Vacancies,
    /// For how many of those memory was made since [`SlabGuard::has_grown`].
    made: u32,
    /// Slots taken off the remote free list that are not on the free list yet.
    chain: u32,
    beside: G,
}

// SAFETY: the raw parts of a slot go from thread to thread by the rules above: the payload with the holder's exclusive
// access (which needs `P: Send`; no two threads ever share it), `fields` and `beside` with the lock.
unsafe impl<P: Send, G: Send> Sync for Slab<P, G> {}
// SAFETY: a slab owns its payloads and what lies beside them.
unsafe impl<P: Send, G: Send> Send for Slab<P, G> {}

impl<P, G> Slab<P, G> {
    const RESIDENT: u32 = Slot::<P>::RESIDENT;
    /// How many slots a block has.
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

    /// Claims the operation at `at`. `None` if the operation has ended, or is held already: then it gets `mark`, on
    /// which the holder will act.
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
        // A stale address leads no further than to the word: the slot may have no memory.
        let claim = self.word(at.index())?.claim_or_mark(at.generation(), mark);
        (claim == Claim::Held).then(|| {
            // SAFETY: this thread holds the operation in the slot, so that is taken, until the result is used up.
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

    /// The state word of a slot that is not resident. (What is resident and does not exist wraps to what does not.)
    fn word(&self, index: u32) -> Option<&State> {
        self.words.get(index.wrapping_sub(Self::RESIDENT))
    }

    /// Where the slot at `index` is. `None` if it was never used, or has no memory.
    ///
    /// # Safety
    /// As long as the result is used, the slot is taken, or the caller has the lock and puts no slot back.
    #[inline(always)]
    unsafe fn place(&self, index: u32) -> Option<Place<'_, P>> {
        match self.resident.get(index) {
            Some(slot) => Some(Place::resident(slot)),
            None => self.place_in_block(index),
        }
    }

    #[cold]
    #[inline(never)]
    fn place_in_block(&self, index: u32) -> Option<Place<'_, P>> {
        let (block, offset) = Self::in_block(index);
        Some(Place::in_block(self.blocks.get(block)?.get(offset)?))
    }

    /// The block of a slot that is not resident, and the offset in it.
    fn in_block(index: u32) -> (u32, u32) {
        // (What is resident and does not exist wraps to a block that does not.)
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

    /// Loads slots that the caller is about to free one after the other. They lie far apart; in a loop of their own,
    /// these loads do not wait for one another.
    pub(crate) fn prefetch(&self, ended: &[EndedSlot]) {
        for ended in ended {
            // SAFETY: there is a token of it, so the slot is taken.
            let place = unsafe { self.place(ended.at.index()) };
            // ORDERING: Relaxed: the value is not used.
            std::hint::black_box(place.map(|place| place.slot().link.load(Ordering::Relaxed)));
            if let Some(record) = self.records.get(Self::in_block(ended.at.index()).0) {
                record.prefetch();
            }
        }
    }

    /// The operations in the slab now.
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

    /// For models: how many slots wait on the remote free list.
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

    /// Leaves an ended slot for a later holder of the lock. Returns how many slots are on the remote free list.
    pub(crate) fn push_remote(&self, ended: EndedSlot) -> usize {
        let index = ended.at.index();
        debug_assert_eq!(ended.at.shard(), self.shard);
        // SAFETY: `ended` is a token of this slab, so the slot is taken, and stays so: once it is on the list, a holder
        // of the lock may put it back, but the list is the last use of the slot here.
        let place = unsafe { self.place(index) };
        place.map_or(0, |place| self.remote.push(index, &place.slot().link))
    }

    /// For tests: the memory of the first chunk.
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

    /// Whether `limit` slots exist (but for less than a block), and none is vacant.
    #[inline(always)]
    pub(crate) fn is_full(&self, limit: u32) -> bool {
        self.locked.free == NIL && self.is_full_beyond(limit)
    }

    /// The same, where no resident slot is vacant.
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

    /// Takes a vacant slot, a resident one if there is one. `None` if the slab [is full](Self::is_full).
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

    /// The same, where no resident slot is vacant: takes one out of a block, or adds slots.
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
            // SAFETY: we have the lock, under which alone the memory of blocks is made and freed. No slot of the block
            // is taken, so nothing uses one before this hands it out.
            unsafe { block.make(slot) };
            let made = &mut self.locked.made;
            *made = made.saturating_add(Slab::<P, G>::BLOCK);
        }
        let offset = self.locked.vacancies.take(&slab.records)?;
        let index = Slab::<P, G>::RESIDENT + first + offset;
        // SAFETY: from here on the slot is taken, by the token that this makes.
        let place = unsafe { slab.place(index)? };
        Some(Vacant { place, index })
    }

    /// Adds a block, without memory yet, and the state words of its slots.
    fn add_block(&mut self) {
        let slab = self.slab;
        let record = self.locked.vacancies.record(slab.records.len());
        // SAFETY: we have the lock, and blocks, records and words are added here only. As to `Send`, see `take_beyond`.
        unsafe { slab.records.push(record) };
        // SAFETY: the same.
        unsafe { slab.blocks.push(Block::new()) };
        for _ in 0..Slab::<P, G>::BLOCK {
            // SAFETY: the same.
            unsafe { slab.words.push(State::vacant()) };
        }
    }

    /// Moves `payload` into a vacant slot of this slab. The caller holds the new occupant.
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
            // SAFETY: we have the lock, and no `FieldsView` is out: it would borrow this guard.
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

    /// Puts a slot on its free list, which has no token any more.
    #[inline(always)]
    fn list(&mut self, place: Place<'a, P>, index: u32) {
        if index >= Slab::<P, G>::RESIDENT {
            return self.list_in_block(index);
        }
        // ORDERING: Relaxed: read under this lock only.
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

    /// Frees the memory of a block that the vacancies count as gone.
    fn free(&mut self, number: u32) {
        let Some(block) = self.slab.blocks.get(number) else {
            return;
        };
        #[cfg(request_purgatory_loom)]
        for slot in (0..Block::<Slot<P>>::LEN).filter_map(|offset| block.get(offset)) {
            // SAFETY: as below. loom sees here whether all other uses of the slot come before.
            let slot = unsafe { slot.as_ref() };
            slot.fields.with_mut(|_| ());
            slot.payload.with_mut(|_| ());
        }
        // SAFETY: we have the lock, under which alone the memory of blocks is made and freed. All slots of the block
        // have been put back, so no token of one is left, and what was done with the slots comes before: it was done
        // under this lock, or before a push on the remote free list that this lock's holder has acquired. A
        // `FieldsView` would borrow this guard.
        unsafe { block.free() };
    }

    /// Whether memory for many slots was made since the last call that said so.
    pub(crate) fn has_grown(&mut self) -> bool {
        let has_grown = self.locked.made >= MANY;
        if has_grown {
            self.locked.made = 0;
        }
        has_grown
    }

    /// Gives the memory of the empty block back that stays for the next operation.
    pub(crate) fn free_spare(&mut self) {
        if let Some(number) = self.locked.vacancies.give_up_spare(&self.slab.records) {
            self.free(number);
        }
    }

    /// The timer's position in a spent slot of this slab.
    #[inline(always)]
    pub(crate) fn position_of(&mut self, spent: &Spent<'a, P>) -> u32 {
        spent.place.slot().fields.with_mut(|fields| {
            // SAFETY: we have the lock, and no `FieldsView` is out: it would borrow this guard.
            unsafe { (*fields).position }
        })
    }

    /// Puts a spent slot of this slab back, unless it has had its last generation.
    #[inline(always)]
    pub(crate) fn put_back_spent(&mut self, spent: Spent<'a, P>) {
        let Spent { place, at } = spent;
        self.put_back_unless_retired(place, at);
    }

    /// The same, of a slot without its place in memory.
    #[inline(always)]
    pub(crate) fn put_back_ended(&mut self, ended: EndedSlot) {
        debug_assert_eq!(ended.at.shard(), self.slab.shard);
        // SAFETY: `ended` is a token of this slab, so the slot is taken, until it is put back here.
        if let Some(place) = unsafe { self.slab.place(ended.at.index()) } {
            self.put_back_unless_retired(place, ended.at);
        }
    }

    #[inline(always)]
    fn put_back_unless_retired(&mut self, place: Place<'a, P>, ended: Address) {
        // After the last generation, the next occupant could be mistaken for an earlier one.
        if ended.generation() != LAST_GENERATION {
            self.list(place, ended.index());
        }
    }

    /// Takes one slot off the remote free list, to be freed.
    #[inline(always)]
    pub(crate) fn next_remote(&mut self) -> Option<EndedSlot> {
        if self.locked.chain == NIL {
            self.locked.chain = self.slab.remote.take_all();
            if self.locked.chain == NIL {
                return None;
            }
        }
        let index = self.locked.chain;
        // SAFETY: a slot on the chain is taken, until the result of this is put back.
        let place = unsafe { self.slab.place(index)? };
        // ORDERING: Relaxed: the whole chain was acquired with its first link, by this holder of the lock or another.
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
        // SAFETY: as above.
        Some(unsafe { place.slot.as_ref() })
    }

    /// Loads the timer fields and the state words of slots that the caller is about to work on one after the other.
    /// They lie far apart; in a loop of their own, these loads do not wait for one another.
    pub(crate) fn prefetch(&self, indices: impl Iterator<Item = u32>) {
        for index in indices {
            let occupant = self.slab.occupant(index);
            // The word of a resident slot lies in it.
            let position = (index >= Slot::<P>::RESIDENT).then(|| self.read(index).position);
            std::hint::black_box((occupant, position));
        }
    }

    /// The timer fields of the slot at `index`; zeros if it was never used, or has no memory.
    #[inline(always)]
    pub(crate) fn read(&self, index: u32) -> Fields {
        match self.slot(index) {
            Some(slot) => slot.fields.with_mut(|fields| {
                // SAFETY: a view exists only by exclusive borrow of a guard, so the lock is held and there is one view
                // at a time; a shared borrow of it keeps writers out.
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
                // SAFETY: the lock is held, as in `read`, and the only view is borrowed exclusively.
                change(unsafe { &mut *fields });
            });
        }
    }
}
