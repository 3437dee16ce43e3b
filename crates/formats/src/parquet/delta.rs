//! Integers in the encoding `DELTA_BINARY_PACKED`: each as the difference to the one before it, in
//! packed bits. They are labels, or the lengths of values.
//!
//! A block begins with its smallest difference and the widths of its miniblocks. Differences are
//! stored without the smallest one. The values are decoded when they are needed, because few bytes
//! can have any number of them.

use super::levels::{packed_value, varint};

/// The most values of a block.
const MOST_BLOCK: u64 = 1 << 20;

/// The integers of a page.
#[derive(Clone, Debug)]
pub(super) struct DeltaIntegers<'a> {
    /// The blocks that are not decoded yet.
    bytes: &'a [u8],
    per_miniblock: u64,
    miniblocks: usize,
    /// Values that follow, with the next one.
    left: u64,
    next: i64,
    block: Block<'a>,
}

/// A block: its smallest difference, the widths of its next miniblocks, and the present miniblock.
#[derive(Clone, Copy, Debug, Default)]
struct Block<'a> {
    smallest: i64,
    widths: &'a [u8],
    packed: &'a [u8],
    width: u32,
    /// The next value of the miniblock, and the number of its values.
    at: u64,
    count: u64,
}

impl<'a> DeltaIntegers<'a> {
    /// The integers at the beginning of `bytes`, and where they end. `None` if they are malformed,
    /// or end after `bytes`.
    pub(super) fn new(bytes: &'a [u8]) -> Option<(Self, usize)> {
        let mut rest = bytes;
        let mut number = || {
            let (length, value) = varint(rest)?;
            rest = rest.get(length..)?;
            Some(value)
        };
        let (block, miniblocks, count, first) = (number()?, number()?, number()?, number()?);
        let per_miniblock = block.checked_div(miniblocks)?;
        let fits = block <= MOST_BLOCK && per_miniblock > 0 && per_miniblock.is_multiple_of(8);
        if !fits || per_miniblock * miniblocks != block {
            return None;
        }
        let integers = Self {
            bytes: rest,
            per_miniblock,
            miniblocks: miniblocks as usize,
            left: count,
            next: signed(first),
            block: Block::default(),
        };
        // Blocks have a byte or more, so this takes no more steps than there are bytes.
        let mut skipped = integers.clone();
        let mut left = count.saturating_sub(1);
        while left > 0 {
            skipped.next_miniblock()?;
            left = left.saturating_sub(per_miniblock);
        }
        Some((integers, bytes.len() - skipped.bytes.len()))
    }

    /// The number of integers that follow.
    pub(super) fn left(&self) -> u64 {
        self.left
    }

    /// The next length. `None` if there is none, or it is no length.
    pub(super) fn next_length(&mut self) -> Option<u64> {
        self.next().and_then(|value| u64::try_from(value).ok()).filter(|&value| value <= i32::MAX as u64)
    }

    /// The next integer, in the arithmetic of 64 bits. `None` if there is none.
    pub(super) fn next(&mut self) -> Option<i64> {
        self.left = self.left.checked_sub(1)?;
        let value = self.next;
        if self.left > 0 {
            if self.block.at == self.block.count {
                self.next_miniblock()?;
            }
            let Block { packed, width, at, smallest, .. } = self.block;
            let difference = packed_value(packed, at, width)?;
            self.block.at += 1;
            self.next = self.next.wrapping_add(smallest).wrapping_add(difference.cast_signed());
        }
        Some(value)
    }

    /// Begins the next miniblock, and the next block if there is none in this one.
    fn next_miniblock(&mut self) -> Option<()> {
        if self.block.widths.is_empty() {
            let (length, smallest) = varint(self.bytes)?;
            let (widths, rest) = self.bytes.get(length..)?.split_at_checked(self.miniblocks)?;
            self.bytes = rest;
            self.block = Block { smallest: signed(smallest), widths, ..Block::default() };
        }
        let (&width, widths) = self.block.widths.split_first()?;
        if width > 64 {
            return None;
        }
        let length = (self.per_miniblock / 8).checked_mul(width.into())?;
        let (packed, rest) = self.bytes.split_at_checked(usize::try_from(length).ok()?)?;
        self.bytes = rest;
        self.block =
            Block { widths, packed, width: width.into(), at: 0, count: self.per_miniblock, ..self.block };
        Some(())
    }
}

/// A number in zigzag order: 0, -1, 1, -2.
fn signed(value: u64) -> i64 {
    (value >> 1) as i64 ^ -((value & 1) as i64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(bytes: &[u8]) -> Option<(Vec<u64>, usize)> {
        let (mut lengths, end) = DeltaIntegers::new(bytes)?;
        let count = lengths.left();
        let values: Vec<u64> = std::iter::from_fn(|| lengths.next_length()).collect();
        (values.len() as u64 == count).then_some((values, end))
    }

    /// The example of the format: 7, 5, 3, 1, 2, 3, 4, 5.
    #[test]
    fn lengths_are_those_of_the_example() {
        // Blocks of 128 in 4 miniblocks, 8 values, the first one is 7. The smallest difference is
        // -2, and the others are 0 to 3 more: 0 0 0 3 3 3 3 in 2 bits.
        let mut bytes = vec![0x80, 1, 4, 8, 14, 3, 2, 0, 0, 0, 0b1100_0000, 0b0011_1111];
        bytes.resize(10 + 8, 0);
        assert_eq!(all(&bytes), Some((vec![7, 5, 3, 1, 2, 3, 4, 5], 18)));
        bytes.extend(b"values");
        assert_eq!(all(&bytes).unwrap().1, 18);
        for cut in 0..18 {
            assert!(all(&bytes[..cut]).is_none(), "{cut}");
        }
    }

    #[test]
    fn one_length_and_none_have_no_blocks() {
        assert_eq!(all(&[0x80, 1, 4, 1, 14]), Some((vec![7], 5)));
        assert_eq!(all(&[0x80, 1, 4, 0, 0]), Some((vec![], 5)));
    }

    /// Two billion equal lengths take ten bytes per 128 of them.
    #[test]
    // semantics: FORMAT-4
    fn impossible_counts_are_malformed() {
        let count = [0xff, 0xff, 0xff, 0xff, 0x0f];
        assert!(all(&[&[0x80, 1, 4][..], &count, &[0]].concat()).is_none());
        // Blocks of nothing, of parts of bytes, of uneven parts, and far too long ones.
        for head in [[0, 1, 4, 2], [0x80, 1, 0, 2], [0x84, 1, 4, 2], [0x80, 1, 3, 2]] {
            assert!(DeltaIntegers::new(&[&head[..], &[0; 90]].concat()).is_none(), "{head:?}");
        }
        assert!(DeltaIntegers::new(&[0x80, 0x80, 0x80, 0x80, 1, 1, 2, 0, 0, 0, 0]).is_none());
        // Negative lengths, and a width of 65 bits.
        assert!(all(&[0x80, 1, 4, 1, 13]).is_none());
        assert!(DeltaIntegers::new(&[&[0x80, 1, 4, 2, 0, 0, 65, 0, 0, 0][..], &[0; 300]].concat()).is_none());
    }
}
