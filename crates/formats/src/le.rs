//! Little-endian integers in a slice, with checked bounds.

/// The `N` bytes at `at`, if they are there.
pub(crate) fn bytes<const N: usize>(slice: &[u8], at: usize) -> Option<[u8; N]> {
    slice.get(at..)?.first_chunk().copied()
}

/// An unsigned integer of 2 bytes.
pub(crate) fn u16(slice: &[u8], at: usize) -> Option<u16> {
    bytes(slice, at).map(u16::from_le_bytes)
}

/// An unsigned integer of 4 bytes.
pub(crate) fn u32(slice: &[u8], at: usize) -> Option<u32> {
    bytes(slice, at).map(u32::from_le_bytes)
}

/// An unsigned integer of 8 bytes.
pub(crate) fn u64(slice: &[u8], at: usize) -> Option<u64> {
    bytes(slice, at).map(u64::from_le_bytes)
}

/// An unsigned integer of `width` bytes, 1 to 8.
pub(crate) fn uint(slice: &[u8], at: usize, width: usize) -> Option<u64> {
    let mut word = [0; 8];
    word.get_mut(..width)?.copy_from_slice(slice.get(at..at.checked_add(width)?)?);
    Some(u64::from_le_bytes(word))
}

#[cfg(test)]
mod tests {
    #[test]
    fn integers_outside_of_the_slice_are_none() {
        let slice = [1, 2, 3, 4, 5, 6, 7, 8, 9];
        assert_eq!(super::u16(&slice, 7), Some(0x0908));
        assert_eq!(super::u16(&slice, 8), None);
        assert_eq!(super::u32(&slice, usize::MAX), None);
        assert_eq!(super::u64(&slice, 1), Some(0x0908_0706_0504_0302));
        assert_eq!(super::uint(&slice, 0, 3), Some(0x03_0201));
        assert_eq!(super::uint(&slice, 0, 9), None);
        assert_eq!(super::uint(&slice, 7, 3), None);
    }
}
