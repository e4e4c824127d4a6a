//! The memory of the slots. It grows by chunks, and no item in it ever moves.
//!
//! # Ground rules
//!
//! An item is written once, before its index is below [`len`](Chunks::len), and is dropped with the storage. In between
//! it is only borrowed shared. So any thread may follow any index at any time, however stale the index is.
//!
//! Items are added by one thread at a time, which the caller of [`push`](Chunks::push) ensures.
#![allow(unsafe_code)]

use crate::sync::{AtomicPtr, AtomicU32, CHUNKS, FIRST_CHUNK, Ordering, last_pointer};
use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::marker::PhantomData;
use std::mem::needs_drop;
use std::ptr;

/// Size of a cache line. On a processor with another size, this is only slower.
const LINE: usize = 64;

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
            let layout = Self::layout(number);
            // SAFETY: `layout` is not of size zero: a chunk has at least one item, and items have a size.
            chunk = unsafe { alloc(layout) }.cast::<T>();
            if chunk.is_null() {
                handle_alloc_error(layout);
            }
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

    /// The memory of a chunk. It is aligned to a cache line, so that few items straddle two lines.
    pub(super) fn layout(chunk: usize) -> Layout {
        const { assert!(size_of::<T>() > 0) };
        Layout::array::<T>((FIRST_CHUNK as usize) << chunk)
            .and_then(|layout| layout.align_to(LINE))
            .expect("a chunk that the indices can name is smaller than the address space")
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
            // SAFETY: `push` allocated the chunk with this layout.
            unsafe { dealloc(chunk.cast(), Self::layout(number)) };
        }
    }
}
