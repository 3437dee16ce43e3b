//! Plans of many epochs over 1.28 million samples and a validation set.

use std::sync::Arc;

use anyhow::Result;
use criterion::Criterion;
use foreread_benches::IMAGENET;
use foreread_oracle::{Deal, Phase, PhaseKind, Run, Sampler, Schedule, Sequential, Shuffle, Weighted};
use foreread_planner::{CacheStore, Cluster, Level, plan};
use foreread_types::{DatasetId, Footprint, Rank, Sizes, StoreId};

fn phase(dataset: u32, sampler: impl Sampler + 'static) -> Phase {
    let kind = if dataset == 0 { PhaseKind::Train } else { PhaseKind::Validation };
    Phase {
        kind,
        dataset: DatasetId(dataset),
        sampler: Arc::new(sampler),
        batch_size: None,
        drop_last: false,
    }
}

fn level(name: &str, capacity: u64) -> Level {
    Level::new(name, capacity, Footprint::EXACT)
}

pub fn parts(criterion: &mut Criterion) -> Result<()> {
    let lengths: Vec<u64> =
        (0..IMAGENET).map(|id| 10_000 + id.wrapping_mul(0x9e37_79b9_7f4a_7c15) % 200_000).collect();
    let sizes = [Sizes::table(&lengths), Sizes::uniform(50_000, 100_000)];
    let shuffled = phase(0, Shuffle::new(IMAGENET, 1)?);
    let dropping = Phase { batch_size: Some(256), drop_last: true, ..shuffled.clone() };
    let weighted = phase(0, Weighted::new(&vec![1.0; IMAGENET as usize], IMAGENET, 1)?);
    let validate = phase(1, Sequential::new(50_000)?);
    let run = |epochs, train: &Phase, world_size| -> Result<Run> {
        let schedule = Schedule::new(epochs, vec![train.clone(), validate.clone()])?;
        Ok(Run::new(Arc::new(schedule), Deal::Torch, world_size, Rank(0))?)
    };
    let runs = [
        ("90 epochs, shuffle", run(90, &shuffled, 1)?),
        ("90 epochs, shuffle, drop_last", run(90, &dropping, 1)?),
        ("90 epochs, shuffle, 16 ranks", run(90, &shuffled, 16)?),
        ("9 epochs, weighted", run(9, &weighted, 1)?),
    ];
    let mut group = criterion.benchmark_group("plan of 1.28 M");
    group.sample_size(10);
    for percent in [100, 50] {
        let half = sizes[0].total() / 200 * percent;
        let levels = vec![level("memory", half), level("disk", half)];
        let cluster = Cluster::single(CacheStore::new(StoreId(0), levels));
        for (name, run) in &runs {
            group.bench_function(format!("{name}, caches for {percent} %"), |bencher| {
                bencher.iter(|| plan(run, &sizes, &cluster));
            });
        }
    }
    group.finish();
    Ok(())
}
