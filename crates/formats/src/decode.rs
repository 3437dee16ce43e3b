//! Decoding stored bytes: decompression, order of bytes, checksums.
//!
//! Each step is a function from bytes to bytes of a length that is known before it runs. So a
//! damaged or hostile stream costs an error, never more memory than its sample. Steps in Rust only,
//! because their input comes from anywhere. The price is that they are slower than the C libraries.

mod brotli;
mod checksum;
mod gzip;
mod lz4;
mod lzf;
mod shuffle;
mod snappy;
mod whole;
mod zlib;
mod zstd;

use std::borrow::Cow;

use foreread_types::{Decoder, Recipe};

pub use whole::decompress;
pub(crate) use zstd::{MOST_HEAD, content_size};

use crate::found::MOST_DECODED;
use crate::parquet::checked_values;

/// Decoded bytes that every parser may have in memory.
const LEAST_LIMIT: u64 = 64 << 20;

/// The most decoded bytes that a parser has in memory, for each byte of the file.
const MOST_GROWTH: u64 = 64;

/// The most bytes that a parser decodes at once, in a file of `size` bytes.
pub(crate) fn limit(size: u64) -> u64 {
    size.saturating_mul(MOST_GROWTH).clamp(LEAST_LIMIT, MOST_DECODED)
}

/// Why stored bytes cannot be decoded, in one line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{step}: {why}")]
pub struct DecodeError {
    step: String,
    why: String,
}

impl DecodeError {
    /// The reason, without the step.
    pub fn why(&self) -> &str {
        &self.why
    }
}

/// The CRC-32 of bytes, as zip, gzip and PNG have it.
pub fn crc32(bytes: &[u8]) -> u32 {
    let mut crc = flate2::Crc::new();
    crc.update(bytes);
    crc.sum()
}

/// Decodes the stored bytes.
///
/// # Errors
/// Damaged bytes, and bytes that result in more or fewer bytes than the recipe's length.
pub fn decode<'a>(recipe: &Recipe, stored: &'a [u8]) -> Result<Cow<'a, [u8]>, DecodeError> {
    let lengths = recipe.lengths(stored.len() as u64).ok_or_else(|| DecodeError {
        step: "length".to_owned(),
        why: format!("{} stored bytes cannot become {} bytes", stored.len(), recipe.length()),
    })?;
    let mut bytes = Cow::Borrowed(stored);
    for (decoder, length) in recipe.decoders().iter().zip(lengths) {
        let failed = |why| DecodeError { step: decoder.to_string(), why };
        bytes = step(*decoder, bytes, length).map_err(failed)?;
    }
    Ok(bytes)
}

/// One step, whose result has `length` bytes, or at most so many after a page's header.
fn step(decoder: Decoder, bytes: Cow<'_, [u8]>, length: u64) -> Result<Cow<'_, [u8]>, String> {
    let length = usize::try_from(length).map_err(|_| no_memory(length))?;
    let decompressed = |decompress: fn(&[u8], &mut [u8]) -> Result<(), String>| {
        let mut out = zeroed(length)?;
        decompress(&bytes, &mut out)?;
        Ok(Cow::Owned(out))
    };
    match decoder {
        Decoder::Deflate => decompressed(zlib::raw),
        Decoder::Zlib => decompressed(zlib::with_head),
        Decoder::Gzip => decompressed(gzip::decompress),
        Decoder::Lzf => decompressed(lzf::decompress),
        Decoder::Lz4 => decompressed(lz4::decompress),
        Decoder::Lz4Block => decompressed(lz4::block),
        Decoder::Brotli => decompressed(brotli::decompress),
        // Streams that have another length take no memory.
        Decoder::Snappy => snappy::check(&bytes, length).and_then(|()| decompressed(snappy::decompress)),
        Decoder::Zstd => zstd::check(&bytes, length).and_then(|()| decompressed(zstd::decompress)),
        Decoder::Shuffle(element) => {
            let mut out = zeroed(length)?;
            shuffle::undo(&bytes, element as usize, &mut out);
            Ok(Cow::Owned(out))
        }
        Decoder::Fletcher32 => {
            checksum::check(&bytes)?;
            Ok(match bytes {
                Cow::Borrowed(bytes) => Cow::Borrowed(&bytes[..length]),
                Cow::Owned(mut bytes) => {
                    bytes.truncate(length);
                    Cow::Owned(bytes)
                }
            })
        }
        Decoder::ParquetPage => {
            let values = checked_values(&bytes)?;
            Ok(match bytes {
                Cow::Borrowed(bytes) => Cow::Borrowed(&bytes[values..]),
                Cow::Owned(bytes) => Cow::Owned(bytes[values..].to_vec()),
            })
        }
    }
}

fn no_memory(length: impl std::fmt::Display) -> String {
    format!("there is no memory for its {length} bytes")
}

/// Zeros. Lengths come from files, so missing memory is an error.
fn zeroed(length: usize) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::new();
    bytes.try_reserve_exact(length).map_err(|_| no_memory(length))?;
    bytes.resize(length, 0);
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn recipe(decoders: &[Decoder], length: u64) -> Recipe {
        Recipe::new(decoders, length).unwrap()
    }

    #[test]
    fn nothing_to_decode_borrows_the_bytes() {
        assert!(matches!(decode(&recipe(&[], 3), b"abc"), Ok(Cow::Borrowed(b"abc"))));
        let error = decode(&recipe(&[], 4), b"abc").unwrap_err();
        assert_eq!(error.to_string(), "length: 3 stored bytes cannot become 4 bytes");
    }

    #[test]
    // semantics: FORMAT-5
    fn steps_run_one_after_another() {
        // Written by shuffle, deflate and fletcher32, of 16 numbers with 2 bytes.
        let numbers: Vec<u8> = (0..16u16).flat_map(|number| (number * 300).to_le_bytes()).collect();
        let mut planes: Vec<u8> = numbers.iter().step_by(2).copied().collect();
        planes.extend(numbers.iter().skip(1).step_by(2));
        let mut stored = Vec::new();
        let mut writer = flate2::write::ZlibEncoder::new(&mut stored, flate2::Compression::default());
        std::io::Write::write_all(&mut writer, &planes).unwrap();
        writer.finish().unwrap();
        let sum = checksum::fletcher32(&stored);
        stored.extend(sum.to_le_bytes());
        let recipe = recipe(&[Decoder::Fletcher32, Decoder::Zlib, Decoder::Shuffle(2)], 32);
        assert_eq!(*decode(&recipe, &stored).unwrap(), numbers);
        for at in 0..stored.len() {
            let mut damaged = stored.clone();
            damaged[at] ^= 4;
            assert!(decode(&recipe, &damaged).is_err(), "byte {at}");
        }
    }
}
