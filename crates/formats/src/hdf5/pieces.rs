//! How chunks cut a sample into pieces: the geometry of rows and of whole datasets.
//!
//! A piece is a run of elements that lie one after another in the sample and in a chunk. Chunks
//! that are as long as the dataset in the last dimensions keep these together. The next dimension
//! before them is cut at each chunk, and each index of the dimensions before it begins a piece.

use super::cursor::product;

/// The pieces of the samples of a dataset.
#[derive(Debug)]
pub(super) struct Pieces<'a> {
    shape: &'a [u64],
    chunk: &'a [u64],
    /// The first dimension of a sample: 1 for rows, 0 for the whole dataset.
    first: usize,
    /// The dimension that chunks cut. It is `first` or after it, or the sample is one element.
    cut: usize,
    /// Elements of one index of the cut dimension.
    inner: u64,
}

/// A piece of a sample.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Piece<'a> {
    /// The index of the chunk per dimension.
    pub(super) chunk: &'a [u64],
    /// Where it begins in the chunk, in elements.
    pub(super) offset: u64,
    /// Its length in elements.
    pub(super) length: u64,
}

impl<'a> Pieces<'a> {
    /// The pieces of rows.
    pub(super) fn of_rows(shape: &'a [u64], chunk: &'a [u64]) -> Self {
        Self::new(shape, chunk, 1)
    }

    /// The pieces of a whole dataset.
    pub(super) fn of_whole(shape: &'a [u64], chunk: &'a [u64]) -> Self {
        Self::new(shape, chunk, 0)
    }

    fn new(shape: &'a [u64], chunk: &'a [u64], first: usize) -> Self {
        let (mut cut, mut inner) = (shape.len().saturating_sub(1), 1);
        while cut > first && shape[cut] == chunk[cut] {
            // It divides the number of elements, which fits in 64 bits.
            inner *= shape[cut];
            cut -= 1;
        }
        Self { shape, chunk, first, cut, inner }
    }

    /// The number of pieces of a sample. `None` beyond 64 bits.
    pub(super) fn count(&self) -> Option<u64> {
        if self.first > self.cut {
            return Some(1);
        }
        let cuts = self.shape[self.cut].div_ceil(self.chunk[self.cut].max(1));
        product(&self.shape[self.first..self.cut])?.checked_mul(cuts)
    }

    /// Calls `each` with the pieces of a sample in their order, until it returns an error. `row` is
    /// the sample's number, or 0.
    pub(super) fn each<E>(
        &self,
        row: u64,
        mut each: impl FnMut(Piece<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut at = vec![0; self.shape.len()];
        let mut chunk = at.clone();
        if self.first == 1 {
            at[0] = row;
        }
        loop {
            let mut offset = 0;
            for (dimension, &length) in self.chunk.iter().enumerate() {
                chunk[dimension] = at[dimension] / length;
                offset = offset * length + at[dimension] % length;
            }
            let length = match self.first > self.cut {
                true => 1,
                false => {
                    let cut = self.cut;
                    let end = (chunk[cut] + 1).saturating_mul(self.chunk[cut]).min(self.shape[cut]);
                    (end - at[cut]) * self.inner
                }
            };
            each(Piece { chunk: &chunk, offset, length })?;
            // The next piece: a chunk further, or the next index of a dimension before.
            let mut dimension = self.cut;
            loop {
                if dimension < self.first {
                    return Ok(());
                }
                let step = if dimension == self.cut { self.chunk[dimension] } else { 1 };
                at[dimension] = at[dimension].saturating_add(step);
                if at[dimension] < self.shape[dimension] {
                    break;
                }
                at[dimension] = 0;
                if dimension == 0 {
                    return Ok(());
                }
                dimension -= 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn of(pieces: &Pieces<'_>, row: u64) -> Vec<(Vec<u64>, u64, u64)> {
        let mut found = Vec::new();
        let each = |piece: Piece<'_>| {
            found.push((piece.chunk.to_vec(), piece.offset, piece.length));
            Ok::<(), ()>(())
        };
        pieces.each(row, each).unwrap();
        found
    }

    #[test]
    fn rows_are_cut_where_chunks_end() {
        // Two chunks of 5 and 3 rows.
        let pieces = Pieces::of_rows(&[9, 8, 3], &[2, 5, 3]);
        assert_eq!(of(&pieces, 3), [(vec![1, 0, 0], 15, 15), (vec![1, 1, 0], 15, 9)]);
        let pieces = Pieces::of_rows(&[9], &[4]);
        assert_eq!((pieces.count(), of(&pieces, 6)), (Some(1), vec![(vec![1], 2, 1)]));
        // A chunk longer than the dataset.
        let pieces = Pieces::of_rows(&[9, 2, 3], &[2, 2, 4]);
        assert_eq!(of(&pieces, 1), [(vec![0, 0, 0], 8, 3), (vec![0, 0, 0], 12, 3)]);
    }

    #[test]
    fn count_is_known_without_a_walk() {
        // The chunks that h5py chooses.
        let pieces = Pieces::of_rows(&[50_000, 224, 224, 3], &[1563, 14, 14, 1]);
        assert_eq!(pieces.count(), Some(224 * 224 * 3));
        assert_eq!(Pieces::of_rows(&[9, 1 << 40, 1 << 40], &[9, 1, 1]).count(), None);
        assert_eq!(Pieces::of_whole(&[100, 8, 8], &[10, 8, 8]).count(), Some(10));
        assert_eq!(Pieces::of_whole(&[100, 8, 8], &[100, 8, 8]).count(), Some(1));
        assert_eq!(Pieces::of_whole(&[7], &[3]).count(), Some(3));
    }

    proptest! {
        #[test]
        fn pieces_are_all_elements_in_order(
            dimensions in proptest::collection::vec((1u64..6, 1u64..7), 1..5),
            whole: bool,
        ) {
            let (shape, chunk): (Vec<_>, Vec<_>) = dimensions.into_iter().unzip();
            let pieces = Pieces::new(&shape, &chunk, usize::from(!whole));
            let samples = if whole { 1 } else { shape[0] };
            let mut element = 0;
            for row in 0..samples {
                let found = of(&pieces, row);
                prop_assert_eq!(Some(found.len() as u64), pieces.count());
                for (index, offset, length) in found {
                    for at in offset..offset + length {
                        // The coordinates in the chunk, and in the dataset.
                        let (mut rest, mut number, mut scale) = (at, 0, 1);
                        for d in (0..shape.len()).rev() {
                            let coordinate = index[d] * chunk[d] + rest % chunk[d];
                            prop_assert!(coordinate < shape[d]);
                            rest /= chunk[d];
                            number += coordinate * scale;
                            scale *= shape[d];
                        }
                        prop_assert_eq!((rest, number), (0, element));
                        element += 1;
                    }
                }
            }
            prop_assert_eq!(element, shape.iter().product::<u64>());
        }
    }
}
