//! Streams of deflate.

use flate2::{Decompress, FlushDecompress, Status};

/// A stream of RFC 1951.
pub(super) fn raw(stored: &[u8], out: &mut [u8]) -> Result<(), String> {
    inflate(Decompress::new(false), stored, out)
}

/// A stream of RFC 1950, whose checksum is compared.
pub(super) fn with_head(stored: &[u8], out: &mut [u8]) -> Result<(), String> {
    inflate(Decompress::new(true), stored, out)
}

fn inflate(mut stream: Decompress, stored: &[u8], out: &mut [u8]) -> Result<(), String> {
    let status = stream.decompress(stored, out, FlushDecompress::Finish);
    let status = status.map_err(|error| format!("the stream is damaged ({error})"))?;
    let (read, written) = (stream.total_in(), stream.total_out());
    match status {
        Status::StreamEnd if written == out.len() as u64 && read == stored.len() as u64 => Ok(()),
        Status::StreamEnd if written < out.len() as u64 => {
            Err(format!("the stream has {written} bytes, expected {}", out.len()))
        }
        Status::StreamEnd => Err(format!("the stream ends after {read} of {} stored bytes", stored.len())),
        _ if written == out.len() as u64 => Err(format!("the stream has more than {written} bytes")),
        _ => Err(format!("the stream was cut short: it has {written} bytes, expected {}", out.len())),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn stored(bytes: &[u8]) -> Vec<u8> {
        let mut writer = flate2::write::DeflateEncoder::new(Vec::new(), flate2::Compression::default());
        writer.write_all(bytes).unwrap();
        writer.finish().unwrap()
    }

    #[test]
    fn streams_have_exactly_the_expected_length() {
        let (bytes, mut out) = (b"abc".repeat(100), [0; 300]);
        let stream = stored(&bytes);
        raw(&stream, &mut out).unwrap();
        assert_eq!(out[..], bytes);
        assert!(raw(&stream, &mut out[..299]).unwrap_err().contains("more than 299"));
        assert!(raw(&stream, &mut [0; 301]).unwrap_err().contains("has 300 bytes, expected 301"));
        assert!(raw(&stream[..stream.len() - 1], &mut out).is_err());
        let mut longer = stream;
        longer.push(0);
        assert!(raw(&longer, &mut out).unwrap_err().contains("ends after"));
    }
}
