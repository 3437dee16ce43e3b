//! Tests of plans for clusters, against the ranks' own streams.

mod blocks;
mod bounds;
mod cache_contents;
mod huge;
mod locality;
mod long;
mod owners;
mod servers;
mod shapes;
mod tables;

use std::sync::Arc;

use foreread_oracle::{Deal, Pass, Phase, PhaseKind, Run, Sampler, Schedule};
use foreread_planner::{CacheStore, Cluster, ClusterPlan, Level, Ranks};
use foreread_types::{DatasetId, Footprint, Rank, SampleId, SampleKey, Sizes, StoreId};

fn train(sampler: impl Sampler + 'static, batch: u64) -> Phase {
    let (kind, dataset) = (PhaseKind::Train, DatasetId(0));
    Phase { kind, dataset, sampler: Arc::new(sampler), batch_size: Some(batch), drop_last: false }
}

fn run(phases: Vec<Phase>, epochs: u64, world_size: u32) -> Run {
    let schedule = Arc::new(Schedule::new(epochs, phases).unwrap());
    Run::new(schedule, Deal::Torch, world_size, Rank(0)).unwrap()
}

/// One store per rank, each with a memory of `capacity` bytes.
fn equal(world_size: u32, capacity: u64) -> Cluster {
    stores((0..world_size).map(|_| vec![capacity]).collect())
}

/// One store per rank, each with levels of these bytes.
fn stores(levels: Vec<Vec<u64>>) -> Cluster {
    let stores = (0..).zip(levels).map(|(id, levels)| {
        let levels = levels.into_iter().map(|room| Level::new("", room, Footprint::EXACT)).collect();
        CacheStore::new(StoreId(id), levels)
    });
    Cluster { stores: stores.collect(), ranks: Ranks::PerStore(1), ..Cluster::default() }
}

fn key(dataset: usize, id: u64) -> SampleKey {
    SampleKey::new(DatasetId(dataset as u32), SampleId(id))
}

/// The reads of all ranks under a plan's owners, replayed use by use from their streams.
#[derive(Debug, Default, PartialEq)]
struct Replayed {
    uses: u64,
    bytes: u64,
    origin_bytes: u64,
    /// Uses after the first epoch: all of them, and the uses that the origin serves.
    steady: u64,
    steady_origin: u64,
    /// Uses by the owner's own ranks.
    local: u64,
}

fn replay(run: &Run, sizes: &[Sizes], cluster: &Cluster, plan: &ClusterPlan) -> Replayed {
    let mut replayed = Replayed::default();
    let mut seen: Vec<Vec<bool>> = sizes.iter().map(|sizes| vec![false; sizes.len() as usize]).collect();
    each_use(run, |pass, rank, id| {
        let dataset = pass.dataset.0 as usize;
        let bytes = sizes[dataset].bytes(id);
        let owner = plan.owner(key(dataset, id.0));
        let seen = std::mem::replace(&mut seen[dataset][id.0 as usize], true);
        let origin = owner.is_none() || !seen;
        replayed.uses += 1;
        replayed.bytes += bytes;
        replayed.origin_bytes += if origin { bytes } else { 0 };
        replayed.steady += u64::from(pass.epoch > 0);
        replayed.steady_origin += u64::from(pass.epoch > 0 && origin);
        let own = cluster.store_of(rank).unwrap().id;
        replayed.local += u64::from(owner.is_some_and(|owner| cluster.stores[owner.store].id == own));
    });
    replayed
}

/// Calls `each` for the reads of all ranks, without padding.
fn each_use(run: &Run, mut each: impl FnMut(&Pass, Rank, SampleId)) {
    for pass in run.passes() {
        let all = run.stream(&pass).unwrap();
        let places = all.list_len().min(all.order().len());
        let (mut ids, mut ranks) = (vec![SampleId(0); places as usize], vec![Rank(0); places as usize]);
        all.fill_list(0, &mut ids);
        all.dealing().fill_ranks(all.order().len(), all.consumed(), 0, &mut ranks);
        ids.iter().zip(&ranks).for_each(|(&id, &rank)| each(&pass, rank, id));
    }
}
