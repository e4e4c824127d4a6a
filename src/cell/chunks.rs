//! The memory of the slots. There are two kinds of memory, and in both of them nothing ever moves: [`Chunks`], which
//! only grow, and [`Block`]s, whose memory is allocated and freed.
//!
//! This file also has the [`Slot`], and the tokens: values which prove what their owner may do with a slot ([`Held`],
//! [`Ended`], [`Spent`], [`Vacant`], [`EndedSlot`]). The head of [`slab`](super::slab) has the rules of the tokens.
//!
//! # Ground rules
//!
//! An item of [`Chunks`] or [`EqualChunks`] is written once, before [`len`](Growing::len) rises above its index. It is
//! dropped with the storage. In between, threads only borrow the item shared. So any thread may look up any index at
//! any time, even an index from a stale address (the name of an operation that has ended). Only one thread at a time
//! adds items. The caller of [`push`](Growing::push) must ensure this.
//!
//! All items of a [`Block`] are written when its memory is allocated, and are gone when the memory is freed. Only one
//! thread at a time allocates or frees memory. Every use of an item happens after the allocation and before the memory
//! is freed. The caller of [`make`](Block::make) and [`free`](Block::free) must ensure both. So no thread follows a
//! pointer into freed memory. Any thread may ask at any time [whether](Block::is_made) a block has memory.
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

/// The size of a cache line in bytes. On a processor whose lines have another size, the code is only slower.
const LINE: usize = 64;
/// The items of a block take at most this many bytes, unless a single item takes more.
const PAGE: usize = 4_096;

/// Storage in chunks that grow: the first two have room for `FIRST_CHUNK` items each, the next two for twice as many,
/// and so on. So a few chunks are enough for any number of items. If there are many items, the unused room is at most a
/// little more than a third of all room.
pub(super) type Chunks<T> = Growing<T, CHUNKS, true>;

/// Storage in chunks with room for `RESIDENT_CHUNK` items each. A lookup takes fewer instructions than in [`Chunks`].
pub(super) type EqualChunks<T> = Growing<T, RESIDENT_CHUNKS, false>;

/// Storage to which items are only added, and in which each item is written once. Its two forms are [`Chunks`] and
/// [`EqualChunks`].
pub(super) struct Growing<T, const CHUNKS: usize, const DOUBLING: bool> {
    /// The *origin* of each chunk: the address at which the item with index 0 would lie, if the chunk were long enough
    /// to have it. So an item lies at the origin of its chunk plus its index, and a lookup computes no offset.
    /// [`NOT_ALLOCATED`](Self::NOT_ALLOCATED) if the chunk has no memory yet.
    origins: [AtomicPtr<T>; CHUNKS],
    /// The number of items. Every item with a lower index is written.
    len: AtomicU32,
    items: PhantomData<T>,
}

impl<T, const CHUNKS: usize, const DOUBLING: bool> Growing<T, CHUNKS, DOUBLING> {
    /// Stands for the origin of a chunk without memory. An origin is a multiple of the alignment of `T`, and this
    /// address is not. Null would not do: an origin may be null by chance.
    const NOT_ALLOCATED: *mut T = {
        assert!(align_of::<T>() > 1);
        ptr::without_provenance_mut(1)
    };

    pub(super) fn new() -> Self {
        Self {
            origins: std::array::from_fn(|_| AtomicPtr::new(Self::NOT_ALLOCATED)),
            len: AtomicU32::new(0),
            items: PhantomData,
        }
    }

    /// The number of items, which is one more than the highest index.
    pub(super) fn len(&self) -> u32 {
        // ORDERING: Acquire pairs with the Release in `push`: the writes of all items below the result happen before
        // this load.
        self.len.load(Ordering::Acquire)
    }

    #[inline(always)]
    pub(super) fn get(&self, index: u32) -> Option<&T> {
        // ORDERING: Acquire pairs with the Release in `push`: for every item below `len`, the write of the item and the
        // store of the pointer to its chunk happen before this load.
        if index >= self.len.load(Ordering::Acquire) {
            return None;
        }
        // SAFETY: the index is below `len`, so `push` has added an item at this index. To do so, `push` has indexed
        // `origins` by the same chunk number, with a check of the bound. So the number is within the bound.
        let origin = unsafe { self.origins.get_unchecked(Self::chunk(index)) };
        // ORDERING: Relaxed: the load of `len` above acquires the Release in `push`, so the store of the pointer
        // happens before this load.
        let origin = origin.load(Ordering::Relaxed);
        if cfg!(any(debug_assertions, request_purgatory_loom)) {
            let is_allocated = origin != Self::NOT_ALLOCATED;
            assert!(is_allocated, "an item below `len` is in a chunk");
        }
        let item = origin.wrapping_add(index as usize);
        // SAFETY: `push` has allocated the chunk of this index, so `item` points into that allocation, from which the
        // origin was computed. The index is below `len`, so `push` has written the item. From then on the item is only
        // borrowed shared, until the storage is dropped. The result borrows the storage, so it does not outlive the
        // item.
        Some(unsafe { &*item })
    }

    /// Adds an item, and returns its index.
    ///
    /// # Safety
    /// At most one thread at a time calls this function. If different threads call it one after another, it must be
    /// sound to send a `T` from one of them to another.
    pub(super) unsafe fn push(&self, item: T) -> u32 {
        let index = self.len();
        let chunk = Self::chunk(index);
        let origin = &self.origins[chunk];
        let first = Self::first(chunk);
        // ORDERING: Relaxed on the load and the store. The Acquire in `len()` orders the load after the store by an
        // earlier `push`. Other threads load the pointer only after the Release below has published it.
        if index == first {
            let memory = allocate::<T>(Self::room(chunk));
            origin.store(memory.wrapping_sub(first as usize), Ordering::Relaxed);
        }
        let place = origin.load(Ordering::Relaxed).wrapping_add(index as usize);
        // SAFETY: the chunk was allocated together with its first item, so `place` is allocated memory for one item. By
        // the contract of this function, no other thread writes there. No thread reads there either, because the index
        // is not below `len` yet.
        unsafe { place.write(item) };
        // ORDERING: Release pairs with the Acquire in `get` and `len`: the write of the item and the store of the
        // pointer happen before a lookup that finds the index below `len`.
        self.len.store(index + 1, Ordering::Release);
        index
    }

    /// The memory layout of the chunk with this number.
    pub(super) fn layout(chunk: usize) -> Layout {
        layout::<T>(Self::room(chunk))
    }

    /// The number of items for which the chunk with this number has room.
    fn room(chunk: usize) -> usize {
        match DOUBLING {
            true => (FIRST_CHUNK as usize) << (chunk / 2),
            false => RESIDENT_CHUNK as usize,
        }
    }

    /// The index of the first item in the chunk with this number.
    fn first(chunk: usize) -> u32 {
        match DOUBLING {
            true => FIRST_CHUNK * (((2 + chunk as u32 % 2) << (chunk / 2)) - 2),
            false => RESIDENT_CHUNK * chunk as u32,
        }
    }

    /// The number of the chunk in which the item at `index` lies.
    #[inline(always)]
    fn chunk(index: u32) -> usize {
        let index = index as usize;
        match DOUBLING {
            // The chunks of one size are a pair. All items of a pair have the same highest bit in `shifted`, and the bit
            // below the highest one tells the two chunks apart.
            true => {
                let shifted = index + 2 * FIRST_CHUNK as usize;
                let room = shifted.ilog2() - 1; // The binary logarithm of the number of items in the chunk.
                2 * room as usize + (shifted >> room) - Self::SHIFTED
            }
            false => index / RESIDENT_CHUNK as usize,
        }
    }

    /// What [`chunk`](Self::chunk) would return for the first chunk if it did not subtract this.
    const SHIFTED: usize = 2 * FIRST_CHUNK.ilog2() as usize + 2;
}

impl<T, const CHUNKS: usize, const DOUBLING: bool> Drop for Growing<T, CHUNKS, DOUBLING> {
    fn drop(&mut self) {
        let len = self.len();
        for (chunk, origin) in self.origins.iter_mut().enumerate() {
            let first = Self::first(chunk);
            if first >= len {
                return;
            }
            let memory = last_pointer(origin).wrapping_add(first as usize);
            if needs_drop::<T>() {
                let written = (len - first) as usize;
                let items = ptr::slice_from_raw_parts_mut(memory, written.min(Self::room(chunk)));
                // SAFETY: `push` has written these items. No thread borrows one, because this call borrows the storage
                // exclusively. Nothing uses the items after this call.
                unsafe { items.drop_in_place() };
            }
            // SAFETY: `push` has allocated the chunk with this layout, together with its first item.
            unsafe { dealloc(memory.cast(), Self::layout(chunk)) };
        }
    }
}

/// Memory for a few items, which can be freed and allocated again. The type of the items must not need a drop, because
/// freeing the memory drops no item.
pub(super) struct Block<T> {
    /// The pointer to the first item. Null if the block has no memory.
    items: AtomicPtr<T>,
    owned: PhantomData<T>,
}

impl<T> Block<T> {
    /// The number of items in a block: as many as fit into `PAGE` bytes, rounded down to a power of two, and at most
    /// [`BLOCK`]. If not even two items fit, each item has a block of its own.
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
        // ORDERING: Relaxed: this call only compares the pointer with null, and reads nothing through it.
        !self.items.load(Ordering::Relaxed).is_null()
    }

    /// A pointer to the item at `offset`, or `None` if the block has no memory. The pointer is valid until the memory
    /// is freed.
    pub(super) fn get(&self, offset: u32) -> Option<NonNull<T>> {
        debug_assert!(offset < Self::LEN);
        // ORDERING: Relaxed. The contract of `make` says that every use of an item happens after `make`, and the
        // contract of `free` that it happens before `free`. So if the caller uses the item, this load lies between the
        // store in `make` and the store in `free`, and reads the pointer to the present items.
        let first = NonNull::new(self.items.load(Ordering::Relaxed))?;
        NonNull::new(first.as_ptr().wrapping_add(offset as usize))
    }

    /// Allocates memory for the items, and writes all of them. `item` makes one item.
    ///
    /// # Safety
    /// The block has no memory. No other thread calls this or [`free`](Self::free) at the same time. Every use of an
    /// item happens after this call.
    pub(super) unsafe fn make(&self, item: impl Fn() -> T) {
        let first = allocate::<T>(Self::LEN as usize);
        for offset in 0..Self::LEN {
            // SAFETY: the offset is inside the memory that was just allocated.
            let place = unsafe { first.add(offset as usize) };
            // SAFETY: this call has just allocated the memory, so no other thread knows it, and no item is overwritten.
            unsafe { place.write(item()) };
        }
        // ORDERING: Relaxed: by the contract of this function, every use of an item happens after this store, and so
        // does the load in `get` that leads to the use.
        self.items.store(first, Ordering::Relaxed);
    }

    /// Frees the memory of the block.
    ///
    /// # Safety
    /// The block has memory. No other thread calls this or [`make`](Self::make) at the same time. Every use of an item
    /// happens before this call.
    pub(super) unsafe fn free(&self) {
        // ORDERING: Relaxed on the load and the store: by the contract of this function, the store in `make` and every
        // use of an item happen before this call.
        let items = self.items.load(Ordering::Relaxed);
        self.items.store(ptr::null_mut(), Ordering::Relaxed);
        // SAFETY: `make` has allocated the memory with this layout. By the contract of this function, no item is used
        // any more.
        unsafe { dealloc(items.cast(), layout::<T>(Self::LEN as usize)) };
    }
}

impl<T> Drop for Block<T> {
    fn drop(&mut self) {
        let items = last_pointer(&mut self.items);
        if !items.is_null() {
            // SAFETY: `make` has allocated the memory with this layout. This call borrows the block exclusively, so no
            // thread uses an item.
            unsafe { dealloc(items.cast(), layout::<T>(Self::LEN as usize)) };
        }
    }
}

/// The memory layout of an array of this many items. The array begins at the start of a cache line, so that few items
/// span two lines.
fn layout<T>(items: usize) -> Layout {
    const { assert!(size_of::<T>() > 0) };
    Layout::array::<T>(items)
        .and_then(|layout| layout.align_to(LINE))
        .expect("what the indices can name is smaller than the address space")
}

/// Allocates memory for this many items, and writes nothing there.
fn allocate<T>(items: usize) -> *mut T {
    assert_ne!(items, 0);
    let layout = layout::<T>(items);
    // SAFETY: the size of the layout is not zero: the assertion above excludes zero items, and the assertion in
    // `layout` excludes items without a size.
    let memory = unsafe { alloc(layout) }.cast::<T>();
    if memory.is_null() {
        handle_alloc_error(layout);
    }
    memory
}

/// The data of a slot's timer, accessed under the slab's lock. Packed to an alignment of 4 bytes, so that no padding
/// lies between these fields and the `link` of the slot: with a payload of 32 bytes, a slot then fills one cache line.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C, packed(4))]
pub(crate) struct Fields {
    /// The tick at which the timer fires.
    pub(crate) deadline: u64,
    /// The reading of the clock at which the operation arrived, in nanoseconds.
    pub(crate) arrived_at: u64,
    /// The position of the operation's timer in the wheel.
    pub(crate) position: u32,
}

pub(super) struct Slot<P> {
    /// The state word of a resident slot (one of the first slots, whose memory is never freed). Unused in a slot of a
    /// block: its state word lies in `Slab::words`, because it must outlive the memory of the block. The type has no
    /// destructor, so that a [`Block`] may have such slots.
    pub(super) state: ManuallyDrop<State>,
    pub(super) fields: UnsafeCell<Fields>,
    /// The index of the next slot, while this slot is on a free list. This field is a std atomic in loom models too, so
    /// loom does not check its accesses. All accesses are Relaxed, because the slab's lock, or the atomic head of the
    /// remote free list, orders them. Loom does check the lock and the head.
    pub(super) link: Link,
    pub(super) payload: UnsafeCell<MaybeUninit<P>>,
}

impl<P> Slot<P> {
    pub(super) fn vacant() -> Self {
        Self {
            state: ManuallyDrop::new(State::vacant()),
            fields: UnsafeCell::new(Fields::default()),
            link: Link::new(NIL),
            payload: UnsafeCell::new(MaybeUninit::uninit()),
        }
    }

    /// The number of resident slots (the first slots, whose memory is never freed): as many whole chunks of
    /// `RESIDENT_CHUNK` slots as fit into a mebibyte, at most `RESIDENT_CHUNKS` chunks. No slot is resident if a
    /// payload has [`LARGE`] bytes or more.
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
}

const MEBIBYTE: usize = 1 << 20;
/// A payload of this many bytes or more counts as large. Its slot always lies in a [`Block`], whose memory can be
/// freed. Slots of smaller payloads may also be resident, in memory that is never freed.
const LARGE: usize = 1_024;

/// A pointer to a slot, in the hands of a thread that may use the slot, and the state word of the slot.
pub(super) struct Place<'a, P> {
    slot: NonNull<Slot<P>>,
    state: &'a State,
    /// Keeps the place from outliving the slab. The place is invariant in `P`, because `Slot<P>` is. Otherwise the
    /// compiler could shorten a lifetime in `P`, and a payload that does not live long enough could be put in the slot.
    payload: PhantomData<&'a Slot<P>>,
}

impl<P> Clone for Place<'_, P> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<P> Copy for Place<'_, P> {}

impl<'a, P> Place<'a, P> {
    /// The place of a resident slot (one of the first slots of a slab, whose memory is never freed). All callers get
    /// the slot from `Slab::resident`. With a slot in a block, the place would have a word that no other thread looks
    /// at, so that two threads could hold one operation.
    #[inline(always)]
    pub(super) fn resident(slot: &'a Slot<P>) -> Self {
        Self {
            slot: NonNull::from(slot),
            state: &slot.state,
            payload: PhantomData,
        }
    }

    /// The place of a slot in a block. `state` is the state word of the slot, which lies in `Slab::words`.
    ///
    /// # Safety
    /// The slot must lie in a block of a slab that lives for `'a`, and `state` must be the state word of this slot: by
    /// that word, one thread at a time holds the operation in the slot. The memory of the block must not be freed as
    /// long as the result, or a copy of it, is used.
    pub(super) unsafe fn in_block(slot: NonNull<Slot<P>>, state: &'a State) -> Self {
        Self {
            slot,
            state,
            payload: PhantomData,
        }
    }

    #[inline(always)]
    pub(super) fn slot(&self) -> &Slot<P> {
        // SAFETY: the memory of the slot exists while this `Place` is used: a resident slot lives as long as the slab,
        // and for a slot in a block the contract of `in_block` demands it. The slot was written before the `Place` was
        // made, and from then on the slot is only borrowed shared.
        unsafe { self.slot.as_ref() }
    }

    /// The state word of this slot.
    #[inline(always)]
    pub(super) fn state(&self) -> &'a State {
        self.state
    }
}

/// Exclusive access of one thread, the *holder*, to the operation in one slot.
///
/// The owner of this value must [release](Held::release) or [end](Held::end) the operation. Otherwise the operation
/// stays held, and no thread can end it any more. In a build with debug assertions, the destructor panics.
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
            slot: ptr::from_ref(self.place.state()).addr(),
            generation: self.at.generation(),
        }
    }

    #[inline(always)]
    pub fn with<R>(&mut self, access: impl FnOnce(&mut P) -> R) -> R {
        self.place.slot().payload.with_mut(|payload| {
            // SAFETY: only the owner of the slot's `Held` may use the payload. There is only one `Held` of a slot, and
            // this call borrows it exclusively. `fill` has initialised the payload, and the payload is moved out only
            // after the `Held` is consumed.
            access(unsafe { &mut *payload.cast::<P>() })
        })
    }

    /// Tries to release the operation. Another thread may have left a mark meanwhile: a bit in the state word that asks
    /// the holder for an examination or an ending. The result says what has become of the operation:
    ///
    /// * `Ok(false)`: the operation is released, and there was no mark.
    /// * `Ok(true)`: the operation is released, although a mark has asked for another examination. The caller must
    ///   arrange for this examination. Returned only if `examine_again` is `false`, and no mark has asked for an
    ///   ending.
    /// * `Err`: the operation is not released. The caller still holds it, and must act on the mark.
    #[inline(always)]
    pub fn release(self, examine_again: bool) -> Result<bool, (Self, Unreleased)> {
        let state = self.place.state();
        match state.release(self.at.generation(), examine_again) {
            Ok(unexamined) => {
                let _used_up = ManuallyDrop::new(self);
                Ok(unexamined)
            }
            Err(unreleased) => Err((self, unreleased)),
        }
    }

    /// Clears the bit in the state word which says that the operation's timer has fired. Called before the operation
    /// gets another deadline: otherwise it could be ended for the old one.
    #[cold]
    pub(crate) fn forget_expiry(&mut self) {
        self.place.state().forget_expiry();
    }

    /// Ends the operation: its address is stale from now on. The operation stays in its slot until it is
    /// [taken](Ended::take) out.
    #[inline(always)]
    pub(crate) fn end_in_place(self) -> Ended<'a, P> {
        let held = ManuallyDrop::new(self);
        let state = held.place.state();
        state.end(held.at.generation());
        Ended {
            place: held.place,
            at: held.at,
        }
    }

    /// Ends the operation, and moves it out of its slot at once.
    #[inline(always)]
    pub(crate) fn end(self) -> (P, Spent<'a, P>) {
        self.end_in_place().take()
    }
}

/// An operation that this thread has ended, and that is still in its slot.
///
/// The owner of this value must [take](Self::take) the operation out. Otherwise the slot is never used again. In a
/// build with debug assertions, the destructor panics.
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
            // SAFETY: `self` is the only token of the slot (the only value that proves a right to use the slot).
            // Another thread can get the slot only from a free list. To put the slot on a free list takes its `Spent`,
            // which only `take` makes, and `take` consumes `self`. So the payload is still initialised, and no other
            // thread uses it.
            access(unsafe { &*payload.cast::<P>() })
        })
    }

    /// Moves the operation out of its slot.
    #[inline(always)]
    pub(crate) fn take(self) -> (P, Spent<'a, P>) {
        let ended = ManuallyDrop::new(self);
        let payload = ended.place.slot().payload.with_mut(|payload| {
            // SAFETY: `self` is the only token of the slot, and the slot is on no free list. So the payload is still
            // initialised, and no other thread uses it. `self` is consumed, so the payload is moved out only once.
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

/// The slot of an operation that has ended and was moved out. The owner of this value puts the slot back on the free
/// list of its slab.
#[must_use = "a slot that is not given back is lost"]
pub(crate) struct Spent<'a, P> {
    pub(super) place: Place<'a, P>,
    pub(super) at: Address,
}

impl<P> Spent<'_, P> {
    /// Makes a token without a pointer to the slot. The slot can be put back later, by another thread too.
    #[inline(always)]
    pub(crate) fn detach(self) -> EndedSlot {
        EndedSlot { at: self.at }
    }
}

/// A slot without an operation. It is on no free list: the owner of this value fills the slot or puts it back.
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

/// The slot of an operation that has ended and was moved out. In contrast to [`Spent`], this token has no pointer to
/// the slot.
#[must_use = "a slot that is not given back is lost"]
pub(crate) struct EndedSlot {
    pub(super) at: Address,
}

impl EndedSlot {
    /// The address of the operation that was in the slot.
    #[inline]
    pub(crate) fn address(&self) -> Address {
        self.at
    }
}
