//! Blocks of LZ4: one alone, and those of HDF5's filter.
//!
//! The filter's bytes begin with the length and the length of a block, as big-endian numbers of
//! 8 and 4 bytes. Blocks follow, each after its stored length in 4 bytes. A block that did not
//! become shorter is stored as it is.

/// Decompresses one block.
pub(super) fn block(stored: &[u8], out: &mut [u8]) -> Result<(), String> {
    let written = lz4_flex::block::decompress_into(stored, out);
    let written = written.map_err(|error| format!("a block is damaged ({error})"))?;
    if written != out.len() {
        return Err(format!("a block has {written} bytes, expected {}", out.len()));
    }
    Ok(())
}

/// Decompresses all blocks of the filter.
pub(super) fn decompress(stored: &[u8], out: &mut [u8]) -> Result<(), String> {
    let cut = || "it was cut short".to_owned();
    let (total, rest) = stored.split_first_chunk::<8>().ok_or_else(cut)?;
    let (length, mut rest) = rest.split_first_chunk::<4>().ok_or_else(cut)?;
    let (total, length) = (u64::from_be_bytes(*total), u32::from_be_bytes(*length) as usize);
    if total != out.len() as u64 {
        return Err(format!("it has {total} bytes, expected {}", out.len()));
    }
    if length == 0 {
        return Err("its blocks are empty".to_owned());
    }
    for out in out.chunks_mut(length) {
        let (length, after) = rest.split_first_chunk::<4>().ok_or_else(cut)?;
        let length = u32::from_be_bytes(*length) as usize;
        let bytes = after.get(..length).ok_or_else(cut)?;
        rest = &after[length..];
        if length == out.len() {
            out.copy_from_slice(bytes);
            continue;
        }
        block(bytes, out)?;
    }
    if rest.is_empty() { Ok(()) } else { Err(format!("{} bytes follow its last block", rest.len())) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    // semantics: FORMAT-5
    fn block_alone_has_the_expected_length() {
        let stored = [0x12, b'a', 1, 0, 0x50, b'a', b'b', b'c', b'd', b'e'];
        let mut out = [0; 12];
        block(&stored, &mut out).unwrap();
        assert_eq!(&out, b"aaaaaaaabcde"[..12].as_ref());
        for cut in 0..stored.len() {
            assert!(block(&stored[..cut], &mut out).is_err(), "{cut}");
        }
        assert!(block(&stored, &mut [0; 11]).is_err());
        assert!(block(&stored, &mut [0; 13]).unwrap_err().contains("expected 13"));
        // A match before the beginning.
        assert!(block(&[0x12, b'a', 2, 0, 0x50, b'a', b'b', b'c', b'd', b'e'], &mut out).is_err());
    }

    #[test]
    fn blocks_may_be_stored_as_they_are() {
        let mut stored = [&14u64.to_be_bytes()[..], &12u32.to_be_bytes()].concat();
        // A literal, a match of 4 + 2 bytes at distance 1, and 5 literals.
        let block = [0x12, b'a', 1, 0, 0x50, b'a', b'b', b'c', b'd', b'e'];
        stored.extend(10u32.to_be_bytes());
        stored.extend(block);
        stored.extend(2u32.to_be_bytes());
        stored.extend(b"yz");
        let mut out = [0; 14];
        decompress(&stored, &mut out).unwrap();
        assert_eq!(&out, b"aaaaaaaabcdeyz");
        for cut in 0..stored.len() {
            assert!(decompress(&stored[..cut], &mut out).is_err(), "{cut}");
        }
        stored.push(0);
        assert!(decompress(&stored, &mut out).unwrap_err().contains("follow"));
        assert!(decompress(&stored, &mut out[1..]).unwrap_err().contains("expected 13"));
    }
}
