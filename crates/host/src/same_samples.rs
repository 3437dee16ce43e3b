//! Samples that datasets of one location share: two tables over one bucket, an index and a later
//! one, rows of a table that name one file.
//!
//! Each dataset has tables of its own in the store. A sample that an earlier dataset has, too, is
//! requested under its number there. So it is read once and kept once, whichever job uses it. The
//! jobs know nothing of it: keys and orders are translated here. The price: 8 bytes of memory per
//! sample of the later dataset, and about a microsecond and 100 bytes per sample of both while it
//! is opened. So datasets of one location with more than four million samples together do not
//! share. The status counts a shared sample for the earlier dataset. Agents of a cluster do not
//! share, because each of them may know the datasets in another order.

use std::collections::{BTreeSet, HashMap};

use foreread_planner::EpochUses;
use foreread_types::{DatasetId, SampleId, SampleKey};

/// The keys of a dataset's samples in the store.
#[derive(Debug)]
pub(crate) struct StoreNumbers {
    own: DatasetId,
    /// By sample: the dataset and the number there.
    keys: Box<[(DatasetId, u32)]>,
    /// The other datasets among them.
    others: BTreeSet<DatasetId>,
}

impl StoreNumbers {
    /// Finds the samples of dataset `own` in earlier ones, by their digests. `earlier` are the
    /// samples' keys in the store with their digests. `None` if all samples are its own.
    pub(crate) fn find(
        own: DatasetId,
        digests: &[u128],
        earlier: impl IntoIterator<Item = (SampleKey, u128)>,
    ) -> Option<Self> {
        let mut found: HashMap<u128, Option<(DatasetId, u32)>> =
            digests.iter().map(|digest| (*digest, None)).collect();
        let mut missing = found.len();
        for (key, digest) in earlier {
            if let Some(place) = found.get_mut(&digest).filter(|place| place.is_none())
                && let Ok(id) = u32::try_from(key.id.0)
            {
                *place = Some((key.dataset, id));
                missing -= 1;
            }
            if missing == 0 {
                break;
            }
        }
        let mut keys = Vec::with_capacity(digests.len());
        for (id, digest) in (0_u32..).zip(digests) {
            let place = found.get_mut(digest)?;
            keys.push(*place.get_or_insert((own, id)));
        }
        let are_own = (0_u32..).zip(&keys).all(|(id, key)| *key == (own, id));
        let others = keys.iter().map(|(dataset, _)| *dataset).filter(|dataset| *dataset != own).collect();
        (!are_own).then(|| Self { own, keys: keys.into(), others })
    }

    /// The key of a sample.
    pub(crate) fn key(&self, id: SampleId) -> SampleKey {
        match usize::try_from(id.0).ok().and_then(|at| self.keys.get(at)) {
            Some((dataset, id)) => SampleKey::new(*dataset, SampleId(u64::from(*id))),
            // The store refuses it.
            None => SampleKey::new(self.own, id),
        }
    }

    /// The other datasets that have some of the samples.
    pub(crate) fn others(&self) -> &BTreeSet<DatasetId> {
        &self.others
    }

    /// The same without the samples of a dataset that is forgotten. `None` if all are own then.
    pub(crate) fn without(&self, forgotten: DatasetId) -> Option<Self> {
        let own = |(id, (dataset, number)): (u32, &(DatasetId, u32))| match *dataset == forgotten {
            true => (self.own, id),
            false => (*dataset, *number),
        };
        let keys: Box<[_]> = (0_u32..).zip(&self.keys).map(own).collect();
        let are_own = (0_u32..).zip(&keys).all(|(id, key)| *key == (self.own, id));
        let others = self.others.iter().copied().filter(|other| *other != forgotten).collect();
        (!are_own).then_some(Self { own: self.own, keys, others })
    }

    /// The order of samples for each dataset that has some: the samples of the others are holes.
    pub(crate) fn orders(&self, samples: &[u32]) -> Vec<(DatasetId, Vec<SampleId>)> {
        let of = |dataset: DatasetId| {
            let there = |sample: &u32| {
                let id = SampleId(u64::from(*sample));
                let key = if id == EpochUses::HOLE { SampleKey::new(dataset, id) } else { self.key(id) };
                if key.dataset == dataset { key.id } else { EpochUses::HOLE }
            };
            (dataset, samples.iter().map(there).collect())
        };
        self.others.iter().copied().chain([self.own]).map(of).collect()
    }

    /// The samples with another number, and their keys.
    pub(crate) fn elsewhere(&self) -> impl Iterator<Item = (SampleId, SampleKey)> {
        let keys = (0..self.keys.len() as u64).map(SampleId).map(|id| (id, self.key(id)));
        keys.filter(|(id, key)| *key != SampleKey::new(self.own, *id))
    }
}

/// The kept samples that another dataset has, too.
#[derive(Debug, Default)]
pub(crate) struct KeptElsewhere {
    pub(crate) held_samples: u64,
    pub(crate) held_bytes: u64,
    /// On a disk and not in memory.
    pub(crate) disk_samples: u64,
    pub(crate) disk_bytes: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOLE: u32 = EpochUses::HOLE.0 as u32;

    fn earlier(dataset: u32, digests: &[u128]) -> Vec<(SampleKey, u128)> {
        let key = |id| SampleKey::new(DatasetId(dataset), SampleId(id));
        (0..).map(key).zip(digests.iter().copied()).collect()
    }

    #[test]
    // semantics: AGENT-32
    fn samples_of_an_earlier_dataset_have_their_numbers_there() {
        let own = DatasetId(2);
        assert!(StoreNumbers::find(own, &[1, 2, 3], earlier(0, &[7, 8])).is_none());
        let known = [earlier(0, &[30, 20]), earlier(1, &[20, 40])].concat();
        let numbers = StoreNumbers::find(own, &[10, 20, 40, 10], known).unwrap();
        let keys: Vec<_> = (0..5).map(|id| numbers.key(SampleId(id))).collect();
        let key = |dataset, id| SampleKey::new(DatasetId(dataset), SampleId(id));
        // A repeated sample has the number of the first one. A sample that does not exist has no
        // number of another dataset.
        assert_eq!(keys, [key(2, 0), key(0, 1), key(1, 1), key(2, 0), key(2, 4)]);
        let orders = numbers.orders(&[3, 1, HOLE, 2]);
        let ids = |ids: [u32; 4]| ids.map(|id| SampleId(u64::from(id))).to_vec();
        let expected = [
            (DatasetId(0), ids([HOLE, 1, HOLE, HOLE])),
            (DatasetId(1), ids([HOLE, HOLE, HOLE, 1])),
            (DatasetId(2), ids([0, HOLE, HOLE, HOLE])),
        ];
        assert_eq!(orders, expected);
        let numbers = numbers.without(DatasetId(0)).unwrap();
        assert_eq!((numbers.key(SampleId(1)), numbers.key(SampleId(2))), (key(2, 1), key(1, 1)));
        assert_eq!(numbers.others().len(), 1);
    }
}
