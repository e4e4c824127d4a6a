//! The memory of the slots, in which nothing ever moves: [`Chunks`], which only grow, and [`Block`]s, whose memory is
//! allocated and freed. This file also has the [`Slot`], and the tokens that prove what a thread may do with a slot
//! ([`Held`], [`Ended`], [`Spent`], [`Vacant`], [`EndedSlot`]). The head of [`slab`](super::slab) has the rules of the
//! tokens.
//!
//! # Ground rules
//!
//! An item of [`Chunks`] or [`EqualChunks`] is written once, before its index is below [`len`](Growing::len), and
//! dropped with the storage. In between, threads only borrow it shared. So any thread may look up any index at any
//! time, even a stale one. Only one thread at a time adds items: the caller of [`push`](Growing::push) ensures that.
//!
//! All items of a [`Block`] are written when its memory is allocated, and are gone when the memory is freed. Only one
//! thread at a time allocates or frees memory. Every use of the items happens after the allocation and before the
//! memory is freed. The caller of [`make`](Block::make) and [`free`](Block::free) ensures this. So no thread follows a
//! stale pointer to an item. Any thread may ask [whether](Block::is_made) a block has memory.
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

/// The size of a cache line. If a processor's lines have another size, the code is only slower.
const LINE: usize = 64;
/// The items of a block take at most this many bytes, unless a single item takes more.
const PAGE: usize = 4_096;

/// Chunks that double in size: chunk `c` has room for `FIRST_CHUNK << c` items. So few chunks hold any number of items.
pub(super) type Chunks<T> = Growing<T, CHUNKS, true>;

/// Chunks with room for `RESIDENT_CHUNK` items each. An item is found in fewer steps than in [`Chunks`].
pub(super) type EqualChunks<T> = Growing<T, RESIDENT_CHUNKS, false>;

/// Items in chunks, each written once: see [`Chunks`] and [`EqualChunks`].
pub(super) struct Growing<T, const CHUNKS: usize, const DOUBLING: bool> {
    /// The memory of each chunk. Null if the chunk is not allocated yet.
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

    /// The number of items, which is one more than the highest index.
    pub(super) fn len(&self) -> u32 {
        // ORDERING: Acquire, as in `get`.
        self.len.load(Ordering::Acquire)
    }

    #[inline(always)]
    pub(super) fn get(&self, index: u32) -> Option<&T> {
        // ORDERING: Acquire pairs with the Release in `push`: for every item below `len`, the write of the item and of
        // the pointer to its chunk happen before this load.
        if index >= self.len.load(Ordering::Acquire) {
            return None;
        }
        let (chunk, offset) = Self::locate(index);
        // SAFETY: the item is below `len`, so `push` has indexed the table by the same chunk number, with a check of
        // the bound.
        let chunk = unsafe { self.chunks.get_unchecked(chunk) };
        // ORDERING: Relaxed: the load of `len` above orders this load after the store of the pointer.
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

    /// The layout of a chunk.
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

/// The memory of a few items. It can be freed and allocated again. The items need no drop.
pub(super) struct Block<T> {
    /// Null if there is no memory.
    items: AtomicPtr<T>,
    owned: PhantomData<T>,
}

impl<T> Block<T> {
    /// The number of items of a block: the highest power of two that fits a page, at most [`BLOCK`]. An item that does
    /// not fit a page twice has a block of its own.
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

    /// Whether the block has memory.
    pub(super) fn is_made(&self) -> bool {
        // ORDERING: Relaxed: this call reads nothing through the pointer.
        !self.items.load(Ordering::Relaxed).is_null()
    }

    /// The item at `offset`, if the block has memory. The caller may use the item until the memory is freed.
    pub(super) fn get(&self, offset: u32) -> Option<NonNull<T>> {
        debug_assert!(offset < Self::LEN);
        // ORDERING: Relaxed. If the caller uses the item, the contracts of `make` and `free` order this load after the
        // store in `make` and before the store in `free`. So it reads the pointer to the present items.
        let first = NonNull::new(self.items.load(Ordering::Relaxed))?;
        NonNull::new(first.as_ptr().wrapping_add(offset as usize))
    }

    /// Allocates memory for the items, and writes them. `item` makes the item for an offset.
    ///
    /// # Safety
    /// The block has no memory. No other thread calls this or [`free`](Self::free) at the same time. Every use of an
    /// item happens after this call.
    pub(super) unsafe fn make(&self, item: impl Fn(u32) -> T) {
        let first = allocate::<T>(Self::LEN as usize);
        for offset in 0..Self::LEN {
            // SAFETY: the offset is inside the memory just allocated.
            let place = unsafe { first.add(offset as usize) };
            // SAFETY: no other thread knows the memory, and there is no item in it.
            unsafe { place.write(item(offset)) };
        }
        // ORDERING: Relaxed, as argued in `get`.
        self.items.store(first, Ordering::Relaxed);
    }

    /// Frees the memory.
    ///
    /// # Safety
    /// The block has memory. No other thread calls this or [`make`](Self::make) at the same time. Every use of an item
    /// happens before this call.
    pub(super) unsafe fn free(&self) {
        // ORDERING: Relaxed on both, as argued in `get`.
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

/// The layout of an array. It begins at the start of a cache line, so that few items lie in two lines.
fn layout<T>(items: usize) -> Layout {
    const { assert!(size_of::<T>() > 0) };
    Layout::array::<T>(items)
        .and_then(|layout| layout.align_to(LINE))
        .expect("what the indices can name is smaller than the address space")
}

/// Allocates memory for this many items.
fn allocate<T>(items: usize) -> *mut T {
    assert_ne!(items, 0);
    let layout = layout::<T>(items);
    // SAFETY: the size of the layout is not zero: this function asserts that there are items, and `layout` that they
    // have a size.
    let memory = unsafe { alloc(layout) }.cast::<T>();
    if memory.is_null() {
        handle_alloc_error(layout);
    }
    memory
}

/// The timer's fields of a slot, used under the slab's lock. Packed, so that there is no padding before the link of the
/// slot: with a payload of half a cache line, a slot fills one line.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C, packed(4))]
pub(crate) struct Fields {
    /// The tick at which the operation is due.
    pub(crate) deadline: u64,
    /// The tick at which the operation arrived.
    pub(crate) arrived_at: u64,
    /// The position in the wheel of the operation's timer.
    pub(crate) position: u32,
}

pub(super) struct Slot<P> {
    word: Word,
    pub(super) fields: UnsafeCell<Fields>,
    /// The next slot on a free list. A std atomic under loom as well: all accesses are Relaxed, and loom sees what
    /// orders them (the lock and the word of the list).
    pub(super) link: Link,
    pub(super) payload: UnsafeCell<MaybeUninit<P>>,
}

/// The state word of a slot, or a pointer to the word.
pub(super) union Word {
    /// The word itself, in a resident slot.
    pub(super) here: ManuallyDrop<State>,
    /// The pointer, in a slot of a block. The word lives longer than the slot.
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

    /// The number of resident slots: as many chunks of them as fit a mebibyte, at most `RESIDENT_CHUNKS`. None if a
    /// payload is [`LARGE`].
    pub(super) const RESIDENT: u32 = {
        if size_of::<P>() >= LARGE {
            0
        } else {
            let fit = MEBIBYTE / (RESIDENT_CHUNK as usize * size_of::<Self>());
            let chunks = if fit < RESIDENT_CHUNKS {
                fit
            } else {
                RESIDENT_CHUNKS
            };
            RESIDENT_CHUNK * chunks as u32
        }
    };

    /// The state word of a resident slot.
    #[inline(always)]
    pub(super) fn state_here(&self) -> &State {
        // SAFETY: the slot is from `Slab::resident`, and `take_beyond` makes each slot there with `here`.
        unsafe { &self.word.here }
    }
}

const MEBIBYTE: usize = 1 << 20;
/// A payload of this many bytes or more counts as large.
const LARGE: usize = 1_024;

/// A pointer to a slot, for a thread that may use the slot.
pub(super) struct Place<'a, P> {
    pub(super) slot: NonNull<Slot<P>>,
    /// Binds the place to the life of the slab. `Slot<P>` is invariant in `P`, so a place of a longer-lived payload
    /// cannot become one of a shorter-lived payload.
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

    /// # Safety
    /// The slot lies in a block of a slab that lives for `'a`. While the result is used, the block has memory.
    pub(super) unsafe fn in_block(slot: NonNull<Slot<P>>) -> Self {
        Self {
            slot,
            payload: PhantomData,
        }
    }

    #[inline(always)]
    pub(super) fn slot(&self) -> &Slot<P> {
        // SAFETY: a resident slot lives as long as the slab. A slot in a block has memory as long as the place is used,
        // by the contract of `in_block`. Every slot is written before there is a place of it, and from then on it is
        // only borrowed shared.
        unsafe { self.slot.as_ref() }
    }

    /// The state word of this slot. `index` is the index of the slot.
    #[inline(always)]
    pub(super) fn state(&self, index: u32) -> &'a State {
        if index < Slot::<P>::RESIDENT {
            let state: *const State = self.slot().state_here();
            // SAFETY: a resident slot lives as long as the slab, and the place does not outlive the slab.
            return unsafe { &*state };
        }
        // SAFETY: the index is not that of a resident slot, so `take_beyond` has made the slot with `apart`.
        let apart = unsafe { self.slot().word.apart };
        // SAFETY: the word lies in `Slab::words`, and lives as long as the slab.
        unsafe { apart.as_ref() }
    }
}

/// Exclusive access to the operation in one slot.
///
/// The owner must [release](Held::release) or [end](Held::end) it. Otherwise no thread can end the operation any more.
/// In a build with debug assertions, the destructor panics.
#[must_use = "an operation that is neither released nor ended stays held"]
pub struct Held<'a, P> {
    pub(super) place: Place<'a, P>,
    pub(super) at: Address,
}

impl<'a, P> Held<'a, P> {
    /// The address of the held operation.
    #[inline]
    pub(crate) fn address(&self) -> Address {
        self.at
    }

    /// Identifies the operation among the operations of all slabs.
    pub(crate) fn examinee(&self) -> Examinee {
        Examinee {
            slot: ptr::from_ref(self.place.state(self.at.index())).addr(),
            generation: self.at.generation(),
        }
    }

    #[inline(always)]
    pub fn with<R>(&mut self, access: impl FnOnce(&mut P) -> R) -> R {
        self.place.slot().payload.with_mut(|payload| {
            // SAFETY: `self` is the only proof that the slot is held, and is borrowed exclusively. `fill` has
            // initialised the payload, and it is moved out only after this proof is consumed.
            access(unsafe { &mut *payload.cast::<P>() })
        })
    }

    /// Releases the operation, unless a mark forbids it.
    ///
    /// `Ok(false)`: released, and there was no mark. `Ok(true)`: released, but a mark asks for another examination, and
    /// the caller must arrange for it. This happens only if `examine_again` is false. `Err`: the caller still holds the
    /// operation, and acts on the mark.
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

    /// Removes the mark which says that the deadline has passed, because the operation gets another deadline.
    #[cold]
    pub(crate) fn forget_expiry(&mut self) {
        self.place.state(self.at.index()).forget_expiry();
    }

    /// Ends the operation: its address is stale from now on. The operation stays in its slot until it is
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
/// The owner must [take](Self::take) it. Otherwise the slot is lost. In a build with debug assertions, the destructor
/// panics.
#[must_use = "an ended operation that is not taken is lost, with its slot"]
pub(crate) struct Ended<'a, P> {
    pub(super) place: Place<'a, P>,
    pub(super) at: Address,
}

impl<'a, P> Ended<'a, P> {
    /// The address under which the operation was parked.
    #[inline(always)]
    pub(crate) fn address(&self) -> Address {
        self.at
    }

    #[inline(always)]
    pub(crate) fn with<R>(&self, access: impl FnOnce(&P) -> R) -> R {
        self.place.slot().payload.with_mut(|payload| {
            // SAFETY: the holder made `self`, which is the only token of the slot. No other thread gets the slot before
            // it is on a free list, and only a token that `take` returns can put it there. So the payload is
            // initialised, and no other thread uses it.
            access(unsafe { &*payload.cast::<P>() })
        })
    }

    /// Moves the operation out of its slot.
    #[inline(always)]
    pub(crate) fn take(self) -> (P, Spent<'a, P>) {
        let ended = ManuallyDrop::new(self);
        let payload = ended.place.slot().payload.with_mut(|payload| {
            // SAFETY: the payload is initialised, and no other thread uses it, as in `with`. `self` is consumed, so the
            // payload is moved out only once.
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
    /// Makes a token without the place in memory, for a slot that is given back later.
    #[inline(always)]
    pub(crate) fn detach(self) -> EndedSlot {
        EndedSlot { at: self.at }
    }
}

/// A slot without an occupant. It is on no free list.
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
