//! An allocator that counts.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The system's allocator, with a count of what is in use: what glibc takes for it, and not what was asked for. A test
/// program makes one of it its `#[global_allocator]`.
#[derive(Debug, Default)]
pub struct CountingAllocator(AtomicU64);

impl CountingAllocator {
    /// Nothing is in use.
    pub const fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// Bytes in use.
    pub fn live(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// What glibc's allocator takes for an allocation: 8 bytes in front, a multiple of 16, at least 32, and what comes to lie
/// before memory that is aligned beyond that (measured: 42 bytes of 48 for a cache line). More of that it uses for others.
fn chunk(layout: Layout) -> u64 {
    let plain = (layout.size() as u64 + 8).next_multiple_of(16).max(32);
    plain + layout.align().clamp(16, 64) as u64 - 16
}

// SAFETY: passes every call on to the system's allocator as it is.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        self.0.fetch_add(chunk(layout), Relaxed);
        // SAFETY: the caller's promise is the one that is asked for.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        self.0.fetch_sub(chunk(layout), Relaxed);
        // SAFETY: allocated above, by the same allocator with the same layout.
        unsafe { System.dealloc(pointer, layout) }
    }
}
