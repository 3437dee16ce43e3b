//! The largest allocation of each thread. Damaged files must not ask for more than they have.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    /// In bytes, since a test has set it to 0.
    pub static LARGEST: Cell<usize> = const { Cell::new(0) };
}

struct Recorded;

#[global_allocator]
static ALLOCATOR: Recorded = Recorded;

// SAFETY: forwards every call unchanged to the system's allocator.
unsafe impl GlobalAlloc for Recorded {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // A thread that ends has no cell any more.
        let _ = LARGEST.try_with(|largest| largest.set(largest.get().max(layout.size())));
        // SAFETY: the caller meets the requirements of `System`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: allocated above, by the same allocator with the same layout.
        unsafe { System.dealloc(pointer, layout) }
    }
}
