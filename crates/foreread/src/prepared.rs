//! A run that is ready to start: datasets opened, order and plan computed. `foreread plan` prints
//! it and [`Loader`](crate::Loader) starts it.

use std::ops::Deref;
use std::sync::Arc;

use foreread_dataset::{Catalog, Format, IndexProgress};
use foreread_loader::{BlockTable, ReadSource};
use foreread_memory::MemoryTier;
use foreread_open::disk::{self, OpenDisk};
use foreread_open::error::{Result, ended};
use foreread_open::origin::{OpenDataset, open};
use foreread_open::origin_policy::OriginPolicy;
use foreread_open::registry::Registry;
use foreread_open::stored::StoredSizes;
use foreread_open::target::TargetSpec;
use foreread_open::units::unit_memory;
use foreread_planner::{LocalPlan, Retention};
#[cfg(all(feature = "share", target_os = "linux"))]
use foreread_tier::PeerService;
use foreread_tier::{Buffers, CacheTier, OpenContext};
use foreread_types::{DatasetId, RankOf, Sizes};

#[cfg(all(feature = "share", target_os = "linux"))]
use crate::agent_client::attach;
use crate::config::{Config, widen};
use crate::group_member::GroupMember;
use crate::node_links::{CacheClient, HostedStore, NodeLinks, NodeRoom};
use crate::planned::{Planned, RunEnvironment};
use crate::released::{self, ReleasedFiles};
use crate::server_speeds;
use crate::state::State;

/// Datasets, order and plan of one rank's run.
#[derive(Debug)]
pub struct Prepared {
    pub(crate) planned: Planned,
    /// With whole catalogs.
    pub(crate) opened: Vec<OpenDataset>,
    /// The catalogs that the targets name, which may be parts.
    pub(crate) named: Vec<Catalog>,
    pub(crate) caches: Vec<(ReadSource, Arc<dyn CacheTier>)>,
    pub(crate) disk: Option<OpenDisk>,
    pub(crate) shared: OriginPolicy,
    /// The blocks that the first epoch reads, by dataset: of training data, or stored units of all.
    pub(crate) blocks: Vec<BlockTable>,
    /// The files in an archive that the run restores, by dataset.
    pub(crate) released: Vec<ReleasedFiles>,
    /// The group, if ranks share their caches.
    pub(crate) group: Option<Box<dyn GroupMember>>,
    /// Memory for samples.
    pub(crate) buffers: Arc<dyn Buffers>,
    /// The node's agent and the cache of its ranks.
    pub(crate) agents: NodeLinks,
    /// The cache of this node's ranks, on the rank that hosts it.
    pub(crate) node_host: Option<Arc<dyn HostedStore>>,
    /// Serves that cache's samples to the caches of other nodes.
    #[cfg(all(feature = "share", target_os = "linux"))]
    pub(crate) service: Option<Arc<dyn PeerService>>,
}

/// A rank with caches of its own, before its plan.
pub(crate) struct LoneRank {
    pub(crate) config: Config,
    /// With whole catalogs.
    pub(crate) opened: Vec<OpenDataset>,
    pub(crate) named: Vec<Catalog>,
    pub(crate) shared: OriginPolicy,
    pub(crate) released: Vec<ReleasedFiles>,
    /// The node's agent, which replaces its caches if it serves already.
    pub(crate) agent: Option<Arc<dyn CacheClient>>,
    pub(crate) on_node: RankOf,
    pub(crate) resume: Option<State>,
}

impl LoneRank {
    /// Opens its disks, determines the order and plans.
    pub(crate) async fn prepare(self, context: &OpenContext) -> Result<Prepared> {
        let Self { config, opened, named, shared, released, agent, on_node, resume } = self;
        let catalogs: Vec<Catalog> = opened.iter().map(|dataset| dataset.catalog.clone()).collect();
        let sizes: Vec<Sizes> = catalogs.iter().map(Catalog::sizes).collect();
        let is_attached = agent.as_ref().is_some_and(|agent| agent.is_attached());
        let (disk, (capacity, warm)) = if config.plan_only {
            let found = disk::look(&config.disk, on_node, &opened, context).await?;
            (None, (found.capacity, found.warm))
        } else {
            let disk = disk::open(&config.disk, on_node, &opened, context).await?;
            let offer = disk.as_ref().map_or((0, 0), |disk| (disk.capacity, disk.warm));
            (disk, offer)
        };
        let place = RunEnvironment {
            kernel_cached: opened.iter().all(|dataset| dataset.origin.profile().kernel_cached),
            disk: capacity,
            warm,
            url: Some(opened[0].catalog.base_url().to_owned()),
            packed: opened[0].catalog.format() != Format::Files,
            has_agent: is_attached,
            is_client: is_attached,
            stored: StoredSizes::of(&catalogs),
            servers: None,
        };
        // A plan for many millions of samples takes long, and the runtime's threads have reads to
        // drive.
        let planning = context.runtime.spawn_blocking({
            let named = named.clone();
            move || {
                let config = server_speeds::recent(config);
                let of_run = config.clone();
                let servers = server_speeds::servers(&config, &catalogs);
                let place = RunEnvironment { servers, ..place };
                let start =
                    |schedule: &_| resume.map(|state| state.position(&of_run, &named, schedule)).transpose();
                Planned::resumed(config, &sizes, place, start)
            }
        });
        let mut planned = planning.await.map_err(ended)??;
        if let Some(agent) = &agent {
            agent.set_blocks(planned.block_bytes);
        }
        let blocks = blocks(&planned, &opened, context).await?;
        planned.first_blocks = blocks.first().filter(|blocks| !blocks.is_empty()).cloned();
        if let Some(units) = &planned.units {
            shared.set_unit_memory(unit_memory(units.memory_bytes, planned.config.look_ahead));
        }
        let (caches, buffers) = (caches(&planned, disk.as_ref()), Arc::clone(&context.buffers));
        Ok(Prepared {
            blocks,
            caches,
            disk,
            planned,
            opened,
            named,
            shared,
            released,
            group: None,
            buffers,
            agents: NodeLinks { samples: agent, ..NodeLinks::default() },
            node_host: None,
            #[cfg(all(feature = "share", target_os = "linux"))]
            service: None,
        })
    }
}

/// The cache that the ranks of a node share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct NodeCacheSize {
    /// The ranks that share it.
    pub ranks: u32,
    /// The bytes of samples in memory.
    pub memory_bytes: u64,
    /// The bytes of its disks for samples.
    pub disk_bytes: u64,
}

impl Prepared {
    /// Opens the datasets, determines the order and plans.
    pub(crate) async fn new(
        targets: &TargetSpec,
        config: Config,
        registry: &Registry,
        context: &OpenContext,
        resume: Option<State>,
        mut progress: impl FnMut(IndexProgress) + Send,
    ) -> Result<Self> {
        let config = config.validated()?;
        let shared = OriginPolicy::new(&config.origin_settings(), context);
        let format = config.format;
        let mut opened = vec![open(targets, format, registry, context, &shared, &mut progress).await?];
        if let Some(validation) = config.validation() {
            opened.push(open(&validation, format, registry, context, &shared, &mut progress).await?);
        }
        if !config.disk.is_empty() {
            opened.iter().for_each(OpenDataset::warn_of_lost_caches);
        }
        let options = shared.options(&targets.storage);
        let released = released::check(&opened, &config, registry, &options, context).await?;
        let mut config = config;
        let named = widen(&mut opened, &mut config);
        #[cfg(all(feature = "share", target_os = "linux"))]
        let agent = if config.plan_only {
            None
        } else {
            let storage = [&targets.storage, &config.validate_storage_options.clone()];
            let link = attach(&mut opened, &mut config, storage, false, context).await?;
            link.map(|link| Arc::new(link) as Arc<dyn CacheClient>)
        };
        #[cfg(not(all(feature = "share", target_os = "linux")))]
        let agent = None;
        let on_node = config.rank_on_node();
        let alone = LoneRank { config, opened, named, shared, released, agent, on_node, resume };
        alone.prepare(context).await
    }

    /// Whether the samples come from the node's agent. `false` if none has served so far.
    pub fn has_agent(&self) -> bool {
        self.agents.samples.as_ref().is_some_and(|agent| agent.shared_by().is_none() && agent.is_attached())
    }

    /// The cache that the ranks of this node share without an agent. `None` if this rank has caches
    /// of its own.
    pub fn node_cache(&self) -> Option<NodeCacheSize> {
        let agent = self.agents.samples.as_ref()?;
        let NodeRoom { memory, disk } = agent.room();
        Some(NodeCacheSize { ranks: agent.shared_by()?, memory_bytes: memory, disk_bytes: disk })
    }

    /// The ranks of its group on this node, which it knows without a launcher. `None` for a rank
    /// that plans alone.
    pub fn group_ranks_on_node(&self) -> Option<u32> {
        let LocalPlan::Cluster { store, .. } = &self.planned.plan else { return None };
        let stores = &self.planned.cluster.stores;
        let own = stores.get(*store)?.node;
        Some(stores.iter().map(|store| u32::from(store.node == own)).sum())
    }

    /// Whether this machine's kernel caches all datasets: directories on local file systems.
    pub fn is_kernel_cached(&self) -> bool {
        self.opened.iter().all(|dataset| dataset.origin.profile().kernel_cached)
    }

    /// The datasets' catalogs: training first, then validation if set.
    pub fn catalogs(&self) -> impl ExactSizeIterator<Item = &Catalog> {
        self.named.iter()
    }
}

impl Deref for Prepared {
    type Target = Planned;

    fn deref(&self) -> &Planned {
        &self.planned
    }
}

/// The blocks that the plan reads, by dataset.
async fn blocks(planned: &Planned, opened: &[OpenDataset], context: &OpenContext) -> Result<Vec<BlockTable>> {
    let LocalPlan::Private(plan) = &planned.plan else { return Ok(Vec::new()) };
    let (catalogs, plan): (Vec<Catalog>, _) =
        (opened.iter().map(|dataset| dataset.catalog.clone()).collect(), Arc::clone(plan));
    let (bytes, in_units) = (planned.block_bytes, planned.units.is_some());
    // Visits every catalog entry.
    let making = context.runtime.spawn_blocking(move || match bytes {
        _ if in_units && plan.retention() == Retention::Keep => {
            let placed = |(id, catalog)| Ok(BlockTable::of_units(catalog)?.placed(id, &plan));
            (0..).map(DatasetId).zip(&catalogs).map(placed).collect()
        }
        Some(bytes) => Ok(vec![BlockTable::of(&catalogs[0], DatasetId(0), &plan, bytes)?]),
        None => Ok(Vec::new()),
    });
    making.await.map_err(ended)?
}

/// The caches of the plan's levels, in the same order.
fn caches(planned: &Planned, disk: Option<&OpenDisk>) -> Vec<(ReadSource, Arc<dyn CacheTier>)> {
    let mut caches: Vec<(ReadSource, Arc<dyn CacheTier>)> = Vec::new();
    let disk = disk.map(|disk| (disk.cache(), disk.capacity));
    for level in planned.cluster.stores.iter().flat_map(|store| &store.levels) {
        match &disk {
            Some((tier, _)) if level.name == tier.name() => caches.push((ReadSource::Disk, Arc::clone(tier))),
            _ => {
                let tier = MemoryTier::new(level.capacity);
                if let Some(memory) = &planned.memory {
                    memory.fills(tier.budget());
                }
                caches.push((ReadSource::Memory, Arc::new(tier)));
            }
        }
    }
    // A disk that another process owns has no capacity, and so no level. Its samples can still be
    // read.
    let is_there = caches.iter().any(|(source, _)| *source == ReadSource::Disk);
    if let Some((tier, 0)) = disk.filter(|_| !is_there) {
        caches.push((ReadSource::Disk, tier));
    }
    caches
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use flate2::Compression;
    use flate2::write::GzEncoder;
    use foreread_tier_testing::store::{Archive, Content, NumberedObjects};

    use crate::{Loader, Memory, Ready};

    /// A million samples of one unit in flight took two gigabytes.
    #[test]
    // semantics: FORMAT-6
    fn units_of_many_samples_are_several_blocks() {
        let folder = tempfile::tempdir().unwrap();
        let archive = Archive::new(NumberedObjects::named(70_000, 1, |id| format!("{id:06}.bin")));
        let mut writer = GzEncoder::new(Vec::new(), Compression::fast());
        writer.write_all(&archive.range(0..archive.size())).unwrap();
        std::fs::write(folder.path().join("0.tar.gz"), writer.finish().unwrap()).unwrap();
        let builder = Loader::builder(folder.path().to_str().unwrap()).batch_size(64).epochs(2);
        let ready = builder.memory(Memory::Bytes(1 << 30)).plan_only(true).prepare().unwrap();
        let blocks = ready.prepared().first_blocks.as_ref().unwrap();
        assert_eq!((blocks.len(), blocks.samples()), (2, 70_000));
    }

    #[test]
    fn plan_changes_no_directory_and_counts_what_is_there() {
        let made = tempfile::tempdir().unwrap();
        let (data, cache) = (made.path().join("data"), made.path().join("cache"));
        std::fs::create_dir(&data).unwrap();
        for number in 0..20 {
            std::fs::write(data.join(number.to_string()), vec![number; 5000]).unwrap();
        }
        let builder = || {
            let builder = Loader::builder(data.to_str().unwrap()).epochs(2).memory(Memory::Bytes(0));
            builder.disk(&cache, 1 << 24)
        };
        let plan = || builder().plan_only(true).prepare().unwrap();
        let capacity = |ready: &Ready| {
            let levels = ready.prepared().levels();
            levels.iter().find(|level| level.name == "disk").unwrap().capacity
        };
        let cold = plan();
        assert_eq!(cold.prepared().floor(), 100_000);
        assert!(!cache.exists());
        let ready = builder().prepare().unwrap();
        // File systems differ in the space of directories.
        let difference = capacity(&ready).abs_diff(capacity(&cold));
        assert!(difference <= 64 << 10, "{difference}");
        let run = ready.start();
        assert_eq!(run.batches().filter(Result::is_ok).count(), 2);
        run.close().unwrap();
        assert!(plan().prepared().floor() < 100_000);
    }
}
