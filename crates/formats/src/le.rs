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

/// The value of a signed integer of `width` bytes, from 1 to 8.
pub(crate) fn signed(bits: u64, width: usize) -> i64 {
    let unused = 64 - 8 * width as u32;
    bits.wrapping_shl(unused).cast_signed().wrapping_shr(unused)
}

/// The value of an IEEE float of 2, 4 or 8 bytes.
pub(crate) fn float(bits: u64, width: usize) -> f64 {
    match width {
        2 => half(bits as u16),
        4 => f32::from_bits(bits as u32).into(),
        _ => f64::from_bits(bits),
    }
}

fn half(bits: u16) -> f64 {
    let sign = if bits >> 15 == 1 { -1.0 } else { 1.0 };
    let exponent = i32::from(bits >> 10 & 0x1f);
    let fraction = f64::from(bits & 0x3ff) / 1024.0;
    sign * match exponent {
        0 => fraction * 2f64.powi(-14),
        31 if fraction == 0.0 => f64::INFINITY,
        31 => f64::NAN,
        _ => (1.0 + fraction) * 2f64.powi(exponent - 15),
    }
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

    #[test]
    fn halves_are_converted() {
        for (bits, value) in
            [(0x3C00, 1.0), (0xC000, -2.0), (0x0001, 5.960464477539063e-8), (0x7BFF, 65504.0)]
        {
            assert_eq!(super::half(bits), value, "{bits:x}");
        }
        assert!(super::half(0x7E00).is_nan());
        assert_eq!(super::half(0xFC00), f64::NEG_INFINITY);
    }
}
