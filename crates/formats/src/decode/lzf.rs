//! Blocks of LibLZF.
//!
//! A control byte below 32 begins a run of that many literals and one more. Others begin a copy of
//! earlier output: 3 bits of length, 13 bits of distance. A length of 7 continues in another byte.

/// Decompresses a block.
pub(super) fn decompress(stored: &[u8], out: &mut [u8]) -> Result<(), String> {
    let cut = || "the block was cut short".to_owned();
    let most = out.len();
    let longer = || format!("the block has more than {most} bytes");
    let (mut rest, mut at) = (stored, 0);
    while let Some((&control, after)) = rest.split_first() {
        rest = after;
        if control < 32 {
            let length = usize::from(control) + 1;
            let literals = rest.get(..length).ok_or_else(cut)?;
            out.get_mut(at..at + length).ok_or_else(longer)?.copy_from_slice(literals);
            rest = &rest[length..];
            at += length;
            continue;
        }
        let mut next = || {
            let (&byte, after) = rest.split_first().ok_or_else(cut)?;
            rest = after;
            Ok::<_, String>(usize::from(byte))
        };
        let mut length = usize::from(control >> 5) + 2;
        if length == 9 {
            length += next()?;
        }
        let distance = (usize::from(control & 31) << 8) + next()? + 1;
        let from = at.checked_sub(distance).ok_or("the block refers to bytes before its beginning")?;
        if length > most - at {
            return Err(longer());
        }
        if distance >= length {
            out.copy_within(from..from + length, at);
        } else {
            // It copies bytes that it writes.
            for place in at..at + length {
                out[place] = out[place - distance];
            }
        }
        at += length;
    }
    if at == most { Ok(()) } else { Err(format!("the block has {at} bytes, expected {most}")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_may_overlap_what_they_write() {
        // "ab", then 4 bytes at distance 2, then 9 + 1 bytes at distance 1.
        let stored = [1, b'a', b'b', 0x40, 1, 0xe0, 1, 0];
        let mut out = [0; 16];
        decompress(&stored, &mut out).unwrap();
        assert_eq!(&out, b"abababbbbbbbbbbb");
        for cut in 0..stored.len() {
            assert!(decompress(&stored[..cut], &mut out).is_err(), "{cut}");
        }
        assert!(decompress(&stored, &mut [0; 15]).unwrap_err().contains("more than 15"));
        assert!(decompress(&stored, &mut [0; 17]).unwrap_err().contains("expected 17"));
        assert!(decompress(&[0, b'a', 0x20, 1], &mut [0; 4]).unwrap_err().contains("before"));
    }
}
