//! The cache that the ranks of a node share: one memory for all of them.
//!
//! # The decision, and its price
//!
//! The first rank of a node hosts the cache, and the others map its memory. So no sample passes
//! through a socket between them. A sample of 110 KB then costs 11 us of processor time. The host's
//! own rank needs no socket at all, and its samples in memory cost 1.6 us. The memory is the sum of
//! the ranks' memory. It has their disks, too, and samples on them are found by the next run. If
//! the host dies, the others read storage without a cache.
//!
//! The caches of a run read from each other, and ranks send each other nothing. The owner of a
//! sample is that of the plan. Ranks of a node with other disks, or whose memory is limited apart,
//! share apart, and their caches are linked like those of other nodes. If they name one disk, the
//! first of these caches has it. A node with one rank has such a cache, too. There it costs: a
//! sample from another node takes a third more processor time at both ends, and one in memory
//! 1.2 us more.
//!
//! * *A node with an agent*: the cache has no memory. It reads from the agent, which keeps the
//!   samples that the node owns, and serves the other nodes.
//! * *A rank that cannot attach*, and the ranks of a node whose cache cannot start, read storage by
//!   themselves. The other caches stay linked.
//! * *Ranks without any memory and disk* share nothing, and so do ranks whose stored units do not
//!   fit in all caches together: each keeps the units for its own next uses.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use foreread_host::{HostRank, HostSettings, JobHost, JobStore, NodeDataset};
use foreread_open::disk::Disk;
use foreread_open::error::{Error, Result, ended};
use foreread_open::memory_group::memory_group;
use foreread_open::origin::OpenDataset;
use foreread_open::origin_policy::OriginSettings;
use foreread_open::storage::StorageOptions;
use foreread_peer::meet::RendezvousSteps;
use foreread_types::{RankOf, SampleId};
use serde::{Deserialize, Serialize};

use super::Words;
use super::capacity_offer::{bundle, unbundle_parts};
use super::meeting::not_met;
use super::run_description::unreadable;
use super::working;
use crate::agent_client::{AgentLink, SharedCache, attach_to};
use crate::config::Config;
use crate::node_links::{CacheClient as _, NodeRoom};

/// A rank's message about the cache of its node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct NodeOffer {
    /// Its bytes of memory.
    memory: u64,
    /// Its disks.
    disks: Vec<OfferedDisk>,
    /// Its node's agent, if it has one.
    agent: Option<OfferedAgent>,
}

/// The agent of a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct OfferedAgent {
    /// The name of the agents that share one cache. No other agent has it.
    pub(super) name: String,
    room: NodeRoom,
}

/// A disk in a form that ranks compare.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
struct OfferedDisk {
    path: Vec<u8>,
    bytes: u64,
    is_shared: bool,
}

/// The cache of this rank's node.
#[derive(Debug)]
pub(super) struct NodeCache {
    pub(super) link: AgentLink,
    /// The cache, on the rank that hosts it.
    pub(super) host: Option<Arc<JobStore>>,
    /// The ids of samples on its disks, per dataset, on that rank.
    pub(super) held: Vec<Vec<SampleId>>,
}

/// The rank that takes part.
pub(super) struct NodeMember<'a> {
    /// As the host of a cache needs it, with its own memory.
    pub(super) rank: HostRank<'a>,
    pub(super) config: &'a Config,
    pub(super) host: JobHost,
    /// Its place in its group.
    pub(super) on_node: RankOf,
    /// Whether its disks are known to be slower than storage. A host of a cache does not use them.
    pub(super) has_slow_disk: bool,
    /// Its node's agent, if it has one.
    pub(super) agent: Option<&'a AgentLink>,
    /// The bytes that all caches need together, if samples share stored units.
    pub(super) units: Option<u64>,
}

/// The messages of all ranks about the caches of their nodes. Equal on all ranks.
pub(super) struct NodeOffers {
    offers: Vec<NodeOffer>,
    nodes: Vec<u32>,
    groups: Vec<u32>,
}

impl NodeOffers {
    /// The messages of the ranks of a group, the first rank's first.
    fn of(&self, group: u32) -> impl Iterator<Item = &NodeOffer> + Clone {
        let offers = self.offers.iter().zip(&self.groups);
        offers.filter(move |(_, of_rank)| **of_rank == group).map(|(offer, _)| offer)
    }

    /// The group of a rank.
    fn group(&self, rank: u32) -> u32 {
        self.groups.get(rank as usize).copied().unwrap_or_default()
    }

    /// The agent that the cache of a rank's group reads from.
    pub(super) fn agent_of(&self, rank: u32) -> Option<&OfferedAgent> {
        self.of(self.group(rank)).next()?.agent.as_ref()
    }

    /// Whether any node has an agent.
    pub(super) fn have_agents(&self) -> bool {
        self.offers.iter().any(|offer| offer.agent.is_some())
    }

    /// The memory of the cache of a group, without its disks. `None`: it has no cache.
    fn room(&self, group: u32) -> Option<NodeRoom> {
        let first = self.of(group).next()?;
        let memory = self.of(group).fold(0, |sum: u64, offer| sum.saturating_add(offer.memory));
        Some(first.agent.as_ref().map_or(NodeRoom { memory, disk: 0 }, |agent| agent.room))
    }

    /// The bytes of the cache of a group, with its disks.
    fn bytes(&self, group: u32) -> u64 {
        let Some(NodeRoom { memory, disk }) = self.room(group) else { return 0 };
        let disks = self.of(group).next().into_iter().flat_map(|first| &first.disks);
        let disks = disks.filter(|disk| self.has_disk(group, disk)).map(|disk| disk.bytes);
        disks.fold(memory.saturating_add(disk), u64::saturating_add)
    }

    /// Whether the ranks have caches that read from each other. `units`: as of a member.
    fn are_linked(&self, units: Option<u64>) -> bool {
        let groups: BTreeSet<u32> = self.groups.iter().copied().collect();
        let all = groups.into_iter().map(|group| self.bytes(group)).fold(0, u64::saturating_add);
        all > 0 && units.is_none_or(|needs| needs <= all)
    }

    /// Whether the cache of a group has this disk. Its ranks all name it, and no earlier group of
    /// the node does.
    fn has_disk(&self, group: u32, disk: &OfferedDisk) -> bool {
        let node = self.groups.iter().position(|it| *it == group).and_then(|rank| self.nodes.get(rank));
        let uses_it = |other: u32| {
            let mut first = self.of(other).take(1);
            other < group && first.all(|first| first.disks.iter().any(|it| it.path == disk.path))
        };
        let is_earlier = |(at, _): (usize, &NodeOffer)| {
            self.nodes.get(at) == node && self.groups.get(at).is_some_and(|other| uses_it(*other))
        };
        self.of(group).all(|offer| offer.disks.contains(disk))
            && !self.offers.iter().enumerate().any(is_earlier)
    }
}

impl NodeMember<'_> {
    /// Exchanges the caches of all ranks. Returns `None` if they do not read from each other: each
    /// rank then has separate caches. All ranks must have the same `words`.
    pub(super) async fn offers(
        &self,
        joining: &mut RendezvousSteps,
        words: Words,
    ) -> Result<Option<NodeOffers>> {
        let has_disks = self.agent.is_none() && !self.has_slow_disk;
        let disks = if has_disks { self.config.disk.clone() } else { Vec::new() };
        // A disk may hang.
        let comparing = self.rank.context.runtime.spawn_blocking(move || compared(&disks));
        let disks = working(joining, "looks at its disks", comparing).await.map_err(ended)?;
        let offered = |agent: &AgentLink| {
            // Without a name it is not attached to.
            OfferedAgent { name: agent.host().unwrap_or_default().to_owned(), room: agent.room() }
        };
        let agent = self.agent.map(offered);
        let memory = self.rank.memory;
        // The value has only numbers and strings, so this cannot fail.
        let offer = serde_json::to_vec(&NodeOffer { memory, disks, agent }).unwrap_or_default();
        let offers = exchange(joining, words, offer).await?;
        let offers = offers.iter().map(|offer| serde_json::from_slice::<NodeOffer>(offer));
        let offers = offers.collect::<Result<Vec<_>, _>>().map_err(|_| invalid())?;
        let (nodes, groups) = (joining.nodes().to_vec(), joining.groups().to_vec());
        let all = NodeOffers { offers, nodes, groups };
        Ok(all.are_linked(self.units).then_some(all))
    }

    /// Starts the cache of its node, if it is the first rank there, and attaches to it. `None` if
    /// that fails: the rank then reads storage by itself. All ranks take part.
    pub(super) async fn join(
        self,
        joining: &mut RendezvousSteps,
        all: &NodeOffers,
        opened: &mut [OpenDataset],
        storage: [&StorageOptions; 2],
    ) -> Result<Option<NodeCache>> {
        let (config, context) = (self.config, self.rank.context);
        let group = all.group(config.rank.rank);
        let Some(room) = all.room(group) else {
            exchange(joining, Vec::new(), Vec::new()).await?;
            return Ok(None);
        };
        // A host that was started again may lack the agent that its predecessor had.
        let is_relay =
            all.agent_of(config.rank.rank).is_some() && (self.on_node.rank > 0 || self.agent.is_some());
        let ranks = (!is_relay).then_some(self.on_node.ranks);
        let mut host = if self.on_node.rank == 0 { self.host(all, room, opened) } else { None };
        let mut link = None;
        if let Some(started) = &host {
            let opening = started.open_disks(opened.iter().map(described).collect());
            working(joining, "opens its disks", opening).await?;
            // Before any other rank hears of it.
            let cache = SharedCache { address: started.address(), host: Some(started), room, ranks };
            link = attach_to(cache, opened, config, storage, context).await?;
        }
        if link.is_none() {
            // Its threads end, and disks are closed, which takes a moment.
            let unused = host.take();
            context.runtime.spawn_blocking(move || drop(unused)).await.map_err(ended)?;
        }
        let address = host.as_ref().map(|host| host.address()).unwrap_or_default();
        let addresses = exchange(joining, Vec::new(), address.into_bytes()).await?;
        if self.on_node.rank > 0 {
            let first = all.groups.iter().position(|it| *it == group).and_then(|first| addresses.get(first));
            let address = first.and_then(|address| String::from_utf8(address.clone()).ok());
            if let Some(address) = address.filter(|address| !address.is_empty()) {
                let cache = SharedCache { address, host: None, room, ranks };
                link = attach_to(cache, opened, config, storage, context).await?;
            }
        }
        let Some(link) = link else { return Ok(None) };
        let of_host = |dataset: &OpenDataset| {
            host.as_ref().map_or_else(Vec::new, |host| host.on_disk(&dataset.identity.to_string()))
        };
        let held = opened.iter().map(of_host).collect();
        link.replace_origins(opened);
        Ok(Some(NodeCache { link, host, held }))
    }

    /// The cache of its group, which this rank hosts.
    fn host(&self, all: &NodeOffers, room: NodeRoom, opened: &[OpenDataset]) -> Option<Arc<JobStore>> {
        let through_agent = self.agent.map_or_else(Vec::new, |_| opened.to_vec());
        // The agent keeps the samples, even if a host that was started again lacks it.
        let memory = if all.agent_of(self.config.rank.rank).is_some() { 0 } else { room.memory };
        let rank =
            HostRank { settings: self.settings_of_node(all), memory, through_agent, ..self.rank.clone() };
        match self.host.start(rank) {
            Ok(host) => Some(Arc::new(host)),
            Err(why) => {
                tracing::warn!(%why, "the ranks of this node have no cache");
                None
            }
        }
    }

    /// The settings of the cache: the limits of all ranks together, and the disks that it has.
    fn settings_of_node(&self, all: &NodeOffers) -> HostSettings {
        let (config, ranks) = (self.config, self.on_node.ranks);
        let group = all.group(config.rank.rank);
        let offered = all.of(group).next().map(|first| &*first.disks).unwrap_or_default();
        let mut disk = config.disk.clone();
        // Offered in the order of the settings, if at all.
        let mut offered = offered.iter();
        disk.retain(|_| offered.next().is_some_and(|disk| all.has_disk(group, disk)));
        if disk.len() < config.disk.len() && self.agent.is_none() {
            let why = match self.has_slow_disk {
                true => "they are slower than storage",
                false => "other ranks of this node have other ones, or use them apart",
            };
            tracing::info!(why, "the cache of this node does not use all disks");
        }
        // An agent limits reads of storage itself.
        let is_limited = self.agent.is_none();
        let rate = config.origin_limit.filter(|_| is_limited);
        let parallelism = config.origin_parallelism.filter(|_| is_limited);
        let origin = OriginSettings {
            limit: rate.map(|rate| rate.saturating_mul(ranks.into())),
            parallelism: parallelism.map(|most| most.saturating_mul(ranks as usize)),
            ..config.origin_settings()
        };
        HostSettings { origin, disk }
    }
}

/// Disks in a form that ranks compare. A directory may not exist yet, but its parent does. Blocks
/// on files.
fn compared(disks: &[Disk]) -> Vec<OfferedDisk> {
    let whole = |path: &Path| {
        let path = std::path::absolute(path).ok()?;
        Some(std::fs::canonicalize(path.parent()?).ok()?.join(path.file_name()?))
    };
    let of = |disk: &Disk| {
        let path = whole(&disk.directory).unwrap_or_else(|| disk.directory.clone());
        OfferedDisk {
            path: path.into_os_string().into_encoded_bytes(),
            bytes: disk.bytes,
            is_shared: disk.shared,
        }
    };
    disks.iter().map(of).collect()
}

/// The messages of all ranks, with `own` from this rank.
async fn exchange(joining: &mut RendezvousSteps, words: Words, own: Vec<u8>) -> Result<Vec<Vec<u8>>> {
    let all = joining.exchange(words, own.into(), |all| bundle(&all).into()).await.map_err(not_met)?;
    let parts = unbundle_parts(&all).map_err(|_| invalid())?;
    Ok(parts.into_iter().map(<[u8]>::to_vec).collect())
}

fn described(dataset: &OpenDataset) -> NodeDataset {
    NodeDataset {
        identity: dataset.identity,
        url: dataset.catalog.base_url().to_owned(),
        samples: dataset.catalog.len(),
        bytes: dataset.catalog.total_bytes(),
    }
}

fn invalid() -> Error {
    unreadable(&"the offers for the caches of nodes are invalid")
}

/// The text that is equal on ranks of a node that may share a cache. It has the group of processes
/// whose memory is limited together, and the names of their disks.
pub(super) fn group_of(config: &Config) -> String {
    let name = |disk: &Disk| {
        let path = std::path::absolute(&disk.directory).unwrap_or_else(|_| disk.directory.clone());
        format!("{}={}", path.display(), disk.bytes)
    };
    let disks: Vec<String> = config.disk.iter().map(name).collect();
    format!("{} {}", memory_group(), disks.join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offer(memory: u64) -> NodeOffer {
        NodeOffer { memory, ..NodeOffer::default() }
    }

    fn with_disk(path: &str) -> NodeOffer {
        let disk = OfferedDisk { path: path.into(), bytes: 7, is_shared: false };
        NodeOffer { disks: vec![disk], ..offer(5) }
    }

    fn all(offers: Vec<NodeOffer>, nodes: &[u32], groups: &[u32]) -> NodeOffers {
        NodeOffers { offers, nodes: nodes.to_vec(), groups: groups.to_vec() }
    }

    #[test]
    // semantics: RANK-39
    fn ranks_without_any_cache_share_nothing() {
        let two = |offers| all(offers, &[0, 0], &[0, 0]);
        let room = |memory| Some(NodeRoom { memory, disk: 0 });
        let both = two(vec![offer(7), offer(5)]);
        assert_eq!((both.room(0), both.are_linked(None)), (room(12), true));
        // Whatever one of them lacks.
        let one = two(vec![offer(0), offer(5)]);
        assert_eq!((one.room(0), one.are_linked(None)), (room(5), true));
        assert!(!two(vec![offer(0), offer(0)]).are_linked(None));
        let disk = || NodeOffer { memory: 0, ..with_disk("x") };
        assert!(two(vec![disk(), disk()]).are_linked(None));
        assert!(!two(vec![disk(), offer(0)]).are_linked(None), "not a disk of all");
    }

    #[test]
    // semantics: RANK-39, AGENT-25
    fn cache_of_a_node_with_an_agent_has_what_the_agent_has() {
        let room = NodeRoom { memory: 70, disk: 8 };
        let agent = Some(OfferedAgent { name: "x".to_owned(), room });
        let offers = all(vec![NodeOffer { agent, ..offer(0) }, offer(5)], &[0, 0], &[0, 0]);
        assert_eq!((offers.room(0), &*offers.agent_of(1).unwrap().name), (Some(room), "x"));
        assert!(offers.are_linked(None) && offers.have_agents());
    }

    #[test]
    // semantics: RANK-39, FORMAT-6
    fn stored_units_must_fit_in_all_caches_together() {
        let offers = all(vec![offer(7), with_disk("x")], &[0, 1], &[0, 1]);
        assert!(offers.are_linked(Some(19)) && !offers.are_linked(Some(20)));
    }

    #[test]
    // semantics: RANK-39
    fn disk_is_used_by_the_first_cache_whose_ranks_all_name_it() {
        let offers = ["a", "a", "b", "a"].map(with_disk).to_vec();
        let disk = |path: &str| with_disk(path).disks.remove(0);
        let groups = all(offers.clone(), &[0, 0, 0, 1], &[0, 0, 1, 2]);
        assert!(groups.has_disk(0, &disk("a")) && groups.has_disk(1, &disk("b")));
        assert!(groups.has_disk(2, &disk("a")), "on another node");
        // The first two ranks are limited apart.
        let groups = all(offers.clone(), &[0, 0, 0, 1], &[0, 1, 2, 3]);
        assert!(groups.has_disk(0, &disk("a")) && !groups.has_disk(1, &disk("a")));
        // Not all ranks of the group name it.
        let groups = all(offers, &[0, 0, 0, 1], &[0, 0, 0, 1]);
        assert!(!groups.has_disk(0, &disk("a")) && !groups.has_disk(0, &disk("b")));
    }

    #[test]
    // semantics: RANK-39
    fn ranks_with_other_disks_are_of_two_groups() {
        let disk = |path: &str| Config {
            disk: vec![Disk { directory: path.into(), bytes: 7, shared: false }],
            ..Config::default()
        };
        assert_ne!(group_of(&disk("/a")), group_of(&disk("/b")));
        assert_eq!(group_of(&disk("/a")), group_of(&disk("/a")));
    }
}
