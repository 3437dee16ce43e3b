//! Decompressing a stream whose length is not known: a shard that is compressed as a whole.

use std::io::Read;

use flate2::bufread::{MultiGzDecoder, ZlibDecoder};
use foreread_types::Decoder;
use ruzstd::decoding::StreamingDecoder;

use super::DecodeError;

/// Decompresses `stored`, which must become at most `most` bytes.
///
/// # Errors
/// Damaged streams, longer ones, and decoders other than gzip, zlib and Zstandard.
pub fn decompress(decoder: Decoder, stored: &[u8], most: u64) -> Result<Vec<u8>, DecodeError> {
    let failed = |why: String| DecodeError { step: decoder.to_string(), why: crate::error::one_line(why) };
    let mut out = Vec::new();
    let read = match decoder {
        Decoder::Gzip => read_to(MultiGzDecoder::new(stored), &mut out, most),
        Decoder::Zlib => read_to(ZlibDecoder::new(stored), &mut out, most),
        Decoder::Zstd => frames(stored, &mut out, most),
        _ => Err("it has no stream of its own".to_owned()),
    };
    read.map_err(failed)?;
    match out.len() as u64 > most {
        true => Err(failed(format!("it has more than {most} bytes"))),
        false => Ok(out),
    }
}

/// All frames of Zstandard. A frame of another kind is skipped.
fn frames(mut stored: &[u8], out: &mut Vec<u8>, most: u64) -> Result<(), String> {
    while !stored.is_empty() && out.len() as u64 <= most {
        if let [0x50..=0x5f, 0x2a, 0x4d, 0x18, length @ ..] = stored {
            let length = crate::le::u32(length, 0).map_or(usize::MAX, |length| length as usize);
            stored = length.checked_add(8).and_then(|end| stored.get(end..)).ok_or("a frame is cut short")?;
            continue;
        }
        let mut frame = StreamingDecoder::new(&mut stored).map_err(|error| error.to_string())?;
        read_to(&mut frame, out, most)?;
        let decoder = frame.into_frame_decoder();
        let sums = (decoder.get_checksum_from_data(), decoder.get_calculated_checksum());
        if let (Some(expected), Some(found)) = sums
            && expected != found
        {
            return Err(format!("the checksum of its bytes is {found:08x}, expected {expected:08x}"));
        }
    }
    Ok(())
}

/// Reads until the end, or until `out` has more than `most` bytes.
fn read_to(stream: impl Read, out: &mut Vec<u8>, most: u64) -> Result<(), String> {
    let left = most.saturating_sub(out.len() as u64).saturating_add(1);
    stream.take(left).read_to_end(out).map_err(|error| error.to_string())?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn gzip(bytes: &[u8]) -> Vec<u8> {
        let mut writer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
        writer.write_all(bytes).unwrap();
        writer.finish().unwrap()
    }

    #[test]
    // semantics: FORMAT-7
    fn streams_of_unknown_length_are_bounded() {
        let stored = [gzip(&[7; 1000]), gzip(b"end")].concat();
        let whole = decompress(Decoder::Gzip, &stored, 1003).unwrap();
        assert!(whole[..1000] == [7; 1000] && whole.ends_with(b"end"));
        let error = decompress(Decoder::Gzip, &stored, 1002).unwrap_err();
        assert!(error.to_string().contains("more than 1002"), "{error}");
        for cut in [1, 10, stored.len() - 1] {
            assert!(decompress(Decoder::Gzip, &stored[..cut], 2000).is_err(), "{cut}");
        }
        assert!(decompress(Decoder::Shuffle(1), &stored, 2000).is_err());
    }

    #[test]
    // semantics: FORMAT-7
    fn all_frames_are_read() {
        // A raw block of six bytes, and a frame that is skipped.
        let frame = [0x28, 0xb5, 0x2f, 0xfd, 0x20, 0x06, 0x31, 0, 0, b'a', b'b', b'c', b'd', b'e', b'f'];
        let skipped = [0x50, 0x2a, 0x4d, 0x18, 2, 0, 0, 0, 1, 2];
        let stored = [&frame[..], &skipped, &frame].concat();
        assert_eq!(decompress(Decoder::Zstd, &stored, 12).unwrap(), b"abcdefabcdef");
        assert!(decompress(Decoder::Zstd, &stored, 11).is_err());
        assert!(decompress(Decoder::Zstd, &stored[..stored.len() - 1], 20).is_err());
        assert!(decompress(Decoder::Zstd, &stored[..20], 20).is_err(), "in a skipped frame");
    }
}
