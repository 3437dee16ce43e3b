//! Streams of gzip. Several may follow each other, and each ends with a checksum and its length.

use std::io::Read;

use flate2::bufread::MultiGzDecoder;

/// Decompresses all streams.
pub(super) fn decompress(stored: &[u8], out: &mut [u8]) -> Result<(), String> {
    let damaged = |error| crate::error::one_line(format!("the stream is damaged ({error})"));
    let (mut stream, mut written) = (MultiGzDecoder::new(stored), 0);
    while written < out.len() {
        match stream.read(&mut out[written..]).map_err(damaged)? {
            0 => return Err(format!("the stream has {written} bytes, expected {}", out.len())),
            read => written += read,
        }
    }
    // The checksum of the last stream is compared at its end.
    match stream.read(&mut [0]).map_err(damaged)? {
        0 => Ok(()),
        _ => Err(format!("the stream has more than {written} bytes")),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn stored(bytes: &[u8]) -> Vec<u8> {
        let mut writer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
        writer.write_all(bytes).unwrap();
        writer.finish().unwrap()
    }

    #[test]
    // semantics: FORMAT-5
    fn all_streams_are_decoded() {
        let bytes = b"abc".repeat(100);
        let one = stored(&bytes);
        let (mut out, both) = ([0; 600], [&one[..], &one].concat());
        decompress(&one, &mut out[..300]).unwrap();
        decompress(&both, &mut out).unwrap();
        assert_eq!(out[..], bytes.repeat(2));
        assert!(decompress(&both, &mut out[..300]).unwrap_err().contains("more than 300"));
        assert!(decompress(&one, &mut out).unwrap_err().contains("has 300 bytes, expected 600"));
        for cut in 0..one.len() {
            assert!(decompress(&one[..cut], &mut out[..300]).is_err(), "{cut}");
        }
        let mut damaged = one.clone();
        damaged[one.len() - 6] ^= 1;
        assert!(decompress(&damaged, &mut out[..300]).unwrap_err().contains("damaged"));
        damaged.clone_from(&one);
        damaged.extend(b"garbage");
        assert!(decompress(&damaged, &mut out[..300]).is_err());
    }
}
