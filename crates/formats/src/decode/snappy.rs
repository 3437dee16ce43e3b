//! Blocks of Snappy. A block begins with its length.

/// Compares the length that the block declares with the expected one.
pub(super) fn check(stored: &[u8], expected: usize) -> Result<(), String> {
    match snap::raw::decompress_len(stored) {
        Ok(length) if length == expected => Ok(()),
        Ok(length) => Err(format!("the block has {length} bytes, expected {expected}")),
        Err(error) => Err(damaged(&error)),
    }
}

/// Decompresses a block, whose length was compared.
pub(super) fn decompress(stored: &[u8], out: &mut [u8]) -> Result<(), String> {
    let written = snap::raw::Decoder::new().decompress(stored, out).map_err(|error| damaged(&error))?;
    if written == out.len() { Ok(()) } else { Err(format!("the block has {written} bytes")) }
}

fn damaged(error: &snap::Error) -> String {
    format!("the block is damaged ({error})")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    // semantics: FORMAT-5
    fn blocks_have_the_declared_length() {
        let bytes = b"abcdefgh".repeat(50);
        let stored = snap::raw::Encoder::new().compress_vec(&bytes).unwrap();
        let mut out = vec![0; bytes.len()];
        check(&stored, out.len()).unwrap();
        decompress(&stored, &mut out).unwrap();
        assert_eq!(out, bytes);
        assert!(check(&stored, 399).unwrap_err().contains("has 400 bytes, expected 399"));
        assert!(decompress(&stored, &mut out[..399]).is_err());
        for cut in 0..stored.len() {
            let damaged = check(&stored[..cut], 400).and_then(|()| decompress(&stored[..cut], &mut out));
            assert!(damaged.is_err(), "{cut}");
        }
        // A length beyond 32 bits.
        assert!(check(&[0xff; 10], 400).is_err());
    }
}
