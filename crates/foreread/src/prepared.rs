//! A run that is ready to start: datasets opened, order and plan computed. What `foreread plan` looks at and what
//! [`Loader`](crate::Loader) starts.

use std::sync::Arc;

use foreread_dataset::{Catalog, Progress};
use foreread_memory::MemoryTier;
use foreread_oracle::{
    Feistel, OracleError, Phase, PhaseKind, Run, Sampler, Schedule, Sequential, Shuffle, Torch,
};
use foreread_planner::{Cluster, Level, OriginCost, Plan, Store, plan};
use foreread_tier::{CacheTier, Context, Tier};
use foreread_types::{DatasetId, Rank, Sizes, StoreId};

use crate::config::{Config, Memory, SamplerKind};
use crate::error::Result;
use crate::memory;
use crate::origin::{Opened, Shared, open};
use crate::registry::Registry;

/// Datasets, order and plan of one rank's run.
#[derive(Debug)]
pub struct Prepared {
    pub(crate) config: Config,
    pub(crate) run: Run,
    pub(crate) plan: Arc<Plan>,
    pub(crate) opened: Vec<Opened>,
    pub(crate) memory: Option<Arc<MemoryTier>>,
    pub(crate) cluster: Cluster,
    pub(crate) shared: Shared,
}

impl Prepared {
    /// Opens the datasets, draws the order and plans.
    pub(crate) async fn new(
        target: &str,
        config: Config,
        registry: &Registry,
        context: &Context,
        mut progress: impl FnMut(Progress) + Send,
    ) -> Result<Self> {
        let config = config.validated()?;
        let shared = Shared::new(&config);
        let mut opened = vec![open(target, registry, context, &shared, &mut progress).await?];
        if let Some(target) = &config.validate {
            opened.push(open(target, registry, context, &shared, &mut progress).await?);
        }
        let sizes: Vec<Sizes> = opened.iter().map(|dataset| dataset.catalog.sizes()).collect();
        let run = run(&config, &sizes)?;
        let capacity = match config.memory {
            Memory::Bytes(bytes) => bytes,
            Memory::Auto => automatic(&config, &opened),
        };
        let memory = (capacity > 0).then(|| Arc::new(MemoryTier::new(capacity)));
        let cluster = cluster(&config, memory.as_deref());
        // A plan for many millions of samples takes a while, and the runtime's threads have reads to drive.
        let plan = context
            .runtime
            .spawn_blocking({
                let (run, cluster) = (run.clone(), cluster.clone());
                move || plan(&run, &sizes, &cluster)
            })
            .await
            .map_err(|error| crate::Error::new(crate::ErrorKind::System, format!("planning stopped: {error}")))??;
        Ok(Self { config, run, plan: Arc::new(plan), opened, memory, cluster, shared })
    }

    /// What the run was asked to do.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// What this rank reads, and when.
    pub fn run(&self) -> &Run {
        &self.run
    }

    /// Where samples are kept, and the floor.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// The datasets' catalogs: training first, then validation where there is one.
    pub fn catalogs(&self) -> impl ExactSizeIterator<Item = &Catalog> {
        self.opened.iter().map(|dataset| &dataset.catalog)
    }

    /// The caches and the origin, as the plan saw them.
    pub fn cluster(&self) -> &Cluster {
        &self.cluster
    }
}

/// The sampler of a training pass.
///
/// # Errors
/// If the sampler cannot order so many samples.
pub fn sampler(kind: SamplerKind, samples: u64, seed: u64) -> Result<Arc<dyn Sampler>, OracleError> {
    Ok(match kind {
        SamplerKind::Shuffle => Arc::new(Shuffle::new(samples, seed)?),
        SamplerKind::Torch => Arc::new(Torch::new(samples, seed)?),
        SamplerKind::Feistel => Arc::new(Feistel::new(samples, seed)?),
        SamplerKind::Sequential => Arc::new(Sequential::new(samples)?),
    })
}

/// The run that `config` asks for over datasets of these sizes: training, then validation where there is a second.
///
/// # Errors
/// If the settings contradict each other.
pub fn run(config: &Config, sizes: &[Sizes]) -> Result<Run> {
    let mut phases = Vec::new();
    for (dataset, sizes) in sizes.iter().enumerate() {
        let (kind, sampler) = match dataset {
            0 => (PhaseKind::Train, sampler(config.sampler, sizes.len(), config.seed)?),
            _ => (PhaseKind::Validation, self::sampler(SamplerKind::Sequential, sizes.len(), config.seed)?),
        };
        phases.push(Phase {
            kind,
            dataset: DatasetId(dataset as u32),
            sampler,
            batch_size: Some(config.batch_size),
            // Every validation sample counts, whatever training drops.
            drop_last: kind == PhaseKind::Train && config.drop_last,
        });
    }
    let schedule = Arc::new(Schedule::new(config.epochs, phases)?);
    Ok(Run::new(schedule, config.deal, config.world_size, Rank(config.rank))?)
}

fn automatic(config: &Config, opened: &[Opened]) -> u64 {
    let kernel_cached = opened.iter().all(|dataset| dataset.origin.profile().kernel_cached);
    // The kernel's cache is no help against a limit that the user has put on the origin.
    if kernel_cached && config.origin_limit.is_none() {
        return 0;
    }
    memory::automatic(config.look_ahead)
}

fn cluster(config: &Config, memory: Option<&MemoryTier>) -> Cluster {
    let levels = memory.map(|memory| Level {
        name: memory.name().to_owned(),
        capacity: memory.capacity(),
        footprint: memory.footprint(),
    });
    let mut origin = OriginCost::default();
    if let Some(limit) = config.origin_limit {
        origin.bytes_per_second = limit;
    }
    Cluster {
        store: Store { id: StoreId(config.rank), levels: levels.into_iter().collect() },
        look_ahead: config.look_ahead,
        origin,
    }
}
