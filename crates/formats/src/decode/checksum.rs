//! HDF5's Fletcher-32 filter: a checksum of 4 bytes after the bytes.

/// Words whose sums fit in 32 bits.
const WORDS: usize = 360;

/// Compares the checksum at the end with that of the bytes before it.
pub(super) fn check(bytes: &[u8]) -> Result<(), String> {
    let (bytes, sum) = bytes.split_last_chunk::<4>().ok_or("it was cut short")?;
    let (found, expected) = (fletcher32(bytes), u32::from_le_bytes(*sum));
    // Libraries before 1.6.3 wrote the two bytes of each half the other way round.
    let old = (found & 0x00ff_00ff) << 8 | (found & 0xff00_ff00) >> 8;
    if expected == found || expected == old {
        return Ok(());
    }
    Err(format!("the checksum of its {} bytes is {found:08x}, expected {expected:08x}", bytes.len()))
}

/// The checksum of big-endian words. A last single byte is the upper half of a word.
pub(super) fn fletcher32(bytes: &[u8]) -> u32 {
    let fold = |sum: u32| (sum & 0xffff) + (sum >> 16);
    let (words, last) = bytes.as_chunks::<2>();
    let (mut low, mut high) = (0u32, 0u32);
    for words in words.chunks(WORDS) {
        for word in words {
            low += u32::from(u16::from_be_bytes(*word));
            high += low;
        }
        (low, high) = (fold(low), fold(high));
    }
    if let [last] = last {
        low += u32::from(*last) << 8;
        high += low;
        (low, high) = (fold(low), fold(high));
    }
    fold(high) << 16 | fold(low)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_are_those_of_the_library() {
        assert_eq!(fletcher32(b""), 0);
        assert_eq!(fletcher32(&[0, 1, 0, 2]), 4 << 16 | 3);
        assert_eq!(fletcher32(&[1]), 0x0100_0100);
        // Large sums, which must not overflow.
        assert_eq!(fletcher32(&[0xff; 100_000]), 0xffff_ffff);
    }

    #[test]
    fn checksums_of_both_byte_orders_are_taken() {
        for sum in [[3, 0, 4, 0], [0, 3, 0, 4]] {
            assert_eq!(check(&[&[0, 1, 0, 2][..], &sum].concat()), Ok(()));
        }
        assert!(check(&[0, 1, 0, 2, 3, 0, 4, 1]).unwrap_err().contains("00040003"));
        assert!(check(&[1, 2, 3]).is_err());
    }
}
