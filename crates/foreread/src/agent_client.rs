//! This process as a job of an agent.

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Instant;

use bytes::Bytes;
use foreread_agent_client::{AgentClient, AgentJob, AgentPlace, CacheMaker, JobCatalogs};
use foreread_dataset::Catalog;
use foreread_host::JobStore;
use foreread_loader::LocalityDeal;
use foreread_memory::MemoryTier;
use foreread_open::disk::DiskReport;
use foreread_open::error::{Error, ErrorKind, Result, ended};
use foreread_open::origin::OpenDataset;
use foreread_open::origin_policy::OtherReads;
use foreread_open::storage::StorageOptions;
use foreread_oracle::Run;
use foreread_planner::LocalPlan;
use foreread_store::StoreErrorKind;
use foreread_store::attach::{Attach, AttachDataset, DatasetAnswer, WarmRequest};
use foreread_tier::{CacheTier, OpenContext};
use foreread_types::RankOf;
use futures::future::BoxFuture;

use crate::agent_choice::{AgentChoice, ExpectedSocket, is_own, why_not_own};
use crate::announced_orders::{NoOrders, RunOrders};
use crate::config::{Config, Memory};
use crate::node_links::{CacheClient, HostedStore, NodeRoom, StalledTime};
use crate::report::{AgentReport, WarmDataset};

/// The agent of a run. Dropping it ends the job for the agent.
#[derive(Clone, Debug)]
pub(crate) struct AgentLink {
    client: Arc<AgentClient>,
    catalogs: Catalogs,
    /// The bytes for samples.
    room: NodeRoom,
    /// The number of ranks that share it, if it is the cache of a node without an agent.
    shared_by: Option<u32>,
    /// The bytes of a block, if it reads the training data in blocks at first.
    blocks: Arc<OnceLock<u64>>,
    /// Whether no agent served when the run began. Then it has caches of its own.
    is_late: bool,
}

impl AgentLink {
    /// Has the datasets of the run read from the agent, and their names from its memory.
    pub(crate) fn replace_origins(&self, opened: &mut [OpenDataset]) {
        let mut catalogs = self.catalogs.lock();
        for (number, dataset) in (0..).zip(opened) {
            dataset.origin = Arc::new(self.client.origin(number, Arc::clone(&dataset.origin)));
            let memory = self.client.shared_catalog(number as usize);
            let shared = memory.and_then(|memory| dataset.catalog.sharing(memory));
            if let (Some(shared), Some(sent)) = (shared, catalogs.get_mut(number as usize)) {
                (*sent, dataset.catalog) = (shared.clone(), shared);
            }
        }
    }

    /// The name that no other agent has, if it has one. Ranks with the same name share a store.
    pub(crate) fn host(&self) -> Option<&str> {
        self.client.host()
    }

    /// Has it read in these blocks from now on. Blocks until it has answered.
    pub(crate) fn read_in_blocks(&self) {
        if let Some(bytes) = self.blocks.get().copied() {
            self.client.read_in_blocks(0, bytes);
        }
    }
}

impl CacheClient for AgentLink {
    fn is_attached(&self) -> bool {
        !self.is_late
    }

    fn was_used(&self) -> bool {
        !self.is_late || self.client.was_connected()
    }

    fn room(&self) -> NodeRoom {
        self.room
    }

    fn shared_by(&self) -> Option<u32> {
        self.shared_by
    }

    fn reads(&self) -> (u64, u64) {
        let reads = self.client.reads();
        (reads.requests, reads.bytes)
    }

    fn announce_none(&self) {
        self.client.announce(Arc::new(NoOrders));
    }

    fn report(&self) -> Option<AgentReport> {
        let counts = self.client.counts();
        let capacity = if self.is_late { self.client.latest_capacity() } else { self.room.memory };
        self.was_used().then_some(AgentReport {
            capacity,
            samples: counts.samples,
            bytes: counts.bytes,
            direct_samples: counts.direct_samples,
            direct_bytes: counts.direct_bytes,
            shared_by: self.shared_by,
        })
    }

    fn set_blocks(&self, blocks: Option<u64>) {
        if let Some(blocks) = blocks {
            // The first ones stay.
            let _ = self.blocks.set(blocks);
        }
    }

    fn announce(&self, run: &Run, of_group: Option<&LocalPlan>, locality: Option<Arc<LocalityDeal>>) {
        let blocks = self.blocks.get().copied();
        self.client.announce(Arc::new(RunOrders::new(run, of_group, locality).with_blocks(blocks)));
    }

    fn watch(&self, stalled: StalledTime) {
        self.client.watch(stalled);
    }

    fn warm(&self, begin: bool, part: RankOf) -> Result<WarmDataset> {
        if let Some(bytes) = self.blocks.get().copied().filter(|_| begin) {
            self.client.read_in_blocks(0, bytes);
        }
        let answer = self.client.warm(WarmRequest { dataset: 0, begin, part: (part.rank, part.ranks) });
        let answer = answer.map_err(|error| Error::new(ErrorKind::System, format!("the agent: {error}")))?;
        Ok(WarmDataset {
            is_active: answer.is_active,
            kept_samples: answer.kept_samples,
            held_samples: answer.held_samples,
            held_bytes: answer.held_bytes,
            disk_samples: answer.disk_samples,
            disk_bytes: answer.disk_bytes,
            samples: answer.samples,
        })
    }
}

impl HostedStore for JobStore {
    fn other_reads(&self) -> OtherReads {
        Self::other_reads(self)
    }

    fn disk_report(&self) -> Option<DiskReport> {
        Self::disk_report(self)
    }

    fn flush(&self) -> BoxFuture<'static, ()> {
        Self::flush(self)
    }
}

/// A cache that ranks share, as one of them reaches it.
#[derive(Debug)]
pub(crate) struct SharedCache<'a> {
    /// The address.
    pub(crate) address: String,
    /// The cache itself, on the rank that hosts it.
    pub(crate) host: Option<&'a JobStore>,
    /// Its bytes for samples in memory, and those of memory and disks.
    pub(crate) room: NodeRoom,
    /// The ranks that share it. `None`: it relays the samples that the node's agent keeps.
    pub(crate) ranks: Option<u32>,
}

/// A job's message about one of its datasets.
fn described(dataset: &OpenDataset, storage: &StorageOptions) -> AttachDataset {
    AttachDataset {
        identity: dataset.identity.to_string(),
        url: dataset.catalog.base_url().to_owned(),
        settings: storage.to_settings(),
        environment: dataset.credentials.clone(),
        samples: dataset.catalog.len(),
        catalog_bytes: dataset.catalog.encoded_len(),
    }
}

/// The catalogs of the run, for an agent that needs them.
#[derive(Clone, Debug)]
struct Catalogs(Arc<Mutex<Vec<Catalog>>>);

impl Catalogs {
    fn of(opened: &[OpenDataset]) -> Self {
        Self(Arc::new(Mutex::new(opened.iter().map(|dataset| dataset.catalog.clone()).collect())))
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Catalog>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl JobCatalogs for Catalogs {
    fn catalog(&self, dataset: usize) -> Option<Bytes> {
        let catalog = self.lock().get(dataset).cloned();
        catalog?.to_bytes().ok()
    }
}

/// Attaches a run to its agent, if it has one. The datasets are then read from there, and the run
/// has no caches of its own. An agent that is absent or refuses is a warning: a job never depends
/// on it. The run then looks for one as long as it lasts. With `is_rank` the run is that of a rank
/// in a group, whose plan needs the agent's name.
///
/// # Errors
/// If the runtime was shut down.
pub(crate) async fn attach(
    opened: &mut [OpenDataset],
    config: &mut Config,
    storage: [&StorageOptions; 2],
    is_rank: bool,
    context: &OpenContext,
) -> Result<Option<AgentLink>> {
    let is_named = matches!(config.agent, AgentChoice::At(_) | AgentChoice::Job { .. });
    let Some(expected) = config.agent.expected().filter(|_| is_named || helps(opened, config)) else {
        return Ok(None);
    };
    let may_use = expected.may_use();
    let ExpectedSocket { path: socket, is_named, shared_by } = expected;
    let called = if shared_by.is_some() { OF_RANKS } else { "the node's agent" };
    let server = AgentServer {
        place: AgentPlace::At(socket.display().to_string()),
        called,
        shared_by,
        comes_back: true,
        is_ordered: true,
        may_use: if is_named { |_| true } else { |socket| is_own(socket.as_ref()) },
    };
    if !may_use {
        if let Some(why) = why_not_own(&socket).filter(|_| socket.exists()) {
            tracing::warn!("no agent is used at {}: {why}", socket.display());
        }
        return Ok(look(opened, config, storage, server, is_rank));
    }
    let link = match attach_at(opened, config, storage, server.clone(), context).await? {
        Ok(link) if is_rank && link.client.host().is_none() => {
            Err("it is too old for ranks that share their caches".to_owned())
        }
        attached => attached,
    };
    match link {
        Ok(link) => {
            tracing::info!(
                agent = %socket.display(),
                capacity = link.room.memory,
                "samples come from {called}; this run's own memory and disk tiers are not used"
            );
            (config.memory, config.disk) = (Memory::Bytes(0), Vec::new());
            link.replace_origins(opened);
            Ok(Some(link))
        }
        Err(why) => {
            let until = if is_rank { "" } else { ", until it serves this run" };
            let without = match shared_by {
                Some(_) => "runs without the cache that the ranks of this node share",
                None => "runs without the node's agent",
            };
            tracing::warn!(why, agent = %socket.display(), "{without}{until}");
            Ok(look(opened, config, storage, server, is_rank))
        }
    }
}

/// Makes a run look for an agent as long as it lasts. It has its own caches, and reads missing
/// samples through the agent once that serves. The plan of ranks that share their caches needs the
/// agent at the start.
fn look(
    opened: &mut [OpenDataset],
    config: &Config,
    storage: [&StorageOptions; 2],
    server: AgentServer,
    is_rank: bool,
) -> Option<AgentLink> {
    if is_rank {
        return None;
    }
    let shared_by = server.shared_by;
    let (job, catalogs) = agent_job(opened, config, storage, server);
    let client = AgentClient::look(AgentJob { alone: None, ..job });
    let client =
        client.inspect_err(|error| tracing::warn!(%error, "does not look for the node's agent")).ok()?;
    let (room, blocks) = Default::default();
    let link = AgentLink { client: Arc::new(client), catalogs, room, shared_by, blocks, is_late: true };
    link.replace_origins(opened);
    Some(link)
}

/// Attaches a rank to the cache that it shares with others. Its datasets are read from there after
/// [`AgentLink::replace_origins`]. A cache that refuses it is a warning.
///
/// # Errors
/// If the runtime was shut down.
pub(crate) async fn attach_to(
    cache: SharedCache<'_>,
    opened: &[OpenDataset],
    config: &Config,
    storage: [&StorageOptions; 2],
    context: &OpenContext,
) -> Result<Option<AgentLink>> {
    let SharedCache { address, host, room, ranks } = cache;
    let place = host.map_or(AgentPlace::At(address), |host| AgentPlace::Here(host.client()));
    let server = AgentServer {
        place,
        called: OF_RANKS,
        shared_by: ranks,
        comes_back: false,
        // It keeps the samples of the plan.
        is_ordered: false,
        may_use: |_| true,
    };
    match attach_at(opened, config, storage, server, context).await? {
        Ok(link) => {
            // A cache that relays has no disks, and counts those of its agent.
            let disk = room.disk.max(link.room.disk);
            Ok(Some(AgentLink { room: NodeRoom { disk, ..room }, ..link }))
        }
        Err(why) => {
            tracing::warn!(why, "runs without the cache that the ranks of this node share");
            Ok(None)
        }
    }
}

/// The name of a cache that ranks share, in messages.
const OF_RANKS: &str = "the cache that the ranks of this node share";

/// The agent that a job looks for.
#[derive(Clone, Debug)]
struct AgentServer {
    place: AgentPlace,
    /// The agent's name in messages.
    called: &'static str,
    /// The number of ranks that share it, if it is the cache of a node without an agent.
    shared_by: Option<u32>,
    comes_back: bool,
    /// Whether the job will announce orders.
    is_ordered: bool,
    may_use: fn(&str) -> bool,
}

/// This run as a job of an agent.
fn agent_job(
    opened: &[OpenDataset],
    config: &Config,
    storage: [&StorageOptions; 2],
    server: AgentServer,
) -> (AgentJob, Catalogs) {
    let datasets = opened.iter().zip(storage).map(|(dataset, storage)| described(dataset, storage));
    let attach = Attach {
        name: job_name(config),
        process: std::process::id(),
        look_ahead: config.look_ahead,
        is_ordered: server.is_ordered && !config.is_by_id,
        datasets: datasets.collect(),
    };
    let catalogs = Catalogs::of(opened);
    let bytes = config.memory_alone;
    let make = || Box::new(move || Arc::new(MemoryTier::new(bytes)) as Arc<dyn CacheTier>) as CacheMaker;
    let alone = (bytes > 0).then(make);
    let sent = Box::new(catalogs.clone());
    let AgentServer { place, called, comes_back, may_use, .. } = server;
    (AgentJob { place, called, comes_back, may_use, alone, attach, catalogs: sent }, catalogs)
}

/// Attaches a run to the agent at an address. Also returns why it does not serve the run.
async fn attach_at(
    opened: &[OpenDataset],
    config: &Config,
    storage: [&StorageOptions; 2],
    server: AgentServer,
    context: &OpenContext,
) -> Result<Result<AgentLink, String>> {
    let (called, shared_by) = (server.called, server.shared_by);
    let (job, catalogs) = agent_job(opened, config, storage, server);
    let begun = Instant::now();
    let attaching = context.runtime.spawn_blocking(move || AgentClient::attach(job)).await.map_err(ended)?;
    let client = match attaching {
        Ok(client) => client,
        Err(error) => {
            return Ok(Err(match error.kind() {
                StoreErrorKind::Gone => {
                    format!("{called} is not there: its process has ended, or was never started")
                }
                // The wait ends at a silent agent, or at an agent that takes too long.
                StoreErrorKind::Interrupted => {
                    let seconds = begun.elapsed().as_secs_f64();
                    format!("{called} has not answered for {seconds:.0} s: it is stopped, or very busy")
                }
                _ => error.to_string(),
            }));
        }
    };
    let refused = client.answers().iter().find_map(|answer| match answer {
        DatasetAnswer::Kept => None,
        DatasetAnswer::CatalogNeeded => Some("it did not accept the catalog"),
        DatasetAnswer::Refused(why) => Some(&**why),
    });
    match refused {
        Some(why) => Ok(Err(why.to_owned())),
        None => {
            let milliseconds = begun.elapsed().as_millis() as u64;
            tracing::debug!(milliseconds, "attached to {called}");
            let room = NodeRoom { memory: client.capacity(), disk: client.disk_capacity() };
            let (client, is_late) = (Arc::new(client), false);
            Ok(Ok(AgentLink { client, catalogs, room, shared_by, blocks: Arc::default(), is_late }))
        }
    }
}

/// The job's name at the agent: its name in the settings, its name in Slurm, or its program's.
fn job_name(config: &Config) -> String {
    let slurm = || std::env::var("SLURM_JOB_NAME").ok().filter(|name| !name.is_empty());
    let program = || {
        let program = std::env::args().next().unwrap_or_default();
        program.rsplit('/').next().unwrap_or_default().to_owned()
    };
    config.job_name.clone().or_else(slurm).unwrap_or_else(program)
}

/// Whether a shared cache helps this run: a second copy of samples in the kernel's cache does not.
fn helps(opened: &[OpenDataset], config: &Config) -> bool {
    let kernel_cached = opened.iter().all(|dataset| dataset.origin.profile().kernel_cached);
    !kernel_cached || config.origin_limit.is_some() || matches!(config.memory, Memory::Bytes(1..))
}
