//! The datasets that the agent keeps samples of.
//!
//! Two jobs share a dataset if its bytes have one identity and both read them in the same way. The
//! identity that a job states is not believed: the agent opens the dataset from the job's catalog,
//! and compares what it finds itself.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use foreread::agent::disk::{DiskChange, DiskDataset};
use foreread::agent::host::{DatasetHost, HostedDataset, environment};
use foreread_dataset::Catalog;
use foreread_store::NodeStore;
use foreread_store::attach::{AttachDataset, DatasetAnswer};
use foreread_types::DatasetId;

use crate::cluster_cache::{ClusterCache, ClusterReader, SharedDataset};
use crate::origin_name::origin_name;

/// What makes a dataset the same for two jobs.
#[derive(Clone, PartialEq, Eq, Hash)]
struct DatasetKey {
    identity: String,
    url: String,
    settings: BTreeMap<String, String>,
}

/// A dataset that is open.
#[derive(Clone, Debug)]
pub(crate) struct KnownDataset {
    pub(crate) id: DatasetId,
    pub(crate) url: String,
    /// The store that it is read from.
    pub(crate) origin: String,
    /// Its number for the disks, if there are any.
    pub(crate) on_disk: Option<DiskDataset>,
    pub(crate) samples: u64,
    pub(crate) bytes: u64,
    pub(crate) hosted: HostedDataset,
}

/// All datasets since the start.
#[derive(Default)]
pub(crate) struct Datasets {
    known: Mutex<HashMap<DatasetKey, KnownDataset>>,
    /// One dataset is opened at a time, so that none is opened twice.
    opening: tokio::sync::Mutex<()>,
}

impl std::fmt::Debug for Datasets {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.lock().values()).finish()
    }
}

impl Datasets {
    /// Every change is one insertion.
    fn lock(&self) -> MutexGuard<'_, HashMap<DatasetKey, KnownDataset>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The dataset that a job names, and the answer to the job. `catalog` is the job's, if it has
    /// sent it.
    pub(crate) async fn find(
        &self,
        wanted: &AttachDataset,
        catalog: Option<Bytes>,
        host: &DatasetHost,
        (store, cluster): (&NodeStore, &Arc<ClusterCache>),
    ) -> (Option<DatasetId>, DatasetAnswer) {
        if wanted.environment != environment(&wanted.url) {
            let why = "its environment has other credentials than the agent's: start the agent with the same \
                       ones, or set them as storage options";
            return (None, DatasetAnswer::Refused(why.to_owned()));
        }
        let AttachDataset { identity, url, settings, .. } = wanted.clone();
        let key = DatasetKey { identity, url, settings };
        let known = || self.lock().get(&key).map(|known| known.id);
        if let Some(id) = known() {
            return (Some(id), DatasetAnswer::Kept);
        }
        let Some(catalog) = catalog else { return (None, DatasetAnswer::CatalogNeeded) };
        let _opening = self.opening.lock().await;
        if let Some(id) = known() {
            return (Some(id), DatasetAnswer::Kept);
        }
        match open(&key, catalog, host, (store, cluster)).await {
            Ok(opened) => {
                let id = opened.id;
                self.lock().insert(key, opened);
                (Some(id), DatasetAnswer::Kept)
            }
            Err(why) => (None, DatasetAnswer::Refused(why)),
        }
    }

    /// The dataset of a number.
    pub(crate) fn get(&self, id: DatasetId) -> Option<KnownDataset> {
        self.lock().values().find(|dataset| dataset.id == id).cloned()
    }

    /// All of them.
    pub(crate) fn all(&self) -> Vec<KnownDataset> {
        let mut all: Vec<_> = self.lock().values().cloned().collect();
        all.sort_by_key(|dataset| dataset.id);
        all
    }
}

async fn open(
    key: &DatasetKey,
    catalog: Bytes,
    host: &DatasetHost,
    (store, cluster): (&NodeStore, &Arc<ClusterCache>),
) -> Result<KnownDataset, String> {
    // Reads and copies all of it.
    let reading = tokio::task::spawn_blocking(move || {
        let received =
            Catalog::from_bytes(catalog, "the job's catalog").map_err(|error| error.to_string())?;
        let shared = received.in_shared_memory();
        let shared = shared.inspect_err(|error| tracing::debug!(%error, "jobs have catalogs of their own"));
        Ok::<_, String>(shared.unwrap_or(received))
    });
    let catalog = reading.await.map_err(|error| error.to_string())??;
    if catalog.base_url() != key.url {
        return Err("its catalog is of another place".to_owned());
    }
    let origin = origin_name(&key.url);
    let hosted = host.open(catalog, &key.settings, &origin).await.map_err(|error| error.to_string())?;
    if hosted.identity() != key.identity {
        return Err(
            "the agent sees other data at its place: is another file system mounted there?".to_owned()
        );
    }
    let (of_blocks, has_homes) = (hosted.clone(), cluster.has_joined());
    // It may visit each entry of the catalog.
    let blocks = tokio::task::spawn_blocking(move || match has_homes {
        true => of_blocks.shared_blocks(),
        false => Ok(Vec::new()),
    });
    let blocks = blocks.await.map_err(|error| error.to_string())?.map_err(|error| error.to_string())?;
    let dataset = Arc::new(SharedDataset::new(&key.identity, &key.url, hosted.catalog().clone(), blocks));
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
    let (url, samples, bytes) = (key.url.clone(), hosted.sizes().len(), hosted.sizes().total());
    Ok(KnownDataset { id, url, origin, on_disk, samples, bytes, hosted })
}
