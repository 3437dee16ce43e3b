//! The dead bytes of blocks that are still in use.
//!
//! A file system takes back whole blocks. A removed record's first and last block may also hold
//! live records, so those bytes stay allocated and charged. Only such blocks are listed here: a
//! cache from which nothing was removed takes no memory. The alternative is a count of live records
//! for each block, which is a byte for every 4 KiB of the disk.

use std::collections::BTreeMap;
use std::ops::Range;

use super::place::BLOCK;

/// The dead bytes of one segment.
#[derive(Debug, Default)]
pub(super) struct DeadSpace {
    /// By the number of the block, which is partly dead.
    blocks: BTreeMap<u32, u16>,
    bytes: u64,
}

/// The blocks that are wholly in `range`. Empty, at the end of a block, if there are none.
pub(super) fn whole_blocks(range: &Range<u64>) -> Range<u64> {
    let start = range.start.next_multiple_of(BLOCK);
    start..(range.end / BLOCK * BLOCK).max(start)
}

impl DeadSpace {
    /// The bytes that are dead and allocated.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Marks `range` as dead. Returns the blocks that are dead now and were not before: the caller
    /// returns them to the file system.
    pub(super) fn bury(&mut self, range: Range<u64>) -> Range<u64> {
        let mut free = whole_blocks(&range);
        if free.is_empty() && range.start / BLOCK == range.end.div_ceil(BLOCK).saturating_sub(1) {
            let block = range.start / BLOCK * BLOCK;
            let filled = self.add(block, range.end - range.start);
            return if filled { block..block + BLOCK } else { block..block };
        }
        if range.start < free.start && self.add(free.start - BLOCK, free.start - range.start) {
            free.start -= BLOCK;
        }
        if range.end > free.end && self.add(free.end, range.end - free.end) {
            free.end += BLOCK;
        }
        free
    }

    /// Adds dead bytes to a block. Whether the block is dead now. It is then forgotten.
    fn add(&mut self, block: u64, bytes: u64) -> bool {
        let number = (block / BLOCK) as u32;
        let before = self.blocks.get(&number).copied().unwrap_or(0);
        // Damaged files may name overlapping records.
        let dead = (u64::from(before) + bytes).min(BLOCK);
        self.bytes += dead - u64::from(before);
        if dead < BLOCK {
            if dead > 0 {
                self.blocks.insert(number, dead as u16);
            }
            return false;
        }
        self.blocks.remove(&number);
        self.bytes -= BLOCK;
        true
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn shared_blocks_are_freed_with_their_last_record() {
        let mut dead = DeadSpace::default();
        assert_eq!(dead.bury(4096 + 64..4 * 4096 + 64), 2 * 4096..4 * 4096);
        assert_eq!(dead.bytes(), 4096 - 64 + 64);
        assert_eq!(dead.bury(4 * 4096 + 64..4 * 4096 + 128), 4 * 4096..4 * 4096);
        assert_eq!(dead.bury(4 * 4096 + 128..5 * 4096), 4 * 4096..5 * 4096);
        assert_eq!(dead.bury(4096..4096 + 64), 4096..2 * 4096);
        assert_eq!((dead.bytes(), dead.blocks.len()), (0, 0));
    }

    proptest! {
        /// Records back to back are removed in any order.
        #[test]
        fn each_block_is_freed_once_and_no_byte_is_lost(
            records in prop::collection::vec((1..200u64, any::<u32>()), 1..60),
        ) {
            let mut at = BLOCK;
            let mut ranges: Vec<(u32, Range<u64>)> = records.into_iter().map(|(units, turn)| {
                let range = at..at + units * 64;
                at = range.end;
                (turn, range)
            }).collect();
            let end = at;
            ranges.sort_by_key(|(turn, _)| *turn);
            let mut dead = DeadSpace::default();
            let mut live: BTreeSet<u64> = (BLOCK / 64..end / 64).collect();
            let (mut freed, mut total) = (BTreeSet::new(), 0);
            for (_, range) in ranges {
                total += range.end - range.start;
                (range.start / 64..range.end / 64).for_each(|unit| _ = live.remove(&unit));
                let free = dead.bury(range);
                for block in (free.start..free.end).step_by(BLOCK as usize) {
                    prop_assert!(freed.insert(block), "{block} is freed twice");
                    let alive = live.range(block / 64..(block + BLOCK) / 64).next();
                    prop_assert!(alive.is_none() && block + BLOCK <= end);
                }
                prop_assert_eq!(total, dead.bytes() + freed.len() as u64 * BLOCK);
            }
            prop_assert_eq!(freed.len() as u64, (end - BLOCK) / BLOCK, "only the last block stays");
        }
    }
}
