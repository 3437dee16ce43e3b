//! Where a chunk lies in its dataset: the coordinates of slots of an index.

use crate::hdf5::cursor::product;

/// The chunks of a dataset, and the order in which arrays number them.
#[derive(Debug)]
pub(crate) struct Grid {
    /// The number of chunks per dimension within the present shape.
    present: Vec<u64>,
    /// The number of chunks per dimension within the largest shape. `None` if it is unlimited.
    most: Vec<Option<u64>>,
}

impl Grid {
    /// `None` if the present shape has more than 2^64 chunks.
    pub(crate) fn new(shape: &[u64], most: &[Option<u64>], chunk: &[u64]) -> Option<Self> {
        let per = |length: u64, chunk: u64| length.div_ceil(chunk.max(1));
        let present: Vec<u64> = shape.iter().zip(chunk).map(|(&length, &chunk)| per(length, chunk)).collect();
        product(&present)?;
        let most = most.iter().zip(chunk).map(|(&most, &chunk)| Some(per(most?, chunk))).collect();
        Some(Self { present, most })
    }

    /// The number of chunks in the present shape.
    pub(crate) fn len(&self) -> u64 {
        product(&self.present).unwrap_or(u64::MAX)
    }
    /// The number of chunks in the largest shape. `None` if it is unlimited, or beyond 2^64.
    pub(super) fn slots(&self) -> Option<u64> {
        product(&self.most.iter().copied().collect::<Option<Vec<u64>>>()?)
    }

    /// The number of a chunk in row-major order of the present shape, from its index per dimension.
    /// `None` outside of that shape.
    pub(crate) fn number(&self, index: &[u64]) -> Option<u64> {
        if index.len() != self.present.len() {
            return None;
        }
        self.present.iter().zip(index).try_fold(0u64, |number, (&count, &index)| {
            if index < count { number.checked_mul(count)?.checked_add(index) } else { None }
        })
    }

    /// The index per dimension of a chunk. `number` must be less than [`len`](Self::len).
    pub(crate) fn index(&self, mut number: u64) -> Vec<u64> {
        let mut index = vec![0; self.present.len()];
        for (index, &count) in index.iter_mut().zip(&self.present).rev() {
            *index = number % count.max(1);
            number /= count.max(1);
        }
        index
    }

    /// The number of a slot's chunk. An array has a slot for each chunk of the largest shape, in
    /// row-major order, after an unlimited dimension was moved to the front. `None` for a slot
    /// outside of the present shape.
    pub(super) fn number_of_slot(&self, mut slot: u64) -> Option<u64> {
        let mut index = vec![0; self.most.len()];
        let unlimited = self.most.iter().position(Option::is_none);
        for (dimension, most) in self.most.iter().enumerate().rev() {
            // A second unlimited dimension cannot be: such datasets have a B-tree.
            if let Some(most) = *most {
                index[dimension] = slot.checked_rem(most)?;
                slot /= most;
            }
        }
        match unlimited {
            Some(dimension) => index[dimension] = slot,
            None if slot > 0 => return None,
            None => {}
        }
        self.number(&index)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unlimited_dimension_is_moved_to_the_front() {
        // 3 x 5 chunks now, 4 x unlimited later: slots run through the first dimension fastest.
        let grid = Grid::new(&[6, 10], &[Some(8), None], &[2, 2]).unwrap();
        let index = |slot| grid.number_of_slot(slot).map(|number| grid.index(number));
        assert_eq!(index(0), Some(vec![0, 0]));
        assert_eq!(index(1), Some(vec![1, 0]));
        // The fourth row of chunks is outside of the present shape.
        assert_eq!(index(3), None);
        assert_eq!(index(4), Some(vec![0, 1]));
        assert_eq!(index(18), Some(vec![2, 4]));
        assert_eq!(index(20), None);
    }

    #[test]
    fn slots_count_by_the_largest_shape() {
        let grid = Grid::new(&[4, 3], &[Some(4), Some(7)], &[1, 2]).unwrap();
        let index = |slot| grid.number_of_slot(slot).map(|number| grid.index(number));
        // Four chunks per row later, two now.
        assert_eq!(index(1), Some(vec![0, 1]));
        assert_eq!(index(2), None);
        assert_eq!(index(4), Some(vec![1, 0]));
        assert_eq!(index(16), None);
        assert_eq!(index(u64::MAX), None);
        assert_eq!((grid.len(), grid.slots()), (8, Some(16)));
    }

    #[test]
    fn grids_beyond_64_bits_are_none() {
        assert!(Grid::new(&[u64::MAX, 3], &[None, Some(3)], &[1, 1]).is_none());
        assert_eq!(Grid::new(&[u64::MAX, 0], &[None, Some(0)], &[1, 1]).unwrap().len(), 0);
        assert_eq!(Grid::new(&[0, 0], &[None, Some(0)], &[1, 1]).unwrap().number_of_slot(7), None);
    }
}
