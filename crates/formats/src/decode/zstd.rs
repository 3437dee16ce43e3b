//! Frames of Zstandard.

use std::io::Read;

use ruzstd::decoding::errors::{FrameDecoderError, ReadFrameHeaderError};
use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder};

use crate::le;

/// The window of writers that do not know the length, in bytes.
const USUAL_WINDOW: u64 = 8 << 20;

/// About as many bytes are decompressed before they are copied.
const AT_ONCE: usize = 1 << 20;

/// The bytes of a frame's head at most.
pub(crate) const MOST_HEAD: u64 = 18;

/// The number of bytes that a frame declares in its head. `None` if it is no frame, or declares
/// none.
pub(crate) fn content_size(frame: &[u8]) -> Option<u64> {
    let (&[0x28, 0xb5, 0x2f, 0xfd, flags], rest) = frame.split_first_chunk()? else { return None };
    let is_single = flags & 0x20 != 0;
    let dictionary = [0, 1, 2, 4][usize::from(flags & 3)];
    let rest = rest.get(usize::from(!is_single) + dictionary..)?;
    match flags >> 6 {
        0 if !is_single => None,
        0 => le::uint(rest, 0, 1),
        1 => Some(le::uint(rest, 0, 2)? + 256),
        2 => le::uint(rest, 0, 4),
        _ => le::uint(rest, 0, 8),
    }
}

/// Compares the length that the first frame declares with the expected one.
pub(super) fn check(stored: &[u8], expected: usize) -> Result<(), String> {
    match content_size(stored) {
        Some(declared) if declared > expected as u64 => {
            Err(format!("the frame has {declared} bytes, expected {expected}"))
        }
        _ => Ok(()),
    }
}

/// Decompresses all frames, and compares the checksum of each. Other frames are skipped.
pub(super) fn decompress(stored: &[u8], out: &mut [u8]) -> Result<(), String> {
    let mut decoder = FrameDecoder::new();
    // The window is memory, and its length comes from the frame.
    decoder.set_max_window_size(USUAL_WINDOW.max((out.len() as u64).saturating_mul(2)));
    let (mut rest, mut written) = (stored, 0);
    while !rest.is_empty() {
        match decoder.init(&mut rest) {
            Ok(()) => frame(&mut decoder, &mut rest, out, &mut written)?,
            Err(FrameDecoderError::ReadFrameHeaderError(ReadFrameHeaderError::SkipFrame {
                length, ..
            })) => rest = rest.get(length as usize..).ok_or("a frame is cut short")?,
            Err(error) => return Err(damaged(&error)),
        }
    }
    match written == out.len() {
        true => Ok(()),
        false => Err(format!("the frame has {written} bytes, expected {}", out.len())),
    }
}

/// Decompresses the frame that `decoder` has begun to `out`, after the bytes that were written.
fn frame(
    decoder: &mut FrameDecoder,
    stored: &mut &[u8],
    out: &mut [u8],
    written: &mut usize,
) -> Result<(), String> {
    while !decoder.is_finished() {
        let at_once = BlockDecodingStrategy::UptoBytes(AT_ONCE);
        decoder.decode_blocks(&mut *stored, at_once).map_err(|error| damaged(&error))?;
        *written += decoder.read(&mut out[*written..]).map_err(|error| damaged(&error))?;
        if decoder.can_collect() != 0 {
            return Err(format!("the frame has more bytes than the expected {}", out.len()));
        }
    }
    match (decoder.get_checksum_from_data(), decoder.get_calculated_checksum()) {
        (Some(expected), Some(found)) if expected != found => {
            Err(format!("the checksum of its bytes is {found:08x}, expected {expected:08x}"))
        }
        _ => Ok(()),
    }
}

fn damaged(error: &dyn std::fmt::Display) -> String {
    crate::error::one_line(format!("the frame is damaged ({error})"))
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
        // Only the last of several frames had its checksum compared.
        let skipped = [0x50, 0x2a, 0x4d, 0x18, 2, 0, 0, 0, 1, 2];
        let mut both = [&frame[..], &skipped, &frame].concat();
        let mut out = [0; 12];
        decompress(&both, &mut out).unwrap();
        assert_eq!(&out, b"abcdefabcdef");
        assert!(decompress(&both[..22], &mut out).is_err());
        both[10] ^= 1;
        assert!(decompress(&both, &mut out).unwrap_err().contains("checksum"));
    }

    #[test]
    fn declared_lengths_are_known_from_the_head() {
        let head = |flags: u8, rest: &[u8]| [&FRAME[..4], &[flags], rest].concat();
        assert_eq!(content_size(&FRAME), Some(6));
        // A window, and no length.
        assert_eq!(content_size(&head(0, &[0x80, 9, 0, 0])), None);
        assert_eq!(content_size(&head(0x40, &[0x80, 1, 2])), Some(0x201 + 256));
        assert_eq!(content_size(&head(0xa2, &[7, 7, 1, 2, 3, 4])), Some(0x0403_0201));
        assert_eq!(
            content_size(&head(0xc3, &[0x80, 7, 7, 7, 7, 1, 2, 3, 4, 5, 6, 7, 8])),
            Some(0x0807_0605_0403_0201)
        );
        assert_eq!(head(0xc3, &[0; 13]).len() as u64, MOST_HEAD);
        for cut in 0..6 {
            assert_eq!(content_size(&FRAME[..cut]), None);
        }
        assert!(check(&FRAME, 5).unwrap_err().contains("has 6 bytes, expected 5"));
        assert_eq!((check(&FRAME, 6), check(&FRAME, 7)), (Ok(()), Ok(())));
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
