//! The lengths of the samples of a dataset.

use bytes::Bytes;

use crate::SampleId;

/// The bytes of a length in a table.
const NARROW: usize = size_of::<u32>();
const WIDE: usize = size_of::<u64>();

/// The length in bytes of every sample of a dataset. Cheap to clone.
///
/// It takes 4 bytes per sample if all lengths fit, 8 bytes otherwise, and no table if all lengths
/// are equal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sizes {
    table: SizeTable,
    total: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum SizeTable {
    Uniform {
        samples: u64,
        bytes: u64,
    },
    /// Numbers of four bytes, little endian.
    Narrow(Bytes),
    /// Numbers of eight bytes, little endian.
    Wide(Bytes),
}

impl Sizes {
    /// `samples` samples of `bytes` bytes each. The total saturates at `u64::MAX`.
    pub const fn uniform(samples: u64, bytes: u64) -> Self {
        Self { table: SizeTable::Uniform { samples, bytes }, total: samples.saturating_mul(bytes) }
    }

    /// One length per sample, in the order of their ids. The total saturates at `u64::MAX`.
    pub fn table(lengths: &[u64]) -> Self {
        let total = lengths.iter().fold(0u64, |sum, &length| sum.saturating_add(length));
        let is_narrow = lengths.iter().all(|&length| u32::try_from(length).is_ok());
        let width = if is_narrow { NARROW } else { WIDE };
        let mut table = Vec::with_capacity(lengths.len() * width);
        for length in lengths {
            table.extend_from_slice(&length.to_le_bytes()[..width]);
        }
        let table = Bytes::from(table);
        Self { table: if is_narrow { SizeTable::Narrow(table) } else { SizeTable::Wide(table) }, total }
    }

    /// The number of samples.
    pub fn len(&self) -> u64 {
        match &self.table {
            SizeTable::Uniform { samples, .. } => *samples,
            SizeTable::Narrow(table) => (table.len() / NARROW) as u64,
            SizeTable::Wide(table) => (table.len() / WIDE) as u64,
        }
    }

    /// Whether there are no samples.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The sum of all lengths, in bytes.
    pub const fn total(&self) -> u64 {
        self.total
    }

    /// The length of one sample, in bytes.
    ///
    /// # Panics
    /// If there is no such sample.
    #[inline]
    pub fn bytes(&self, id: SampleId) -> u64 {
        match &self.table {
            SizeTable::Uniform { samples, bytes } => {
                assert!(id.0 < *samples, "sample {id} of {samples}");
                *bytes
            }
            SizeTable::Narrow(table) => u32::from_le_bytes(table.as_chunks().0[id.0 as usize]).into(),
            SizeTable::Wide(table) => u64::from_le_bytes(table.as_chunks().0[id.0 as usize]),
        }
    }

    /// The bytes of the table, so that equal bytes in shared memory can take their place. `None` if
    /// there is no table.
    pub fn table_mut(&mut self) -> Option<&mut Bytes> {
        match &mut self.table {
            SizeTable::Uniform { .. } => None,
            SizeTable::Narrow(table) | SizeTable::Wide(table) => Some(table),
        }
    }

    /// Whether all samples have the same length.
    pub const fn is_uniform(&self) -> bool {
        matches!(self.table, SizeTable::Uniform { .. })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn narrow_and_wide_tables_agree() {
        for lengths in [vec![3, 0, 7], vec![3, u64::from(u32::MAX) + 1, 7], vec![]] {
            let sizes = Sizes::table(&lengths);
            assert_eq!(sizes.len(), lengths.len() as u64);
            assert_eq!(sizes.total(), lengths.iter().sum::<u64>());
            for (id, &length) in lengths.iter().enumerate() {
                assert_eq!(sizes.bytes(SampleId(id as u64)), length);
            }
        }
    }
}
