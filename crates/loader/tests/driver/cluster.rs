//! Ranks that share their caches: the reads of each rank, their sources, and unresponsive ranks.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::Duration;

use foreread_dataset::Catalog;
use foreread_loader::{Dataset, Loader, LoaderParts, LocalityDeal, OnError, PeerGroup, ReadSource};
use foreread_memory::MemoryTier;
use foreread_oracle::{Deal, Phase, PhaseKind, Run, Schedule, Shuffle};
use foreread_planner::{CacheStore, Cluster, Level, LocalPlan, Ranks, plan_cluster};
use foreread_tier::{
    CacheTier, ErrorKind, HeapBuffers, PeerReply, PeerRequest, PeerService, Peers, ReadFuture, ReadRequest,
    Tier, TierError, TierProfile,
};
use foreread_tier_testing::{FakeOrigin, StoredCache};
use foreread_types::{DatasetId, Rank, SampleId, SampleKey, StoreId, Tick};
use futures::{FutureExt, StreamExt};
use tokio::runtime::Handle;
use tokio::time::Instant;

use crate::rig::{Custom, mixed, next};

/// All ranks of a run in this process, connected directly.
#[derive(Debug, Default)]
pub struct FakeNetwork {
    pub serving: Vec<OnceLock<Weak<dyn PeerService>>>,
    /// Ranks that answer no request.
    pub unresponsive: Mutex<Vec<u32>>,
    /// How long answers take.
    slow: Mutex<Duration>,
    requested: Mutex<Vec<(Rank, u32)>>,
    /// Cancelled requests, by requester.
    cancelled: Mutex<Vec<(Rank, SampleKey)>>,
}

impl FakeNetwork {
    pub fn new(world_size: u32) -> Arc<Self> {
        let serving = (0..world_size).map(|_| OnceLock::new()).collect();
        Arc::new(Self { serving, ..Self::default() })
    }
}

#[derive(Debug)]
pub struct FakePeers {
    pub network: Arc<FakeNetwork>,
    pub rank: Rank,
}

#[derive(Debug)]
struct PeerTierStub {
    network: Arc<FakeNetwork>,
    from: Rank,
    to: u32,
}

impl Peers for FakePeers {
    fn rank(&self) -> Rank {
        self.rank
    }

    fn world_size(&self) -> u32 {
        self.network.serving.len() as u32
    }

    fn tier(&self, store: StoreId) -> Option<Arc<dyn Tier>> {
        let requesting = PeerTierStub { network: Arc::clone(&self.network), from: self.rank, to: store.0 };
        (store.0 != self.rank.0).then(|| Arc::new(requesting) as Arc<dyn Tier>)
    }

    fn cancel(&self, _: StoreId, key: SampleKey) {
        self.network.cancelled.lock().unwrap().push((self.rank, key));
    }

    fn serve(&self, source: Weak<dyn PeerService>) {
        self.network.serving[self.rank.0 as usize].set(source).unwrap();
    }
}

impl Tier for PeerTierStub {
    fn name(&self) -> &str {
        "peer"
    }

    fn profile(&self) -> &TierProfile {
        const PROFILE: TierProfile = TierProfile::new(64);
        &PROFILE
    }

    fn read(&self, request: Arc<ReadRequest>) -> ReadFuture {
        self.network.requested.lock().unwrap().push((self.from, self.to));
        let serving = self.network.serving[self.to as usize].get().and_then(Weak::upgrade);
        let gone = || Err(TierError::new(ErrorKind::Transient, "peer"));
        let Some(serving) = serving.filter(|_| !self.network.unresponsive.lock().unwrap().contains(&self.to))
        else {
            return Box::pin(std::future::ready(gone()));
        };
        let mut answers =
            serving.serve(self.from, vec![PeerRequest { tag: 0, key: request.key, due: request.due }]);
        let slow = *self.network.slow.lock().unwrap();
        Box::pin(async move {
            tokio::time::sleep(slow).await;
            while let Some(served) = answers.next().await {
                if let Some((_, result)) = served.answer() {
                    return result;
                }
            }
            gone()
        })
    }

    fn submit(&self) {}
}

struct ClusterJob {
    fake: FakeOrigin,
    world_size: u32,
    epochs: u64,
    memory: u64,
    locality: bool,
    /// Whether samples are cached on a disk, from which they have to be read.
    disk: bool,
    /// The budget of other ranks' requests to a rank, in bytes. Here it is in use until their
    /// trainer drops the sample.
    budget: u64,
    /// The catalog, if it is not made from the fake.
    catalog: Option<Catalog>,
    /// The origin, if it is not the fake.
    origin: Option<Arc<dyn Tier>>,
    network: Arc<FakeNetwork>,
}

impl ClusterJob {
    fn new(fake: FakeOrigin, world_size: u32, memory: u64) -> Self {
        Self {
            fake,
            world_size,
            epochs: 3,
            memory,
            locality: false,
            disk: false,
            budget: 10_000,
            catalog: None,
            origin: None,
            network: FakeNetwork::new(world_size),
        }
    }

    fn run(&self, rank: u32) -> Run {
        let phase = Phase {
            kind: PhaseKind::Train,
            dataset: DatasetId(0),
            sampler: Arc::new(Shuffle::new(self.fake.samples(), 11).unwrap()),
            batch_size: Some(8),
            drop_last: false,
        };
        let schedule = Arc::new(Schedule::new(self.epochs, vec![phase]).unwrap());
        Run::new(schedule, Deal::Torch, self.world_size, Rank(rank)).unwrap()
    }

    /// The catalog of the fake, in memory.
    fn listed(&self) -> Catalog {
        let objects = (0..self.fake.samples()).map(|id| self.fake.object(SampleId(id)));
        Catalog::from_objects("fake://", objects).unwrap()
    }

    fn start(&self, rank: u32) -> Loader {
        let catalog = self.catalog.clone().unwrap_or_else(|| self.listed());
        let (source, memory): (_, Arc<dyn CacheTier>) = match self.disk {
            true => (ReadSource::Disk, Arc::new(StoredCache::new(self.memory))),
            false => (ReadSource::Memory, Arc::new(MemoryTier::new(self.memory))),
        };
        let level = Level::new("memory", self.memory, memory.footprint());
        let stores = (0..self.world_size).map(|id| CacheStore::new(StoreId(id), vec![level.clone()]));
        let cluster = Cluster { stores: stores.collect(), ranks: Ranks::PerStore(1), ..Cluster::default() };
        let run = self.run(rank);
        let origin = self.origin.clone().unwrap_or_else(|| Arc::new(self.fake.clone()));
        let plan = plan_cluster(&run, &[catalog.sizes()], &cluster).unwrap();
        let owners = plan.owners().clone();
        let others = PeerGroup {
            peers: Arc::new(FakePeers { network: Arc::clone(&self.network), rank: Rank(rank) }),
            stores: (0..self.world_size).map(StoreId).collect(),
            served: Arc::new([]),
            budget: self.budget,
        };
        let parts = LoaderParts {
            run,
            plan: LocalPlan::Cluster { plan: Arc::new(plan), store: rank as usize, is_linked: false },
            others: Some(others),
            locality: self.locality.then(|| Arc::new(LocalityDeal { cluster, owners })),
            warm: false,
            datasets: vec![Dataset::new(catalog, origin)],
            caches: vec![(source, memory)],
            buffers: Arc::new(HeapBuffers),
            look_ahead: 20_000,
            on_error: OnError::Fail,
        };
        Loader::start(parts, &Handle::current())
    }

    /// Runs all ranks in turn, one batch each, and returns the delivered ids. Checks the bytes.
    async fn ids(&self, loaders: &mut [Loader]) -> Vec<Vec<SampleId>> {
        let mut ids = vec![Vec::new(); loaders.len()];
        let mut ended = vec![false; loaders.len()];
        while ended.contains(&false) {
            for (rank, loader) in loaders.iter_mut().enumerate() {
                if ended[rank] {
                    continue;
                }
                match next(loader).await {
                    None => ended[rank] = true,
                    Some(batch) => {
                        for (id, bytes) in batch.unwrap().iter() {
                            assert_eq!(*bytes, self.fake.expected(id), "{id}");
                            ids[rank].push(id);
                        }
                    }
                }
            }
        }
        ids
    }

    fn expected(&self, rank: u32) -> Vec<SampleId> {
        let run = self.run(rank);
        let ids = run.passes().flat_map(|pass| {
            let stream = run.stream(&pass).unwrap();
            (0..stream.len()).map(move |index| stream.at(index))
        });
        ids.collect()
    }

    fn all(&self) -> Vec<Loader> {
        (0..self.world_size).map(|rank| self.start(rank)).collect()
    }
}

/// The footprint of 400 samples of up to 990 bytes in a cache.
const EVERYTHING: u64 = 400 * 1400;

#[tokio::test(start_paused = true)]
async fn origin_is_read_once_for_all_ranks() {
    let job = ClusterJob::new(mixed(400, 10, 1000), 4, EVERYTHING / 3);
    let mut loaders = job.all();
    let ids = job.ids(&mut loaders).await;
    for (rank, ids) in (0..).zip(&ids) {
        assert_eq!(*ids, job.expected(rank), "rank {rank}");
    }
    let bytes: u64 = (0..400).map(|id| job.fake.expected(SampleId(id)).len() as u64).sum();
    assert_eq!(job.fake.counts().tally().bytes, bytes);
    assert_eq!(loaders[0].plan().origin_bytes(), bytes);
    let peer = |loader: &Loader| -> u64 {
        loader.report().passes.iter().map(|pass| pass.reads.from(ReadSource::Peer).samples).sum()
    };
    assert!(loaders.iter().map(peer).sum::<u64>() > 400);
}

/// An owner that waits for a silent file server repeats that it still reads, so that no other rank
/// reads the sample itself.
#[tokio::test(start_paused = true)]
// semantics: HPC-4
async fn read_of_a_silent_file_server_is_announced_again() {
    for (patience, announced) in [(Some(Duration::from_secs(1200)), 4), (None, 1)] {
        let profile = TierProfile::new(64).with_patience(patience);
        let fake = FakeOrigin::uniform(16, 100).with_latency(Duration::from_secs(35)).with_profile(profile);
        let job = ClusterJob::new(fake.clone(), 2, 10_000);
        let _owner = job.start(0);
        let key = SampleKey::new(DatasetId(0), job.expected(0)[0]);
        let service = job.network.serving[0].get().and_then(Weak::upgrade).unwrap();
        let requested = PeerRequest { tag: 7, key, due: Tick(0) };
        let replies: Vec<_> = service.serve(Rank(1), vec![requested]).collect().await;
        let (last, earlier) = replies.split_last().unwrap();
        assert!(earlier.iter().all(|reply| matches!(reply, PeerReply::Reading { tag: 7 })), "{replies:?}");
        assert_eq!(earlier.len(), announced);
        let (tag, bytes) = last.clone().answer().unwrap();
        assert_eq!((tag, bytes.unwrap()), (7, fake.expected(key.id)));
    }
}

#[tokio::test(start_paused = true)]
async fn samples_without_a_place_alone_are_read_again() {
    let job = ClusterJob::new(mixed(400, 10, 1000), 4, EVERYTHING / 8);
    let mut loaders = job.all();
    job.ids(&mut loaders).await;
    let planned = loaders[0].plan().origin_bytes();
    let read = job.fake.counts().tally().bytes;
    assert!(read <= planned && read * 100 >= planned * 90, "{read} of {planned}");
}

#[tokio::test(start_paused = true)]
async fn unresponsive_rank_costs_reads_and_no_sample() {
    let job = ClusterJob::new(mixed(400, 10, 1000), 3, EVERYTHING / 2);
    job.network.unresponsive.lock().unwrap().push(2);
    let mut loaders = job.all();
    let ids = job.ids(&mut loaders).await;
    for (rank, ids) in (0..).zip(&ids) {
        assert_eq!(*ids, job.expected(rank), "rank {rank}");
    }
}

/// An owner that takes less than a second is waited for. With a slower one, each use is hedged
/// once, and its request is cancelled.
#[tokio::test(start_paused = true)]
// semantics: RANK-18
async fn silent_owner_costs_one_hedge_per_use() {
    let after = async |slow: u64| {
        let job = ClusterJob::new(mixed(64, 10, 1000), 2, EVERYTHING);
        *job.network.slow.lock().unwrap() = Duration::from_millis(slow);
        let mut loaders = job.all();
        // The first epoch reads owned samples. The second requests the others.
        for _ in 0..loaders[0].run().passes().next().unwrap().batches {
            next(&mut loaders[0]).await.unwrap().unwrap();
            next(&mut loaders[1]).await.unwrap().unwrap();
        }
        let (mut longest, mut requested) = (Duration::ZERO, Instant::now());
        while let Some(batch) = next(&mut loaders[0]).await {
            batch.unwrap();
            longest = longest.max(requested.elapsed());
            requested = Instant::now();
        }
        let cancelled = job.network.cancelled.lock().unwrap().clone();
        (loaders[0].report().hedged, cancelled, longest)
    };
    let (hedged, cancelled, _) = after(900).await;
    assert_eq!((hedged, cancelled), (0, Vec::new()), "no wait reached a second");
    let (hedged, cancelled, longest) = after(20_000).await;
    assert!(hedged > 0 && cancelled.len() as u64 == hedged, "{hedged} hedges, {cancelled:?}");
    assert!(cancelled.iter().all(|(rank, _)| *rank == Rank(0)), "{cancelled:?}");
    assert!(longest < Duration::from_secs(2), "{longest:?}");
}

/// The panic ended the run, although the owners would have delivered.
#[tokio::test(start_paused = true)]
// semantics: FAIL-19
async fn hedge_whose_origin_panics_leaves_the_owner_to_deliver() {
    let mut job = ClusterJob::new(mixed(64, 10, 1000), 2, EVERYTHING);
    let (inner, is_over) = (job.fake.clone(), Arc::new(AtomicBool::new(false)));
    let is_epoch_over = Arc::clone(&is_over);
    job.origin = Some(Arc::new(Custom(move |request: Arc<ReadRequest>| {
        assert!(!is_epoch_over.load(Ordering::Relaxed), "of a hedge");
        inner.read(request)
    })));
    let mut loaders = job.all();
    // The first epoch reads all owned samples.
    for _ in 0..loaders[0].run().passes().next().unwrap().batches {
        next(&mut loaders[0]).await.unwrap().unwrap();
        next(&mut loaders[1]).await.unwrap().unwrap();
    }
    is_over.store(true, Ordering::Relaxed);
    *job.network.slow.lock().unwrap() = Duration::from_secs(20);
    while let Some(batch) = next(&mut loaders[0]).await {
        for (id, bytes) in batch.unwrap().iter() {
            assert_eq!(*bytes, job.fake.expected(id), "{id}");
        }
    }
    assert!(loaders[0].report().hedged > 0, "nothing was hedged");
}

/// Samples of other ranks, and cached ones for other ranks, were looked up in the catalog's file.
#[tokio::test(start_paused = true)]
// semantics: SAMPLE-20
async fn ranks_share_samples_without_the_catalogs_file() {
    for disk in [false, true] {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("c.foreread");
        let mut job =
            ClusterJob { disk, budget: 1 << 20, ..ClusterJob::new(mixed(384, 10, 1000), 2, 384 * 4096) };
        job.listed().save(&path).unwrap();
        job.catalog = Some(Catalog::open(&path).unwrap());
        let mut loaders = job.all();
        let mut steps = 0;
        loop {
            let mut batches = Vec::new();
            for loader in &mut loaders {
                batches.extend(next(loader).await);
            }
            if batches.is_empty() {
                break;
            }
            for (id, bytes) in batches.iter().flat_map(|batch| batch.as_ref().unwrap().iter()) {
                assert_eq!(*bytes, job.fake.expected(id), "{id}");
            }
            steps += 1;
            if steps == 384 / 8 / 2 {
                // Each rank has its owned samples.
                std::fs::File::options().write(true).open(&path).unwrap().set_len(0).unwrap();
            }
        }
        assert_eq!(steps, 3 * 384 / 8 / 2);
        let passes = loaders.iter().flat_map(|loader| loader.report().passes);
        let given: u64 = passes.map(|pass| pass.reads.from(ReadSource::Peer).samples).sum();
        assert!(given > 0);
    }
}

#[tokio::test(start_paused = true)]
// semantics: RANK-22
async fn early_end_of_a_rank_stops_no_other() {
    let job = ClusterJob::new(mixed(400, 10, 1000), 3, EVERYTHING / 2);
    let mut loaders = job.all();
    for loader in &mut loaders {
        for _ in 0..20 {
            next(loader).await.unwrap().unwrap();
        }
    }
    drop(loaders.remove(1));
    let mut rest = 0;
    for (rank, loader) in [0, 2].into_iter().zip(&mut loaders) {
        while let Some(batch) = next(loader).await {
            rest += batch.unwrap().len();
        }
        assert!(rest > 0, "rank {rank}");
    }
}

#[tokio::test(start_paused = true)]
async fn locality_keeps_the_global_batches() {
    let mut job = ClusterJob::new(mixed(384, 10, 1000), 4, EVERYTHING);
    job.locality = true;
    let mut loaders = job.all();
    let dealt = job.ids(&mut loaders).await;
    let arithmetic: Vec<Vec<SampleId>> = (0..4).map(|rank| job.expected(rank)).collect();
    let step = |ids: &[Vec<SampleId>], at: usize| {
        let mut all: Vec<SampleId> = ids.iter().flat_map(|ids| ids[at * 8..at * 8 + 8].to_vec()).collect();
        all.sort_unstable();
        all
    };
    assert_eq!(dealt[0].len(), arithmetic[0].len());
    for at in 0..dealt[0].len() / 8 {
        assert_eq!(step(&dealt, at), step(&arithmetic, at), "step {at}");
    }
    let last = |loader: &Loader| loader.report().passes[2].reads;
    let local: u64 = loaders.iter().map(|loader| last(loader).from(ReadSource::Memory).samples).sum();
    assert!(local * 100 >= 384 * 80, "{local} of 384 local");
}

#[tokio::test(start_paused = true)]
// semantics: RANK-1
async fn simultaneous_requests_read_a_sample_once() {
    let job = ClusterJob::new(mixed(64, 10, 1000), 2, EVERYTHING);
    let loader = job.start(0);
    // Before this rank's trainer has requested anything.
    let serving = job.network.serving[0].get().and_then(Weak::upgrade).unwrap();
    let requested: Vec<PeerRequest> = (0..64)
        .map(|id| PeerRequest {
            tag: id as u32,
            key: SampleKey::new(DatasetId(0), SampleId(id)),
            due: Tick(id),
        })
        .collect();
    let streams: Vec<_> = (0..3).map(|_| serving.serve(Rank(1), requested.clone())).collect();
    let (mut given, mut refused) = (0, 0);
    for mut stream in streams {
        while let Some(served) = stream.next().await {
            if let Some((tag, result)) = served.answer() {
                match result {
                    Ok(bytes) => {
                        assert_eq!(bytes, job.fake.expected(SampleId(tag.into())));
                        given += 1;
                    }
                    Err(error) => {
                        assert_eq!(error.kind(), ErrorKind::Absent);
                        refused += 1;
                    }
                }
            }
        }
    }
    assert_eq!((given + refused, given % 3), (192, 0));
    assert!(given > 0 && refused > 0, "one rank owns all");
    let mut loaders = [loader, job.start(1)];
    job.ids(&mut loaders).await;
    assert_eq!(job.fake.counts().tally().requests, 64);
    assert!(loaders[0].next().now_or_never().flatten().is_none());
}

/// A rank with a disk once held all requested samples in memory until they were sent.
#[tokio::test(start_paused = true)]
// semantics: RANK-30
async fn bytes_for_peers_stay_in_their_budget_until_sent() {
    let job = ClusterJob { disk: true, ..ClusterJob::new(mixed(64, 10, 1000), 2, EVERYTHING) };
    let _loader = job.start(0);
    let serving = job.network.serving[0].get().and_then(Weak::upgrade).unwrap();
    let requested = |id: u64| PeerRequest {
        tag: id as u32,
        key: SampleKey::new(DatasetId(0), SampleId(id)),
        due: Tick(id),
    };
    // From the origin, and then from the disk.
    for round in 0..2 {
        let mut stream = serving.serve(Rank(1), (0..64).map(requested).collect());
        let (mut held, mut given) = (Vec::new(), 0);
        let mut next = async || tokio::time::timeout(Duration::from_secs(60), stream.next()).await;
        while let Ok(Some(served)) = next().await {
            held.extend(served.answer().and_then(|(_, result)| result.ok()));
        }
        // Each takes a KiB of its quarter of 10,000 bytes.
        assert_eq!(held.len(), 3, "round {round}");
        // A rank that receives nothing does not delay another.
        let (mut other, mut taken) = (serving.serve(Rank(2), (0..64).map(requested).collect()), 0);
        while let Ok(Some(served)) = tokio::time::timeout(Duration::from_secs(60), other.next()).await {
            taken += usize::from(served.answer().is_some_and(|(_, result)| result.is_ok()));
        }
        assert!(taken > 20, "{taken}");
        given += held.len();
        held.clear();
        while let Ok(Some(served)) = next().await {
            given += usize::from(served.answer().is_some_and(|(_, result)| result.is_ok()));
        }
        assert!(given > 20, "{given}");
        // Cached samples are there in the next round.
        assert!(next().await.is_ok_and(|end| end.is_none()));
    }
    assert!(job.fake.counts().tally().requests <= 64);
}
