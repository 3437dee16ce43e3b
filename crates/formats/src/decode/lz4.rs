//! HDF5's LZ4 filter. It begins with the length and the length of a block, as big-endian numbers of
//! 8 and 4 bytes. Blocks follow, each after its stored length in 4 bytes. A block that did not
//! become shorter is stored as it is.

/// Decompresses all blocks.
pub(super) fn decompress(stored: &[u8], out: &mut [u8]) -> Result<(), String> {
    let cut = || "it was cut short".to_owned();
    let (total, rest) = stored.split_first_chunk::<8>().ok_or_else(cut)?;
    let (block, mut rest) = rest.split_first_chunk::<4>().ok_or_else(cut)?;
    let (total, block) = (u64::from_be_bytes(*total), u32::from_be_bytes(*block) as usize);
    if total != out.len() as u64 {
        return Err(format!("it has {total} bytes, expected {}", out.len()));
    }
    if block == 0 {
        return Err("its blocks are empty".to_owned());
    }
    for out in out.chunks_mut(block) {
        let (length, after) = rest.split_first_chunk::<4>().ok_or_else(cut)?;
        let length = u32::from_be_bytes(*length) as usize;
        let bytes = after.get(..length).ok_or_else(cut)?;
        rest = &after[length..];
        if length == out.len() {
            out.copy_from_slice(bytes);
            continue;
        }
        let written = lz4_flex::block::decompress_into(bytes, out);
        let written = written.map_err(|error| format!("a block is damaged ({error})"))?;
        if written != out.len() {
            return Err(format!("a block has {written} bytes, expected {}", out.len()));
        }
    }
    if rest.is_empty() { Ok(()) } else { Err(format!("{} bytes follow its last block", rest.len())) }
}

#[cfg(test)]
mod tests {
    use super::*;

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
