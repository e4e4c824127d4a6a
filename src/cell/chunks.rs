//! The memory of the slots: [`Chunks`] only grow, a [`Block`] comes and goes. Nothing in either ever moves.
//!
//! # Ground rules
//!
//! An item of [`Chunks`] is written once, before its index is below [`len`](Chunks::len), and dropped with the storage. In
//! between it is only borrowed shared. So any thread may follow any index at any time, however stale it is. Items are
//! added by one thread at a time: the caller of [`push`](Chunks::push) sees to that.
//!
//! The items of a [`Block`] are all written when its memory is made, and gone when the memory is freed. One thread at a
//! time does either, after every use of the items that were there and before every use of those to come: the caller of
//! [`make`](Block::make) and [`free`](Block::free) sees to that. So no thread follows a stale pointer to an item; whether
//! there are items, any thread may ask.
#![allow(unsafe_code)]

use crate::sync::{AtomicPtr, AtomicU32, BLOCK, CHUNKS, FIRST_CHUNK, Ordering, last_pointer};
use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::marker::PhantomData;
use std::mem::needs_drop;
use std::ptr::{self, NonNull};

/// Size of a cache line; where that is another one, no harm is done.
const LINE: usize = 64;
/// The items of a block take at most this many bytes, unless one of them takes more.
const PAGE: usize = 4_096;

pub(super) struct Chunks<T> {
    /// Chunk `c` has room for `FIRST_CHUNK << c` items, or is null.
    chunks: [AtomicPtr<T>; CHUNKS],
    /// Items below this index are written.
    len: AtomicU32,
    items: PhantomData<T>,
}

impl<T> Chunks<T> {
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
        // ORDERING: Relaxed: published by `len`.
        let chunk = self.chunks[chunk].load(Ordering::Relaxed);
        if cfg!(any(debug_assertions, request_purgatory_loom)) {
            assert!(!chunk.is_null(), "an item below `len` is in a chunk");
        }
        // SAFETY: `locate` keeps the offset inside the chunk, which `push` allocated.
        let item = unsafe { chunk.add(offset) };
        // SAFETY: below `len`, so `push` has written it. From then on it is only borrowed shared, until the storage is
        // dropped, which the result does not outlive.
        Some(unsafe { &*item })
    }

    /// Adds an item, and returns its index.
    ///
    /// # Safety
    /// No other thread calls this at the same time. If several threads do, one after the other, `T` is `Send`.
    pub(super) unsafe fn push(&self, item: T) -> u32 {
        let index = self.len();
        let (number, offset) = Self::locate(index);
        // ORDERING: Relaxed on both: only the thread that adds reads it before `len` publishes it.
        let mut chunk = self.chunks[number].load(Ordering::Relaxed);
        if chunk.is_null() {
            chunk = allocate((FIRST_CHUNK as usize) << number);
            self.chunks[number].store(chunk, Ordering::Relaxed);
        }
        // SAFETY: `locate` keeps the offset inside the chunk.
        let place = unsafe { chunk.add(offset) };
        // SAFETY: memory for an item. No other thread writes it, by the contract of this function; none reads an item
        // that is not below `len`.
        unsafe { place.write(item) };
        // ORDERING: Release pairs with the Acquire in `get`.
        self.len.store(index + 1, Ordering::Release);
        index
    }

    /// The memory of a chunk.
    pub(super) fn layout(chunk: usize) -> Layout {
        layout::<T>((FIRST_CHUNK as usize) << chunk)
    }

    /// Chunk and offset of an item.
    #[inline(always)]
    fn locate(index: u32) -> (usize, usize) {
        let chunk = (index / FIRST_CHUNK + 1).ilog2();
        let first = FIRST_CHUNK * ((1 << chunk) - 1);
        (chunk as usize, (index - first) as usize)
    }
}

impl<T> Drop for Chunks<T> {
    fn drop(&mut self) {
        let len = self.len();
        for (number, chunk) in self.chunks.iter_mut().enumerate() {
            let chunk = last_pointer(chunk);
            if chunk.is_null() {
                continue;
            }
            if needs_drop::<T>() {
                let first = FIRST_CHUNK * ((1 << number) - 1);
                let written = (len - first).min(FIRST_CHUNK << number);
                let items = ptr::slice_from_raw_parts_mut(chunk, written as usize);
                // SAFETY: `push` has written these items, and no thread borrows one: this is the last use of them.
                unsafe { items.drop_in_place() };
            }
            // SAFETY: `push` allocated it with this layout.
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
    /// How many items a block has, a power of two: as many as fit a page. (Where they are large, each has a block of its
    /// own.)
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
        // ORDERING: Relaxed: by the contracts of `make` and `free`, whoever uses the item comes after the store that made
        // it, and before the one that frees it, so it reads the pointer between the two.
        let first = NonNull::new(self.items.load(Ordering::Relaxed))?;
        NonNull::new(first.as_ptr().wrapping_add(offset as usize))
    }

    /// Allocates memory for the items, and writes them: `item` is told the offset of each.
    ///
    /// # Safety
    /// There is no memory. No other thread calls this or [`free`](Self::free) at the same time; the items are used after
    /// this call only.
    pub(super) unsafe fn make(&self, item: impl Fn(u32) -> T) {
        let first = allocate::<T>(Self::LEN as usize);
        for offset in 0..Self::LEN {
            // SAFETY: the offset is inside the memory just allocated, which no other thread knows.
            unsafe { first.add(offset as usize).write(item(offset)) };
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
