//! The memory tier's map, and the allocation of sample buffers.

use anyhow::Result;
use bytes::{BufMut, Bytes};
use criterion::{BatchSize, Criterion};
use foreread_memory::MemoryTier;
use foreread_tier::{ArenaBuffers, Buffer, Buffers, CacheTier, HeapBuffers, Lifetime, Sample};
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
    let shared = shared_arena();
    let buffers: [(&str, &dyn Buffers); 3] =
        [("heap", &HeapBuffers), ("arena", &ArenaBuffers::default()), ("arena, shared", &shared)];
    for (name, buffers) in buffers {
        group.bench_function(name, |bencher| {
            bencher.iter(|| buffers.allocate(100_000, 1).map(Buffer::freeze))
        });
    }
    group.finish();
    fresh(criterion);
    Ok(())
}

/// Memory that other processes can map.
fn shared_arena() -> ArenaBuffers {
    let arena = ArenaBuffers::default();
    assert!(arena.share(), "the system has no memory that processes can share");
    arena
}

/// Memory that was never used, or went back to the kernel: 100 samples, filled and held. The kernel
/// has huge pages for shared memory only where `shmem_enabled` says so.
fn fresh(criterion: &mut Criterion) {
    let setting = std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/shmem_enabled");
    let setting = setting.unwrap_or_default();
    let chosen = setting.split(['[', ']']).nth(1).unwrap_or("absent").to_owned();
    let mut group = criterion.benchmark_group(format!("100 fresh samples of 110 kB, shmem_enabled {chosen}"));
    group.sample_size(20);
    for (name, is_shared) in [("arena", false), ("arena, shared", true)] {
        let arena = || if is_shared { shared_arena() } else { ArenaBuffers::default() };
        group.bench_function(name, |bencher| {
            bencher.iter_batched_ref(
                || (arena(), Vec::with_capacity(100)),
                |(arena, held)| {
                    let filled = |arena: &ArenaBuffers| {
                        let mut buffer = arena.allocate_for(Lifetime::Kept, 110_000, 1)?;
                        buffer.put_bytes(7, 110_000);
                        Some(buffer.freeze())
                    };
                    held.extend((0..100).map_while(|_| filled(arena)));
                    assert_eq!(held.len(), 100, "memory is short");
                },
                BatchSize::PerIteration,
            );
        });
    }
    group.finish();
}
