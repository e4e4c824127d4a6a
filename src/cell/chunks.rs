//! The memory of the slots: [`Chunks`] only grow, a [`Block`] comes and goes. Nothing in either ever moves. With it a
//! [`Slot`], and the tokens by which a thread has one ([`Held`], [`Ended`], [`Spent`], [`Vacant`], [`EndedSlot`]),
//! whose rules stand at the head of [`slab`](super::slab).
//!
//! # Ground rules
//!
//! An item of [`Chunks`], equal or not, is written once, before its index is below [`len`](Growing::len), and dropped
//! with the storage. In between it is only borrowed shared. So any thread may follow any index at any time, however
//! stale it is. Items are added by one thread at a time: the caller of [`push`](Growing::push) sees to that.
//!
//! The items of a [`Block`] are all written when its memory is made, and gone when the memory is freed. One thread at a
//! time does either, after every use of the items that were there and before every use of those to come: the caller of
//! [`make`](Block::make) and [`free`](Block::free) sees to that. So no thread follows a stale pointer to an item;
//! whether there are items, any thread may ask.
#![allow(unsafe_code)]
#![allow(unreachable_pub, reason = "the models see it")]

use super::remote::NIL;
use super::state::{State, Unreleased};
use crate::callbacks::examining::Examinee;
use crate::cell::address::Address;
use crate::sync::{
    AtomicPtr, AtomicU32, BLOCK, CHUNKS, FIRST_CHUNK, Ordering, RESIDENT_CHUNK, RESIDENT_CHUNKS,
    UnsafeCell, last_pointer,
};
use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::marker::PhantomData;
use std::mem::{ManuallyDrop, MaybeUninit, needs_drop};
use std::ptr::{self, NonNull};
use std::sync::atomic::AtomicU32 as Link;

/// Size of a cache line. On a processor with another size, this is only slower.
const LINE: usize = 64;
/// The items of a block take at most this many bytes, unless one of them takes more.
const PAGE: usize = 4_096;

/// Chunk `c` has room for `FIRST_CHUNK << c` items: few chunks for any number of items.
pub(super) type Chunks<T> = Growing<T, CHUNKS, true>;

/// Each chunk has room for `RESIDENT_CHUNK` items, which are found in fewer steps.
pub(super) type EqualChunks<T> = Growing<T, RESIDENT_CHUNKS, false>;

/// Items in chunks, each written once: see [`Chunks`] and [`EqualChunks`].
pub(super) struct Growing<T, const CHUNKS: usize, const DOUBLING: bool> {
    /// Null where there is none yet.
    chunks: [AtomicPtr<T>; CHUNKS],
    /// Items below this index are written.
    len: AtomicU32,
    items: PhantomData<T>,
}

impl<T, const CHUNKS: usize, const DOUBLING: bool> Growing<T, CHUNKS, DOUBLING> {
    pub(super) fn new() -> Self {
        Self {
            chunks: std::array::from_fn(|_| AtomicPtr::new(ptr::null_mut())),
            len: AtomicU32::new(0),
            items: PhantomData,
        }
    }

    /// One more than the highest index.
    pub(super) fn len(&self) -> u32 {
        // ORDERING: Acquire, as in `get`.
        self.len.load(Ordering::Acquire)
    }

    #[inline(always)]
    pub(super) fn get(&self, index: u32) -> Option<&T> {
        // ORDERING: Acquire pairs with the Release in `push`: an item below this index is written, and its chunk known.
        if index >= self.len.load(Ordering::Acquire) {
            return None;
        }
        let (chunk, offset) = Self::locate(index);
        // SAFETY: `push` has found the chunk of every item below `len` in the table.
        let chunk = unsafe { self.chunks.get_unchecked(chunk) };
        // ORDERING: Relaxed: published by `len`.
        let chunk = chunk.load(Ordering::Relaxed);
        if cfg!(any(debug_assertions, request_purgatory_loom)) {
            assert!(!chunk.is_null(), "an item below `len` is in a chunk");
        }
        // SAFETY: `locate` keeps the offset inside the chunk, which `push` allocated.
        let item = unsafe { chunk.add(offset) };
        // SAFETY: the item is below `len`, so `push` has written it. From then on the item is only borrowed shared,
        // until the storage is dropped, which the result does not outlive.
        Some(unsafe { &*item })
    }

    /// Adds an item, and returns its index.
    ///
    /// # Safety
    /// No other thread calls this at the same time. If several threads call it, one after another, `T` is `Send`.
    pub(super) unsafe fn push(&self, item: T) -> u32 {
        let index = self.len();
        let (number, offset) = Self::locate(index);
        // ORDERING: Relaxed on both: only the adding thread reads the pointer before `len` publishes it.
        let mut chunk = self.chunks[number].load(Ordering::Relaxed);
        if chunk.is_null() {
            chunk = allocate(Self::room(number));
            self.chunks[number].store(chunk, Ordering::Relaxed);
        }
        // SAFETY: `locate` keeps the offset inside the chunk.
        let place = unsafe { chunk.add(offset) };
        // SAFETY: `place` is memory for an item. No other thread writes it, by the contract of this function; no thread
        // reads an item that is not below `len`.
        unsafe { place.write(item) };
        // ORDERING: Release pairs with the Acquire in `get`.
        self.len.store(index + 1, Ordering::Release);
        index
    }

    /// The memory of a chunk.
    pub(super) fn layout(chunk: usize) -> Layout {
        layout::<T>(Self::room(chunk))
    }

    /// The number of items in a chunk.
    fn room(chunk: usize) -> usize {
        match DOUBLING {
            true => (FIRST_CHUNK as usize) << chunk,
            false => RESIDENT_CHUNK as usize,
        }
    }

    /// The index of the first item in a chunk.
    fn first(chunk: usize) -> u32 {
        match DOUBLING {
            true => FIRST_CHUNK * ((1 << chunk) - 1),
            false => RESIDENT_CHUNK * chunk as u32,
        }
    }

    /// Chunk and offset of an item.
    #[inline(always)]
    fn locate(index: u32) -> (usize, usize) {
        let chunk = match DOUBLING {
            true => (index / FIRST_CHUNK + 1).ilog2(),
            false => index / RESIDENT_CHUNK,
        };
        let chunk = chunk as usize;
        (chunk, (index - Self::first(chunk)) as usize)
    }
}

impl<T, const CHUNKS: usize, const DOUBLING: bool> Drop for Growing<T, CHUNKS, DOUBLING> {
    fn drop(&mut self) {
        let len = self.len();
        for (number, chunk) in self.chunks.iter_mut().enumerate() {
            let chunk = last_pointer(chunk);
            if chunk.is_null() {
                continue;
            }
            if needs_drop::<T>() {
                let written = (len - Self::first(number)) as usize;
                let items = ptr::slice_from_raw_parts_mut(chunk, written.min(Self::room(number)));
                // SAFETY: `push` has written these items, and no thread borrows one: this is the last use of them.
                unsafe { items.drop_in_place() };
            }
            // SAFETY: `push` allocated the chunk with this layout.
            unsafe { dealloc(chunk.cast(), Self::layout(number)) };
        }
    }
}

/// The memory of a few items, which need no drop.
pub(super) struct Block<T> {
    /// Null if there is no memory.
    items: AtomicPtr<T>,
    owned: PhantomData<T>,
}

impl<T> Block<T> {
    /// How many items a block has, a power of two: as many as fit a page. (Where they are large, each has a block of
    /// its own.)
    pub(super) const LEN: u32 = {
        let fit = PAGE / size_of::<T>();
        let len = if fit == 0 { 1 } else { 1 << fit.ilog2() };
        if len < BLOCK {
            len as u32
        } else {
            BLOCK as u32
        }
    };

    pub(super) fn new() -> Self {
        const { assert!(!needs_drop::<T>(), "`free` drops no item") };
        Self {
            items: AtomicPtr::new(ptr::null_mut()),
            owned: PhantomData,
        }
    }

    /// Whether there are items.
    pub(super) fn is_made(&self) -> bool {
        // ORDERING: as in `get`; nothing is read behind the pointer.
        !self.items.load(Ordering::Relaxed).is_null()
    }

    /// The item at `offset`, if there are items. The caller may use it until they are freed.
    pub(super) fn get(&self, offset: u32) -> Option<NonNull<T>> {
        debug_assert!(offset < Self::LEN);
        // ORDERING: Relaxed: by the contracts of `make` and `free`, whoever uses the item comes after the store that
        // made it, and before the one that frees it, so it reads the pointer between the two.
        let first = NonNull::new(self.items.load(Ordering::Relaxed))?;
        NonNull::new(first.as_ptr().wrapping_add(offset as usize))
    }

    /// Allocates memory for the items, and writes them: `item` is told the offset of each.
    ///
    /// # Safety
    /// There is no memory. No other thread calls this or [`free`](Self::free) at the same time; the items are used
    /// after this call only.
    pub(super) unsafe fn make(&self, item: impl Fn(u32) -> T) {
        let first = allocate::<T>(Self::LEN as usize);
        for offset in 0..Self::LEN {
            // SAFETY: the offset is inside the memory just allocated.
            let place = unsafe { first.add(offset as usize) };
            // SAFETY: no other thread knows the memory, and there is no item in it.
            unsafe { place.write(item(offset)) };
        }
        // ORDERING: Relaxed, as in `get`.
        self.items.store(first, Ordering::Relaxed);
    }

    /// Frees the memory.
    ///
    /// # Safety
    /// There is memory. No other thread calls this or [`make`](Self::make) at the same time; every use of an item comes
    /// before this call.
    pub(super) unsafe fn free(&self) {
        // ORDERING: Relaxed on both, as in `get`.
        let items = self.items.load(Ordering::Relaxed);
        self.items.store(ptr::null_mut(), Ordering::Relaxed);
        // SAFETY: `make` allocated it with this layout, and no item is used any more.
        unsafe { dealloc(items.cast(), layout::<T>(Self::LEN as usize)) };
    }
}

impl<T> Drop for Block<T> {
    fn drop(&mut self) {
        let items = last_pointer(&mut self.items);
        if !items.is_null() {
            // SAFETY: `make` allocated it with this layout, and no thread uses an item: the block is not borrowed.
            unsafe { dealloc(items.cast(), layout::<T>(Self::LEN as usize)) };
        }
    }
}

/// The memory of items one after the other. It begins with a cache line, so that few items lie in two lines.
fn layout<T>(items: usize) -> Layout {
    const { assert!(size_of::<T>() > 0) };
    Layout::array::<T>(items)
        .and_then(|layout| layout.align_to(LINE))
        .expect("what the indices can name is smaller than the address space")
}

/// Memory for items.
fn allocate<T>(items: usize) -> *mut T {
    assert_ne!(items, 0);
    let layout = layout::<T>(items);
    // SAFETY: the layout is not of size zero: neither the number of items is, nor their size.
    let memory = unsafe { alloc(layout) }.cast::<T>();
    if memory.is_null() {
        handle_alloc_error(layout);
    }
    memory
}

/// The timer's fields of each slot, under the slab's lock. (Packed, so that no room is lost between it and the link
/// beside it: with a payload of half a cache line, a slot is one line.)
#[derive(Debug, Clone, Copy, Default)]
#[repr(C, packed(4))]
pub(crate) struct Fields {
    /// The tick at which the operation is due.
    pub(crate) deadline: u64,
    /// The tick at which it arrived.
    pub(crate) arrived_at: u64,
    /// Where the wheel filed it.
    pub(crate) position: u32,
}

pub(super) struct Slot<P> {
    word: Word,
    pub(super) fields: UnsafeCell<Fields>,
    /// Not modelled by loom: all its uses are Relaxed, and what orders them is.
    pub(super) link: Link,
    pub(super) payload: UnsafeCell<MaybeUninit<P>>,
}

/// The state word, or where it is.
pub(super) union Word {
    /// Of a resident slot.
    pub(super) here: ManuallyDrop<State>,
    /// Of a slot in a block, which the word outlives.
    pub(super) apart: NonNull<State>,
}

impl<P> Slot<P> {
    pub(super) fn vacant(word: Word) -> Self {
        Self {
            word,
            fields: UnsafeCell::new(Fields::default()),
            link: Link::new(NIL),
            payload: UnsafeCell::new(MaybeUninit::uninit()),
        }
    }

    /// The number of slots that are resident: the first chunks of them, as many as fit a mebibyte. None where a payload
    /// is large.
    pub(super) const RESIDENT: u32 = {
        let chunk = RESIDENT_CHUNK as usize * size_of::<Self>();
        let fit = if chunk > MEBIBYTE {
            0
        } else {
            MEBIBYTE / chunk
        };
        let chunks = if fit < RESIDENT_CHUNKS {
            fit
        } else {
            RESIDENT_CHUNKS
        };
        match size_of::<P>() < LARGE {
            true => RESIDENT_CHUNK * chunks as u32,
            false => 0,
        }
    };

    /// The state word of a resident slot.
    #[inline(always)]
    pub(super) fn state_here(&self) -> &State {
        // SAFETY: made as `here` by `take_beyond`: the caller has this from `Slab::resident`.
        unsafe { &self.word.here }
    }
}

const MEBIBYTE: usize = 1 << 20;
/// The size of a payload that is large.
const LARGE: usize = 1_024;

/// Where a slot is, for a thread that may use it.
pub(super) struct Place<'a, P> {
    pub(super) slot: NonNull<Slot<P>>,
    /// No longer-lived payload may be taken for a shorter-lived one.
    payload: PhantomData<&'a Slot<P>>,
}

impl<P> Clone for Place<'_, P> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<P> Copy for Place<'_, P> {}

impl<'a, P> Place<'a, P> {
    #[inline(always)]
    pub(super) fn resident(slot: &'a Slot<P>) -> Self {
        Self {
            slot: NonNull::from(slot),
            payload: PhantomData,
        }
    }

    pub(super) fn in_block(slot: NonNull<Slot<P>>) -> Self {
        Self {
            slot,
            payload: PhantomData,
        }
    }

    #[inline(always)]
    pub(super) fn slot(&self) -> &Slot<P> {
        // SAFETY: a resident slot lives as long as the slab. Of another one, `Slab::place` demands that it has memory
        // as long as this is used. All slots are written when their memory is made, and only borrowed shared from then
        // on.
        unsafe { self.slot.as_ref() }
    }

    /// The state word of this slot, whose index is this.
    #[inline(always)]
    pub(super) fn state(&self, index: u32) -> &'a State {
        if index < Slot::<P>::RESIDENT {
            let state: *const State = self.slot().state_here();
            // SAFETY: a resident slot lives as long as the slab, which the place does not outlive.
            return unsafe { &*state };
        }
        // SAFETY: made as `apart` by `take_beyond`, by the index.
        let apart = unsafe { self.slot().word.apart };
        // SAFETY: the word lies in `Slab::words`, and lives as long as the slab.
        unsafe { apart.as_ref() }
    }
}

/// Exclusive access to the operation in one slot.
///
/// Must be [released](Held::release) or [ended](Held::end): without, no thread can end the operation any more. In a
/// build with debug assertions, the destructor panics.
#[must_use = "an operation that is neither released nor ended stays held"]
pub struct Held<'a, P> {
    pub(super) place: Place<'a, P>,
    pub(super) at: Address,
}

impl<'a, P> Held<'a, P> {
    /// The operation held.
    #[inline]
    pub(crate) fn address(&self) -> Address {
        self.at
    }

    /// Names the operation among those of all slabs.
    pub(crate) fn examinee(&self) -> Examinee {
        Examinee {
            slot: ptr::from_ref(self.place.state(self.at.index())).addr(),
            generation: self.at.generation(),
        }
    }

    #[inline(always)]
    pub fn with<R>(&mut self, access: impl FnOnce(&mut P) -> R) -> R {
        self.place.slot().payload.with_mut(|payload| {
            // SAFETY: `self` is the only proof of holding this slot, and borrowed exclusively; the payload is
            // initialised from `fill` until `end`, which consumes the proof.
            access(unsafe { &mut *payload.cast::<P>() })
        })
    }

    /// Releases the operation, unless another thread has left a mark. `Ok(false)`: there was none. `Ok(true)`: the mark
    /// asks for another examination only, for which the caller must arrange, because it will not `examine_again`.
    /// `Err`: the caller still holds it, and acts on the mark.
    #[inline(always)]
    pub fn release(self, examine_again: bool) -> Result<bool, (Self, Unreleased)> {
        let state = self.place.state(self.at.index());
        match state.release(self.at.generation(), examine_again) {
            Ok(unexamined) => {
                let _used_up = ManuallyDrop::new(self);
                Ok(unexamined)
            }
            Err(unreleased) => Err((self, unreleased)),
        }
    }

    /// Takes back that its deadline has passed: it gets another one.
    #[cold]
    pub(crate) fn forget_expiry(&mut self) {
        self.place.state(self.at.index()).forget_expiry();
    }

    /// Ends the operation: every address of it is stale from now on. It stays in its slot until it is
    /// [taken](Ended::take).
    #[inline(always)]
    pub(crate) fn end_in_place(self) -> Ended<'a, P> {
        let held = ManuallyDrop::new(self);
        let state = held.place.state(held.at.index());
        state.end(held.at.generation());
        Ended {
            place: held.place,
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
/// Must be [taken](Self::take): without, its slot is lost. In a build with debug assertions, the destructor panics.
#[must_use = "an ended operation that is not taken is lost, with its slot"]
pub(crate) struct Ended<'a, P> {
    pub(super) place: Place<'a, P>,
    pub(super) at: Address,
}

impl<'a, P> Ended<'a, P> {
    /// The address under which it was parked.
    #[inline(always)]
    pub(crate) fn address(&self) -> Address {
        self.at
    }

    #[inline(always)]
    pub(crate) fn with<R>(&self, access: impl FnOnce(&P) -> R) -> R {
        self.place.slot().payload.with_mut(|payload| {
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
        let payload = ended.place.slot().payload.with_mut(|payload| {
            // SAFETY: initialised, and ours alone, as in `with`; `self` is consumed, so it is read once.
            unsafe { payload.cast::<P>().read() }
        });
        let spent = Spent {
            place: ended.place,
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
    pub(super) place: Place<'a, P>,
    pub(super) at: Address,
}

impl<P> Spent<'_, P> {
    /// For a slot that is given back later: the token without the place in memory.
    #[inline(always)]
    pub(crate) fn detach(self) -> EndedSlot {
        EndedSlot { at: self.at }
    }
}

/// A slot without an occupant, off the free list.
#[must_use = "a vacant slot that is neither filled nor put back is lost"]
pub(crate) struct Vacant<'a, P> {
    pub(super) place: Place<'a, P>,
    pub(super) index: u32,
}

impl<P> Vacant<'_, P> {
    pub(crate) fn index(&self) -> u32 {
        self.index
    }
}

/// An ended slot on its way back to the free list.
#[must_use = "a slot that is not given back is lost"]
pub(crate) struct EndedSlot {
    pub(super) at: Address,
}

impl EndedSlot {
    /// The address of the operation that has ended.
    #[inline]
    pub(crate) fn address(&self) -> Address {
        self.at
    }
}
