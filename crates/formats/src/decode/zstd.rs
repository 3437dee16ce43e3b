//! Frames of Zstandard.

use ruzstd::decoding::FrameDecoder;

/// The window of writers that do not know the length, in bytes.
const USUAL_WINDOW: u64 = 8 << 20;

/// Decompresses all frames.
pub(super) fn decompress(stored: &[u8], out: &mut [u8]) -> Result<(), String> {
    let mut decoder = FrameDecoder::new();
    // The window is memory, and its length comes from the frame.
    decoder.set_max_window_size(USUAL_WINDOW.max((out.len() as u64).saturating_mul(2)));
    let damaged = |error| crate::error::one_line(format!("the frame is damaged ({error})"));
    let written = decoder.decode_all(stored, out).map_err(damaged)?;
    if written != out.len() {
        return Err(format!("the frame has {written} bytes, expected {}", out.len()));
    }
    match (decoder.get_checksum_from_data(), decoder.get_calculated_checksum()) {
        (Some(expected), Some(found)) if expected != found => {
            Err(format!("the checksum of its bytes is {found:08x}, expected {expected:08x}"))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A frame of 6 bytes with a checksum, by zstd 1.5.
    const FRAME: [u8; 19] = [
        0x28, 0xb5, 0x2f, 0xfd, 0x24, 0x06, 0x31, 0x00, 0x00, b'a', b'b', b'c', b'd', b'e', b'f', 0, 0, 0, 0,
    ];

    #[test]
    fn frames_have_the_expected_length_and_checksum() {
        let mut frame = FRAME;
        let mut out = [0; 6];
        let error = decompress(&frame, &mut out).unwrap_err();
        let found = error.split("bytes is ").nth(1).and_then(|rest| rest.get(..8)).unwrap();
        let sum = u32::from_str_radix(found, 16).unwrap();
        frame[15..].copy_from_slice(&sum.to_le_bytes());
        decompress(&frame, &mut out).unwrap();
        assert_eq!(&out, b"abcdef");
        assert!(decompress(&frame, &mut [0; 5]).is_err());
        assert!(decompress(&frame, &mut [0; 7]).unwrap_err().contains("expected 7"));
    }

    #[test]
    // semantics: FORMAT-5
    fn frames_with_a_large_window_are_refused() {
        // A window of 64 MiB for one byte.
        let frame = [0x28, 0xb5, 0x2f, 0xfd, 0x00, 0x80, 0x09, 0x00, 0x00, b'a'];
        assert!(decompress(&frame, &mut [0]).is_err());
        let small = [0x28, 0xb5, 0x2f, 0xfd, 0x00, 0x00, 0x09, 0x00, 0x00, b'a'];
        decompress(&small, &mut [0]).unwrap();
    }
}
