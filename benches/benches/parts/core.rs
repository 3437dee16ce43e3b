//! The engine's core without tiers: events and actions of two epochs.

use anyhow::Result;
use criterion::{BatchSize, Criterion, Throughput};
use foreread_benches::engine::CoreReplay;

const SAMPLES: u64 = 20_000;

pub fn parts(criterion: &mut Criterion) -> Result<()> {
    let mut group = criterion.benchmark_group("core, per use");
    for (name, in_memory) in [("from the origin", false), ("from memory", true)] {
        let replay = CoreReplay::new(SAMPLES, in_memory)?;
        group.throughput(Throughput::Elements(replay.uses()));
        group.bench_function(name, |bencher| {
            bencher.iter_batched_ref(|| replay.core(), |core| replay.run(core), BatchSize::LargeInput);
        });
    }
    group.finish();
    Ok(())
}
