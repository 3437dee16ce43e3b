//! The cache that the ranks of a node share, without an agent: one memory for all of them.
//!
//! # The decision, and its price
//!
//! The first rank of a node hosts the cache, and the others map its memory. So no sample passes
//! through a socket between them: a tenth of the processor time of ranks that send samples to each
//! other. The memory is the sum of what the ranks were given. If the host dies, the others read
//! storage without a cache.
//!
//! Ranks keep caches of their own where the cache of a node has no equal yet: with disks, with
//! samples in shards (read in blocks) or decoded ones, and if a rank has an agent. One rank on a
//! node needs none of it.

use std::sync::Arc;

use foreread_dataset::{Catalog, Format};
use foreread_peer::meet::RendezvousSteps;
use foreread_tier::OpenContext;
use serde::{Deserialize, Serialize};

use super::Words;
use super::capacity_offer::{bundle, unbundle_parts};
use super::run_description::unreadable;
use crate::agent::{AgentLink, attach_to};
use crate::config::Config;
use crate::error::Result;
use crate::node_host::{HostedStore, NodeHost};
use crate::node_rank::NodeRank;
use crate::origin::OpenDataset;
use crate::storage::StorageOptions;

/// What a rank says about the cache of its node.
#[derive(Debug, Default, Serialize, Deserialize)]
struct NodeOffer {
    /// The memory that it would give, in bytes. 0 if it has a cache of its own.
    memory: u64,
    /// The address of the cache, if it hosts one.
    address: Option<String>,
}

/// The cache of this rank's node.
#[derive(Debug)]
pub(super) struct NodeCache {
    /// `None` if the cache refuses this rank. Its memory belongs to the cache all the same.
    pub(super) link: Option<AgentLink>,
    /// The cache, on the rank that hosts it.
    pub(super) host: Option<Box<dyn HostedStore>>,
}

/// The rank that takes part.
pub(super) struct NodeMember<'a> {
    pub(super) config: &'a Config,
    pub(super) host: Option<&'a Arc<dyn NodeHost>>,
    pub(super) on_node: NodeRank,
    /// The memory that was granted to it, in bytes.
    pub(super) memory: u64,
    /// Whether it has an agent.
    pub(super) has_agent: bool,
}

/// Whether some ranks may share a cache. Equal on all ranks, which then all take part.
pub(super) fn may_share(catalogs: &[Catalog], nodes: &[u32]) -> bool {
    let are_files = |catalog: &Catalog| catalog.format() == Format::Files && catalog.stored_sizes().is_none();
    let mut sorted = nodes.to_vec();
    sorted.sort_unstable();
    catalogs.iter().all(are_files) && sorted.windows(2).any(|pair| pair[0] == pair[1])
}

impl NodeMember<'_> {
    /// The settings of the cache: the limits of all ranks together.
    fn config_of_node(&self) -> Config {
        let (config, ranks) = (self.config, self.on_node.ranks);
        Config {
            origin_limit: config.origin_limit.map(|rate| rate.saturating_mul(ranks.into())),
            origin_parallelism: config.origin_parallelism.map(|most| most.saturating_mul(ranks as usize)),
            ..config.clone()
        }
    }

    /// Whether this rank would use the cache of its node.
    fn would_share(&self) -> bool {
        let shares = self.on_node.ranks > 1 && self.config.disk.is_empty() && !self.has_agent;
        shares && self.memory > 0 && self.host.is_some() && !self.config.agent.is_off()
    }

    /// Agrees with the other ranks of the node, and attaches to its cache. `None` if the ranks of
    /// this node keep their own. All ranks must have the same `words`.
    pub(super) async fn join(
        self,
        joining: &mut RendezvousSteps,
        words: Words,
        opened: &mut [OpenDataset],
        storage: [&StorageOptions; 2],
        context: &OpenContext,
    ) -> Result<Option<NodeCache>> {
        let would_share = self.would_share();
        let started = (would_share && self.on_node.rank == 0).then_some(self.host).flatten();
        let host = started.and_then(|host| match host.start(&self.config_of_node()) {
            Ok(host) => Some(host),
            Err(why) => {
                tracing::warn!(why, "the ranks of this node have caches of their own");
                None
            }
        });
        let offer = NodeOffer {
            memory: if would_share { self.memory } else { 0 },
            address: host.as_ref().map(|host| host.address()),
        };
        // The value has only numbers and strings, so this cannot fail.
        let offer = serde_json::to_vec(&offer).unwrap_or_default();
        let offers = joining.exchange(words, offer.into(), |offers| bundle(&offers).into()).await?;
        let invalid = || unreadable(&"the offers for the caches of nodes are invalid");
        let parts = unbundle_parts(&offers).map_err(|_| invalid())?;
        let nodes = joining.nodes();
        let own = nodes.get(self.config.rank as usize);
        let mates = parts.iter().zip(nodes).filter(|(_, node)| Some(*node) == own);
        let mates = mates.map(|(part, _)| serde_json::from_slice::<NodeOffer>(part));
        let mates = mates.collect::<Result<Vec<_>, _>>().map_err(|_| invalid())?;
        let address = mates.first().and_then(|first| first.address.clone());
        let Some(address) = address.filter(|_| mates.iter().all(|mate| mate.memory > 0)) else {
            return Ok(None);
        };
        let capacity = mates.iter().fold(0, |sum: u64, mate| sum.saturating_add(mate.memory));
        if let Some(host) = &host {
            host.set_memory(capacity);
        }
        let place = (address, capacity, self.on_node.ranks);
        let link = attach_to(place, opened, self.config, storage, context).await?;
        Ok(Some(NodeCache { link, host }))
    }
}
