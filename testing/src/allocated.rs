//! An allocator that counts, for programs that measure their memory: they make it their `#[global_allocator]`.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

static ALLOCATED: AtomicUsize = AtomicUsize::new(0);

/// What is allocated now, in bytes.
pub fn allocated() -> usize {
    ALLOCATED.load(Ordering::Relaxed)
}

/// The system's allocator, counted.
#[derive(Debug)]
pub struct Counting;

// SAFETY: the system's allocator does it all; beside it, a number is counted.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATED.fetch_add(layout.size(), Ordering::Relaxed);
        // SAFETY: by the contract of this function.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        ALLOCATED.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: by the contract of this function.
        unsafe { System.dealloc(place, layout) }
    }
}
