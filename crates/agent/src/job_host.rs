//! The cache that the ranks of a node share, without an agent: its core, in the process of a rank.
//!
//! It ends with the rank. It has no files, no page and no policy, and reads what the ranks attach
//! with. Gaps between samples of different lengths come on top of its memory, as they do with the
//! caches of single ranks. Its disks are those of the ranks' settings. Samples that it keeps there
//! are found by later runs, with any number of ranks.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use foreread::report::DiskReport;
use foreread::{Config, HostedStore, NodeDataset, NodeHost, OtherReads, Registry, StoreLinks};
use foreread_store::{ConnectionId, LocalClient, Server, StoreJobs};
use foreread_tier::{OpenContext, PeerService};
use foreread_types::SampleId;
use futures::future::BoxFuture;

use crate::cluster_cache::{JobStores, ShareService, StoreName};
use crate::job_runtime::JobRuntime;
use crate::provider::AgentProvider;
use crate::{AgentError, FileLimit, arguments, provider, server_settings, shared};

/// Open files of a process that hosts a cache: enough for a terabyte of memory. Programs that close
/// all descriptors, as some trainers' helpers do, depend on a limit that is not too high.
const DESCRIPTORS: u64 = 1 << 16;

/// How long a run waits, before its start, for the stores of all nodes to know its ranks. Stores
/// plan before they answer.
const LINK_TIMEOUT: Duration = Duration::from_secs(20);

/// The number of the connection of the host's own rank: above those of the server, and not one of
/// other stores.
const OWN_RANK: ConnectionId = ConnectionId::numbered(1 << 61);

/// Starts the cache of a node in the process of its first rank.
#[derive(Clone, Copy, Debug, Default)]
pub struct JobHost;

/// A running one.
#[derive(Debug)]
struct JobStore {
    provider: Arc<AgentProvider>,
    /// Serves the stores of other nodes.
    service: Arc<OnceLock<Arc<ShareService>>>,
    /// Dropped in this order, after the disks are closed: no rank is served when the runtime ends.
    server: Option<Server>,
    runtime: JobRuntime,
}

impl NodeHost for JobHost {
    fn start(
        &self,
        ranks: u32,
        config: &Config,
        registry: &Registry,
        context: &OpenContext,
    ) -> Result<Box<dyn HostedStore>, String> {
        let store = JobStore::start(ranks > 1, config.clone(), registry.clone(), context);
        store.map(|store| Box::new(store) as _).map_err(|error| error.to_string())
    }
}

impl JobStore {
    fn start(
        has_others: bool,
        config: Config,
        registry: Registry,
        context: &OpenContext,
    ) -> Result<Self, AgentError> {
        FileLimit::current().raise(Some(DESCRIPTORS));
        let policy = arguments(None, &config);
        let runtime = JobRuntime::shared(&context.runtime)?;
        let place = OpenContext { runtime: runtime.handle().clone(), ..context.clone() };
        let provider = provider(0, (config, registry), policy, None, place)?;
        // Memory that no other process maps has larger pages.
        let served = || {
            let buffers = shared(&context.buffers)?;
            Ok::<_, AgentError>(Server::start(Arc::clone(&provider) as _, buffers, server_settings())?)
        };
        let server = if has_others { Some(served()?) } else { None };
        let service = Arc::default();
        Ok(Self { provider, service, server, runtime })
    }
}

impl HostedStore for JobStore {
    fn address(&self) -> String {
        self.server.as_ref().map_or_else(|| self.provider.state.name().to_owned(), Server::address)
    }

    fn client(&self) -> Arc<LocalClient> {
        self.provider.state.lock().entry(OWN_RANK).or_default();
        let jobs: Arc<dyn StoreJobs> = Arc::clone(&self.provider) as _;
        Arc::new(LocalClient::new(&jobs, OWN_RANK))
    }

    fn set_memory(&self, bytes: u64) {
        self.provider.state.grant(bytes);
    }

    fn open_disks(&self, datasets: Vec<NodeDataset>) -> BoxFuture<'static, Result<(), foreread::Error>> {
        let disk = self.provider.state.disk().cloned();
        Box::pin(async move {
            match disk {
                Some(disk) => disk.open_for(datasets).await,
                None => Ok(()),
            }
        })
    }

    fn on_disk(&self, identity: &str) -> Vec<SampleId> {
        let state = &self.provider.state;
        let known = state.datasets.all().into_iter().find(|dataset| dataset.hosted.identity() == identity);
        let number = known.and_then(|dataset| dataset.on_disk);
        state.disk().zip(number).map(|(disk, number)| disk.samples(number)).unwrap_or_default()
    }

    fn link(&self, links: StoreLinks) -> BoxFuture<'static, Arc<dyn PeerService>> {
        let StoreLinks { stores, own, owners, datasets, incoming } = links;
        // A store is called by its name alone.
        let name = |instance: String| StoreName { node: instance.clone(), instance };
        let (state, jobs) = (Arc::clone(&self.provider.state), Arc::clone(&self.provider) as _);
        let (own_name, runtime) = (name(state.name().to_owned()), self.runtime.handle().clone());
        let keep = Arc::clone(&self.service);
        let stores = stores.into_iter().map(|(instance, peer)| (name(instance), peer)).collect();
        let datasets = datasets.iter().map(ToString::to_string).collect();
        let stores = JobStores { stores, own, owners, datasets };
        Box::pin(async move {
            let cluster = Arc::clone(&state.cluster);
            // A panic was reported when it happened.
            let _ = tokio::task::spawn_blocking(move || cluster.link_job(stores)).await;
            // It serves only what the plan has.
            let service = ShareService::start(&runtime, jobs, own_name, incoming);
            // A store is linked once.
            let _ = keep.set(Arc::clone(&service));
            state.cluster.known(LINK_TIMEOUT).await;
            service as Arc<dyn PeerService>
        })
    }

    fn other_reads(&self) -> OtherReads {
        let state = &self.provider.state;
        let reads = state.reads_for_others();
        OtherReads { requests: reads.requests, bytes: reads.read_bytes, ..state.repeated_reads() }
    }

    fn disk_report(&self) -> Option<DiskReport> {
        self.provider.state.disk()?.report()
    }

    fn flush(&self) -> BoxFuture<'static, ()> {
        let disk = self.provider.state.disk().cloned();
        Box::pin(async move {
            if let Some(disk) = disk {
                disk.flush().await;
            }
        })
    }
}

impl Drop for JobStore {
    fn drop(&mut self) {
        // The next run of this process may use the same directories.
        if let Some(disk) = self.provider.state.disk() {
            disk.close();
        }
    }
}
