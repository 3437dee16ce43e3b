//! The cache that the ranks of a node share, without an agent: one memory for all of them.
//!
//! # The decision, and its price
//!
//! The first rank of a node hosts the cache, and the others map its memory. So no sample passes
//! through a socket between them. A sample of 110 KB then costs 11 us of processor time, and 29 us
//! between ranks that send samples to each other. The host's own rank needs no socket at all, and
//! its samples in memory cost 1.6 us. The memory is the sum of what the ranks were given. It has
//! their disks, too, and samples on them are found by the next run. If the host dies, the others
//! read storage without a cache.
//!
//! The caches of a run read from each other, and ranks send each other nothing. The owner of a
//! sample is that of the plan. Ranks of a node with other disks, or whose memory is limited apart,
//! share apart, and their caches are linked like those of other nodes. Two nodes with eight ranks
//! each then read 1.3 to 4 times as fast as ranks that read through each other. A node with one
//! rank has such a cache, too. There it costs: a sample from another node takes a third more
//! processor time at both ends, and one in memory 1.2 us more.
//!
//! Ranks keep caches of their own, and read from each other, if one of them has an agent, or cannot
//! attach. Also if samples share compressed units and do not all fit, or if two caches of a node
//! would have one disk.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use foreread_local::disk::DiskDirectory;
use foreread_peer::meet::RendezvousSteps;
use foreread_types::SampleId;
use serde::{Deserialize, Serialize};

use super::Words;
use super::capacity_offer::{bundle, unbundle_parts};
use super::run_description::unreadable;
use super::working;
use crate::agent::{AgentLink, attach_to};
use crate::config::{Config, Disk};
use crate::error::{Error, Result};
use crate::node_host::{HostRank, HostedStore, NodeDataset, NodeHost, SharedCache};
use crate::node_rank::NodeRank;
use crate::origin::OpenDataset;
use crate::runtime::ended;
use crate::storage::StorageOptions;

/// What a rank says about the cache of its node.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct NodeOffer {
    /// Whether it would share a cache, and with how many bytes of memory.
    shares: bool,
    memory: u64,
    /// The directories of its disks, with their bytes, and whether all users share them.
    disks: Vec<(Vec<u8>, u64, bool)>,
    /// The address of the cache, if it hosts one.
    address: Option<String>,
}

/// The cache of this rank's node.
#[derive(Debug)]
pub(super) struct NodeCache {
    pub(super) link: AgentLink,
    /// The cache, on the rank that hosts it.
    pub(super) host: Option<Box<dyn HostedStore>>,
    /// The ids of samples on its disks, per dataset, on that rank.
    pub(super) held: Vec<Vec<SampleId>>,
}

/// Which caches a rank has.
#[derive(Debug)]
pub(super) enum JoinedCaches {
    /// That of its node.
    OfNode(NodeCache),
    /// Its own.
    Own,
    /// None: the cache of its node has ended. A rank that is restarted finds that. Its node's disks
    /// are whole, so it does not open a part of them.
    Lost,
}

/// The rank that takes part.
pub(super) struct NodeMember<'a> {
    /// As the host of a cache needs it.
    pub(super) rank: HostRank<'a>,
    pub(super) host: Option<&'a Arc<dyn NodeHost>>,
    /// Its place in its group.
    pub(super) on_node: NodeRank,
    /// The memory that was granted to it, in bytes.
    pub(super) memory: u64,
    /// Whether its disks are known to be slower than storage. A host of a cache does not use them.
    pub(super) has_slow_disk: bool,
    /// Whether it has an agent.
    pub(super) has_agent: bool,
    /// The memory that a host needs, in bytes, if samples share units. `None` within: no host reads
    /// such units.
    pub(super) units: Option<Option<u64>>,
}

/// The most parts of directories, which earlier ranks have left, that one process opens.
const MOST_PARTS: u32 = 32;

/// Whether ranks may share caches. Equal on all ranks, which then all take part.
pub(super) fn may_share(groups: &[u32]) -> bool {
    groups.len() > 1
}

/// What ranks of a node have in common that may share a cache: the group of processes whose memory
/// is limited together, and the names of their disks.
pub(super) fn group_of(config: &Config) -> String {
    let name = |disk: &Disk| {
        let path = std::path::absolute(&disk.directory).unwrap_or_else(|_| disk.directory.clone());
        format!("{}={}", path.display(), disk.bytes)
    };
    let disks: Vec<String> = config.disk.iter().map(name).collect();
    format!("{} {}", memory_group(), disks.join(" "))
}

impl NodeMember<'_> {
    /// The settings of the cache: the limits of all ranks together.
    fn config_of_node(&self) -> Config {
        let (config, ranks) = (self.rank.config, self.on_node.ranks);
        let disk = if self.has_slow_disk { Vec::new() } else { config.disk.clone() };
        if disk.len() < config.disk.len() {
            tracing::info!("the disks are slower than storage, and are not used");
        }
        Config {
            disk,
            origin_limit: config.origin_limit.map(|rate| rate.saturating_mul(ranks.into())),
            origin_parallelism: config.origin_parallelism.map(|most| most.saturating_mul(ranks as usize)),
            ..config.clone()
        }
    }

    /// Whether this rank would use the cache of its node, whatever is on its disks.
    fn would_share(&self) -> bool {
        let has_cache = self.memory > 0 || !self.rank.config.disk.is_empty();
        has_cache && !self.has_agent && self.host.is_some() && !self.rank.config.agent.is_off()
    }

    /// Agrees with the other ranks of the node, and attaches to its cache. All ranks of a node do,
    /// or all keep their own. All ranks must have the same `words`.
    pub(super) async fn join(
        self,
        joining: &mut RendezvousSteps,
        words: Words,
        opened: &mut [OpenDataset],
        storage: [&StorageOptions; 2],
    ) -> Result<JoinedCaches> {
        let context = self.rank.context;
        let disks = if self.would_share() { self.rank.config.disk.clone() } else { Vec::new() };
        // A disk may hang.
        let comparing = context.runtime.spawn_blocking(move || compared(&disks));
        let disks = working(joining, "looks at its disks", comparing).await.map_err(ended)?;
        let shares = self.would_share() && disks.is_some();
        let host = self.host(shares);
        let address = host.as_ref().map(|host| host.address());
        let (memory, disks) = (self.memory, disks.unwrap_or_default());
        let offer = NodeOffer { shares, memory, disks, address };
        // The value has only numbers and strings, so this cannot fail.
        let offer = serde_json::to_vec(&offer).unwrap_or_default();
        let offers = exchange(joining, words, offer).await?;
        let offers = offers.iter().map(|offer| serde_json::from_slice::<NodeOffer>(offer));
        let offers = offers.collect::<Result<Vec<_>, _>>().map_err(|_| invalid())?;
        let fits = |memory: u64| self.units.is_none_or(|needs| needs.is_some_and(|needs| needs <= memory));
        let groups = joining.groups().to_vec();
        let of_group = |group: u32| agreed(&mates(&groups, group, &offers)).filter(|it| fits(it.1));
        let own = groups.get(self.rank.config.rank as usize).copied().unwrap_or_default();
        let most = groups.iter().max().copied().unwrap_or_default();
        let are_linked = (0..=most).all(|group| of_group(group).is_some());
        // A rank that is alone needs a cache that others read from, and no other.
        let is_needed = are_linked || self.on_node.ranks > 1;
        let have_disks_apart = have_own_disks(joining.nodes(), &groups, &offers);
        let agreed = of_group(own).filter(|_| is_needed && have_disks_apart);
        // Equal on all ranks.
        let have_disks = offers.iter().any(|offer| !offer.disks.is_empty());
        if have_disks {
            if let (Some(host), Some(_)) = (&host, agreed) {
                let opening = host.open_disks(opened.iter().map(described).collect());
                working(joining, "opens its disks", opening).await?;
            }
            // Opening may take longer than a rank waits for the answer of the host.
            exchange(joining, Vec::new(), Vec::new()).await?;
        }
        let mut link = None;
        if let Some((address, memory)) = agreed {
            let own = host.as_ref().map(|host| host.address());
            if let Some(host) = &host {
                host.set_memory(memory);
            }
            // A host that was started again finds the address of its predecessor.
            for address in std::iter::once(address.to_owned()).chain(own.filter(|own| own != address)) {
                let host = host.as_deref().filter(|host| host.address() == address);
                let (ranks, is_ordered) = (self.on_node.ranks, !are_linked);
                let cache = SharedCache { address, host, memory, ranks, is_ordered };
                link = attach_to(cache, opened, self.rank.config, storage, context).await?;
                if link.is_some() {
                    break;
                }
            }
        }
        let attached = exchange(joining, Vec::new(), vec![u8::from(link.is_some())]).await?;
        if mates(&groups, own, &attached).iter().all(|attached| ***attached == [1]) {
            let of_host = |dataset: &OpenDataset| {
                host.as_ref().map_or_else(Vec::new, |host| host.on_disk(&dataset.identity.to_string()))
            };
            let held = opened.iter().map(of_host).collect();
            if have_disks && attached.iter().any(|attached| **attached != [1]) {
                exchange(joining, Vec::new(), Vec::new()).await?;
            }
            let Some(link) = link else { return Ok(JoinedCaches::Lost) };
            link.replace_origins(opened);
            return Ok(JoinedCaches::OfNode(NodeCache { link, host, held }));
        }
        // Their threads end, and disks are closed, which takes a moment.
        context.runtime.spawn_blocking(move || drop((link, host))).await.map_err(ended)?;
        if have_disks {
            // No rank opens a disk that the host still owns.
            exchange(joining, Vec::new(), Vec::new()).await?;
        }
        Ok(JoinedCaches::Own)
    }

    /// The cache, if this rank hosts one.
    fn host(&self, shares: bool) -> Option<Box<dyn HostedStore>> {
        let host = self.host.filter(|_| shares && self.on_node.rank == 0)?;
        match host.start(HostRank { config: &self.config_of_node(), ..self.rank }) {
            Ok(host) => Some(host),
            Err(why) => {
                tracing::warn!(why, "the ranks of this node have caches of their own");
                None
            }
        }
    }
}

/// What the ranks of a group say, of what all ranks say.
fn mates<'b, T>(groups: &[u32], group: u32, all: &'b [T]) -> Vec<&'b T> {
    all.iter().zip(groups).filter(|(_, of_rank)| **of_rank == group).map(|(part, _)| part).collect()
}

/// Whether no directory of a node is that of two groups.
fn have_own_disks(nodes: &[u32], groups: &[u32], offers: &[NodeOffer]) -> bool {
    let mut users: BTreeMap<(u32, &[u8]), u32> = BTreeMap::new();
    nodes.iter().zip(groups).zip(offers).all(|((node, group), offer)| {
        offer.disks.iter().all(|(path, ..)| *users.entry((*node, path)).or_insert(*group) == *group)
    })
}

/// Disks in a form that ranks compare. A directory may not exist yet, but its parent does. `None`
/// if one process cannot open all of their parts. Blocks on files.
fn compared(disks: &[Disk]) -> Option<Vec<(Vec<u8>, u64, bool)>> {
    let parts = |disk: &Disk| DiskDirectory::new(&disk.directory, disk.bytes).parts();
    let whole = |path: &Path| {
        let path = std::path::absolute(path).ok()?;
        Some(std::fs::canonicalize(path.parent()?).ok()?.join(path.file_name()?))
    };
    let of = |disk: &Disk| {
        let path = whole(&disk.directory).unwrap_or_else(|| disk.directory.clone());
        (path.into_os_string().into_encoded_bytes(), disk.bytes, disk.shared)
    };
    (disks.iter().map(parts).sum::<u32>() <= MOST_PARTS).then(|| disks.iter().map(of).collect())
}

/// What all ranks say, if this one says `own`.
async fn exchange(joining: &mut RendezvousSteps, words: Words, own: Vec<u8>) -> Result<Vec<Vec<u8>>> {
    let all = joining.exchange(words, own.into(), |all| bundle(&all).into()).await?;
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

/// The address and the memory of the cache that these ranks share, if they do.
fn agreed<'a>(mates: &[&'a NodeOffer]) -> Option<(&'a str, u64)> {
    let first = mates.first()?;
    let share = |mate: &&NodeOffer| mate.shares && mate.disks == first.disks;
    let memory = mates.iter().fold(0, |sum: u64, mate| sum.saturating_add(mate.memory));
    first.address.as_deref().filter(|_| mates.iter().all(share)).map(|address| (address, memory))
}

/// The group of processes whose memory is limited together. The memory of the cache counts for its
/// host, so ranks in different groups, such as containers of one pod each, share none.
fn memory_group() -> String {
    let groups = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let space = std::fs::read_link("/proc/self/ns/cgroup").unwrap_or_default();
    format!("{} {}", space.display(), limited_together(&groups))
}

/// The lines of `/proc/self/cgroup` that are about memory. Slurm has a group for each task, and
/// limits the memory of their step.
fn limited_together(groups: &str) -> String {
    let of_memory = |line: &&str| {
        let controllers = line.split(':').nth(1).unwrap_or_default();
        controllers.is_empty() || controllers.split(',').any(|controller| controller == "memory")
    };
    let of_step = |line| match str::rsplit_once(line, "/task_") {
        Some((step, task)) if task.bytes().all(|byte| byte.is_ascii_digit()) => step,
        _ => line,
    };
    groups.lines().filter(of_memory).map(of_step).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offer(memory: u64, address: Option<&str>) -> NodeOffer {
        NodeOffer { shares: memory > 0, memory, disks: Vec::new(), address: address.map(str::to_owned) }
    }

    fn with_disk(path: &str) -> NodeOffer {
        NodeOffer { disks: vec![(path.into(), 7, false)], ..offer(5, None) }
    }

    #[test]
    // semantics: RANK-39
    fn ranks_share_memory_only_if_all_of_a_group_can() {
        let host = offer(7, Some("x"));
        let both = |other| agreed(&[&host, &other]).map(|(address, memory)| (address.to_owned(), memory));
        assert_eq!(both(offer(5, None)), Some(("x".to_owned(), 12)));
        // One has a cache of its own.
        assert_eq!(both(offer(0, None)), None);
        // Its directory is another one.
        assert_eq!(both(with_disk("x")), None);
        let without = NodeOffer { memory: 0, ..offer(1, None) };
        assert_eq!(both(without), Some(("x".to_owned(), 7)));
        assert_eq!(agreed(&[&offer(7, None), &offer(5, Some("x"))]), None);
        assert_eq!(agreed(&[]), None);
    }

    #[test]
    // semantics: RANK-39
    fn groups_of_a_node_have_disks_of_their_own() {
        let offers = ["a", "a", "b", "a"].map(with_disk);
        assert!(have_own_disks(&[0, 0, 0, 1], &[0, 0, 1, 2], &offers));
        // The first two ranks are limited apart.
        assert!(!have_own_disks(&[0, 0, 0, 1], &[0, 1, 2, 3], &offers));
    }

    #[test]
    // semantics: RANK-39
    fn ranks_whose_memory_is_limited_apart_are_of_two_groups() {
        assert!(!memory_group().trim().is_empty());
        let slurm = "5:cpu,memory:/slurm/uid_7/job_9/step_0/task_3\n4:pids:/x\n0::/step_0/user/task_3\n";
        assert_eq!(limited_together(slurm), "5:cpu,memory:/slurm/uid_7/job_9/step_0 0::/step_0/user");
        assert_eq!(limited_together("0::/pod/task_a\n"), "0::/pod/task_a");
        let disk = |path: &str| Config {
            disk: vec![Disk { directory: path.into(), bytes: 7, shared: false }],
            ..Config::default()
        };
        assert_ne!(group_of(&disk("/a")), group_of(&disk("/b")));
        assert_eq!(group_of(&disk("/a")), group_of(&disk("/a")));
    }
}
