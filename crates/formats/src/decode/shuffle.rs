//! HDF5's shuffle filter: the first byte of each element, then the second byte of each, and so on.
//! Bytes after the last whole element stay at the end.

/// Puts the bytes of elements together again. Both slices have one length.
pub(super) fn undo(stored: &[u8], element: usize, out: &mut [u8]) {
    let count = stored.len() / element.max(1);
    let (planes, rest) = stored.split_at(count * element);
    let (whole, end) = out.split_at_mut(planes.len());
    end.copy_from_slice(rest);
    if count == 0 {
        return;
    }
    for (byte, plane) in planes.chunks_exact(count).enumerate() {
        for (out, stored) in whole[byte..].iter_mut().step_by(element).zip(plane) {
            *out = *stored;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_of_elements_come_together() {
        let undone = |stored: &[u8], element| {
            let mut out = vec![0; stored.len()];
            undo(stored, element, &mut out);
            out
        };
        assert_eq!(undone(b"adgbehcfiz", 3), b"abcdefghiz");
        assert_eq!(undone(b"abc", 1), b"abc");
        assert_eq!(undone(b"abc", 4), b"abc");
        assert_eq!(undone(b"", 4), b"");
    }
}
