//! Columns of integers in memory.
//!
//! Each column uses as few bytes per row as its largest difference needs. The price: a read of a
//! value copies its bytes into a word.

use bytes::Bytes;

use crate::catalog_file::columns::shared_numbers::PackedColumns;
use crate::catalog_file::layout::column::is_present;

/// Integers, each in as few bytes as the difference of the largest and the smallest needs.
#[derive(Debug)]
pub(crate) struct PackedIntegers {
    least: u64,
    width: usize,
    bytes: Bytes,
}

impl PackedIntegers {
    pub(crate) fn of(values: &[u64]) -> Self {
        let least = values.iter().copied().min().unwrap_or(0);
        let most = values.iter().copied().max().unwrap_or(0);
        let width = (u64::BITS - (most - least).leading_zeros()).div_ceil(8) as usize;
        let mut bytes = Vec::with_capacity(values.len() * width);
        for value in values {
            bytes.extend_from_slice(&(value - least).to_le_bytes()[..width]);
        }
        Self { least, width, bytes: bytes.into() }
    }

    /// The value of an existing row.
    pub(crate) fn get(&self, row: usize) -> u64 {
        let mut word = [0; 8];
        word[..self.width].copy_from_slice(&self.bytes[row * self.width..][..self.width]);
        self.least + u64::from_le_bytes(word)
    }
}

/// Numbers, some of which may be absent.
#[derive(Debug)]
pub(crate) struct NullableIntegers {
    validity: Option<Bytes>,
    values: PackedIntegers,
}

impl NullableIntegers {
    /// The values, of which those whose bit in `validity` is unset are absent.
    pub(crate) fn new(validity: Option<&[u8]>, values: PackedIntegers) -> Self {
        Self { validity: validity.map(Bytes::copy_from_slice), values }
    }

    /// The value of an existing row, if it has one.
    pub(crate) fn get(&self, row: usize) -> Option<u64> {
        is_present(self.validity.as_deref(), row).then(|| self.values.get(row))
    }
}

impl PackedColumns for PackedIntegers {
    fn each_column(&mut self, visit: &mut dyn FnMut(&mut Bytes)) {
        visit(&mut self.bytes);
    }
}

impl PackedColumns for NullableIntegers {
    fn each_column(&mut self, visit: &mut dyn FnMut(&mut Bytes)) {
        self.validity.iter_mut().for_each(&mut *visit);
        self.values.each_column(visit);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_take_the_bytes_that_their_range_needs() {
        for (values, width) in [
            (vec![7, 7, 7], 0),
            (vec![u64::MAX, u64::MAX - 255], 1),
            (vec![0, 256], 2),
            (vec![0, u64::MAX, 5], 8),
            (vec![], 0),
        ] {
            let integers = PackedIntegers::of(&values);
            assert_eq!(integers.width, width, "{values:?}");
            assert_eq!(integers.bytes.len(), width * values.len());
            let found: Vec<u64> = (0..values.len()).map(|row| integers.get(row)).collect();
            assert_eq!(found, values);
        }
    }
}
