//! The free extents of the shared memory.
//!
//! Best fit: the smallest sufficient extent is used, and of equal ones the lowest. So the large
//! free rest at the end is touched last, and a server with small workers uses little physical
//! memory. The price is two ordered tables, a few hundred nanoseconds per sample.

use std::collections::{BTreeMap, BTreeSet};

/// Extents are aligned to a cache line, so that no two samples share one and vector instructions
/// find their alignment.
pub(crate) const ALIGNMENT: usize = 64;

/// The free extents of `0..total`.
#[derive(Debug)]
pub(crate) struct FreeExtents {
    by_offset: BTreeMap<usize, usize>,
    by_length: BTreeSet<(usize, usize)>,
    free: usize,
}

/// The bytes allocated for a sample of `length` bytes.
pub(crate) fn rounded(length: usize) -> Option<usize> {
    length.checked_next_multiple_of(ALIGNMENT)
}

impl FreeExtents {
    /// All of `0..total` is free.
    pub(crate) fn new(total: usize) -> Self {
        let mut extents = Self { by_offset: BTreeMap::new(), by_length: BTreeSet::new(), free: 0 };
        extents.release(0, total);
        extents
    }

    /// The number of free bytes, contiguous or not.
    pub(crate) fn free_bytes(&self) -> usize {
        self.free
    }

    /// Allocates `length` contiguous bytes and returns their offset. `length` must be a multiple of
    /// [`ALIGNMENT`] and not zero.
    pub(crate) fn allocate(&mut self, length: usize) -> Option<usize> {
        debug_assert!(length > 0 && length.is_multiple_of(ALIGNMENT));
        let &(found, offset) = self.by_length.range((length, 0)..).next()?;
        self.remove(offset, found);
        if found > length {
            self.insert(offset + length, found - length);
        }
        self.free -= length;
        Some(offset)
    }

    /// Releases an extent from [`allocate`](Self::allocate).
    pub(crate) fn release(&mut self, mut offset: usize, mut length: usize) {
        if length == 0 {
            return;
        }
        self.free += length;
        if let Some((&before, &its)) = self.by_offset.range(..offset).next_back()
            && before + its == offset
        {
            self.remove(before, its);
            (offset, length) = (before, its + length);
        }
        if let Some(&its) = self.by_offset.get(&(offset + length)) {
            self.remove(offset + length, its);
            length += its;
        }
        self.insert(offset, length);
    }

    fn insert(&mut self, offset: usize, length: usize) {
        self.by_offset.insert(offset, length);
        self.by_length.insert((length, offset));
    }

    fn remove(&mut self, offset: usize, length: usize) {
        self.by_offset.remove(&offset);
        self.by_length.remove(&(length, offset));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const CELLS: usize = 64;

    #[derive(Clone, Debug)]
    enum Step {
        Take(usize),
        Give(usize),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![(1..20_usize).prop_map(Step::Take), any::<usize>().prop_map(Step::Give)]
    }

    proptest! {
        /// Compared with a table of cells: an allocation overlaps nothing, and fails only if no gap
        /// is large enough.
        #[test]
        fn allocations_are_disjoint_and_return(steps in proptest::collection::vec(step(), 0..200)) {
            let mut extents = FreeExtents::new(CELLS * ALIGNMENT);
            let mut cells = [false; CELLS];
            let mut taken: Vec<(usize, usize)> = Vec::new();
            for step in steps {
                match step {
                    Step::Take(count) => {
                        let gaps = cells.chunk_by(|a, b| a == b).filter(|run| !run[0]);
                        let gap = gaps.map(<[bool]>::len).max();
                        match extents.allocate(count * ALIGNMENT) {
                            Some(offset) => {
                                let range = offset / ALIGNMENT..offset / ALIGNMENT + count;
                                prop_assert!(cells[range.clone()].iter().all(|cell| !cell));
                                cells[range].fill(true);
                                taken.push((offset, count));
                            }
                            None => prop_assert!(gap.unwrap_or(0) < count),
                        }
                    }
                    Step::Give(which) if !taken.is_empty() => {
                        let (offset, count) = taken.swap_remove(which % taken.len());
                        extents.release(offset, count * ALIGNMENT);
                        cells[offset / ALIGNMENT..offset / ALIGNMENT + count].fill(false);
                    }
                    Step::Give(_) => {}
                }
                let free = cells.iter().filter(|cell| !**cell).count();
                prop_assert_eq!(extents.free_bytes(), free * ALIGNMENT);
            }
            for (offset, count) in taken {
                extents.release(offset, count * ALIGNMENT);
            }
            prop_assert_eq!(extents.allocate(CELLS * ALIGNMENT), Some(0));
        }
    }
}
