//! The engine's core alone: events and actions of some epochs, with nothing behind them.

use anyhow::Result;
use criterion::{BatchSize, Criterion, Throughput};
use foreread_benches::engine::Rehearsal;

const SAMPLES: u64 = 20_000;

pub fn parts(criterion: &mut Criterion) -> Result<()> {
    let mut group = criterion.benchmark_group("core, a use");
    for (name, in_memory) in [("from the origin", false), ("from memory", true)] {
        let rehearsal = Rehearsal::new(SAMPLES, in_memory)?;
        group.throughput(Throughput::Elements(rehearsal.uses()));
        group.bench_function(name, |bencher| {
            bencher.iter_batched_ref(|| rehearsal.core(), |core| rehearsal.play(core), BatchSize::LargeInput);
        });
    }
    group.finish();
    Ok(())
}
