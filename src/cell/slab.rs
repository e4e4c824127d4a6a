//! The slab: the slots of one timer shard. State words are type-stable: their memory is never used for anything else
//! while the slab lives.
//!
//! # Ground rules
//!
//! A slot has four parts, each with its own rule of access:
//!
//! | part | which threads may use it |
//! |---|---|
//! | `state` (the state word) | every thread, through [`State`]'s transitions |
//! | `payload` | the *holder* only. [`Held`] and [`Ended`] prove this, and cannot be copied |
//! | `fields` | a thread that has the slab's lock. [`SlabGuard`] proves this |
//! | `link` | every thread (it is atomic). Its value means something only while the slot is on a free list |
//!
//! The *holder* is the thread that has filled the slot or claimed the operation, until it releases the operation or
//! takes the operation out of the slot.
//!
//! Any thread may follow any index, even a stale one, to the state word: state words lie in [`Chunks`] or
//! [`EqualChunks`], never move, and live as long as the slab. The generation in the state word tells the occupants of a
//! slot apart. Only a thread that has a token of the slot (a value that proves its right, see below), or the slab's
//! lock, may use the other parts. Where these lie depends on the slot:
//!
//! * The first slots, the *resident* ones, lie in [`EqualChunks`], each beside its state word. So a small operation and
//!   its state word share one cache line.
//! * The other slots lie in [`Block`](super::chunks::Block)s, apart from their state words. The memory of a block is
//!   allocated when one of its slots is needed. It is freed when all its slots are vacant, except for one spare block
//!   (see [`blocks`](super::blocks)).
//!
//! A slot is *taken* from [`SlabGuard::take_vacant`] until it is put back under the lock. While a slot is taken, one of
//! these is true:
//!
//! * An operation is parked in the slot.
//! * A token of the slot exists ([`Vacant`], [`Held`], [`Ended`], [`Spent`] or [`EndedSlot`]).
//! * The slot is on the remote free list, or in a chain that a holder of the lock took off that list.
//! * The slot is *retired*: it has had its last generation. It stays taken for ever, and so does the memory of its
//!   block.
//!
//! The memory of a block is freed under the lock, when none of its slots is taken. So the following is sound:
//!
//! * The owner of a token may use the slot.
//! * A thread that has the lock may use every slot that has memory.
//! * Every use of a slot happens before the slot is put back (the lock or the remote free list orders them), and so
//!   before its memory is freed.
//! * A stale address leads only to the state word, where [`State::claim_or_mark`] rejects it, whether the slot has
//!   memory or not.
//!
//! An operation ends in stages, and the token of each stage consumes the token of the stage before:
//!
//! 1. [`Held`]: a thread has exclusive access to the operation.
//! 2. [`Ended`]: the operation is still in its slot, but its address is stale.
//! 3. [`Spent`]: the operation was moved out of its slot.
//!
//! During the second stage, the state word already has the generation of the next occupant. This is sound: the slot is
//! on no free list, so no thread can fill it, and the state word does not say `PARKED`, so no thread can claim it.
//!
//! A thread that has the lock puts a spent slot back by [`SlabGuard::put_back_spent`]. A thread without the lock makes
//! the slot an [`EndedSlot`], and [`Slab::push_remote`] pushes it on the [`RemoteList`] for a later holder of the lock.
//! A token must go back to the slab that gave it out: another slab would free a wrong slot.
#![allow(unsafe_code)]
#![allow(unreachable_pub, reason = "the models see it")]

use super::blocks::{Record, Vacancies};
use super::chunks::{Block, Chunks, EqualChunks, Place, Slot, Vacant};
use super::remote::{NIL, RemoteList};
use super::state::{Claim, Mark, State};
use crate::cell::address::Address;
use crate::sync::{CachePadded, LAST_GENERATION, Mutex, MutexGuard, Ordering};
use std::ptr::NonNull;

pub use super::chunks::Held;
pub(crate) use super::chunks::{Ended, EndedSlot, Fields, Spent};

/// [`SlabGuard::has_grown`] returns `true` after memory was allocated for this many slots in blocks.
const MANY: u32 = 1_024;

/// Slots for payloads `P`, and data `G` that the same lock guards.
pub(crate) struct Slab<P, G> {
    /// The resident slots: those with the lowest indices, whose memory is never freed. Every check of an operation
    /// reads the table of their chunks. Only growth of the slab writes the table, so it stays in the caches.
    resident: EqualChunks<Slot<P>>,
    /// The slots in blocks, in three arrays: `words` has their state words, `blocks` has the memory of their other
    /// parts, and `records` says which of them are vacant. When many operations end together, a thread visits their
    /// slots in no order. State words and records are small, and in arrays of their own they stay in the processor's
    /// caches.
    words: Chunks<State>,
    blocks: Chunks<Block<Slot<P>>>,
    records: Chunks<Record>,
    /// The number of the timer shard that owns this slab.
    shard: usize,
    // Parks and endings write the next two fields. Each of these has cache lines of its own, to avoid false sharing
    // with the fields above, which are mostly read.
    remote: CachePadded<RemoteList>,
    locked: CachePadded<Mutex<Locked<G>>>,
}

struct Locked<G> {
    /// The index of the first vacant resident slot (the first slots of a slab are resident: their memory is never
    /// freed), or [`NIL`]. Each vacant resident slot links to the next one.
    free: u32,
    /// Which slots in blocks are vacant.
    vacancies: Vacancies,
    /// The number of slots in blocks for which memory was allocated since [`SlabGuard::has_grown`] last returned
    /// `true`.
    made: u32,
    /// The index of the first slot of the *chain*, or [`NIL`] if the chain is empty. The chain consists of the slots
    /// that a holder of the lock has taken off the remote free list, but has not made vacant yet.
    chain: u32,
    beside: G,
}

// SAFETY: only one thread at a time uses the raw parts of a slot, as the rules at the head of this file require. The
// payload passes from thread to thread with the holder's exclusive access, so `P: Send` is enough. The timer fields of
// the slots, and the data `beside` of type `G`, pass from thread to thread with the lock, so `G: Send` is enough.
unsafe impl<P: Send, G: Send> Sync for Slab<P, G> {}
// SAFETY: a slab owns its payloads and `beside`, and both are `Send`.
unsafe impl<P: Send, G: Send> Send for Slab<P, G> {}

impl<P, G> Slab<P, G> {
    const RESIDENT: u32 = Slot::<P>::RESIDENT;
    /// The number of slots in a block.
    const BLOCK: u32 = Block::<Slot<P>>::LEN;

    /// An empty slab for the timer shard with this number. The lock of the slab guards `beside` too.
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

    /// Waits until the lock is free, and takes it.
    pub(crate) fn lock(&self) -> SlabGuard<'_, P, G> {
        let locked = self.locked.lock();
        SlabGuard { slab: self, locked }
    }

    /// Takes the lock if it is free. `None` if a thread has the lock.
    #[inline]
    pub(crate) fn try_lock(&self) -> Option<SlabGuard<'_, P, G>> {
        let locked = self.locked.try_lock()?;
        Some(SlabGuard { slab: self, locked })
    }

    /// Claims the operation at `at`: makes this thread the holder. Returns `None` if the operation has ended, or is
    /// held already. A held operation gets `mark`, and its holder acts on the mark when it releases the operation.
    #[inline(always)]
    pub(crate) fn claim_or_mark(&self, at: Address, mark: Mark) -> Option<Held<'_, P>> {
        let Some(slot) = self.resident.get(at.index()) else {
            return self.claim_or_mark_in_block(at, mark);
        };
        let place = Place::resident(slot);
        match place.state().claim_or_mark(at.generation(), mark) {
            Claim::Held => Some(Held { place, at }),
            Claim::Marked | Claim::Stale => None,
        }
    }

    #[cold]
    #[inline(never)]
    fn claim_or_mark_in_block(&self, at: Address, mark: Mark) -> Option<Held<'_, P>> {
        // With a stale address, only the state word may be used: the slot may have no memory.
        let state = self.word(at.index())?;
        let claim = state.claim_or_mark(at.generation(), mark);
        (claim == Claim::Held).then(|| {
            let slot = self.slot_in_block(at.index());
            let slot = slot.expect("the slot of an operation has memory");
            // SAFETY: slot and state word have the same index. This thread holds the operation in the slot. So the slot
            // is taken, and keeps its memory, until the `Held` below is consumed.
            let place = unsafe { Place::in_block(slot, state) };
            Held { place, at }
        })
    }

    /// The state word of the slot at `index`. `None` if the slab has no such slot.
    #[inline(always)]
    fn state(&self, index: u32) -> Option<&State> {
        match self.resident.get(index) {
            Some(slot) => Some(&slot.state),
            None => self.word(index),
        }
    }

    /// The state word of the slot at `index`, which lies in a block. `None` if the slab has no such slot. If `index` is
    /// that of a resident slot which was not added yet, the subtraction wraps to an index without a state word.
    fn word(&self, index: u32) -> Option<&State> {
        self.words.get(index.wrapping_sub(Self::RESIDENT))
    }

    /// A pointer to the slot at `index`. `None` if the slab has no such slot, or the slot has no memory. The pointer is
    /// valid until the memory of the slot is freed.
    #[inline(always)]
    fn slot(&self, index: u32) -> Option<NonNull<Slot<P>>> {
        match self.resident.get(index) {
            Some(slot) => Some(NonNull::from(slot)),
            None => self.find_in_block(index),
        }
    }

    /// [`slot_in_block`](Self::slot_in_block), compiled apart, so that the callers of [`slot`](Self::slot) stay small.
    #[cold]
    #[inline(never)]
    fn find_in_block(&self, index: u32) -> Option<NonNull<Slot<P>>> {
        self.slot_in_block(index)
    }

    /// Does the same as [`slot`](Self::slot) for a slot that lies in a block.
    #[inline(always)]
    fn slot_in_block(&self, index: u32) -> Option<NonNull<Slot<P>>> {
        let (block, offset) = Self::in_block(index);
        self.blocks.get(block)?.get(offset)
    }

    /// The slot at `index`, and its state word. `None` if the slab has no such slot, or the slot has no memory.
    ///
    /// # Safety
    /// The memory of the slot must not be freed while the result is used. The memory of a block is freed only under the
    /// lock, by a call that puts a slot back or frees the spare block. So either the slot must be taken (not vacant)
    /// while the result is used, or the caller must have the lock and make no such call.
    #[inline(always)]
    unsafe fn place(&self, index: u32) -> Option<Place<'_, P>> {
        match self.resident.get(index) {
            Some(slot) => Some(Place::resident(slot)),
            // SAFETY: this function has the same contract as `place_in_block`.
            None => unsafe { self.place_in_block(index) },
        }
    }

    /// Does the same as [`place`](Self::place) for a slot that lies in a block.
    ///
    /// # Safety
    /// The same contract as that of [`place`](Self::place).
    #[cold]
    #[inline(never)]
    unsafe fn place_in_block(&self, index: u32) -> Option<Place<'_, P>> {
        let slot = self.slot_in_block(index)?;
        let state = self.word(index)?;
        // SAFETY: slot and state word have the same index. The block has memory now, and keeps it as long as the caller
        // uses the result, by the contract of this function.
        Some(unsafe { Place::in_block(slot, state) })
    }

    /// The number of the block that has the slot at `index`, and the offset of the slot in that block.
    fn in_block(index: u32) -> (u32, u32) {
        // An index below `RESIDENT` belongs to a resident slot (one of the first slots, which lie in no block). For
        // such an index, the subtraction wraps to a block that does not exist.
        let number = index.wrapping_sub(Self::RESIDENT);
        (number / Self::BLOCK, number % Self::BLOCK)
    }

    /// Whether the operation at `at` is parked (held or not). `false` if it has ended.
    pub(crate) fn is_parked(&self, at: Address) -> bool {
        let state = self.state(at.index());
        state.is_some_and(|state| state.is_parked(at.generation()))
    }

    /// The address of the operation in the slot at `index`. `None` if no operation is parked there.
    pub(crate) fn occupant(&self, index: u32) -> Option<Address> {
        let generation = self.state(index)?.occupant()?;
        Some(Address::new(self.shard, index, generation))
    }

    /// Loads into the processor's cache the slots that the caller is about to free. The slots lie far apart, so each
    /// load misses the cache. In a loop of their own, the loads overlap instead of waiting for one another.
    pub(crate) fn prefetch(&self, ended: &[EndedSlot]) {
        for ended in ended {
            let link = self.slot(ended.at.index()).map(|slot| {
                // SAFETY: `ended` proves that the slot is not vacant yet, so the slot keeps its memory during this
                // call.
                let slot = unsafe { slot.as_ref() };
                // ORDERING: Relaxed: the load only fetches the cache line, and its value is not used.
                slot.link.load(Ordering::Relaxed)
            });
            // The black box keeps the compiler from removing the load.
            std::hint::black_box(link);
            if let Some(record) = self.records.get(Self::in_block(ended.at.index()).0) {
                record.prefetch();
            }
        }
    }

    /// The addresses of the operations that are parked now. The result may or may not have an operation that is parked
    /// or ended meanwhile.
    pub(crate) fn occupants(&self) -> impl Iterator<Item = Address> + '_ {
        (0..self.used()).filter_map(|index| self.occupant(index))
    }

    /// The number of slots that were ever added: one more than the highest index.
    pub(crate) fn used(&self) -> u32 {
        match self.words.len() {
            0 => self.resident.len(),
            others => Self::RESIDENT + others,
        }
    }

    /// For the loom models: the number of slots on the remote free list.
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
        self.slot(index).map_or(0, |slot| {
            // SAFETY: `ended` is a token of this slab: a proof that the slot is taken (not vacant), and so has memory.
            // After the call of `push` below, another thread may make the slot vacant, but this call does not use the
            // slot any more.
            let slot = unsafe { slot.as_ref() };
            self.remote.push(index, &slot.link)
        })
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

/// Whether the slot of the operation `ended` may get another occupant. `false` if the slot has had its last generation.
/// With another occupant, its generations would begin again, and a stale address could name the new occupant.
#[inline(always)]
fn can_be_filled_again(ended: Address) -> bool {
    ended.generation() != LAST_GENERATION
}

/// Proof that this thread has the slab's lock. The destructor releases the lock.
pub(crate) struct SlabGuard<'a, P, G> {
    slab: &'a Slab<P, G>,
    locked: MutexGuard<'a, Locked<G>>,
}

impl<'a, P, G> SlabGuard<'a, P, G> {
    /// Borrows two things that the lock guards, for use at the same time: the data `G`, and the timer fields of the
    /// slots.
    pub(crate) fn split(&mut self) -> (&mut G, FieldsView<'_, P, G>) {
        let fields = FieldsView { slab: self.slab };
        (&mut self.locked.beside, fields)
    }

    /// Whether no slot is vacant, and none can be added because the slab would have more than `limit` slots. Slots in
    /// blocks are added a whole block at a time, so a slab may be full with fewer than `limit` slots.
    #[inline(always)]
    pub(crate) fn is_full(&self, limit: u32) -> bool {
        self.locked.free == NIL && !self.locked.vacancies.any() && !self.may_add(limit)
    }

    /// Whether the slab may have more slots than it has.
    #[cold]
    #[inline(never)]
    fn may_add(&self, limit: u32) -> bool {
        let resident = self.slab.resident.len();
        match resident < Slab::<P, G>::RESIDENT {
            true => resident < limit,
            false => limit.saturating_sub(self.slab.used()) >= Slab::<P, G>::BLOCK,
        }
    }

    /// Takes a vacant slot: a resident slot (one of the first slots, whose memory is never freed) if one is vacant,
    /// else a slot in a block. Adds a slot if none is vacant. `None` if the slab [is full](Self::is_full).
    #[inline(always)]
    pub(crate) fn take_vacant(&mut self, limit: u32) -> Option<Vacant<'a, P>> {
        if self.locked.free == NIL {
            return self.take_beyond(limit);
        }
        let index = self.locked.free;
        let slot = self.slab.resident.get(index)?;
        // ORDERING: Relaxed: the link of a vacant resident slot is written and read only under this lock.
        self.locked.free = slot.link.load(Ordering::Relaxed);
        let place = Place::resident(slot);
        Some(Vacant { place, index })
    }

    /// Takes a slot when no resident slot (one of the first slots, whose memory is never freed) is vacant: a slot of a
    /// block. If no slot of a block is vacant either, adds a resident slot, or, if the slab has all its resident slots, a
    /// block. `None` if the slab [is full](Self::is_full).
    #[cold]
    #[inline(never)]
    fn take_beyond(&mut self, limit: u32) -> Option<Vacant<'a, P>> {
        let slab = self.slab;
        if !self.locked.vacancies.any() {
            if !self.may_add(limit) {
                return None;
            }
            if slab.resident.len() < Slab::<P, G>::RESIDENT {
                return self.add_resident();
            }
            self.add_block();
        }
        let number = self.locked.vacancies.first();
        let block = slab.blocks.get(number)?;
        let first = number * Slab::<P, G>::BLOCK;
        if !block.is_made() {
            // SAFETY: `is_made` has found no memory. This thread has the lock, and the memory of blocks is allocated
            // and freed only under the lock. No slot of this block is taken, so no thread uses one before this call
            // returns it.
            unsafe { block.make(Slot::vacant) };
            let made = &mut self.locked.made;
            *made = made.saturating_add(Slab::<P, G>::BLOCK);
        }
        let offset = self.locked.vacancies.take(&slab.records)?;
        let index = Slab::<P, G>::RESIDENT + first + offset;
        // SAFETY: `vacancies.take` has taken the slot, and a taken slot keeps its memory. The `Vacant` made below is
        // the slot's token (the proof that its owner may use the slot), and the slot stays taken as long as it has a
        // token.
        let place = unsafe { slab.place_in_block(index)? };
        Some(Vacant { place, index })
    }

    /// Adds a resident slot (one of the first slots, whose memory is never freed), and takes it. Adds one slot only: to
    /// put all slots of a fresh chunk on the free list would take time in proportion to the size of the chunk, and
    /// other threads would wait for the lock that long.
    #[inline(always)]
    fn add_resident(&mut self) -> Option<Vacant<'a, P>> {
        // SAFETY: the contract of `push` has two parts. No two threads call it at the same time: resident slots are
        // added only here, and this thread has the lock. A slot may be sent from one calling thread to the next:
        // several threads can have `&Slab` only if `P` is `Send`, and then a slot may pass from thread to thread too.
        let index = unsafe { self.slab.resident.push(Slot::vacant()) };
        let place = Place::resident(self.slab.resident.get(index)?);
        Some(Vacant { place, index })
    }

    /// Adds a block, and the state words of its slots, which lie outside the block. Memory for the rest of the slots is
    /// allocated when the first slot of the block is needed.
    fn add_block(&mut self) {
        let slab = self.slab;
        let record = self.locked.vacancies.record();
        // SAFETY: only this function pushes records, and this thread has the lock, so no other thread pushes one now. A
        // record may be sent to another thread, whatever `P` is.
        let number = unsafe { slab.records.push(record) };
        // SAFETY: the contract of `push` has two parts. No two threads call it at the same time: only this function
        // pushes blocks, and this thread has the lock. A block may be sent from one calling thread to the next: several
        // threads can have `&Slab` only if `P` is `Send`, and then a block may pass from thread to thread too.
        unsafe { slab.blocks.push(Block::new()) };
        for _ in 0..Slab::<P, G>::BLOCK {
            // SAFETY: only this function pushes state words, and this thread has the lock, so no other thread pushes
            // one now. A state word may be sent to another thread, whatever `P` is.
            unsafe { slab.words.push(State::vacant()) };
        }
        self.locked.vacancies.add(&slab.records, number);
    }

    /// Moves `payload` into a vacant slot of this slab, and parks it there. The caller becomes the holder of the
    /// operation.
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
            // SAFETY: this thread has the lock. No `FieldsView` exists, because a view would borrow this guard.
            let place = unsafe { &mut *place };
            // Store field by field, each from its register. One wide copy would load what several narrower stores have
            // just written. Such a load has to wait until these stores have reached the cache.
            place.deadline = fields.deadline;
            place.arrived_at = fields.arrived_at;
            place.position = fields.position;
        });
        slot.payload.with_mut(|place| {
            // SAFETY: the slot is vacant, so no thread holds it, and nothing initialised is overwritten. `vacant` was
            // the only token of this slot, so no other thread fills the slot.
            unsafe { (*place).write(payload) };
        });
        let generation = place.state().occupy();
        let at = Address::new(self.slab.shard, index, generation);
        Held { place, at }
    }

    /// Makes a slot vacant: puts a resident slot (one of the first slots, whose memory is never freed) on the free
    /// list, and any other slot back into its [`Block`]. The caller has consumed the slot's token (the one value that
    /// allows its owner to free the slot), so the slot is freed once.
    #[inline(always)]
    fn list(&mut self, place: Place<'a, P>, index: u32) {
        if index >= Slab::<P, G>::RESIDENT {
            return self.list_in_block(index);
        }
        self.list_resident(place.slot(), index);
    }

    #[inline(always)]
    fn list_resident(&mut self, slot: &Slot<P>, index: u32) {
        // ORDERING: Relaxed: the link of a vacant resident slot is written and read only under this lock.
        slot.link.store(self.locked.free, Ordering::Relaxed);
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

    /// Puts back a slot that was taken, but not filled.
    #[inline(always)]
    pub(crate) fn put_back(&mut self, vacant: Vacant<'a, P>) {
        self.list(vacant.place, vacant.index);
    }

    /// Frees the memory of the block with this number. The caller has listed the block as absent in `vacancies`.
    fn free(&mut self, number: u32) {
        let Some(block) = self.slab.blocks.get(number) else {
            return;
        };
        #[cfg(request_purgatory_loom)]
        for slot in (0..Block::<Slot<P>>::LEN).filter_map(|offset| block.get(offset)) {
            // SAFETY: as for `block.free` below, no thread uses the slot any more, and its memory is not freed yet. By
            // these two accesses, loom checks that all uses of the slot happen before its memory is freed.
            let slot = unsafe { slot.as_ref() };
            slot.fields.with_mut(|_| ());
            slot.payload.with_mut(|_| ());
        }
        // SAFETY: this thread has the lock, and the memory of blocks is allocated and freed only under the lock. All
        // slots of the block have been put back, so no token (a value that lets its owner use a slot) of any of them
        // exists. No `FieldsView` (access to the timer fields) exists, because a view would borrow this guard. Every
        // use of a slot happens before this call, because one of these is true:
        //
        // * The use was made under this lock.
        // * After the use, the using thread has pushed the slot on the remote free list (slots that threads without the
        //   lock leave to a holder of the lock), and a holder of this lock has acquired the push.
        unsafe { block.free() };
    }

    /// Whether memory for [`MANY`] slots in blocks was allocated since this method last returned `true`. If so, the
    /// timing wheel of the timer shard may have become large too.
    pub(crate) fn has_grown(&mut self) -> bool {
        let has_grown = self.locked.made >= MANY;
        if has_grown {
            self.locked.made = 0;
        }
        has_grown
    }

    /// Frees the memory of the spare block, if there is one: an empty block that keeps its memory for the next
    /// operation.
    pub(crate) fn free_spare(&mut self) {
        if let Some(number) = self.locked.vacancies.give_up_spare(&self.slab.records) {
            self.free(number);
        }
    }

    /// The position of the timer of an operation in the timing wheel. The operation has ended and was moved out of its
    /// slot, but the slot still stores this position.
    #[inline(always)]
    pub(crate) fn position_of(&mut self, spent: &Spent<'a, P>) -> u32 {
        spent.place.slot().fields.with_mut(|fields| {
            // SAFETY: this thread has the lock. No `FieldsView` exists, because a view would borrow this guard.
            unsafe { (*fields).position }
        })
    }

    /// Makes a slot vacant again, after its operation has ended and was moved out. If the slot has had its last
    /// generation, it stays taken for ever instead.
    #[inline(always)]
    pub(crate) fn put_back_spent(&mut self, spent: Spent<'a, P>) {
        let Spent { place, at } = spent;
        if can_be_filled_again(at) {
            self.list(place, at.index());
        }
    }

    /// Does the same as [`put_back_spent`](Self::put_back_spent) for an [`EndedSlot`]. This token (a proof that its
    /// owner may use the slot) has only the slot's address, and no pointer to the slot.
    #[inline(always)]
    pub(crate) fn put_back_ended(&mut self, ended: EndedSlot) {
        debug_assert_eq!(ended.at.shard(), self.slab.shard);
        if can_be_filled_again(ended.at) {
            let index = ended.at.index();
            match self.slab.resident.get(index) {
                Some(slot) => self.list_resident(slot, index),
                None => self.list_in_block(index),
            }
        }
    }

    /// Takes one slot off the remote free list, where threads without the lock leave the slots of ended operations.
    /// `None` if the list is empty. The caller must [put the slot back](Self::put_back_ended), to make it vacant.
    #[inline(always)]
    pub(crate) fn next_remote(&mut self) -> Option<EndedSlot> {
        if self.locked.chain == NIL {
            self.locked.chain = self.slab.remote.take_all();
            if self.locked.chain == NIL {
                return None;
            }
        }
        let index = self.locked.chain;
        // SAFETY: a slot of the chain (the slots that came off the remote free list) keeps its memory until it is put
        // back. That happens only after this call, by the token that this call returns.
        let place = unsafe { self.slab.place(index)? };
        // ORDERING: Relaxed: this thread or an earlier holder of the lock has called `take_all`, which has acquired all
        // links of the chain. The lock orders that call before this load.
        self.locked.chain = place.slot().link.load(Ordering::Relaxed);
        let generation = place.state().last_generation();
        let at = Address::new(self.slab.shard, index, generation);
        Some(EndedSlot { at })
    }
}

/// Access to the timer fields of a slab's slots. Lives no longer than the lock is held.
pub(crate) struct FieldsView<'g, P, G> {
    slab: &'g Slab<P, G>,
}

impl<P, G> FieldsView<'_, P, G> {
    /// The slot at `index`. `None` if the slab has no such slot, or the slot has no memory.
    #[inline(always)]
    fn slot(&self, index: u32) -> Option<&Slot<P>> {
        let slot = self.slab.slot(index)?;
        // SAFETY: this `FieldsView` exclusively borrows the `SlabGuard`, which holds the lock. Memory of a block is
        // freed only by methods that need `&mut` of the guard: those that put a slot back, or free the spare block.
        // None of them can be called while the view exists. So the slot keeps its memory for as long as the view
        // exists, and the result borrows the view.
        Some(unsafe { slot.as_ref() })
    }

    /// Loads into the processor's cache the timer fields and the state words of slots that the caller is about to use.
    /// The slots lie far apart, so each load misses the cache. In a loop of their own, the loads overlap instead of
    /// waiting for one another.
    pub(crate) fn prefetch(&self, indices: impl Iterator<Item = u32>) {
        for index in indices {
            let occupant = self.slab.occupant(index);
            // The fields of a resident slot (one of the first slots) lie beside its state word, which `occupant` has
            // just loaded. All other slots lie in blocks, apart from their state words, and need a second load.
            let position = (index >= Slot::<P>::RESIDENT).then(|| self.read(index).position);
            std::hint::black_box((occupant, position));
        }
    }

    /// The timer fields of the slot at `index`. All fields are zero if the slab has no such slot, or the slot has no
    /// memory.
    #[inline(always)]
    pub(crate) fn read(&self, index: u32) -> Fields {
        match self.slot(index) {
            Some(slot) => slot.fields.with_mut(|fields| {
                // SAFETY: this view borrows the guard exclusively, so the lock is held, and there is no other view. The
                // fields are written only through `&mut` of the guard or of the view. No code has either while this
                // call borrows the view.
                unsafe { *fields }
            }),
            None => Fields::default(),
        }
    }

    /// Changes the timer fields of the slot at `index`. Does nothing if the slab has no such slot, or the slot has no
    /// memory.
    #[inline(always)]
    pub(crate) fn update(&mut self, index: u32, change: impl FnOnce(&mut Fields)) {
        if let Some(slot) = self.slot(index) {
            slot.fields.with_mut(|fields| {
                // SAFETY: a view borrows its guard exclusively, so the lock is held and there is only one view. This
                // call borrows that view exclusively.
                change(unsafe { &mut *fields });
            });
        }
    }
}
