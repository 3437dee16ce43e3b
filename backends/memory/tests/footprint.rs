//! What a kept sample really costs, by counting what is allocated.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use foreread_memory::MemoryTier;
use foreread_tier::{Budget, Buffers, CacheTier, HeapBuffers, Sample};
use foreread_types::{DatasetId, SampleId, SampleKey};
use futures::FutureExt;

static LIVE: AtomicU64 = AtomicU64::new(0);

/// What glibc's allocator takes for an allocation: 8 bytes in front, a multiple of 16, at least 32.
fn chunk(layout: Layout) -> u64 {
    (layout.size() as u64 + 8).next_multiple_of(16).max(32)
}

struct Counting;

// SAFETY: passes every call on to the system's allocator as it is.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LIVE.fetch_add(chunk(layout), Relaxed);
        // SAFETY: the caller's promise is the one that is asked for.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        LIVE.fetch_sub(chunk(layout), Relaxed);
        // SAFETY: allocated above, by the same allocator with the same layout.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn the_footprint_covers_what_keeping_samples_takes() {
    const LENGTH: usize = 1000;
    let look_ahead = Budget::new(u64::MAX);
    let memory = MemoryTier::new(u64::MAX);
    let footprint = memory.footprint().of(LENGTH as u64);
    let before = LIVE.load(Relaxed);
    let mut worst = 0.0f64;
    for id in 0..120_000u64 {
        let mut buffer = HeapBuffers.allocate(LENGTH, 1).unwrap();
        buffer.extend(&[0; LENGTH]);
        let sample = Sample::new(buffer.freeze(), look_ahead.charge(LENGTH as u64));
        let room = memory.reserve(footprint).unwrap();
        let store = memory.store(room, SampleKey::new(DatasetId(0), SampleId(id)), sample);
        store.now_or_never().unwrap().unwrap();
        if id >= 5_000 {
            let each = (LIVE.load(Relaxed) - before) as f64 / (id + 1) as f64;
            worst = worst.max(each);
        }
    }
    let (measured, counted) = (worst - LENGTH as f64, (footprint - LENGTH as u64) as f64);
    println!("at most {measured:.1} bytes beside each sample of {LENGTH}, counted as {counted}");
    assert!(measured <= counted, "{measured:.1} bytes beside a sample, counted as {counted}");
    assert!(
        measured >= counted * 0.9,
        "{measured:.1} bytes beside a sample, counted as {counted}: too careful"
    );
    assert_eq!(memory.budget().used(), 120_000 * footprint);
}
