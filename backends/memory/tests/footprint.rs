//! The real cost of a stored sample, measured by counting allocations.

#![allow(clippy::unwrap_used, reason = "a test that cannot continue fails")]

use foreread_memory::MemoryTier;
use foreread_tier::{ArenaBuffers, Budget, Buffers, CacheTier, HeapBuffers, Lifetime, Sample};
use foreread_tier_testing::{CountingAllocator, conformance};
use foreread_types::{DatasetId, SampleId, SampleKey};
use futures::FutureExt;

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator::new();

/// One test, because all allocations of this program are counted.
#[test]
fn footprint_covers_the_real_cost() {
    for (length, samples) in [(1_000, 120_000), (10_000, 8_000), (110_000, 1_000)] {
        keep(&HeapBuffers, || 0, length, samples);
        // Most of them need a cache line for their last byte.
        let arena = ArenaBuffers::default();
        keep(&arena, || arena.in_use() as u64, length / 64 * 64 + 1, samples);
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let memory = MemoryTier::new(8 << 20);
    runtime.block_on(conformance::reads_allocate_what_is_charged(&memory, || ALLOCATOR.live()));
}

/// Keeps samples in memory of `buffers`, which have `more` bytes in addition to the allocator's.
fn keep(buffers: &dyn Buffers, more: impl Fn() -> u64, length: usize, samples: u64) {
    let look_ahead = Budget::new(u64::MAX);
    let memory = MemoryTier::new(u64::MAX);
    let footprint = memory.footprint().of(length as u64);
    let live = || ALLOCATOR.live() + more();
    let before = live();
    let mut worst = 0.0f64;
    for id in 0..samples {
        let mut buffer = buffers.allocate_for(Lifetime::Kept, length, 1).unwrap();
        buffer.extend(&vec![0; length]);
        let sample = Sample::new(buffer.freeze(), look_ahead.charge(length as u64));
        let room = memory.reserve(footprint).unwrap();
        let store = memory.store(room, SampleKey::new(DatasetId(0), SampleId(id)), sample);
        store.now_or_never().unwrap().unwrap();
        // Before that, one-time allocations weigh too much.
        if id >= samples.min(5_000) / 2 {
            let each = (live() - before) as f64 / (id + 1) as f64;
            worst = worst.max(each);
        }
    }
    let (measured, counted) = (worst - length as f64, (footprint - length as u64) as f64);
    println!("at most {measured:.1} bytes of overhead for each sample of {length}, counted as {counted}");
    assert!(
        measured <= counted,
        "{measured:.1} bytes of overhead for a sample of {length}, counted as {counted}"
    );
    assert!(
        measured >= counted * 0.8,
        "{measured:.1} bytes of overhead for a sample of {length}, counted as {counted}: too careful"
    );
    assert_eq!(memory.budget().used(), samples * footprint);
}
