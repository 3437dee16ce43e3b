//! The level that keeps each sample, for the whole run.
//!
//! A placement is queried once per read, from any thread. So it is a plain table without hashing or
//! search. A dataset may be kept from its first sample up to some id: all, nothing, or as many
//! equal samples as fit. Then three numbers suffice. Otherwise it takes two bits per sample.

use std::fmt;
use std::sync::Arc;

use foreread_oracle::Fingerprinter;
use foreread_types::{SampleId, SampleKey};

use crate::level::{LevelIndex, MAX_LEVELS};

const PER_WORD: u64 = u64::BITS as u64 / 2;

/// The level of each sample of each dataset. Cheap to clone.
///
/// ```
/// use foreread_planner::{LevelIndex, Placement};
/// use foreread_types::{DatasetId, SampleId, SampleKey};
/// let placement = Placement::everything(&[100], LevelIndex(0));
/// assert_eq!(placement.level(SampleKey::new(DatasetId(0), SampleId(99))), Some(LevelIndex(0)));
/// assert_eq!(placement.level(SampleKey::new(DatasetId(0), SampleId(100))), None);
/// assert_eq!(placement.level(SampleKey::new(DatasetId(1), SampleId(0))), None);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    datasets: Arc<[LevelTable]>,
}

#[derive(Clone, PartialEq, Eq)]
pub(crate) enum LevelTable {
    /// Level `l` keeps the ids from `ends[l - 1]` (0 for the first level) to `ends[l]` exclusive.
    Ranges([u64; MAX_LEVELS]),
    /// Two bits per sample, low bits first: 0 for none, otherwise the level plus 1.
    Bits(Box<[u64]>),
}

impl Placement {
    pub(crate) fn new(datasets: Vec<LevelTable>) -> Self {
        Self { datasets: datasets.into() }
    }

    /// Every sample is kept in `level`. `samples` is the number of samples per dataset, by
    /// [`DatasetId`](foreread_types::DatasetId).
    ///
    /// # Panics
    /// If `level` is not below [`MAX_LEVELS`].
    pub fn everything(samples: &[u64], level: LevelIndex) -> Self {
        assert!(usize::from(level.0) < MAX_LEVELS, "level {level} of {MAX_LEVELS}");
        Self::new(samples.iter().map(|&samples| LevelTable::all(samples, level)).collect())
    }

    /// The level that keeps a sample. `None` if none does or the sample is unknown.
    pub fn level(&self, key: SampleKey) -> Option<LevelIndex> {
        self.datasets.get(key.dataset.0 as usize)?.level(key.id)
    }

    /// The size of the placement in memory in bytes, for reports.
    pub fn memory(&self) -> u64 {
        self.datasets
            .iter()
            .map(|table| {
                let heap = match table {
                    LevelTable::Ranges(_) => 0,
                    LevelTable::Bits(words) => size_of_val::<[u64]>(words),
                };
                (size_of::<LevelTable>() + heap) as u64
            })
            .sum()
    }

    pub(crate) fn describe(&self, print: Fingerprinter) -> Fingerprinter {
        let mut print = print.number(self.datasets.len() as u64);
        for table in self.datasets.iter() {
            print = match table {
                LevelTable::Ranges(ends) => print.number(0).numbers(ends.iter().copied()),
                LevelTable::Bits(words) => print.number(1).numbers(words.iter().copied()),
            };
        }
        print
    }
}

impl fmt::Debug for LevelTable {
    /// The form, not every sample.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ranges(ends) => write!(f, "Ranges({ends:?})"),
            Self::Bits(words) => write!(f, "Bits({} bytes)", size_of_val::<[u64]>(words)),
        }
    }
}

impl LevelTable {
    pub(crate) const NOTHING: Self = Self::Ranges([0; MAX_LEVELS]);

    pub(crate) fn all(samples: u64, level: LevelIndex) -> Self {
        let mut ends = [samples; MAX_LEVELS];
        ends[..usize::from(level.0)].fill(0);
        Self::Ranges(ends)
    }

    /// An empty table, or `None` if it does not fit in memory.
    pub(crate) fn bits(samples: u64) -> Option<Self> {
        let words = usize::try_from(samples.div_ceil(PER_WORD)).ok()?;
        let mut table = Vec::new();
        table.try_reserve_exact(words).ok()?;
        table.resize(words, 0);
        Some(Self::Bits(table.into_boxed_slice()))
    }

    /// Keeps a sample of a table of bits in `level`. The sample must not be kept yet.
    pub(crate) fn keep(&mut self, id: u64, level: LevelIndex) {
        if let Self::Bits(words) = self {
            words[(id / PER_WORD) as usize] |= (u64::from(level.0) + 1) << (id % PER_WORD * 2);
        }
    }

    /// The kept samples of a table of bits, by sample number.
    pub(crate) fn kept(&self) -> impl Iterator<Item = (u64, LevelIndex)> + '_ {
        let words = if let Self::Bits(words) = self { &words[..] } else { &[] };
        let ids = (0..).step_by(PER_WORD as usize).zip(words).filter(|(_, word)| **word > 0);
        ids.flat_map(|(first, _)| first..first + PER_WORD)
            .filter_map(|id| self.level(SampleId(id)).map(|level| (id, level)))
    }

    pub(crate) fn level(&self, id: SampleId) -> Option<LevelIndex> {
        match self {
            Self::Ranges(ends) => {
                ends.iter().position(|&end| id.0 < end).map(|level| LevelIndex(level as u8))
            }
            Self::Bits(words) => {
                let word = words.get(usize::try_from(id.0 / PER_WORD).ok()?)?;
                let code = (word >> (id.0 % PER_WORD * 2)) & 3;
                code.checked_sub(1).map(|level| LevelIndex(level as u8))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use foreread_types::DatasetId;

    use super::*;

    #[test]
    fn ranges_are_consecutive() {
        let table = LevelTable::Ranges([3, 3, 5]);
        let levels: Vec<_> = (0..6).map(|id| table.level(SampleId(id)).map(|level| level.0)).collect();
        assert_eq!(levels, [Some(0), Some(0), Some(0), Some(2), Some(2), None]);
    }

    #[test]
    fn bits_hold_the_kept_samples() {
        let mut table = LevelTable::bits(100).unwrap();
        table.keep(31, LevelIndex(2));
        table.keep(32, LevelIndex(0));
        table.keep(99, LevelIndex(1));
        for id in 0..200 {
            let expected = match id {
                31 => Some(LevelIndex(2)),
                32 => Some(LevelIndex(0)),
                99 => Some(LevelIndex(1)),
                _ => None,
            };
            assert_eq!(table.level(SampleId(id)), expected, "{id}");
        }
        assert_eq!(table.level(SampleId(u64::MAX)), None);
        let kept: Vec<_> = table.kept().map(|(id, level)| (id, level.0)).collect();
        assert_eq!(kept, [(31, 2), (32, 0), (99, 1)]);
    }

    #[test]
    fn whole_dataset_needs_no_table() {
        let placement = Placement::everything(&[1 << 60, 0], LevelIndex(1));
        assert!(placement.memory() < 100);
        assert_eq!(
            placement.level(SampleKey::new(DatasetId(0), SampleId((1 << 60) - 1))),
            Some(LevelIndex(1))
        );
        assert_eq!(
            [1, 2].map(|dataset| placement.level(SampleKey::new(DatasetId(dataset), SampleId(0)))),
            [None; 2]
        );
    }
}
