//! The contribution of each rank to a cluster: its node, its capacity and its cached samples.
//!
//! Each rank sends its offer at the rendezvous. Rank 0 combines them into one table, and every rank
//! computes the same plan from it. The offer contains the speeds of the rank's caches, because only
//! that rank knows the names of its directories. The ids of samples on disks take one or two bytes
//! each. Empty caches take nothing.

use std::collections::BTreeMap;

use foreread_planner::{CacheContents, CacheStore, Cluster, Curve, Level, LevelIndex, Ranks};
use foreread_types::{DatasetId, SampleId, SampleKey, StoreId};
use serde::{Deserialize, Serialize};

/// One of a rank's caches.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct OfferedLevel {
    pub(crate) name: String,
    pub(crate) capacity: u64,
    /// Bytes per second of reads and of writes. `u64::MAX` if not measured.
    pub(crate) read: u64,
    pub(crate) write: u64,
}

impl OfferedLevel {
    pub(crate) fn new(level: &Level) -> Self {
        let (read, write) = (level.read.at(level.threads), level.write.at(level.threads));
        Self { name: level.name.clone(), capacity: level.capacity, read, write }
    }

    /// The level with this capacity and speed, otherwise like `kind`.
    fn of_kind(&self, kind: &Level) -> Level {
        let (read, write) = (Curve::flat(self.read), Curve::flat(self.write));
        Level { capacity: self.capacity, read, write, ..kind.clone() }
    }
}

/// One rank's offer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct CapacityOffer {
    /// Ranks with equal values communicate without the network.
    pub(crate) node: String,
    /// The name of the store that has the rank's samples: the cache of its node, or the agent that
    /// this cache reads from. Ranks with equal names have one store. `None`: the rank has none.
    pub(crate) store: Option<String>,
    /// The rank's caches, in the order of the cluster's kinds of level.
    pub(crate) levels: Vec<OfferedLevel>,
    /// The ids on disk, per dataset.
    #[serde(skip)]
    pub(crate) held: Vec<Vec<SampleId>>,
    /// The fingerprint of the samples' storage servers, if their speeds are known.
    servers: Option<u64>,
    /// The length of each encoded list.
    lengths: Vec<u64>,
}

/// An offer that is damaged or from another release.
#[derive(Debug)]
pub(crate) struct Unreadable;

impl CapacityOffer {
    pub(crate) fn new(node: String, levels: Vec<OfferedLevel>, held: Vec<Vec<SampleId>>) -> Self {
        Self { node, levels, held, store: None, servers: None, lengths: Vec::new() }
    }

    pub(crate) fn with_store(self, store: Option<String>) -> Self {
        Self { store, ..self }
    }

    pub(crate) fn with_servers(self, servers: Option<u64>) -> Self {
        Self { servers, ..self }
    }

    /// Encodes the offer: a line of JSON, then the lists of ids, as differences with seven bits per
    /// byte.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let lists: Vec<Vec<u8>> = self.held.iter().map(|ids| differences(ids)).collect();
        let lengths = lists.iter().map(|list| list.len() as u64).collect();
        let head = Self { lengths, held: Vec::new(), ..self.clone() };
        // The value has only numbers and strings, so this cannot fail.
        let mut bytes = serde_json::to_vec(&head).unwrap_or_default();
        bytes.push(b'\n');
        lists.iter().for_each(|list| bytes.extend_from_slice(list));
        bytes
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, Unreadable> {
        let end = bytes.iter().position(|&byte| byte == b'\n').ok_or(Unreadable)?;
        let (head, mut rest) = (&bytes[..end], &bytes[end + 1..]);
        let mut offer: Self = serde_json::from_slice(head).map_err(|_| Unreadable)?;
        for length in std::mem::take(&mut offer.lengths) {
            let length = usize::try_from(length).map_err(|_| Unreadable)?;
            let (list, later) = rest.split_at_checked(length).ok_or(Unreadable)?;
            offer.held.push(sums(list).ok_or(Unreadable)?);
            rest = later;
        }
        Ok(offer)
    }
}

/// Concatenates all offers, by rank.
pub(crate) fn bundle(offers: &[impl AsRef<[u8]>]) -> Vec<u8> {
    let mut all = Vec::new();
    for offer in offers {
        all.extend_from_slice(&(offer.as_ref().len() as u64).to_le_bytes());
        all.extend_from_slice(offer.as_ref());
    }
    all
}

/// The first rank whose storage servers of samples differ from those of rank 0.
pub(crate) fn other_servers(offers: &[CapacityOffer]) -> Option<usize> {
    let first = offers.first()?.servers;
    offers.iter().position(|offer| offer.servers != first)
}

pub(crate) fn unbundle(bytes: &[u8]) -> Result<Vec<CapacityOffer>, Unreadable> {
    unbundle_parts(bytes)?.into_iter().map(CapacityOffer::decode).collect()
}

/// What [`bundle`] has concatenated.
pub(crate) fn unbundle_parts(mut bytes: &[u8]) -> Result<Vec<&[u8]>, Unreadable> {
    let mut parts = Vec::new();
    while !bytes.is_empty() {
        let (length, rest) = bytes.split_first_chunk::<8>().ok_or(Unreadable)?;
        let length = usize::try_from(u64::from_le_bytes(*length)).map_err(|_| Unreadable)?;
        let (part, rest) = rest.split_at_checked(length).ok_or(Unreadable)?;
        parts.push(part);
        bytes = rest;
    }
    Ok(parts)
}

/// The cluster of all ranks. `figures` has rank 0's values for the origin and the trainer. `kinds`
/// are the possible kinds of level, with their footprints. Samples on disks are in the level that
/// `outlives_runs`.
pub(crate) fn cluster(
    figures: Cluster,
    kinds: &[Level],
    offers: &[CapacityOffer],
    outlives_runs: fn(&Level) -> bool,
) -> Cluster {
    let mut nodes: BTreeMap<&str, u32> = BTreeMap::new();
    let mut named: BTreeMap<&str, u32> = BTreeMap::new();
    let (mut stores, mut held): (Vec<CacheStore>, _) = (Vec::new(), CacheContents::default());
    let mut of_ranks = Vec::with_capacity(offers.len());
    for (rank, offer) in (0..).zip(offers) {
        let store = stores.len() as u32;
        let known = offer.store.as_deref().map(|name| *named.entry(name).or_insert(store));
        of_ranks.push(known.unwrap_or(store));
        if let Some(known) = known.filter(|known| *known < store) {
            // An agent may have changed its capacity between two ranks.
            for (level, offered) in stores[known as usize].levels.iter_mut().zip(&offer.levels) {
                level.capacity = level.capacity.min(offered.capacity);
            }
            continue;
        }
        let next = nodes.len() as u32;
        let node = *nodes.entry(&offer.node).or_insert(next);
        let level = |offered: &OfferedLevel| {
            let kind = kinds.iter().find(|kind| kind.name == offered.name)?;
            Some(offered.of_kind(kind))
        };
        // Allocates the exact length: each rank has this table of all ranks.
        let mut levels = Vec::with_capacity(offer.levels.len());
        levels.extend(offer.levels.iter().filter_map(level));
        let lasting = levels.iter().position(outlives_runs);
        if let Some(level) = lasting {
            for (dataset, ids) in (0..).zip(&offer.held) {
                for &id in ids {
                    held.add(SampleKey::new(DatasetId(dataset), id), store as usize, LevelIndex(level as u8));
                }
            }
        }
        stores.push(CacheStore { id: StoreId(rank), node, levels });
    }
    let ranks = match named.is_empty() {
        true => Ranks::PerStore(1),
        false => Ranks::Table(of_ranks.into()),
    };
    Cluster { stores, ranks, held, ..figures }
}

fn differences(ids: &[SampleId]) -> Vec<u8> {
    let mut ids = ids.to_vec();
    ids.sort_unstable();
    ids.dedup();
    let (mut bytes, mut before) = (Vec::with_capacity(ids.len()), 0);
    for SampleId(id) in ids {
        let mut difference = id - before;
        before = id;
        while difference >= 0x80 {
            bytes.push(difference as u8 | 0x80);
            difference >>= 7;
        }
        bytes.push(difference as u8);
    }
    bytes
}

fn sums(bytes: &[u8]) -> Option<Vec<SampleId>> {
    let (mut ids, mut before, mut difference, mut shift) = (Vec::new(), 0u64, 0u64, 0u32);
    for &byte in bytes {
        let part = u64::from(byte & 0x7f);
        difference |= part.checked_shl(shift).filter(|shifted| shifted >> shift == part)?;
        shift += 7;
        if byte < 0x80 {
            before = before.checked_add(difference)?;
            ids.push(SampleId(before));
            (difference, shift) = (0, 0);
        }
    }
    (shift == 0).then_some(ids)
}

#[cfg(test)]
mod tests {
    use foreread_types::Footprint;

    use crate::cluster::outlives_runs;

    use super::*;

    fn offer(ids: &[u64]) -> CapacityOffer {
        let held = vec![Vec::new(), ids.iter().copied().map(SampleId).collect()];
        let level = |name: &str, capacity, read| {
            let level = Level { read: Curve::flat(read), ..Level::new(name, capacity, Footprint::EXACT) };
            OfferedLevel::new(&level)
        };
        let levels = vec![level("memory", 5, u64::MAX), level("disk", 1 << 40, 700)];
        CapacityOffer::new("a".to_owned(), levels, held)
    }

    #[test]
    fn offer_survives_encoding() {
        let offers = [offer(&[]), offer(&[0, 1, 127, 128, 300_000, 1 << 40]), CapacityOffer::default()];
        let bundled = bundle(&offers.iter().map(CapacityOffer::encode).collect::<Vec<_>>());
        assert_eq!(unbundle(&bundled).unwrap(), offers);
        for cut in 0..bundled.len() {
            let parts = unbundle(&bundled[..cut]);
            assert!(parts.is_err() || parts.unwrap().len() < 3, "{cut}");
        }
    }

    #[test]
    // semantics: HPC-12
    fn rank_with_other_servers_is_found() {
        let with = |servers| CapacityOffer { servers, ..offer(&[]) };
        let found = |servers: &[Option<u64>]| {
            let offers: Vec<_> = servers.iter().map(|servers| with(*servers).encode()).collect();
            other_servers(&unbundle(&bundle(&offers)).unwrap())
        };
        assert_eq!((found(&[Some(7); 3]), found(&[None; 3]), found(&[])), (None, None, None));
        assert_eq!(found(&[Some(7), Some(7), Some(u64::MAX)]), Some(2));
        assert_eq!((found(&[None, Some(7)]), found(&[Some(7), None, Some(7)])), (Some(1), Some(1)));
    }

    #[test]
    // semantics: AGENT-25
    fn ranks_with_one_cache_have_one_store() {
        let rank = |name: Option<&str>, capacity| {
            let level = OfferedLevel { name: "agent".to_owned(), capacity, read: u64::MAX, write: u64::MAX };
            let offer = CapacityOffer::new("a".to_owned(), vec![level], Vec::new());
            offer.with_store(name.map(str::to_owned))
        };
        let offers = [rank(Some("x"), 9), rank(None, 3), rank(Some("y"), 5), rank(Some("x"), 7)];
        let kinds = [Level::new("agent", 0, Footprint::EXACT)];
        let cluster = cluster(Cluster::default(), &kinds, &offers, outlives_runs);
        let stores: Vec<_> = cluster.stores.iter().map(|store| (store.id.0, store.capacity())).collect();
        assert_eq!(stores, [(0, 7), (1, 3), (2, 5)]);
        assert_eq!(cluster.ranks, Ranks::Table([0, 1, 2, 0].into()));
    }

    #[test]
    fn invalid_lists_of_ids_are_errors() {
        assert!(sums(&[0x80]).is_none());
        assert!(sums(&[0xff; 12]).is_none());
        assert_eq!(sums(&[]), Some(Vec::new()));
    }

    #[test]
    fn cluster_has_one_store_per_rank_with_its_samples() {
        let kinds = [Level::new("memory", 0, Footprint::EXACT), Level::new("disk", 0, Footprint::EXACT)];
        let other = CapacityOffer { node: "b".to_owned(), ..offer(&[3]) };
        let cluster =
            cluster(Cluster::default(), &kinds, &[offer(&[2, 3]), other, offer(&[])], outlives_runs);
        assert_eq!(cluster.stores.iter().map(|store| store.node).collect::<Vec<_>>(), [0, 1, 0]);
        let mut held = CacheContents::default();
        held.add(SampleKey::new(DatasetId(1), SampleId(2)), 0, LevelIndex(1));
        held.add(SampleKey::new(DatasetId(1), SampleId(3)), 0, LevelIndex(1));
        assert_eq!(cluster.held, held);
        assert_eq!(cluster.stores[1].levels[1].capacity, 1 << 40);
    }

    /// Each rank's directories have different names, so a calibration of another rank does not
    /// contain them.
    #[test]
    fn disk_speed_is_its_own_ranks_on_every_rank() {
        let mut slow = offer(&[]);
        slow.levels[1].read = 9;
        let offers = unbundle(&bundle(&[offer(&[]).encode(), slow.encode()])).unwrap();
        let speeds = |own: u64| {
            let disk = Level { read: Curve::flat(own), ..Level::new("disk", 0, Footprint::EXACT) };
            let kinds = [Level::new("memory", 0, Footprint::EXACT), disk];
            let cluster = cluster(Cluster::default(), &kinds, &offers, outlives_runs);
            let of =
                |store: usize| cluster.stores[store].levels.iter().map(|level| level.read.at(1)).collect();
            let all: [Vec<u64>; 2] = [of(0), of(1)];
            all
        };
        let expected = [vec![u64::MAX, 700], vec![u64::MAX, 9]];
        assert_eq!((speeds(700), speeds(9)), (expected.clone(), expected));
    }
}
