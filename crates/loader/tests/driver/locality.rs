//! Samples are dealt to the ranks that have them, and all ranks read from one origin.

use std::sync::Arc;

use foreread_dataset::Catalog;
use foreread_loader::{Dataset, Loader, LoaderParts, LocalityDeal, OnError, ReadSource};
use foreread_oracle::{Deal, Phase, PhaseKind, Run, Schedule, Shuffle};
use foreread_planner::{CacheStore, Cluster, Level, LocalPlan, Ranks, plan_cluster};
use foreread_tier::HeapBuffers;
use foreread_tier_testing::FakeOrigin;
use foreread_types::{DatasetId, Footprint, Rank, SampleId, StoreId};
use tokio::runtime::Handle;

use crate::rig::{mixed, next};

const SAMPLES: u64 = 384;
const RANKS: u32 = 4;
const EPOCHS: u64 = 3;
const BATCH: usize = 8;

fn run(rank: u32) -> Run {
    let phase = Phase {
        kind: PhaseKind::Train,
        dataset: DatasetId(0),
        sampler: Arc::new(Shuffle::new(SAMPLES, 11).unwrap()),
        batch_size: Some(BATCH as u64),
        drop_last: false,
    };
    let schedule = Arc::new(Schedule::new(EPOCHS, vec![phase]).unwrap());
    Run::new(schedule, Deal::Torch, RANKS, Rank(rank)).unwrap()
}

/// Starts a rank of a job whose stores hold everything.
fn start(fake: &FakeOrigin, rank: u32) -> (Loader, Arc<LocalityDeal>) {
    let objects = (0..SAMPLES).map(|id| fake.object(SampleId(id)));
    let catalog = Catalog::from_objects("fake://", objects).unwrap();
    let level = Level::new("memory", 1 << 20, Footprint::EXACT);
    let stores = (0..RANKS).map(|id| CacheStore::new(StoreId(id), vec![level.clone()]));
    let cluster = Cluster { stores: stores.collect(), ranks: Ranks::PerStore(1), ..Cluster::default() };
    let run = run(rank);
    let plan = plan_cluster(&run, &[catalog.sizes()], &cluster).unwrap();
    let locality = Arc::new(LocalityDeal { cluster, owners: plan.owners().clone() });
    let parts = LoaderParts {
        run,
        plan: LocalPlan::Cluster { plan: Arc::new(plan), store: rank as usize },
        locality: Some(Arc::clone(&locality)),
        warm: false,
        datasets: vec![Dataset::new(catalog, Arc::new(fake.clone()))],
        caches: Vec::new(),
        buffers: Arc::new(HeapBuffers),
        look_ahead: 20_000,
        on_error: OnError::Fail,
    };
    (Loader::start(parts, &Handle::current()), locality)
}

/// The samples of all passes of a rank, by `of`.
fn dealt(run: &Run, of: impl Fn(&foreread_oracle::Pass) -> foreread_oracle::AccessStream) -> Vec<SampleId> {
    let streams = run.passes().map(|pass| of(&pass));
    streams.flat_map(|stream| (0..stream.len()).map(|at| stream.at(at)).collect::<Vec<_>>()).collect()
}

#[tokio::test(start_paused = true)]
async fn locality_keeps_the_global_batches_and_reads_the_origin() {
    let fake = mixed(SAMPLES, 10, 1000);
    let (mut delivered, mut arithmetic, mut requests) = (Vec::new(), Vec::new(), 0);
    for rank in 0..RANKS {
        let (mut loader, locality) = start(&fake, rank);
        let mut ids = Vec::new();
        while let Some(batch) = next(&mut loader).await {
            for (id, bytes) in batch.unwrap().iter() {
                assert_eq!(*bytes, fake.expected(id), "{id}");
                ids.push(id);
            }
        }
        let run = run(rank);
        assert_eq!(ids, dealt(&run, |pass| locality.stream(&run, pass).unwrap()), "rank {rank}");
        arithmetic.push(dealt(&run, |pass| run.stream(pass).unwrap()));
        // A sample that two epochs use within the look-ahead is read once.
        let passes = loader.report().passes;
        assert_eq!(passes[0].reads.from(ReadSource::Origin), passes[0].reads.total());
        requests += passes.iter().map(|pass| pass.reads.from(ReadSource::Origin).samples).sum::<u64>();
        delivered.push(ids);
    }
    assert_ne!(delivered, arithmetic);
    assert_eq!(fake.counts().tally().requests, requests);
    assert!(requests * 10 > SAMPLES * EPOCHS * 9, "{requests}");
    let step = |ids: &[Vec<SampleId>], at: usize| {
        let mut all: Vec<SampleId> =
            ids.iter().flat_map(|ids| &ids[at * BATCH..][..BATCH]).copied().collect();
        all.sort_unstable();
        all
    };
    for at in 0..delivered[0].len() / BATCH {
        assert_eq!(step(&delivered, at), step(&arithmetic, at), "step {at}");
    }
}
