//! The cache that the ranks of a node share, without an agent: its core, in the process of a rank.
//!
//! It ends with the rank. It has no files, no page and no policy, and reads the datasets of the
//! attached ranks. Gaps between samples of different lengths come on top of its memory, as with the
//! caches of single ranks. Its disks come from the ranks' settings. Samples that it keeps there are
//! found by later runs, with any number of ranks.
//!
//! On a node with an agent it has no memory and no disks. It reads from the agent, which keeps the
//! samples, and serves the caches of other nodes.

use std::num::NonZeroUsize;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use foreread_open::disk::DiskReport;
use foreread_open::origin_policy::OtherReads;
use foreread_store::{ConnectionId, LocalClient, Server, StoreJobs};
use foreread_tier::{ArenaBuffers, Buffers, OpenContext, PeerService};
use foreread_types::SampleId;

use crate::dataset_host::DatasetHost;
use crate::node::{HostRank, NodeDataset, StoreLinks};
use futures::future::BoxFuture;

use crate::cluster_cache::{ShareService, StoreName};
use crate::error::HostError;
use crate::file_limit::FileLimit;
use crate::job_runtime::{JobRuntime, io_threads};
use crate::policy::arguments;
use crate::provider::HostProvider;
use crate::provider::{provider, server_settings, shared};

/// Open files of a process that hosts a cache: enough for a terabyte of memory. Programs that close
/// all descriptors, as some trainers' helpers do, depend on a limit that is not too high.
const DESCRIPTORS: u64 = 1 << 16;

/// How long a run waits, before its start, for the stores of all nodes to know its ranks. Stores
/// plan before they answer.
const LINK_TIMEOUT: Duration = Duration::from_secs(20);

/// With so many cores, a rank has about as many threads as a separate cache would.
const FEW_CORES: usize = 8;

/// The number of the connection of the host's own rank: above the numbers of the server, and not a
/// number of another store.
const OWN_RANK: ConnectionId = ConnectionId::numbered(1 << 61);

/// A fault of a host, for tests.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostFault {
    /// The store does not start.
    CannotStart,
    /// The other ranks of the node do not reach it.
    Unreachable,
}

/// Starts the store of a node in the process of its first rank.
#[derive(Clone, Copy, Debug, Default)]
pub struct JobHost {
    is_simulated: bool,
    fault: Option<HostFault>,
}

impl JobHost {
    /// A host that works on the runtime of its rank, even if the program has given that: its clock
    /// may be simulated.
    #[doc(hidden)]
    #[must_use]
    pub fn simulated() -> Self {
        Self { is_simulated: true, ..Self::default() }
    }

    /// A host with this fault.
    #[doc(hidden)]
    #[must_use]
    pub fn with_fault(self, fault: HostFault) -> Self {
        Self { fault: Some(fault), ..self }
    }

    /// Starts the store in this process.
    ///
    /// # Errors
    /// Why it cannot start. The ranks then read storage by themselves.
    pub fn start(self, rank: HostRank<'_>) -> Result<JobStore, HostError> {
        if self.fault == Some(HostFault::CannotStart) {
            return Err(HostError::Memory);
        }
        let rank = HostRank { has_own_runtime: rank.has_own_runtime || self.is_simulated, ..rank };
        JobStore::start(rank, self.fault.is_some())
    }
}

/// The store of a node, in the process of a rank. Dropping it ends it.
#[derive(Debug)]
pub struct JobStore {
    is_unreachable: bool,
    provider: Arc<HostProvider>,
    /// Serves the stores of other nodes.
    service: Arc<OnceLock<Arc<ShareService>>>,
    /// Dropped in this order, after the disks are closed: no rank is served when the runtime ends.
    server: Option<Server>,
    runtime: JobRuntime,
}

impl JobStore {
    fn start(rank: HostRank<'_>, is_unreachable: bool) -> Result<Self, HostError> {
        let HostRank { ranks, settings, registry, context, has_own_runtime, memory, through_agent } = rank;
        FileLimit::current().raise(Some(DESCRIPTORS));
        let policy = arguments(None, &settings.origin);
        let cores = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
        let runtime = match works_for_its_rank(has_own_runtime, ranks, cores) {
            true => JobRuntime::shared(&context.runtime),
            false => JobRuntime::new(io_threads())?,
        };
        // Memory that no other process maps has larger pages.
        let has_others = ranks > 1;
        let buffers: Arc<dyn Buffers> = match has_others {
            true => shared(&(Arc::new(ArenaBuffers::default()) as _))?,
            false => Arc::clone(&context.buffers),
        };
        let place = OpenContext { buffers, runtime: runtime.handle().clone(), seed: context.seed };
        let served = Arc::clone(&place.buffers);
        let host = DatasetHost::new(settings, registry.clone(), false, place.clone());
        let host = if through_agent.is_empty() { host } else { host.with_agent(through_agent) };
        let provider = provider(memory, host, policy, None, place)?;
        let serve = || Server::start(Arc::clone(&provider) as _, served, server_settings());
        let server = if has_others { Some(serve()?) } else { None };
        let service = Arc::default();
        Ok(Self { is_unreachable, provider, service, server, runtime })
    }
}

/// Whether the cache of so many ranks works on the threads of the rank that hosts it. Its work for
/// that rank then wakes no other thread. A rank has fewer threads than many ranks need, where there
/// are many cores. Threads that outlive the rank would keep the cache.
fn works_for_its_rank(has_own_runtime: bool, ranks: u32, cores: usize) -> bool {
    has_own_runtime && (ranks == 1 || cores <= FEW_CORES)
}

impl JobStore {
    /// The address for the ranks of the node, with a secret. No other rank reaches that of one.
    pub fn address(&self) -> String {
        if self.is_unreachable {
            return "nowhere".to_owned();
        }
        self.server.as_ref().map_or_else(|| self.provider.state.name().to_owned(), Server::address)
    }

    /// The host's own rank, as one of its ranks. It needs no address.
    pub fn client(&self) -> Arc<LocalClient> {
        self.provider.state.jobs.lock().entry(OWN_RANK).or_default();
        let jobs: Arc<dyn StoreJobs> = Arc::clone(&self.provider) as _;
        Arc::new(LocalClient::new(&jobs, OWN_RANK))
    }

    /// Opens its disks for the datasets of the ranks, before any of them attaches.
    ///
    /// # Errors
    /// If a directory cannot be used.
    pub fn open_disks(
        &self,
        datasets: Vec<NodeDataset>,
    ) -> BoxFuture<'static, Result<(), foreread_open::Error>> {
        let disk = self.provider.state.disk().cloned();
        Box::pin(async move {
            match disk {
                Some(disk) => disk.open_for(datasets).await,
                None => Ok(()),
            }
        })
    }

    /// The ascending ids of a dataset's samples on its disks. Empty for an unknown identity.
    pub fn on_disk(&self, identity: &str) -> Vec<SampleId> {
        let state = &self.provider.state;
        let known = state.datasets.all().into_iter().find(|dataset| dataset.hosted.identity() == identity);
        let number = known.and_then(|dataset| dataset.on_disk);
        state.disk().zip(number).map(|(disk, number)| disk.samples(number)).unwrap_or_default()
    }

    /// Links it with the stores of the other nodes. Returns the service of its samples to them,
    /// once they know the ranks that are attached here, or do not answer.
    pub fn link(&self, mut links: StoreLinks) -> BoxFuture<'static, Arc<dyn PeerService>> {
        let incoming = links.incoming.take();
        let (state, jobs) = (Arc::clone(&self.provider.state), Arc::clone(&self.provider) as _);
        let (own_name, runtime) = (StoreName::alone(state.name()), self.runtime.handle().clone());
        let keep = Arc::clone(&self.service);
        Box::pin(async move {
            let cluster = Arc::clone(&state.cluster);
            // A panic was reported when it happened.
            let _ = tokio::task::spawn_blocking(move || cluster.link_job(links)).await;
            // It serves only samples of the plan.
            let service = ShareService::start(&runtime, jobs, own_name, incoming);
            // A store is linked once.
            let _ = keep.set(Arc::clone(&service));
            state.cluster.known(LINK_TIMEOUT).await;
            service as Arc<dyn PeerService>
        })
    }

    /// The reads of storage that no rank of the node counts.
    pub fn other_reads(&self) -> OtherReads {
        let state = &self.provider.state;
        let reads = state.jobs.reads_for_others(&state.store);
        OtherReads { requests: reads.requests, bytes: reads.read_bytes, ..state.repeated_reads() }
    }

    /// The counters of its disks. `None` without any.
    pub fn disk_report(&self) -> Option<DiskReport> {
        self.provider.state.disk()?.report()
    }

    /// Waits until samples on their way to its disks are written, for a few seconds at most.
    pub fn flush(&self) -> BoxFuture<'static, ()> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    // semantics: RANK-39
    fn cache_of_many_ranks_has_threads_of_its_own() {
        assert!(works_for_its_rank(true, 1, 128) && works_for_its_rank(true, 8, 8));
        assert!(!works_for_its_rank(true, 2, 9) && !works_for_its_rank(false, 1, 2));
    }
}
