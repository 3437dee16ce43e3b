//! Streams of Brotli, with windows of at most 16 MiB.

use brotli_decompressor::{BrotliDecompressStream, BrotliResult, BrotliState, StandardAlloc};

/// Decompresses a stream.
pub(super) fn decompress(stored: &[u8], out: &mut [u8]) -> Result<(), String> {
    let memory = StandardAlloc::default;
    // Without large windows, whose memory would be that of the stream's head.
    let mut state = BrotliState::new_strict(memory(), memory(), memory());
    let (mut unread, mut read, mut room, mut written, mut total) = (stored.len(), 0, out.len(), 0, 0);
    let most = out.len();
    let result = BrotliDecompressStream(
        &mut unread,
        &mut read,
        stored,
        &mut room,
        &mut written,
        out,
        &mut total,
        &mut state,
    );
    match result {
        BrotliResult::ResultSuccess if room == 0 && unread == 0 => Ok(()),
        BrotliResult::ResultSuccess if room == 0 => {
            Err(format!("the stream ends after {read} of {} stored bytes", stored.len()))
        }
        BrotliResult::ResultSuccess => Err(format!("the stream has {written} bytes, expected {most}")),
        BrotliResult::NeedsMoreInput => {
            Err(format!("the stream was cut short: it has {written} bytes, expected {most}"))
        }
        BrotliResult::NeedsMoreOutput => Err(format!("the stream has more than {most} bytes")),
        BrotliResult::ResultFailure => Err("the stream is damaged".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 300 bytes, by brotli 1.2.1.
    const STREAM: [u8; 14] = [0x1b, 0x2b, 1, 0xf8, 0x25, 0xc3, 0xc4, 0xc6, 0x62, 0xb3, 0x20, 0x60, 0xac, 1];

    #[test]
    // semantics: FORMAT-5
    fn streams_have_exactly_the_expected_length() {
        let mut out = [0; 300];
        decompress(&STREAM, &mut out).unwrap();
        assert_eq!(out[..], b"abc".repeat(100));
        assert!(decompress(&STREAM, &mut out[..299]).unwrap_err().contains("more than 299"));
        assert!(decompress(&STREAM, &mut [0; 301]).unwrap_err().contains("has 300 bytes, expected 301"));
        for cut in 0..STREAM.len() {
            assert!(decompress(&STREAM[..cut], &mut out).is_err(), "{cut}");
        }
        let longer = [&STREAM[..], &[0]].concat();
        assert!(decompress(&longer, &mut out).unwrap_err().contains("ends after 14 of 15"));
    }

    #[test]
    // semantics: FORMAT-5
    fn streams_with_a_large_window_are_refused() {
        // The head of a window of 2^30 bytes.
        let error = decompress(&[0x11, 30, 0x80, 0x61, 3], &mut [0]).unwrap_err();
        assert_eq!(error, "the stream is damaged");
    }
}
