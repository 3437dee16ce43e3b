//! The datasets that the agent keeps samples of.
//!
//! Two jobs share a dataset if its bytes have one identity and both read them in the same way. The
//! identity that a job states is not trusted: the agent opens the dataset from the job's catalog,
//! and computes the identity itself.
//!
//! A dataset is opened for its first job and closed after its last one, so that its mount is free.
//! A dataset that took longer to open than its job waits stays open for a while without a job: the
//! job requests it again. The samples of a closed dataset stay in memory and on disks. A dataset
//! without jobs and samples is forgotten, with its catalog. The price: a job that comes later opens
//! it again, and has to send the catalog if it was forgotten.
//!
//! Datasets of one location share their samples ([`same_samples`](crate::same_samples)). So a
//! dataset is open, and known, while a job uses any dataset that has samples of it.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use foreread_store::NodeStore;
use foreread_store::attach::{AttachDataset, DatasetAnswer};
use foreread_tier::lock;
use foreread_types::{DatasetId, SampleId, SampleKey};
use tokio::runtime::Handle;

use crate::dataset_host::{DatasetHost, HostedDataset};
use crate::disk::{DiskChange, DiskDataset};
use bytes::Bytes;
use foreread_dataset::Catalog;
use futures::future::BoxFuture;

use crate::cluster_cache::{ClusterCache, ClusterReader, SharedDataset};
use crate::openings::Openings;
use crate::origin_name::origin_name;
use crate::same_samples::{KeptElsewhere, StoreNumbers};

/// How long a job waits for its datasets to be opened. It is shorter than the time after which the
/// job gives up the agent ([`foreread_agent_client`]), so the job hears the reason.
pub(crate) const OPEN_PATIENCE: Duration = Duration::from_secs(20);

/// How long a dataset stays open until its first job is there.
const FIRST_JOB_PATIENCE: Duration = Duration::from_secs(180);

/// The most samples of datasets of one location that are compared. It takes seconds, which a job
/// waits.
const MOST_COMPARED: u64 = 4_000_000;

/// The fields in which the datasets of two jobs must be equal, so that they are one dataset.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct DatasetKey {
    identity: String,
    /// Empty for directories: the identity has their place, which several paths may lead to.
    url: String,
    settings: BTreeMap<String, String>,
}

impl DatasetKey {
    fn of(wanted: &AttachDataset) -> Self {
        let AttachDataset { identity, url, settings, .. } = wanted.clone();
        let is_path = !url.contains("://") || url.starts_with("file:");
        Self { identity, url: if is_path { String::new() } else { url }, settings }
    }
}

/// A dataset that the store knows.
#[derive(Clone, Debug)]
pub(crate) struct KnownDataset {
    key: Arc<DatasetKey>,
    pub(crate) id: DatasetId,
    pub(crate) url: String,
    /// The origin that it is read from.
    pub(crate) origin: String,
    /// Its number for the disks, if there are any.
    pub(crate) on_disk: Option<DiskDataset>,
    pub(crate) samples: u64,
    pub(crate) bytes: u64,
    pub(crate) hosted: HostedDataset,
    /// Where the store has its samples. `None`: all under its own number.
    pub(crate) numbers: Option<Arc<StoreNumbers>>,
    /// When a job last began or ended.
    pub(crate) used: Instant,
    /// Until when its first job since it was opened may come. `None`: it was there.
    awaited: Option<Instant>,
}

impl KnownDataset {
    /// Whether its first job since it was opened may still come.
    pub(crate) fn is_awaited(&self) -> bool {
        self.awaited.is_some_and(|until| Instant::now() < until)
    }

    /// The store's key of a sample.
    pub(crate) fn key(&self, id: SampleId) -> SampleKey {
        self.numbers.as_ref().map_or(SampleKey::new(self.id, id), |numbers| numbers.key(id))
    }

    /// Its samples that a forgotten dataset had, too, have their own numbers from now on.
    fn forget_numbers_of(&mut self, forgotten: DatasetId) {
        if let Some(numbers) = self.numbers.take_if(|numbers| numbers.others().contains(&forgotten)) {
            self.numbers = numbers.without(forgotten).map(Arc::new);
        }
    }

    /// The samples with a number of another dataset that the node keeps.
    pub(crate) fn kept_elsewhere(&self, store: &NodeStore) -> KeptElsewhere {
        let mut kept = KeptElsewhere::default();
        for (id, key) in self.numbers.iter().flat_map(|numbers| numbers.elsewhere()) {
            let bytes = NodeStore::FOOTPRINT.of(self.hosted.sizes().bytes(id));
            if store.contains(key) {
                kept.held_samples += 1;
                kept.held_bytes += bytes;
            } else if store.has(key) {
                kept.disk_samples += 1;
                kept.disk_bytes += bytes;
            }
        }
        kept
    }

    /// Whether equal digests mean equal samples.
    fn is_of_location(&self, other: &Self) -> bool {
        let (one, two) = (&self.hosted, &other.hosted);
        self.key.url == other.key.url
            && self.key.settings == other.key.settings
            && one.place() == two.place()
            && one.catalog().place_name() == two.catalog().place_name()
    }

    /// The memory that all of its samples take, at most.
    pub(crate) fn most_memory(&self) -> u64 {
        self.bytes.saturating_add(self.samples.saturating_mul(NodeStore::FOOTPRINT.of(0) + 64))
    }
}

/// The parts of the host that open datasets.
#[derive(Clone, Debug)]
pub(crate) struct DatasetOpener {
    pub(crate) host: Arc<DatasetHost>,
    pub(crate) store: NodeStore,
    pub(crate) cluster: Arc<ClusterCache>,
    pub(crate) runtime: Handle,
}

/// The datasets with jobs or samples. Clones are the same.
#[derive(Clone, Default)]
pub(crate) struct Datasets {
    known: Arc<Mutex<HashMap<Arc<DatasetKey>, KnownDataset>>>,
    /// By location. Held from the look for samples that other datasets of it have until the dataset
    /// is known, too.
    sharing: Arc<Mutex<HashMap<String, Arc<tokio::sync::Mutex<()>>>>>,
    openings: Openings<DatasetKey, DatasetId>,
}

impl std::fmt::Debug for Datasets {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(lock(&self.known).values()).finish()
    }
}

impl Datasets {
    /// The dataset that a job names, and the answer to the job. `catalog` is the job's, if it has
    /// sent it. Waits until `deadline` at most.
    pub(crate) async fn find(
        &self,
        wanted: &AttachDataset,
        catalog: Option<Bytes>,
        opener: &DatasetOpener,
        deadline: tokio::time::Instant,
    ) -> (Option<DatasetId>, DatasetAnswer) {
        if wanted.environment != opener.host.credentials(&wanted.url) {
            let why = "its environment has other credentials than the agent's: start the agent with the same \
                       ones, or set them as storage options";
            return (None, DatasetAnswer::Refused(why.to_owned()));
        }
        let key = DatasetKey::of(wanted);
        let known = lock(&self.known).get(&key).cloned();
        if let Some(known) = known.as_ref().filter(|known| known.hosted.is_open()) {
            return (Some(known.id), DatasetAnswer::Kept);
        }
        if known.is_none() && catalog.is_none() && !self.openings.contains(&key) {
            return (None, DatasetAnswer::CatalogNeeded);
        }
        let (datasets, to_open, with) = (self.clone(), (key.clone(), wanted.url.clone()), opener.clone());
        let open = move || -> BoxFuture<'static, Result<DatasetId, String>> {
            Box::pin(async move { datasets.open(to_open, catalog, &with).await })
        };
        match self.openings.wait(&key, deadline, &opener.runtime, open).await {
            Some(Ok(id)) => (Some(id), DatasetAnswer::Kept),
            Some(Err(why)) => (None, DatasetAnswer::Refused(why)),
            None => {
                let seconds = OPEN_PATIENCE.as_secs();
                let why = format!(
                    "the agent has not opened its data after {seconds} s: the storage at {} is slow or hangs",
                    wanted.url
                );
                (None, DatasetAnswer::Refused(why))
            }
        }
    }

    /// The dataset of this identity that a job of this node uses, and the answer to a job of the
    /// same run on another node. Nothing is opened for that: not even its settings are known.
    pub(crate) fn find_used(&self, identity: &str) -> (Option<DatasetId>, DatasetAnswer) {
        let known = lock(&self.known);
        let mut used = known.values().filter(|it| it.key.identity == identity && it.hosted.is_open());
        match used.next() {
            Some(known) => (Some(known.id), DatasetAnswer::Kept),
            None => (None, DatasetAnswer::Refused("no rank of this node reads it".to_owned())),
        }
    }

    /// Opens a dataset, again if it is known.
    async fn open(
        &self,
        (key, url): (DatasetKey, String),
        catalog: Option<Bytes>,
        opener: &DatasetOpener,
    ) -> Result<DatasetId, String> {
        // It may have been opened between the look at it and this task.
        let known = lock(&self.known).get(&key).cloned();
        match (known, catalog) {
            (Some(known), _) if known.hosted.is_open() => Ok(known.id),
            (Some(known), _) => {
                self.open_again(&known, opener).await?;
                Ok(known.id)
            }
            (None, Some(catalog)) => {
                let mut opened = open((Arc::new(key), url), catalog, opener).await?;
                let id = opened.id;
                let location = format!("{} {}", opened.key.url, opened.hosted.place());
                let sharing = {
                    let mut known = lock(&self.sharing);
                    Arc::clone(known.entry(location).or_default())
                };
                let _sharing = sharing.lock().await;
                if !opener.cluster.has_joined() {
                    let mut earlier = self.all();
                    earlier.retain(|other| other.is_of_location(&opened));
                    let of = opened.clone();
                    let numbers = tokio::task::spawn_blocking(move || numbers(&of, &earlier)).await;
                    let numbers = numbers.unwrap_or_else(|error| Err(error.to_string()));
                    opened.numbers = numbers.map(|numbers| numbers.map(Arc::new)).unwrap_or_else(|why| {
                        tracing::warn!(url = opened.url, why, "samples are shared with no other dataset");
                        None
                    });
                }
                let mut known = lock(&self.known);
                // Some may have been forgotten meanwhile.
                let others = opened.numbers.iter().flat_map(|numbers| numbers.others().iter().copied());
                let gone: Vec<DatasetId> =
                    others.filter(|other| known.values().all(|known| known.id != *other)).collect();
                for other in gone {
                    opened.forget_numbers_of(other);
                }
                known.insert(Arc::clone(&opened.key), opened);
                Ok(id)
            }
            (None, None) => Err("its catalog is missing".to_owned()),
        }
    }

    /// Opens the storage of a known dataset again.
    async fn open_again(&self, known: &KnownDataset, opener: &DatasetOpener) -> Result<(), String> {
        let again = hosted(&known.key, known.hosted.catalog().clone(), &known.origin, opener).await?;
        if let Some(known) = lock(&self.known).get_mut(&known.key) {
            known.awaited = Some(Instant::now() + FIRST_JOB_PATIENCE);
        }
        known.hosted.open_as(&again);
        Ok(())
    }

    /// The store's keys of the samples of a dataset that a job is to use. The others with samples
    /// of it are open then. `None`: all under its own number.
    pub(crate) async fn shared_numbers(
        &self,
        dataset: &KnownDataset,
        opener: &DatasetOpener,
        deadline: tokio::time::Instant,
    ) -> Option<Arc<StoreNumbers>> {
        let numbers = dataset.numbers.clone()?;
        for other in numbers.others() {
            let other = self.get(*other)?;
            if !other.hosted.is_open() {
                let opening = tokio::time::timeout_at(deadline, self.open_again(&other, opener));
                if let Err(why) = opening.await.unwrap_or_else(|_| Err("it takes too long".to_owned())) {
                    tracing::warn!(url = dataset.url, why, "samples are not shared with another dataset");
                    return None;
                }
            }
        }
        Some(numbers)
    }

    /// The dataset of a number.
    pub(crate) fn get(&self, id: DatasetId) -> Option<KnownDataset> {
        lock(&self.known).values().find(|dataset| dataset.id == id).cloned()
    }

    /// All of them.
    pub(crate) fn all(&self) -> Vec<KnownDataset> {
        let mut all: Vec<_> = lock(&self.known).values().cloned().collect();
        all.sort_by_key(|dataset| dataset.id);
        all
    }

    /// Whether no other dataset of its location was used after it: it is not an earlier version.
    /// Datasets of one job were used at one time.
    pub(crate) fn is_latest(&self, dataset: &KnownDataset) -> bool {
        let known = lock(&self.known);
        !known.values().any(|other| other.url == dataset.url && other.used > dataset.used)
    }

    /// Notes that a job with these datasets begins or ends.
    pub(crate) fn note_use(&self, ids: impl Iterator<Item = DatasetId>) {
        let (now, ids) = (Instant::now(), ids.collect::<Vec<_>>());
        for dataset in lock(&self.known).values_mut().filter(|dataset| ids.contains(&dataset.id)) {
            dataset.used = now;
            dataset.awaited = None;
        }
    }

    /// Forgets a dataset without jobs, unless it has samples in memory.
    pub(crate) fn forget(&self, dataset: &KnownDataset, opener: &DatasetOpener) {
        if self.openings.contains(&dataset.key) || !opener.store.remove_dataset(dataset.id) {
            return;
        }
        let mut known = lock(&self.known);
        known.remove(&dataset.key);
        known.values_mut().for_each(|other| other.forget_numbers_of(dataset.id));
        drop(known);
        opener.cluster.remove_dataset(dataset.id);
        dataset.hosted.leave_disk();
        tracing::debug!(url = dataset.url, "a dataset without jobs and samples is forgotten");
    }
}

/// The store's keys of the samples of a dataset. Earlier datasets of its location may have some of
/// these samples.
fn numbers(dataset: &KnownDataset, earlier: &[KnownDataset]) -> Result<Option<StoreNumbers>, String> {
    let catalog = dataset.hosted.catalog();
    let samples = earlier.iter().fold(dataset.samples, |sum, other| sum.saturating_add(other.samples));
    if samples > MOST_COMPARED || earlier.is_empty() && !catalog.may_repeat_files() {
        return Ok(None);
    }
    let digests = |of: &KnownDataset| of.hosted.catalog().sample_digests().map_err(|error| error.to_string());
    let Some(own) = digests(dataset)? else { return Ok(None) };
    let known = earlier.iter().flat_map(|other| {
        // A dataset that cannot be compared is not shared with.
        let digests = digests(other).ok().flatten().unwrap_or_default();
        (0..).map(|id| other.key(SampleId(id))).zip(digests)
    });
    Ok(StoreNumbers::find(dataset.id, &own, known))
}

/// Opens the dataset of a catalog, and compares its identity.
async fn hosted(
    key: &DatasetKey,
    catalog: Catalog,
    origin: &str,
    opener: &DatasetOpener,
) -> Result<HostedDataset, String> {
    let opening = opener.host.open(catalog, &key.settings, origin).await;
    let hosted = opening.map_err(|error| error.to_string())?;
    if hosted.identity() != key.identity {
        return Err(
            "the agent sees other data at its place: is another file system mounted there?".to_owned()
        );
    }
    Ok(hosted)
}

async fn open(
    (key, url): (Arc<DatasetKey>, String),
    catalog: Bytes,
    opener: &DatasetOpener,
) -> Result<KnownDataset, String> {
    let DatasetOpener { store, cluster, .. } = opener;
    let location = url.clone();
    // Reads and copies all of the catalog, and asks the file system for the name of the origin.
    let reading = tokio::task::spawn_blocking(move || {
        let received =
            Catalog::from_bytes(catalog, "the job's catalog").map_err(|error| error.to_string())?;
        let received = received.with_gone();
        let shared = received.in_shared_memory();
        let shared = shared.inspect_err(|error| tracing::debug!(%error, "jobs have catalogs of their own"));
        Ok::<_, String>((shared.unwrap_or(received), origin_name(&location)))
    });
    let (catalog, origin) = reading.await.map_err(|error| error.to_string())??;
    if catalog.base_url() != url {
        return Err("its catalog is of another place".to_owned());
    }
    let hosted = hosted(&key, catalog, &origin, opener).await?;
    let (of_blocks, has_owners) = (hosted.clone(), cluster.has_joined());
    // It may visit each entry of the catalog.
    let blocks = tokio::task::spawn_blocking(move || match has_owners {
        true => of_blocks.shared_blocks(),
        false => Ok(Vec::new()),
    });
    let blocks = blocks.await.map_err(|error| error.to_string())?.map_err(|error| error.to_string())?;
    let dataset = SharedDataset::new(&key.identity, &key.url, hosted.catalog().clone(), blocks);
    let dataset = Arc::new(dataset.with_storage(hosted.patience(), hosted.is_relayed()));
    let (own, cluster) = (hosted.reader(), Arc::clone(cluster));
    let reader = ClusterReader { own, dataset: Arc::clone(&dataset), cluster: Arc::downgrade(&cluster) };
    let added = store.add_dataset(hosted.sizes(), Arc::new(reader), &origin);
    let id = added.map_err(|error| error.to_string())?;
    dataset.set_id(id);
    let sharing = tokio::task::spawn_blocking(move || cluster.add_dataset(dataset));
    sharing.await.map_err(|error| error.to_string())?;
    let marked = store.clone();
    let listener = move |change: DiskChange<'_>| match change {
        DiskChange::All(ids) => marked.replace_on_disk(id, ids),
        DiskChange::Lost(ids) => marked.set_on_disk(id, ids, false),
    };
    let on_disk = hosted.use_disk(Arc::new(listener)).await;
    let (samples, bytes, used) = (hosted.sizes().len(), hosted.sizes().total(), Instant::now());
    let awaited = Some(used + FIRST_JOB_PATIENCE);
    let numbers = None;
    Ok(KnownDataset { key, id, url, origin, on_disk, samples, bytes, hosted, numbers, used, awaited })
}
