//! Starts runs over fake tiers.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use foreread_dataset::Catalog;
use foreread_loader::{Batch, Dataset, LoadError, Loader, LoaderParts, OnError, ReadSource};
use foreread_oracle::{Deal, Phase, PhaseKind, Position, Run, Sampler, Schedule, Shuffle};
use foreread_planner::{CacheStore, Cluster, Level, LocalPlan, plan};
use foreread_tier::{CacheTier, HeapBuffers, ReadFuture, ReadRequest, Tier, TierError, TierProfile};
use foreread_tier_testing::FakeOrigin;
use foreread_types::{DatasetId, Rank, SampleId, StoreId};
use futures::{FutureExt, StreamExt};
use tokio::runtime::Handle;
use tokio::time::timeout;

/// The inputs of a run.
pub struct Rig {
    pub fake: FakeOrigin,
    /// The catalog, if it is not made from the fake.
    pub catalog: Option<Catalog>,
    /// The origin, if it is not the fake.
    pub origin: Option<Arc<dyn Tier>>,
    pub sampler: Arc<dyn Sampler>,
    pub epochs: u64,
    pub batch_size: u64,
    pub start: Option<Position>,
    /// With their capacities, which the fakes do not report.
    pub caches: Vec<(ReadSource, Arc<dyn CacheTier>, u64)>,
    pub look_ahead: u64,
    pub on_error: OnError,
}

impl Rig {
    /// Two shuffled epochs in batches of 8, a look-ahead of a mebibyte, no caches.
    pub fn new(fake: FakeOrigin) -> Self {
        let sampler = Arc::new(Shuffle::new(fake.samples(), 7).unwrap());
        Self {
            fake,
            catalog: None,
            origin: None,
            sampler,
            epochs: 2,
            batch_size: 8,
            start: None,
            caches: Vec::new(),
            look_ahead: 1 << 20,
            on_error: OnError::Fail,
        }
    }

    pub fn origin(mut self, origin: impl Tier) -> Self {
        self.origin = Some(Arc::new(origin));
        self
    }

    pub fn cache(mut self, source: ReadSource, cache: Arc<dyn CacheTier>, capacity: u64) -> Self {
        self.caches.push((source, cache, capacity));
        self
    }

    pub fn run(&self) -> Run {
        let phase = Phase {
            kind: PhaseKind::Train,
            dataset: DatasetId(0),
            sampler: Arc::clone(&self.sampler),
            batch_size: Some(self.batch_size),
            drop_last: false,
        };
        let schedule = Arc::new(Schedule::new(self.epochs, vec![phase]).unwrap());
        match &self.start {
            None => Run::new(schedule, Deal::Torch, 1, Rank(0)).unwrap(),
            Some(position) => Run::resume(schedule, Deal::Torch, 1, Rank(0), position).unwrap(),
        }
    }

    /// The catalog of the fake, in memory.
    pub fn listed(&self) -> Catalog {
        let objects = (0..self.fake.samples()).map(|id| self.fake.object(SampleId(id)));
        Catalog::from_objects("fake://", objects).unwrap()
    }

    pub fn start_on(&self, runtime: &Handle) -> Loader {
        let catalog = self.catalog.clone().unwrap_or_else(|| self.listed());
        let levels = self
            .caches
            .iter()
            .map(|(source, cache, capacity)| Level::new(source.as_str(), *capacity, cache.footprint()));
        let store = CacheStore::new(StoreId(0), levels.collect());
        let cluster = Cluster { look_ahead: self.look_ahead, ..Cluster::single(store) };
        let run = self.run();
        let plan = Arc::new(plan(&run, &[catalog.sizes()], &cluster).unwrap());
        let origin = self.origin.clone().unwrap_or_else(|| Arc::new(self.fake.clone()));
        let parts = LoaderParts {
            run,
            plan: LocalPlan::Private(plan),
            locality: None,
            warm: false,
            datasets: vec![Dataset::new(catalog, origin)],
            caches: self.caches.iter().map(|(source, cache, _)| (*source, Arc::clone(cache))).collect(),
            buffers: Arc::new(HeapBuffers),
            look_ahead: self.look_ahead,
            on_error: self.on_error,
        };
        Loader::start(parts, runtime)
    }

    /// Starts on the runtime of the test.
    pub fn start(&self) -> Loader {
        self.start_on(&Handle::current())
    }

    /// All ids that the run must deliver, in order.
    pub fn ids(&self) -> Vec<SampleId> {
        let run = self.run();
        let ids = run.passes().flat_map(|pass| {
            let stream = run.stream(&pass).unwrap();
            (0..stream.len()).map(move |index| stream.at(index))
        });
        ids.collect()
    }

    /// Checks a batch's bytes and returns its ids.
    pub fn check(&self, batch: &Batch) -> Vec<SampleId> {
        for (id, bytes) in batch.iter() {
            assert_eq!(*bytes, self.fake.expected(id), "{id}");
        }
        batch.iter().map(|(id, _)| id).collect()
    }

    /// Takes all batches, checks them against the run, and returns their number.
    pub async fn check_all(&self, loader: &mut Loader) -> usize {
        let (mut ids, mut batches) = (Vec::new(), 0);
        while let Some(batch) = next(loader).await {
            ids.extend(self.check(&batch.unwrap()));
            batches += 1;
        }
        assert_eq!(ids, self.ids());
        batches
    }
}

/// The next batch. A hanging run fails at once, because the paused clock advances automatically.
pub async fn next(loader: &mut Loader) -> Option<Result<Batch, LoadError>> {
    timeout(Duration::from_secs(3600), loader.next()).await.expect("no hang")
}

/// Objects of the sizes `0`, `step`, `2 * step`, ... below `most`, repeated.
pub fn mixed(samples: u64, step: u64, most: u64) -> FakeOrigin {
    FakeOrigin::new((0..samples).map(|id| (format!("{:03}/{id:06}", id / 50), id * step % most)))
}

/// A tier that reads by the given function.
pub struct Custom<F>(pub F);

impl<F> fmt::Debug for Custom<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Custom")
    }
}

impl<F, R> Tier for Custom<F>
where
    F: Fn(Arc<ReadRequest>) -> R + Send + Sync + 'static,
    R: Future<Output = Result<Bytes, TierError>> + Send + 'static,
{
    fn name(&self) -> &str {
        "custom"
    }

    fn profile(&self) -> &TierProfile {
        const PROFILE: TierProfile = TierProfile::new(1);
        &PROFILE
    }

    fn read(&self, request: Arc<ReadRequest>) -> ReadFuture {
        (self.0)(request).boxed()
    }

    fn submit(&self) {}
}

/// A tier whose results hold `mark` until their last byte is dropped. The mark's strong count less
/// one is the number of live results.
pub fn marked(fake: &FakeOrigin, mark: &Arc<()>) -> impl Tier {
    struct Marked(Bytes, #[expect(dead_code, reason = "kept, not read")] Arc<()>);
    impl AsRef<[u8]> for Marked {
        fn as_ref(&self) -> &[u8] {
            &self.0
        }
    }
    // Weak, or the tier itself would count.
    let (fake, mark) = (fake.clone(), Arc::downgrade(mark));
    Custom(move |request| {
        let mark = mark.clone();
        let keep = move |bytes| match mark.upgrade() {
            Some(mark) => Bytes::from_owner(Marked(bytes, mark)),
            None => bytes,
        };
        fake.read(request).map(|result| result.map(keep))
    })
}
