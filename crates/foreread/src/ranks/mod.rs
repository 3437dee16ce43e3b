//! Groups of ranks that share their caches: from a meeting to a common plan.
//!
//! Rank 0 opens and lists the dataset. It sends the catalog, its position and the speeds that it
//! knows. Every rank sends its capacity, its speed and the samples that it already has. From these
//! all ranks compute the same plan. Before anything is read they compare the plan's inputs by name,
//! and its fingerprint. A difference is one line on every rank.
//!
//! The price of one catalog for all: ranks wait for rank 0's listing. Otherwise all would list at
//! once. The price of few messages: ranks plan before they compare.
//!
//! Each process runs the same program. The launcher sets its rank and the number of ranks, here as
//! torchrun does. `s3://` needs the feature `s3`:
//!
//! ```no_run
//! use foreread::ranks::Meeting;
//! use foreread::{Config, Loader, Memory, RankOf};
//!
//! let variable = |name: &str| std::env::var(name).ok();
//! let (rank, ranks) = match (variable("RANK"), variable("WORLD_SIZE")) {
//!     (Some(rank), Some(ranks)) => (rank.parse()?, ranks.parse()?),
//!     _ => (0, 1),
//! };
//! let mut config = Config::default();
//! config.rank = RankOf { rank, ranks };
//! (config.epochs, config.seed) = (90, 1); // The same on all ranks.
//! config.memory = Memory::Bytes(8 << 30); // Per rank.
//!
//! let mut builder = Loader::builder_with("s3://bucket/train", config.clone());
//! // The launcher's environment: torchrun, SLURM, MPI, or `FOREREAD_MEET`.
//! if let Some(meeting) = Meeting::of(&config, &variable)? {
//!     builder = builder.peers(meeting);
//! }
//! let loader = builder.start()?;
//! for batch in &loader {
//!     let samples = batch?; // The share of this rank.
//! }
//! // Serves the other ranks until they are done, too.
//! let report = loader.close()?;
//! if let Some(all) = &report.all_ranks {
//!     println!("{} bytes from storage on {} ranks", all.origin_bytes, all.ranks);
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Without a meeting, each rank reads its share of the same order with caches of its own. A process
//! with several loaders also needs [`Meetings`].

mod capacity_offer;
mod datasets;
mod group_run;
mod meeting;
mod node_cache;
mod run_description;
mod wire;

use std::sync::Arc;
use std::time::Duration;

use foreread_dataset::{Catalog, IndexProgress};
use foreread_host::{HostRank, HostSettings, JobHost, JobStore, StoreLinks};
use foreread_loader::LocalityDeal;
use foreread_open::error::{Result, ended};
use foreread_open::origin::{OpenDataset, open};
use foreread_open::origin_policy::OriginPolicy;
use foreread_open::registry::Registry;
use foreread_open::stored::StoredSizes;
use foreread_open::target::TargetSpec;
use foreread_open::units::UnitFacts;
use foreread_oracle::{Fingerprinter, Schedule};
pub use foreread_peer::Token;
pub use foreread_peer::meet::RendezvousProgress;
use foreread_peer::meet::{RendezvousSettings, RendezvousSteps};
use foreread_peer::{PeerClient, WireProtection};
use foreread_planner::{CacheStore, Cluster, Level, LocalPlan, PLANNER_VERSION, is_slower_than_origin};
use foreread_tier::{OpenContext, PeerService};
use foreread_types::{Fingerprint, Rank, RankOf, Sizes};
use futures::future::BoxFuture;
use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at};

use self::capacity_offer::{CapacityOffer, OfferedStore, bundle, unbundle};
use self::datasets::{names, open_known, seek};
use self::group_run::JoinedGroup;
use self::meeting::not_met;
pub use self::meeting::{Meeting, Meetings};
use self::node_cache::{NodeCache, NodeMember, group_of};
use self::run_description::{RunDescription, on_request, unreadable};
use crate::agent_client::{AgentLink, attach};
use crate::cluster;
use crate::cluster_blocks::ShardedData;
use crate::config::{Config, Memory, widen};
use crate::group_member::GroupPreparation;
use crate::node_links::{CacheClient, HostedStore, NodeLinks};
use crate::planned::{Planned, RunEnvironment, memory_of, schedule};
use crate::prepared::{LoneRank, Prepared};
use crate::released;
use crate::server_speeds;
use crate::state::State;

impl GroupPreparation for Meeting {
    fn prepare<'a>(
        self: Box<Self>,
        targets: &'a TargetSpec,
        config: Config,
        registry: &'a Registry,
        place: (&'a OpenContext, bool),
        resume: Option<State>,
        progress: Box<dyn FnMut(IndexProgress) + Send + 'a>,
    ) -> BoxFuture<'a, Result<Prepared>> {
        Box::pin(async move {
            let config = config.validated()?;
            let (context, has_own_runtime) = place;
            let Meeting { settings, host } = *self;
            let wire = settings.serving.wire;
            let settings = RendezvousSettings { group: group_of(&config), ..settings };
            let mut joining = RendezvousSteps::join(settings).await.map_err(not_met)?;
            let run = GroupRun { targets, config, registry, context, has_own_runtime, wire, host };
            match run.prepare(&mut joining, resume, progress).await {
                Ok((prepared, words)) => start(prepared, words, joining, context).await,
                Err(error) => {
                    // Otherwise the other ranks would wait for this one until their timeout.
                    joining.give_up(&error.to_string()).await;
                    Err(error)
                }
            }
        })
    }
}

/// The time before the first progress message to other ranks, and the interval after it.
const PROGRESS_INTERVALS: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(5));

/// Runs `work` and sends progress to the other ranks if it takes long. Short work costs no message.
async fn working<T>(joining: &mut RendezvousSteps, on: &str, work: impl Future<Output = T>) -> T {
    let (mut work, mut messages) = (std::pin::pin!(work), progress_interval());
    loop {
        tokio::select! {
            done = &mut work => return done,
            _ = messages.tick() => joining.working(on).await,
        }
    }
}

/// The ticks at which work reports progress that begins now.
fn progress_interval() -> Interval {
    let (first, next) = PROGRESS_INTERVALS;
    let mut ticks = interval_at(Instant::now() + first, next);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks
}

/// Names and values that must be equal on all ranks.
type Words = Vec<(String, String)>;

struct GroupRun<'a> {
    targets: &'a TargetSpec,
    config: Config,
    registry: &'a Registry,
    context: &'a OpenContext,
    has_own_runtime: bool,
    wire: WireProtection,
    host: JobHost,
}

/// A rank's place among the ranks of its node, or of its group.
fn rank_among(nodes: &[u32], rank: u32) -> RankOf {
    let own = nodes.get(rank as usize).copied().unwrap_or_default();
    let count = |nodes: &[u32]| nodes.iter().map(|other| u32::from(*other == own)).sum();
    let ranks: u32 = count(nodes);
    RankOf { rank: count(&nodes[..nodes.len().min(rank as usize)]), ranks: ranks.max(1) }
}

/// The connections of a rank: to the cache of its node, and to the agent that the cache reads from.
fn links(cache: Option<AgentLink>, agent: Option<AgentLink>) -> NodeLinks {
    let link = |link| Arc::new(link) as Arc<dyn CacheClient>;
    let agent = agent.map(link);
    match cache.map(link) {
        Some(cache) => NodeLinks { samples: Some(cache), is_cache: true, relayed: agent },
        // Its node has no cache, but an agent.
        None => NodeLinks { samples: agent, ..NodeLinks::default() },
    }
}

impl GroupRun<'_> {
    async fn prepare(
        self,
        joining: &mut RendezvousSteps,
        resume: Option<State>,
        progress: impl FnMut(IndexProgress) + Send,
    ) -> Result<(Prepared, Words)> {
        let (mut config, context) = (self.config.clone(), self.context);
        let shared = OriginPolicy::new(&config.origin_settings(), context);
        let (description, mut opened) = self.datasets(joining, &shared, resume, progress).await?;
        // One rank restores for all.
        let released = match config.rank.rank {
            0 => {
                let options = shared.options(&self.targets.storage);
                released::check(&opened, &config, self.registry, &options, context).await?
            }
            _ => Vec::new(),
        };
        let named = widen(&mut opened, &mut config);
        let storage = [&self.config.storage_options, &self.config.validate_storage_options];
        let on_node = rank_among(joining.groups(), config.rank.rank);
        // The first rank of a node reads from the agent for all of them.
        let agent = match on_node.rank {
            0 => {
                let attaching = attach(&mut opened, &mut config, storage, true, context);
                working(joining, "attaches to the node's agent", attaching).await?
            }
            _ => None,
        };
        let catalogs: Vec<Catalog> = opened.iter().map(|dataset| dataset.catalog.clone()).collect();
        let words = self.words(&description, &named).await?;
        let sizes: Vec<Sizes> = catalogs.iter().map(Catalog::sizes).collect();
        let figures = description.figures(&config);
        let (of_servers, own_catalogs) = (figures.clone(), catalogs.clone());
        let reading = context.runtime.spawn_blocking(move || {
            let print = server_speeds::fingerprint(&of_servers, &own_catalogs);
            (print, server_speeds::servers(&of_servers, &own_catalogs))
        });
        let (server_print, servers) =
            working(joining, "reads the servers of samples", reading).await.map_err(ended)?;
        let place = RunEnvironment {
            kernel_cached: opened.iter().all(|dataset| dataset.origin.profile().kernel_cached),
            disk: 0,
            warm: 0,
            has_agent: agent.is_some(),
            is_client: agent.is_some(),
            url: Some(catalogs[0].base_url().to_owned()),
            packed: catalogs[0].format().is_packed(),
            stored: StoredSizes::of(&catalogs),
            servers,
        };
        // Ranks that were started by hand share the memory of their node, too.
        let met = rank_among(joining.nodes(), config.rank.rank);
        let sharing = config.ranks_on_node().max(met.ranks);
        let memory = memory_of(&config, &sizes, &place, sharing);
        let described = cluster::describe(&figures, memory.tier(), &place, sizes.first());
        let units = place.stored.as_ref().and_then(|stored| stored.units).map(|_| UnitFacts::room(&sizes));
        let (registry, has_own_runtime) = (self.registry, self.has_own_runtime);
        // This rank's calibration knows more about its own directories than rank 0's.
        let calibration = config.calibration.clone().or_else(|| figures.calibration.clone());
        let of_disk = cluster::of_disk(&Config { calibration, ..figures.clone() });
        let origin = (&described.origin, config.rank.ranks);
        let member = NodeMember {
            rank: HostRank {
                ranks: on_node.ranks,
                settings: HostSettings { origin: config.origin_settings(), disk: config.disk.clone() },
                registry,
                context,
                has_own_runtime,
                memory: memory.tier(),
                through_agent: Vec::new(),
            },
            config: &config,
            host: self.host,
            on_node,
            has_slow_disk: is_slower_than_origin(&of_disk, on_node.ranks, origin, &sizes),
            agent: agent.as_ref(),
            units,
        };
        let Some(offers) = member.offers(joining, words).await? else {
            // Granted again for caches of its own.
            drop(memory);
            let words = run_words(&schedule(&config, &sizes)?);
            let state = description.state.clone();
            config.on_node = Some(RankOf { rank: met.rank, ranks: sharing });
            let agent = agent.map(|agent| Arc::new(agent) as Arc<dyn CacheClient>);
            let alone =
                LoneRank { config, opened, named, shared, released, agent, on_node: met, resume: state };
            return Ok((working(joining, "plans", alone.prepare(context)).await?, words));
        };
        let cache = member.join(joining, &offers, &mut opened, storage).await?;
        let (link, node_host, held) = match cache {
            Some(NodeCache { link, host, held }) => (Some(link), host, held),
            None => (None, None, Vec::new()),
        };
        let of_agent = offers.agent_of(config.rank.rank);
        let memory = match of_agent {
            Some(_) => {
                (config.memory, config.disk) = (Memory::Bytes(0), Vec::new());
                memory_of(&config, &sizes, &place, sharing)
            }
            None => memory,
        };
        // A rank without the cache of its node has a store of its own, which is empty.
        let store = link.as_ref().and_then(|link| {
            // Several caches may read from one agent, or from agents that share their caches.
            let name = of_agent.map(|agent| &*agent.name).or(link.host())?.to_owned();
            let Level { name: level, capacity, .. } = cluster::of_agent(link);
            Some(OfferedStore { name, level, capacity })
        });
        let node = joining.nodes().get(config.rank.rank as usize).copied().unwrap_or_default().to_string();
        let offer = CapacityOffer { node, store, held, servers: server_print, lengths: Vec::new() };
        let offer = offer.encode();
        let (whole, names) = {
            // Dropped before planning: the offers of a thousand ranks take megabytes on each rank.
            let all = joining.exchange(Vec::new(), offer.into(), |offers| bundle(&offers).into()).await;
            let all = all.map_err(not_met)?;
            let all = unbundle(&all).map_err(|_| unreadable(&"the offers are invalid"))?;
            let other = capacity_offer::other_servers(&all);
            if let Some(rank) = other.filter(|_| config.rank.rank == 0) {
                tracing::warn!(
                    "the storage servers of samples differ between rank 0 and rank {rank}: the placement of \
                     samples ignores them; use one catalog on all ranks"
                );
            }
            let whole = capacity_offer::cluster(described, &cluster::shared_kinds(), &all);
            // The first rank of a store hosts it.
            let name = |store: &CacheStore| Some(all.get(store.id.0 as usize)?.store.as_ref()?.name.clone());
            let names: Vec<Option<String>> = whole.stores.iter().map(name).collect();
            (Cluster { servers: whole.servers.filter(|_| other.is_none()), ..whole }, names)
        };
        let mut words = inputs(&whole, &schedule(&config, &sizes)?);
        let (of_run, of_targets) = (config.clone(), named.clone());
        // A local directory on rank 0 may be a network's on another rank. Rank 0 decides.
        let in_units = place.stored.as_ref().is_some_and(|stored| stored.units.is_some());
        // Equal on all ranks, whichever of them has an agent.
        let place = RunEnvironment { has_agent: offers.have_agents(), is_client: true, ..place };
        let may_have_blocks = in_units
            || catalogs[0].format().is_packed()
                && catalogs[0].stored_sizes().is_none()
                && !description.kernel_cached;
        let measured = cluster::is_timed(&figures, &place);
        let planning = context.runtime.spawn_blocking(move || {
            let start = |schedule: &Schedule| {
                description.state.map(|state| state.position(&of_run, &of_targets, schedule)).transpose()
            };
            let shards = may_have_blocks.then_some(ShardedData { catalog: &catalogs[0], measured, in_units });
            Planned::for_cluster(config, &sizes, &place, (whole, memory), shards, start)
        });
        let planned = working(joining, "plans", planning).await.map_err(ended)??;
        let length = planned.block_bytes.map_or_else(|| "none".to_owned(), |bytes| bytes.to_string());
        words.push(("blocks of the first epoch".to_owned(), length));
        if let LocalPlan::Cluster { plan, .. } = &planned.plan {
            words.push(("plan".to_owned(), plan.fingerprint().to_string()));
        }
        let service = self.linked(joining, &planned, node_host.as_deref(), names, &opened).await;
        let readers: Vec<AgentLink> = link.iter().chain(&agent).cloned().collect();
        readers.iter().for_each(|reader| reader.set_blocks(planned.block_bytes));
        // Before any rank starts: no order holds back the first requests.
        let reading = move || readers.iter().for_each(AgentLink::read_in_blocks);
        context.runtime.spawn_blocking(reading).await.map_err(ended)?;
        let prepared = Prepared {
            planned,
            opened,
            named,
            caches: Vec::new(),
            disk: None,
            shared,
            blocks: Vec::new(),
            released,
            group: None,
            buffers: Arc::clone(&context.buffers),
            agents: links(link, agent),
            node_host: node_host.map(|host| host as Arc<dyn HostedStore>),
            service,
        };
        Ok((prepared, words))
    }

    /// Links the cache of this rank's node to those of other nodes, if it hosts one.
    async fn linked(
        &self,
        joining: &mut RendezvousSteps,
        planned: &Planned,
        host: Option<&JobStore>,
        names: Vec<Option<String>>,
        opened: &[OpenDataset],
    ) -> Option<Arc<dyn PeerService>> {
        let links = joining.links();
        // Without a host, other nodes' links to this rank are refused.
        let (host, LocalPlan::Cluster { plan, store }) = (host?, &planned.plan) else { return None };
        let peer = |(at, (of_plan, name)): (usize, (&CacheStore, Option<String>))| {
            // A store without a name belongs to a rank without a cache.
            let is_other = at != *store && name.is_some();
            let peer = is_other.then(|| joining.client(Rank(of_plan.id.0), self.context));
            (name.unwrap_or_default(), peer)
        };
        let stores = planned.cluster.stores.iter().zip(names).enumerate().map(peer);
        let stores: Vec<(String, Option<Arc<PeerClient>>)> = stores.collect();
        let datasets = opened.iter().map(|dataset| dataset.identity).collect();
        let (own, owners) = (*store, plan.owners().clone());
        let linking = host.link(StoreLinks { stores, own, owners, datasets, incoming: links });
        Some(working(joining, "links its node's cache to those of other nodes", linking).await)
    }

    /// The datasets. Rank 0 lists them for all.
    async fn datasets(
        &self,
        joining: &mut RendezvousSteps,
        shared: &OriginPolicy,
        resume: Option<State>,
        mut progress: impl FnMut(IndexProgress) + Send,
    ) -> Result<(RunDescription, Vec<OpenDataset>)> {
        let Self { targets, config, registry, context, .. } = self;
        let validation = config.validation();
        if config.rank.rank > 0 {
            let description = RunDescription::decode(&joining.share(None).await.map_err(not_met)?)?;
            let catalogs = self.catalogs(joining, &description).await?;
            let identities = description.identities()?;
            for (targets, catalog) in std::iter::once(*targets).chain(&validation).zip(&catalogs) {
                seek(targets, catalog, registry, context, shared).await?;
            }
            let mut opened = Vec::new();
            let storage = [&config.storage_options, &config.validate_storage_options];
            for ((catalog, identity), storage) in catalogs.into_iter().zip(identities).zip(storage) {
                opened.push(open_known(catalog, identity, storage, registry, context, shared).await?);
            }
            return Ok((description, opened));
        }
        let mut opened = Vec::new();
        for targets in std::iter::once(*targets).chain(&validation) {
            let named = targets.names.first().map_or("", String::as_str);
            let opening = open(targets, config.format, registry, context, shared, &mut progress);
            opened.push(working(joining, &format!("rank 0 opens {named}"), opening).await?);
        }
        if !config.disk.is_empty() {
            opened.iter().for_each(OpenDataset::warn_of_lost_caches);
        }
        let description = RunDescription::new(&opened, resume, config);
        let catalogs = opened.iter().map(|dataset| &dataset.catalog);
        let bulks = description.bulks(catalogs, targets.catalog.is_some())?;
        joining.share_with(Some(description.encode()?), bulks).await.map_err(not_met)?;
        Ok((description, opened))
    }

    /// Rank 0's catalogs on another rank: from its program, from their files, or as bytes that rank
    /// 0 sent to this node.
    async fn catalogs(
        &self,
        joining: &mut RendezvousSteps,
        description: &RunDescription,
    ) -> Result<Vec<Catalog>> {
        let (catalogs, at_hand) = (description.catalogs.clone(), self.targets.catalog.clone());
        let opening = self
            .context
            .runtime
            .spawn_blocking(move || RunDescription::open_files(&catalogs, at_hand.as_ref()));
        let opened = working(joining, "opens its catalog", opening).await.map_err(ended)?;
        // Other ranks of the node may get this rank's catalogs from it.
        let have = opened.iter().map(|catalog| catalog.as_ref().map(on_request)).collect();
        let all =
            opened.into_iter().zip(joining.bulks(have).await.map_err(not_met)?).zip(&description.catalogs);
        all.map(|((own, bytes), description)| own.map_or_else(|| description.received(bytes), Ok)).collect()
    }

    /// The values that must be equal on all ranks, named as users know them.
    async fn words(&self, description: &RunDescription, catalogs: &[Catalog]) -> Result<Words> {
        let (config, context) = (&self.config, self.context);
        let validation = match (&config.validate, catalogs.get(1)) {
            (Some(target), Some(catalog)) => names(&TargetSpec::by(target), catalog, context).await?,
            (Some(target), None) => target.clone(),
            (None, _) => "none".to_owned(),
        };
        let mut words = vec![
            ("dataset", names(self.targets, &catalogs[0], context).await?),
            ("validation set", validation),
            ("sampler", config.sampler.to_string()),
            ("seed", config.seed.to_string()),
            ("batch size", config.batch_size.to_string()),
            ("number of epochs", config.epochs.to_string()),
            ("drop-last", config.drop_last.to_string()),
            ("deal", if config.locality { "locality".to_owned() } else { config.deal.to_string() }),
            ("look-ahead", config.look_ahead.to_string()),
            ("on-error", format!("{:?}", config.on_error).to_lowercase()),
            (WireProtection::VARIABLE, self.wire.to_string()),
        ];
        if let Some(state) = &description.state {
            words.push(("state", format!("epoch {}, {} samples", state.epoch(), state.consumed())));
        }
        Ok(words.into_iter().map(|(word, value)| (word.to_owned(), value)).collect())
    }
}

/// The settings that must be equal on ranks that share nothing.
fn run_words(schedule: &Schedule) -> Words {
    vec![
        ("planner version".to_owned(), PLANNER_VERSION.to_string()),
        ("schedule".to_owned(), schedule.fingerprint().to_string()),
    ]
}

/// The inputs of the plan, by name, so that an error names the difference. Samples on disks are
/// left out: they are in the table that all ranks got from rank 0.
fn inputs(whole: &Cluster, schedule: &Schedule) -> Words {
    let mut words = run_words(schedule);
    words.extend([
        ("look-ahead of the plan".to_owned(), whole.look_ahead.to_string()),
        ("speed of the origin".to_owned(), format!("{:?}", whole.origin)),
        ("speed of the trainer".to_owned(), format!("{:?}", whole.trainer)),
        ("speed of the network".to_owned(), format!("{:?}", whole.network)),
        ("speed of storage servers".to_owned(), server_word(whole)),
    ]);
    let mut levels = Fingerprinter::new("levels 1").number(whole.stores.len() as u64);
    for store in &whole.stores {
        levels = levels.number(u64::from(store.node)).number(store.levels.len() as u64);
        for level in &store.levels {
            let name = format!("footprint of {}", level.name);
            if !words.iter().any(|(known, _)| *known == name) {
                words.push((name, format!("{:?}", level.footprint)));
            }
            levels = levels.text(&level.name).number(level.capacity).text(&format!("{level:?}"));
        }
    }
    let levels = levels.text(&format!("{:?}", whole.ranks));
    words.push(("caches of all ranks".to_owned(), levels.finish().to_string()));
    words
}

/// The speeds of storage servers in one word. The servers of samples are equal on all ranks, or are
/// not used.
fn server_word(whole: &Cluster) -> String {
    whole.servers.as_ref().map_or_else(
        || "unused".to_owned(),
        |servers| {
            let print =
                servers.speeds().iter().fold(Fingerprinter::new("server speeds 1"), |print, speed| {
                    print.number(speed.latency_ns).number(speed.bytes_per_second)
                });
            print.finish().to_string()
        },
    )
}

/// The data and the common plan that a run is bound to.
fn bound(prepared: &Prepared) -> Vec<Fingerprint> {
    let datasets = prepared.opened.iter().map(|dataset| Fingerprint(dataset.identity.0));
    let plan = match &prepared.planned.plan {
        LocalPlan::Cluster { plan, .. } => Some(plan.fingerprint()),
        LocalPlan::Private(_) => None,
    };
    datasets.chain(plan).collect()
}

/// Starts after all ranks have confirmed that their runs are equal.
async fn start(
    prepared: Prepared,
    words: Words,
    joining: RendezvousSteps,
    context: &OpenContext,
) -> Result<Prepared> {
    let group = Arc::new(joining.start(words, &bound(&prepared), context).await.map_err(not_met)?);
    let service = prepared.service.clone();
    service.iter().for_each(|service| group.serve(Arc::downgrade(service)));
    let locality = match &prepared.planned.plan {
        LocalPlan::Cluster { plan, .. } if prepared.planned.config.locality => Some(Arc::new(LocalityDeal {
            cluster: prepared.planned.cluster.clone(),
            owners: plan.owners().clone(),
        })),
        _ => None,
    };
    let group = JoinedGroup::new(group, locality, service);
    Ok(Prepared { group: Some(Box::new(group)), ..prepared })
}

#[cfg(test)]
mod tests {
    use foreread_planner::{Curve, OriginServers, ServerSpeed};
    use foreread_types::{Footprint, StoreId};

    use super::*;

    #[tokio::test(start_paused = true)]
    // semantics: RANK-24
    async fn long_work_costs_one_message_in_five_seconds() {
        let (begun, mut messages) = (Instant::now(), progress_interval());
        for second in [1, 6, 11, 16] {
            messages.tick().await;
            assert_eq!(begun.elapsed(), Duration::from_secs(second));
        }
        // This rank was stopped: messages are not sent in a burst.
        tokio::time::advance(Duration::from_secs(60)).await;
        messages.tick().await;
        messages.tick().await;
        assert_eq!(begun.elapsed(), Duration::from_secs(16 + 60 + 5));
    }

    /// The names that differ between two tables of inputs.
    fn differing(one: &Cluster, other: &Cluster) -> Vec<String> {
        let schedule = schedule(&Config::default(), &[Sizes::uniform(10, 100)]).unwrap();
        let (one, other) = (inputs(one, &schedule), inputs(other, &schedule));
        let names = one.iter().zip(&other).filter(|(one, other)| one != other);
        names.map(|((name, _), _)| name.clone()).collect()
    }

    #[test]
    // semantics: RANK-5
    fn inputs_of_a_plan_differ_by_their_names() {
        let level = |footprint| Level::new("disk", 1000, footprint);
        let cluster = |level| Cluster::single(CacheStore::new(StoreId(0), vec![level]));
        let usual = cluster(level(Footprint::EXACT));
        assert!(differing(&usual, &usual).is_empty());
        let footprint = cluster(level(Footprint::new(16, 4096)));
        assert_eq!(differing(&usual, &footprint), ["footprint of disk", "caches of all ranks"]);
        let speed = cluster(Level { read: Curve::flat(7), ..level(Footprint::EXACT) });
        assert_eq!(differing(&usual, &speed), ["caches of all ranks"]);
        let mut origin = usual.clone();
        origin.origin.latency_ns += 1;
        assert_eq!(differing(&usual, &origin), ["speed of the origin"]);
        let servers = |rate| {
            let speed = ServerSpeed { latency_ns: 0, bytes_per_second: rate };
            Cluster { servers: Some(OriginServers::new(vec![speed], Vec::new())), ..usual.clone() }
        };
        assert!(differing(&servers(7), &servers(7)).is_empty());
        assert_eq!(differing(&servers(7), &servers(8)), ["speed of storage servers"]);
        assert_eq!(differing(&servers(7), &usual), ["speed of storage servers"]);
        let ahead = Cluster { look_ahead: 7, ..usual.clone() };
        assert_eq!(differing(&usual, &ahead), ["look-ahead of the plan"]);
    }

    #[test]
    fn schedule_and_planner_version_are_inputs_of_a_plan() {
        let of = |seed| {
            let config = Config { seed, ..Config::default() };
            inputs(&Cluster::default(), &schedule(&config, &[Sizes::uniform(10, 100)]).unwrap())
        };
        let value = |words: &[(String, String)], name: &str| {
            words.iter().find(|(known, _)| known == name).map(|(_, value)| value.clone()).unwrap()
        };
        assert_ne!(value(&of(1), "schedule"), value(&of(2), "schedule"));
        assert_eq!(value(&of(1), "planner version"), PLANNER_VERSION.to_string());
    }
}
