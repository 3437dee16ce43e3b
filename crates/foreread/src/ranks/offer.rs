//! What each rank brings into a cluster: where it is, how much it can keep, what it keeps already.
//!
//! Ranks say this when they meet, rank 0 puts it together, and from the same table all compute the
//! same plan. The speeds of a rank's caches are in its offer: only the rank knows the names of its
//! directories, so nobody else can look them up. What disks hold is told as ids, a byte or two
//! each; nothing is told of caches that are empty.

use std::collections::BTreeMap;

use foreread_planner::{CacheContents, CacheStore, Cluster, Curve, Level, LevelIndex, Ranks};
use foreread_types::{DatasetId, SampleId, SampleKey, StoreId};
use serde::{Deserialize, Serialize};

/// One of a rank's caches.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct OfferedLevel {
    pub(crate) name: String,
    pub(crate) capacity: u64,
    /// Bytes per second that are read from it, and written to it; `u64::MAX` where nobody has
    /// measured.
    pub(crate) read: u64,
    pub(crate) write: u64,
}

impl OfferedLevel {
    pub(crate) fn new(level: &Level) -> Self {
        let (read, write) = (level.read.at(level.threads), level.write.at(level.threads));
        Self { name: level.name.clone(), capacity: level.capacity, read, write }
    }

    /// The level that it is, of its kind.
    fn of_kind(&self, kind: &Level) -> Level {
        let (read, write) = (Curve::flat(self.read), Curve::flat(self.write));
        Level { capacity: self.capacity, read, write, ..kind.clone() }
    }
}

/// One rank's part.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct CapacityOffer {
    /// Ranks of equal nodes reach each other without the network.
    pub(crate) node: String,
    /// The rank's caches, as the cluster's kinds of level are ordered.
    pub(crate) levels: Vec<OfferedLevel>,
    /// By dataset, what the disk holds.
    #[serde(skip)]
    pub(crate) held: Vec<Vec<SampleId>>,
    /// How long each list is when it is written down.
    lengths: Vec<u64>,
}

/// What cannot be read is another release's, or damaged on the way.
#[derive(Debug)]
pub(crate) struct Unreadable;

impl CapacityOffer {
    pub(crate) fn new(node: String, levels: Vec<OfferedLevel>, held: Vec<Vec<SampleId>>) -> Self {
        Self { node, levels, held, lengths: Vec::new() }
    }

    /// The offer as bytes: a line of JSON, then the lists of ids, as differences in seven bits a
    /// byte.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let lists: Vec<Vec<u8>> = self.held.iter().map(|ids| differences(ids)).collect();
        let lengths = lists.iter().map(|list| list.len() as u64).collect();
        let head = Self { lengths, held: Vec::new(), ..self.clone() };
        // Numbers and strings alone: it cannot fail.
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

/// All offers, by rank, in one piece.
pub(crate) fn bundle(offers: &[impl AsRef<[u8]>]) -> Vec<u8> {
    let mut all = Vec::new();
    for offer in offers {
        all.extend_from_slice(&(offer.as_ref().len() as u64).to_le_bytes());
        all.extend_from_slice(offer.as_ref());
    }
    all
}

pub(crate) fn unbundle(mut bytes: &[u8]) -> Result<Vec<CapacityOffer>, Unreadable> {
    let mut offers = Vec::new();
    while !bytes.is_empty() {
        let (length, rest) = bytes.split_first_chunk::<8>().ok_or(Unreadable)?;
        let length = usize::try_from(u64::from_le_bytes(*length)).map_err(|_| Unreadable)?;
        let (offer, rest) = rest.split_at_checked(length).ok_or(Unreadable)?;
        offers.push(CapacityOffer::decode(offer)?);
        bytes = rest;
    }
    Ok(offers)
}

/// The cluster of all ranks. `figures` is what rank 0 knows of the origin and the trainer; `kinds`
/// are the kinds of level that there may be, with their footprints.
pub(crate) fn cluster(
    figures: Cluster,
    kinds: &[Level],
    offers: &[CapacityOffer],
    persistent: &str,
) -> Cluster {
    let mut nodes: BTreeMap<&str, u32> = BTreeMap::new();
    let (mut stores, mut held) = (Vec::new(), CacheContents::default());
    for (rank, offer) in (0..).zip(offers) {
        let next = nodes.len() as u32;
        let node = *nodes.entry(&offer.node).or_insert(next);
        let level = |offered: &OfferedLevel| {
            let kind = kinds.iter().find(|kind| kind.name == offered.name)?;
            Some(offered.of_kind(kind))
        };
        // No room for more than there are: each rank has this table of all.
        let mut levels = Vec::with_capacity(offer.levels.len());
        levels.extend(offer.levels.iter().filter_map(level));
        let lasting = levels.iter().position(|level| level.name == persistent);
        if let Some(level) = lasting {
            for (dataset, ids) in (0..).zip(&offer.held) {
                for &id in ids {
                    held.add(SampleKey::new(DatasetId(dataset), id), rank as usize, LevelIndex(level as u8));
                }
            }
        }
        stores.push(CacheStore { id: StoreId(rank), node, levels });
    }
    Cluster { stores, ranks: Ranks::PerStore(1), held, ..figures }
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
    fn what_is_offered_arrives() {
        let offers = [offer(&[]), offer(&[0, 1, 127, 128, 300_000, 1 << 40]), CapacityOffer::default()];
        let bundled = bundle(&offers.iter().map(CapacityOffer::encode).collect::<Vec<_>>());
        assert_eq!(unbundle(&bundled).unwrap(), offers);
        for cut in 0..bundled.len() {
            let parts = unbundle(&bundled[..cut]);
            assert!(parts.is_err() || parts.unwrap().len() < 3, "{cut}");
        }
    }

    #[test]
    fn lists_that_make_no_sense_are_refused() {
        assert!(sums(&[0x80]).is_none());
        assert!(sums(&[0xff; 12]).is_none());
        assert_eq!(sums(&[]), Some(Vec::new()));
    }

    #[test]
    fn the_cluster_has_a_store_a_rank_and_knows_what_lies_there() {
        let kinds = [Level::new("memory", 0, Footprint::EXACT), Level::new("disk", 0, Footprint::EXACT)];
        let other = CapacityOffer { node: "b".to_owned(), ..offer(&[3]) };
        let cluster = cluster(Cluster::default(), &kinds, &[offer(&[2, 3]), other, offer(&[])], "disk");
        assert_eq!(cluster.stores.iter().map(|store| store.node).collect::<Vec<_>>(), [0, 1, 0]);
        let mut held = CacheContents::default();
        held.add(SampleKey::new(DatasetId(1), SampleId(2)), 0, LevelIndex(1));
        held.add(SampleKey::new(DatasetId(1), SampleId(3)), 0, LevelIndex(1));
        assert_eq!(cluster.held, held);
        assert_eq!(cluster.stores[1].levels[1].capacity, 1 << 40);
    }

    /// Ranks' directories have names of their own, so that no other rank finds them in a
    /// calibration.
    #[test]
    fn speed_of_a_disk_is_its_own_ranks_on_every_rank() {
        let mut slow = offer(&[]);
        slow.levels[1].read = 9;
        let offers = unbundle(&bundle(&[offer(&[]).encode(), slow.encode()])).unwrap();
        let speeds = |own: u64| {
            let disk = Level { read: Curve::flat(own), ..Level::new("disk", 0, Footprint::EXACT) };
            let kinds = [Level::new("memory", 0, Footprint::EXACT), disk];
            let cluster = cluster(Cluster::default(), &kinds, &offers, "disk");
            let of =
                |store: usize| cluster.stores[store].levels.iter().map(|level| level.read.at(1)).collect();
            let all: [Vec<u64>; 2] = [of(0), of(1)];
            all
        };
        let expected = [vec![u64::MAX, 700], vec![u64::MAX, 9]];
        assert_eq!((speeds(700), speeds(9)), (expected.clone(), expected));
    }
}
