//! Runs of equal values and packed bits: how Parquet writes levels, indices and booleans.

/// The length and the value of a variable-length integer of at most 64 bits.
pub(super) fn varint(bytes: &[u8]) -> Option<(usize, u64)> {
    let mut value = 0;
    for (at, &byte) in bytes.iter().take(10).enumerate() {
        value |= u64::from(byte & 0x7f) << (7 * at);
        if byte & 0x80 == 0 {
            return Some((at + 1, value));
        }
    }
    None
}

/// The bytes after a length of 4 bytes, and the rest after them.
pub(super) fn prefixed(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let length = crate::le::u32(bytes, 0)? as usize;
    bytes.get(4..)?.split_at_checked(length)
}

/// Values of `width` bits in the hybrid encoding `RLE`.
#[derive(Debug)]
pub(super) struct Runs<'a> {
    bytes: &'a [u8],
    width: u32,
    /// A run of packed values: its bytes, the next value, and the number of values.
    packed: (&'a [u8], u64, u64),
}

impl<'a> Runs<'a> {
    /// Values of `width` bits, at most 32. `None` for more.
    pub(super) fn new(bytes: &'a [u8], width: u32) -> Option<Self> {
        (width <= 32).then_some(Self { bytes, width, packed: (&[], 0, 0) })
    }

    /// The next values: how often a value occurs, at least once. `None` if the bytes are used up.
    pub(super) fn next(&mut self) -> Option<(u64, u32)> {
        loop {
            let (packed, next, count) = self.packed;
            if next < count {
                self.packed.1 += 1;
                return packed_value(packed, next, self.width).map(|value| (1, value as u32));
            }
            let (length, head) = varint(self.bytes)?;
            self.bytes = &self.bytes[length..];
            if head & 1 == 1 {
                let bytes = (head >> 1).checked_mul(self.width.into())?;
                // Some writers cut the last group.
                let length = self.bytes.len().min(bytes.try_into().unwrap_or(usize::MAX));
                let (packed, rest) = self.bytes.split_at(length);
                self.packed = (packed, 0, (head >> 1).checked_mul(8)?);
                self.bytes = rest;
            } else {
                let length = self.width.div_ceil(8) as usize;
                let value = crate::le::uint(self.bytes, 0, length)? as u32;
                self.bytes = &self.bytes[length..];
                if head > 0 {
                    return Some((head >> 1, value));
                }
            }
        }
    }
}

/// The value at `index` of packed values, lowest bits first.
pub(super) fn packed_value(packed: &[u8], index: u64, width: u32) -> Option<u64> {
    let bit = index.checked_mul(width.into())?;
    let first = usize::try_from(bit / 8).ok()?;
    let shift = (bit % 8) as u32;
    // Up to 9 bytes have a value of 64 bits.
    let length = (shift + width).div_ceil(8) as usize;
    let mut word = [0; 16];
    word.get_mut(..length)?.copy_from_slice(packed.get(first..first.checked_add(length)?)?);
    let word = (u128::from_le_bytes(word) >> shift) as u64;
    Some(word & u64::MAX.checked_shr(64_u32.checked_sub(width)?).unwrap_or(0))
}

/// The number of bits of levels up to `max`.
pub(super) fn bit_width(max: u32) -> u32 {
    u32::BITS - max.leading_zeros()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(bytes: &[u8], width: u32) -> Vec<(u64, u32)> {
        let mut runs = Runs::new(bytes, width).unwrap();
        std::iter::from_fn(|| runs.next()).collect()
    }

    #[test]
    fn runs_and_packed_values_alternate() {
        // The example of the format: 0 to 7 in 3 bits.
        let packed = [0x03, 0b1000_1000, 0b1100_0110, 0b1111_1010];
        assert_eq!(all(&packed, 3), (0..8).map(|value| (1, value)).collect::<Vec<_>>());
        let both = [&[0x08, 5][..], &packed[..], &[0, 6, 0x02, 7]].concat();
        let expected = [&[(4, 5)][..], &all(&packed, 3), &[(1, 7)]].concat();
        assert_eq!(all(&both, 3), expected);
        assert_eq!(all(&[0x10], 0), [(8, 0)]);
        assert_eq!(all(&[0x10, 1, 2, 3, 4], 32), [(8, 0x0403_0201)]);
    }

    #[test]
    fn runs_that_are_cut_short_end() {
        assert_eq!(all(&[0x05, 0xff], 4), [(1, 15), (1, 15)]);
        assert_eq!(all(&[0x08], 3), []);
        assert_eq!(all(&[0xff; 11], 1), []);
        assert!(Runs::new(&[], 33).is_none());
    }

    #[test]
    fn levels_have_as_many_bits_as_the_largest() {
        assert_eq!([0, 1, 2, 3, 4].map(bit_width), [0, 1, 2, 2, 3]);
    }
}
