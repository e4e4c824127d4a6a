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
//! Slots lie in [`Chunks`]: they never move and live as long as the slab, so any thread may follow any index, however
//! stale. The generation in the state word tells the occupants of a slot apart.
//!
//! The stages of an occupant are tokens that consume one another: [`Held`], then [`Ended`] (its addresses are stale, and
//! it is still in its slot), then [`Spent`] (it was moved out). While an operation is ended in place, the generation in
//! the state word is already that of the next occupant. That is sound because the slot is on no free list, so no thread
//! can fill it, and no address names it, so no thread can claim it.
//!
//! A spent slot goes back under the lock ([`SlabGuard::put_back_spent`]) or, by a thread without it, as an [`EndedSlot`]
//! by [`Slab::push_remote`], which pushes it on the [`RemoteList`] for a later holder of the lock. Tokens ([`Vacant`],
//! [`Spent`], [`EndedSlot`]) go back to the slab that gave them out.
#![allow(unsafe_code)]
#![allow(unreachable_pub, reason = "the models see it")]

use super::chunks::Chunks;
use super::remote::{NIL, RemoteList};
use super::state::{Claim, Mark, State, Unreleased};
use crate::callbacks::examining::Examinee;
use crate::cell::address::Address;
use crate::sync::{CachePadded, Mutex, MutexGuard, Ordering, UnsafeCell};
use std::mem::{ManuallyDrop, MaybeUninit};
use std::ptr;
use std::sync::atomic::AtomicU32 as Link;

/// The timer's fields of each slot, under the slab's lock. Packed, so that no room is lost between them and the link
/// beside them: with a payload of half a cache line, a slot is one line.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C, packed(4))]
pub(crate) struct Fields {
    /// The tick at which the operation is due.
    pub(crate) deadline: u64,
    /// The tick at which the operation arrived.
    pub(crate) arrived_at: u64,
    /// The position of the operation's timer in the wheel.
    pub(crate) position: u32,
}

struct Slot<P> {
    state: State,
    fields: UnsafeCell<Fields>,
    /// Not modelled by loom: all its uses are Relaxed, and the lock or the word that orders them is modelled.
    link: Link,
    payload: UnsafeCell<MaybeUninit<P>>,
}

/// Slots for payloads `P`, with `G` beside them under the same lock.
pub(crate) struct Slab<P, G> {
    /// The table of the slots' chunks. Every check of an operation reads it, and only the growth of the slab writes it.
    slots: Chunks<Slot<P>>,
    /// The number of the slab's timer shard.
    shard: usize,
    // These two are written by every park, and have cache lines of their own.
    remote: CachePadded<RemoteList>,
    locked: CachePadded<Mutex<Locked<G>>>,
}

struct Locked<G> {
    free: u32,
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
    /// The slots of the timer shard with this number.
    pub(crate) fn new(shard: usize, beside: G) -> Self {
        Self {
            slots: Chunks::new(),
            shard,
            remote: CachePadded::new(RemoteList::new()),
            locked: CachePadded::new(Mutex::new(Locked {
                free: NIL,
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
        let slot = self.slots.get(at.index())?;
        let hold = || Held { slot, at };
        (slot.state.claim_or_mark(at.generation(), mark) == Claim::Held).then(hold)
    }

    /// Whether the operation that `at` names has not ended.
    pub(crate) fn is_parked(&self, at: Address) -> bool {
        self.slots
            .get(at.index())
            .is_some_and(|slot| slot.state.is_parked(at.generation()))
    }

    /// The operation in the slot at `index`, if it has not ended.
    pub(crate) fn occupant(&self, index: u32) -> Option<Address> {
        let generation = self.slots.get(index)?.state.occupant()?;
        Some(Address::new(self.shard, index, generation))
    }

    /// Loads the slots at `indices`, which the caller is about to work on one after another. They lie far apart; loads
    /// in a loop of their own overlap instead of waiting for one another.
    pub(crate) fn prefetch(&self, indices: impl Iterator<Item = u32>) {
        for index in indices {
            std::hint::black_box(self.occupant(index));
        }
    }

    /// The operations in the slab now.
    pub(crate) fn occupants(&self) -> impl Iterator<Item = Address> + '_ {
        (0..self.used()).filter_map(|index| self.occupant(index))
    }

    /// One more than the highest index ever used.
    pub(crate) fn used(&self) -> u32 {
        self.slots.len()
    }

    /// For models: how many slots wait on the remote free list.
    #[cfg(request_purgatory_loom)]
    pub(crate) fn waiting(&self) -> u32 {
        self.remote.len()
    }

    /// For tests: ages the vacant slot at `index`, as if it had had this many occupants.
    #[cfg(all(test, not(request_purgatory_loom)))]
    pub(super) fn age(&self, index: u32, occupants: u32) {
        if let Some(slot) = self.slots.get(index) {
            slot.state.skip_to_generation(occupants);
        }
    }

    /// Leaves an ended slot for a later holder of the lock. Returns how many slots are on the remote free list.
    pub(crate) fn push_remote(&self, ended: EndedSlot) -> usize {
        let index = ended.at.index();
        let slot = self.slots.get(index);
        slot.map_or(0, |slot| self.remote.push(index, &slot.link))
    }

    /// For tests: the memory of the first chunk.
    #[cfg(all(test, not(request_purgatory_loom)))]
    pub(super) fn layout() -> std::alloc::Layout {
        Chunks::<Slot<P>>::layout(0)
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

/// Exclusive access to the operation in one slot.
///
/// Must be [released](Held::release) or [ended](Held::end); otherwise no thread can end the operation any more. In a
/// build with debug assertions, the destructor panics.
#[must_use = "an operation that is neither released nor ended stays held"]
pub struct Held<'a, P> {
    slot: &'a Slot<P>,
    at: Address,
}

impl<'a, P> Held<'a, P> {
    /// The address of the held operation.
    #[inline]
    pub(crate) fn address(&self) -> Address {
        self.at
    }

    /// Names the operation, unique across all slabs.
    pub(crate) fn examinee(&self) -> Examinee {
        Examinee {
            slot: ptr::from_ref(self.slot).addr(),
            generation: self.at.generation(),
        }
    }

    #[inline(always)]
    pub fn with<R>(&mut self, access: impl FnOnce(&mut P) -> R) -> R {
        self.slot.payload.with_mut(|payload| {
            // SAFETY: `self` is the only proof of holding this slot, and borrowed exclusively; the payload is
            // initialised from `fill` until `end`, which consumes the proof.
            access(unsafe { &mut *payload.cast::<P>() })
        })
    }

    /// Releases the operation, unless another thread has left a mark. `Ok(false)`: there was no mark. `Ok(true)`: the
    /// only mark asks for another examination, for which the caller must arrange, because it will not `examine_again`.
    /// `Err`: the caller still holds the operation, and acts on the mark.
    #[inline(always)]
    pub fn release(self, examine_again: bool) -> Result<bool, (Self, Unreleased)> {
        match self.slot.state.release(self.at.generation(), examine_again) {
            Ok(unexamined) => {
                let _used_up = ManuallyDrop::new(self);
                Ok(unexamined)
            }
            Err(unreleased) => Err((self, unreleased)),
        }
    }

    /// Removes the mark that the deadline has passed, for an operation that gets another deadline.
    #[cold]
    pub(crate) fn forget_expiry(&mut self) {
        self.slot.state.forget_expiry();
    }

    /// Ends the operation: every address of it is stale from now on. It stays in its slot until it is
    /// [taken](Ended::take).
    #[inline(always)]
    pub(crate) fn end_in_place(self) -> Ended<'a, P> {
        let held = ManuallyDrop::new(self);
        held.slot.state.end(held.at.generation());
        Ended {
            slot: held.slot,
            at: held.at,
        }
    }

    /// Ends the operation, and moves it out at once.
    #[inline(always)]
    pub(crate) fn end(self) -> (P, Spent<'a, P>) {
        self.end_in_place().take()
    }
}

/// An operation that this thread has ended, still in its slot.
///
/// Must be [taken](Self::take); otherwise its slot is lost. In a build with debug assertions, the destructor panics.
#[must_use = "an ended operation that is not taken is lost, with its slot"]
pub(crate) struct Ended<'a, P> {
    slot: &'a Slot<P>,
    at: Address,
}

impl<'a, P> Ended<'a, P> {
    /// The address under which the operation was parked.
    #[inline(always)]
    pub(crate) fn address(&self) -> Address {
        self.at
    }

    #[inline(always)]
    pub(crate) fn with<R>(&self, access: impl FnOnce(&P) -> R) -> R {
        self.slot.payload.with_mut(|payload| {
            // SAFETY: this thread was the holder when it made `self`, which is the only proof of the ending. No other
            // thread gets the slot before it is on a free list, where `take` alone leads. So the payload is
            // initialised, and ours.
            access(unsafe { &*payload.cast::<P>() })
        })
    }

    /// Moves the operation out of its slot.
    #[inline(always)]
    pub(crate) fn take(self) -> (P, Spent<'a, P>) {
        let ended = ManuallyDrop::new(self);
        let payload = ended.slot.payload.with_mut(|payload| {
            // SAFETY: initialised, and ours alone, as in `with`; `self` is consumed, so it is read once.
            unsafe { payload.cast::<P>().read() }
        });
        let spent = Spent {
            slot: ended.slot,
            at: ended.at,
        };
        (payload, spent)
    }
}

#[cfg(debug_assertions)]
impl<P> Drop for Held<'_, P> {
    fn drop(&mut self) {
        assert!(
            std::thread::panicking(),
            "an operation in slot {} was neither released nor ended",
            self.at.index()
        );
    }
}

#[cfg(debug_assertions)]
impl<P> Drop for Ended<'_, P> {
    fn drop(&mut self) {
        assert!(
            std::thread::panicking(),
            "an ended operation was not taken out of slot {}",
            self.at.index()
        );
    }
}

/// The slot of an operation that has ended and was taken out, on its way back to the free list of its slab.
#[must_use = "a slot that is not given back is lost"]
pub(crate) struct Spent<'a, P> {
    slot: &'a Slot<P>,
    at: Address,
}

impl<P> Spent<'_, P> {
    /// Detaches the token from the slot's memory, for a slot that is given back later.
    #[inline(always)]
    pub(crate) fn detach(self) -> EndedSlot {
        EndedSlot { at: self.at }
    }
}

/// A slot without an occupant, off the free list.
#[must_use = "a vacant slot that is neither filled nor put back is lost"]
pub(crate) struct Vacant<'a, P> {
    slot: &'a Slot<P>,
    index: u32,
}

impl<P> Vacant<'_, P> {
    pub(crate) fn index(&self) -> u32 {
        self.index
    }
}

/// An ended slot on its way back to the free list.
#[must_use = "a slot that is not given back is lost"]
pub(crate) struct EndedSlot {
    at: Address,
}

impl EndedSlot {
    /// The address of the ended operation. For a slot from the remote free list, only the slot's part of the address is
    /// known.
    #[inline]
    pub(crate) fn address(&self) -> Address {
        self.at
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

    /// Whether `limit` slots exist, and none is on the free list.
    #[inline(always)]
    pub(crate) fn is_full(&self, limit: u32) -> bool {
        self.locked.free == NIL && self.slab.used() >= limit
    }

    /// Takes a vacant slot off the free list. `None` if `limit` slots exist and none is free.
    #[inline(always)]
    pub(crate) fn take_vacant(&mut self, limit: u32) -> Option<Vacant<'a, P>> {
        if self.is_full(limit) {
            return None;
        }
        if self.locked.free == NIL {
            self.add_slot();
        }
        let index = self.locked.free;
        let slot = self.slab.slots.get(index)?;
        // ORDERING: Relaxed: the link was written under this lock.
        self.locked.free = slot.link.load(Ordering::Relaxed);
        Some(Vacant { slot, index })
    }

    /// Moves `payload` into a vacant slot of this slab. The caller holds the new occupant.
    #[inline(always)]
    pub(crate) fn fill(
        &mut self,
        vacant: Vacant<'a, P>,
        payload: P,
        fields: Fields,
    ) -> Held<'a, P> {
        let Vacant { slot, index } = vacant;
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
            // SAFETY: the slot is vacant, so no thread holds it, and nothing initialised is overwritten; `vacant` was
            // the only token of it, so no other thread fills the same slot.
            unsafe { (*place).write(payload) };
        });
        let generation = slot.state.occupy();
        let at = Address::new(self.slab.shard, index, generation);
        Held { slot, at }
    }

    /// Puts a vacant slot back on the free list.
    #[inline(always)]
    pub(crate) fn put_back(&mut self, vacant: Vacant<'a, P>) {
        // ORDERING: Relaxed: read under this lock only.
        vacant.slot.link.store(self.locked.free, Ordering::Relaxed);
        self.locked.free = vacant.index;
    }

    /// The timer's position in a spent slot of this slab.
    #[inline(always)]
    pub(crate) fn position_of(&mut self, spent: &Spent<'a, P>) -> u32 {
        spent.slot.fields.with_mut(|fields| {
            // SAFETY: we have the lock, and no `FieldsView` is out: it would borrow this guard.
            unsafe { (*fields).position }
        })
    }

    /// Puts a spent slot of this slab on the free list, unless it has had its last generation.
    #[inline(always)]
    pub(crate) fn put_back_spent(&mut self, spent: Spent<'a, P>) {
        let Spent { slot, at } = spent;
        if !slot.state.is_retired() {
            let index = at.index();
            self.put_back(Vacant { slot, index });
        }
    }

    /// Turns the ended slot into a vacant one; `None` after its last generation.
    #[inline(always)]
    pub(crate) fn reuse(&self, ended: EndedSlot) -> Option<Vacant<'a, P>> {
        let index = ended.at.index();
        let slot = self.slab.slots.get(index)?;
        (!slot.state.is_retired()).then_some(Vacant { slot, index })
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
        // ORDERING: Relaxed: the whole chain was acquired with its first link, by this holder of the lock or another.
        self.locked.chain = self.slab.slots.get(index)?.link.load(Ordering::Relaxed);
        let at = Address::new(self.slab.shard, index, 0);
        Some(EndedSlot { at })
    }

    /// Adds one slot, which becomes the free list. A fresh chunk gets no free list: building one under the lock would
    /// take time in proportion to the chunk.
    fn add_slot(&mut self) {
        let vacant = Slot {
            state: State::vacant(),
            fields: UnsafeCell::new(Fields::default()),
            link: Link::new(NIL),
            payload: UnsafeCell::new(MaybeUninit::uninit()),
        };
        // SAFETY: we have the lock, and slots are added here only. A thread that has the lock has `&Slab`, which it
        // gets from another thread only if `P`, and with it the slot, is `Send`.
        self.locked.free = unsafe { self.slab.slots.push(vacant) };
    }
}

/// The timer fields of a slab's slots. Lives no longer than the lock is held.
pub(crate) struct FieldsView<'g, P, G> {
    slab: &'g Slab<P, G>,
}

impl<P, G> FieldsView<'_, P, G> {
    /// The timer fields of the slot at `index`; zeros if it was never used.
    #[inline(always)]
    pub(crate) fn read(&self, index: u32) -> Fields {
        match self.slab.slots.get(index) {
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
        if let Some(slot) = self.slab.slots.get(index) {
            slot.fields.with_mut(|fields| {
                // SAFETY: the lock is held, as in `read`, and the only view is borrowed exclusively.
                change(unsafe { &mut *fields });
            });
        }
    }
}
