//! The memory tier's map, and the allocation of sample buffers.

use anyhow::Result;
use bytes::Bytes;
use criterion::{BatchSize, Criterion};
use foreread_memory::MemoryTier;
use foreread_tier::{ArenaBuffers, Buffer, Buffers, CacheTier, HeapBuffers, Sample};
use foreread_types::{DatasetId, SampleId, SampleKey};
use futures::FutureExt;

fn key(id: u64) -> SampleKey {
    SampleKey::new(DatasetId(0), SampleId(id))
}

fn store(memory: &MemoryTier, id: u64) -> bool {
    let room = memory.reserve(memory.footprint().of(100));
    let sample = Sample::uncharged(Bytes::from_static(&[0; 100]));
    room.is_some_and(|room| {
        memory.store(room, key(id), sample).now_or_never().is_some_and(|stored| stored.is_ok())
    })
}

pub fn parts(criterion: &mut Criterion) -> Result<()> {
    let mut group = criterion.benchmark_group("memory tier");
    for samples in [1000, 1_000_000] {
        let memory = MemoryTier::new(u64::MAX);
        (0..samples).for_each(|id| assert!(store(&memory, id)));
        let mut state = 1_u64;
        group.bench_function(format!("lookup in random order among {samples}"), |bencher| {
            bencher.iter(|| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                memory.lookup(key((state >> 33) % samples))
            });
        });
    }
    group.bench_function("store 1000", |bencher| {
        let empty = || MemoryTier::new(u64::MAX);
        bencher.iter_batched_ref(
            empty,
            |memory| (0..1000).all(|id| store(memory, id)),
            BatchSize::LargeInput,
        );
    });
    group.finish();

    let mut group = criterion.benchmark_group("buffer of 100 kB, allocated and dropped");
    let buffers: [(&str, &dyn Buffers); 2] = [("heap", &HeapBuffers), ("arena", &ArenaBuffers::default())];
    for (name, buffers) in buffers {
        group.bench_function(name, |bencher| {
            bencher.iter(|| buffers.allocate(100_000, 1).map(Buffer::freeze))
        });
    }
    group.finish();
    Ok(())
}
