//! Instruction counts from valgrind, which do not depend on the machine's load.
//!
//! Needs valgrind and `cargo install gungraun-runner --version 0.20.0 --locked`, and therefore a
//! feature: `cargo xtask bench --features instructions --bench instructions`. Each count is of the
//! whole function: 4,096 positions, 8,000 uses (two epochs of 4,000 samples), 1,000 lookups.

#![allow(
    missing_docs,
    unused_qualifications,
    clippy::unwrap_used,
    reason = "the macros generate functions, and a benchmark may panic on an error"
)]

use std::hint::black_box;

use bytes::Bytes;
use foreread_benches::engine::CoreReplay;
use foreread_loader::core::Core;
use foreread_memory::MemoryTier;
use foreread_oracle::{Feistel, Order, Sampler, Shuffle, Torch};
use foreread_tier::{CacheTier, Lookup, Sample};
use foreread_types::{DatasetId, SampleId, SampleKey};
use futures::FutureExt;
use gungraun::prelude::*;

const POSITIONS: usize = 4096;

fn order(sampler: impl Sampler) -> (Order, Vec<SampleId>) {
    (sampler.order(0).unwrap(), vec![SampleId(0); POSITIONS])
}

#[library_benchmark]
#[bench::shuffle(order(Shuffle::new(100_000, 1).unwrap()))]
#[bench::torch(order(Torch::new(100_000, 1).unwrap()))]
#[bench::feistel(order(Feistel::new(1_000_000_000_000, 1).unwrap()))]
fn fill((order, mut ids): (Order, Vec<SampleId>)) -> Vec<SampleId> {
    order.fill(black_box(77), 1, &mut ids);
    ids
}

fn replay(in_memory: bool) -> (CoreReplay, Core) {
    let replay = CoreReplay::new(4000, in_memory).unwrap();
    let core = replay.core();
    (replay, core)
}

#[library_benchmark]
#[bench::from_the_origin(replay(false))]
#[bench::from_memory(replay(true))]
fn core((replay, mut core): (CoreReplay, Core)) -> (u64, CoreReplay, Core) {
    (replay.run(&mut core), replay, core)
}

fn key(id: u64) -> SampleKey {
    SampleKey::new(DatasetId(0), SampleId(id))
}

fn memory() -> MemoryTier {
    let memory = MemoryTier::new(u64::MAX);
    for id in 0..1000 {
        let room = memory.reserve(memory.footprint().of(100)).unwrap();
        let sample = Sample::uncharged(Bytes::from_static(&[0; 100]));
        memory.store(room, key(id), sample).now_or_never().unwrap().unwrap();
    }
    memory
}

#[library_benchmark]
#[bench::among_1000(memory())]
fn lookup(memory: MemoryTier) -> (usize, MemoryTier) {
    let hits = (0..1000).filter(|id| matches!(memory.lookup(black_box(key(*id))), Lookup::Ready(_))).count();
    (hits, memory)
}

library_benchmark_group!(name = counts, benchmarks = [fill, core, lookup]);
main!(library_benchmark_groups = counts);
