//! The contribution of each rank to a cluster: its node, the cache that has its samples, and the
//! samples on that cache's disks.
//!
//! Each rank sends its offer at the rendezvous. Rank 0 combines them into one table, and every rank
//! computes the same plan from it. The ids of samples on disks take one or two bytes each. Empty
//! caches take nothing.

use std::collections::BTreeMap;

use foreread_planner::{CacheContents, CacheStore, Cluster, Level, LevelIndex, Ranks};
use foreread_types::{DatasetId, SampleId, SampleKey, StoreId};
use serde::{Deserialize, Serialize};

/// The cache that has a rank's samples.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct OfferedStore {
    /// The name that no other store has. Ranks with equal names have one store.
    pub(crate) name: String,
    /// The kind of its level.
    pub(crate) level: String,
    /// The bytes of its memory and disks.
    pub(crate) capacity: u64,
}

/// One rank's offer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct CapacityOffer {
    /// Ranks with equal values communicate without the network.
    pub(crate) node: String,
    /// The cache of its node, or the agent that this cache reads from. `None`: the rank has none.
    pub(crate) store: Option<OfferedStore>,
    /// The ids on disk, per dataset.
    #[serde(skip)]
    pub(crate) held: Vec<Vec<SampleId>>,
    /// The fingerprint of the samples' storage servers, if their speeds are known.
    pub(crate) servers: Option<u64>,
    /// The length of each encoded list.
    pub(crate) lengths: Vec<u64>,
}

/// An offer that is damaged or from another release.
#[derive(Debug)]
pub(crate) struct Unreadable;

impl CapacityOffer {
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

/// The parts that [`bundle`] has concatenated.
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
/// are the possible kinds of level, with their footprints.
pub(crate) fn cluster(figures: Cluster, kinds: &[Level], offers: &[CapacityOffer]) -> Cluster {
    let mut nodes: BTreeMap<&str, u32> = BTreeMap::new();
    let mut named: BTreeMap<&str, u32> = BTreeMap::new();
    let (mut stores, mut held): (Vec<CacheStore>, _) = (Vec::new(), CacheContents::default());
    let mut of_ranks = Vec::with_capacity(offers.len());
    for (rank, offer) in (0..).zip(offers) {
        let store = stores.len() as u32;
        let known = offer.store.as_ref().map(|offered| *named.entry(&offered.name).or_insert(store));
        of_ranks.push(known.unwrap_or(store));
        if let (Some(known), Some(offered)) = (known.filter(|known| *known < store), &offer.store) {
            // An agent may have changed its capacity between two ranks.
            for level in &mut stores[known as usize].levels {
                level.capacity = level.capacity.min(offered.capacity);
            }
            continue;
        }
        let next = nodes.len() as u32;
        let node = *nodes.entry(&offer.node).or_insert(next);
        let level = |offered: &OfferedStore| {
            let kind = kinds.iter().find(|kind| kind.name == offered.level)?;
            Some(Level { capacity: offered.capacity, ..kind.clone() })
        };
        let levels: Vec<Level> = offer.store.iter().filter_map(level).collect();
        for (dataset, ids) in (0..).zip(&offer.held).filter(|_| !levels.is_empty()) {
            for &id in ids {
                held.add(SampleKey::new(DatasetId(dataset), id), store as usize, LevelIndex(0));
            }
        }
        stores.push(CacheStore { id: StoreId(rank), node, levels });
    }
    Cluster { stores, ranks: Ranks::Table(of_ranks.into()), held, ..figures }
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

    use super::*;

    fn offer(name: &str, capacity: u64, ids: &[u64]) -> CapacityOffer {
        let held = vec![Vec::new(), ids.iter().copied().map(SampleId).collect()];
        let store = OfferedStore { name: name.to_owned(), level: "node cache".to_owned(), capacity };
        CapacityOffer { node: "a".to_owned(), store: Some(store), held, ..CapacityOffer::default() }
    }

    #[test]
    fn offer_survives_encoding() {
        let ids = [0, 1, 127, 128, 300_000, 1 << 40];
        let offers = [offer("x", 5, &[]), offer("y", 5, &ids), CapacityOffer::default()];
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
        let with = |servers| CapacityOffer { servers, ..offer("x", 5, &[]) };
        let found = |servers: &[Option<u64>]| {
            let offers: Vec<_> = servers.iter().map(|servers| with(*servers).encode()).collect();
            other_servers(&unbundle(&bundle(&offers)).unwrap())
        };
        assert_eq!((found(&[Some(7); 3]), found(&[None; 3]), found(&[])), (None, None, None));
        assert_eq!(found(&[Some(7), Some(7), Some(u64::MAX)]), Some(2));
        assert_eq!((found(&[None, Some(7)]), found(&[Some(7), None, Some(7)])), (Some(1), Some(1)));
    }

    #[test]
    // semantics: AGENT-25, RANK-39
    fn ranks_with_one_cache_have_one_store() {
        let without = CapacityOffer { node: "b".to_owned(), ..CapacityOffer::default() };
        let offers = [offer("x", 9, &[2, 3]), without, offer("y", 5, &[3]), offer("x", 7, &[])];
        let kinds = [Level::new("node cache", 0, Footprint::EXACT)];
        let cluster = cluster(Cluster::default(), &kinds, &offers);
        let stores: Vec<_> =
            cluster.stores.iter().map(|store| (store.id.0, store.node, store.capacity())).collect();
        assert_eq!(stores, [(0, 0, 7), (1, 1, 0), (2, 0, 5)]);
        assert_eq!(cluster.ranks, Ranks::Table([0, 1, 2, 0].into()));
        let mut held = CacheContents::default();
        for (id, store) in [(2, 0), (3, 0), (3, 2)] {
            held.add(SampleKey::new(DatasetId(1), SampleId(id)), store, LevelIndex(0));
        }
        assert_eq!(cluster.held, held);
    }

    #[test]
    fn invalid_lists_of_ids_are_errors() {
        assert!(sums(&[0x80]).is_none());
        assert!(sums(&[0xff; 12]).is_none());
        assert_eq!(sums(&[]), Some(Vec::new()));
    }
}
