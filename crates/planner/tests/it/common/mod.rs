//! Helpers that build runs, clusters and streams.

use std::sync::Arc;

use foreread_oracle::{Deal, Phase, PhaseKind, Run, Sampler, Schedule, Shuffle};
use foreread_planner::{CacheStore, Cluster, Level, OriginServers, ServerSpeed};
use foreread_types::{DatasetId, Footprint, Rank, SampleId, StoreId};

pub fn phase(dataset: u32, sampler: impl Sampler + 'static) -> Phase {
    let kind = if dataset == 0 { PhaseKind::Train } else { PhaseKind::Validation };
    Phase {
        kind,
        dataset: DatasetId(dataset),
        sampler: Arc::new(sampler),
        batch_size: None,
        drop_last: false,
    }
}

pub fn run(epochs: u64, phases: Vec<Phase>) -> Run {
    run_of(epochs, phases, 1)
}

pub fn run_of(epochs: u64, phases: Vec<Phase>, world_size: u32) -> Run {
    Run::new(Arc::new(Schedule::new(epochs, phases).unwrap()), Deal::Torch, world_size, Rank(0)).unwrap()
}

pub fn level(capacity: u64) -> Level {
    Level::new("memory", capacity, Footprint::EXACT)
}

pub fn cluster(levels: Vec<Level>) -> Cluster {
    Cluster::single(CacheStore::new(StoreId(0), levels))
}

pub const MB: u64 = 1_000_000;

pub fn speed(bytes_per_second: u64) -> ServerSpeed {
    ServerSpeed { latency_ns: 0, bytes_per_second }
}

pub fn with_servers(cluster: Cluster, speeds: &[ServerSpeed], table: &[u16]) -> Cluster {
    let servers = Some(OriginServers::new(speeds.to_vec(), vec![table.into()]));
    Cluster { servers, ..cluster }
}

/// All reads of a run, with the datasets' ids numbered consecutively.
pub fn stream(run: &Run, samples: &[u64]) -> Vec<SampleId> {
    let mut all = Vec::new();
    for pass in run.passes() {
        let stream = run.stream(&pass).unwrap();
        let before: u64 = samples[..pass.dataset.0 as usize].iter().sum();
        all.extend((0..stream.len()).map(|index| SampleId(before + stream.at(index).0)));
    }
    all
}

/// The orders of some epochs of one job.
pub fn orders(samples: u64, epochs: u64, seed: u64) -> Vec<Vec<u64>> {
    let shuffle = Shuffle::new(samples, seed).unwrap();
    let order = |epoch| shuffle.order(epoch).unwrap();
    (0..epochs).map(|epoch| (0..samples).map(|at| order(epoch).at(at).0).collect()).collect()
}
