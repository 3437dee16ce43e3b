//! PNG, with the pixels of Pillow's `convert("RGB")`: transparency is dropped, and 16 bits per
//! channel become 8 by their high byte. Of grey with 16 bits, Pillow limits values to 255 instead.
//!
//! Some writers leave out the last chunk, `IEND`. Such a file is decoded if all of its other chunks
//! are whole. A file that was cut off inside of a chunk, or between those of the pixels, is an
//! error.

use std::borrow::Cow;
use std::io::Cursor;

use png::{BitDepth, ColorType, Decoder, DecodingError, Limits, Reader, Transformations};

use crate::crop::Region;
use crate::error::DecodeError;
use crate::pixels::Pixels;

/// The most bytes that headers and text of a file may take.
const METADATA: usize = 64 << 20;

/// The bytes before the first chunk.
const SIGNATURE: usize = 8;

/// The last chunk of a file: no bytes, its name and their checksum.
const END: &[u8; 12] = b"\0\0\0\0IEND\xae\x42\x60\x82";

/// A PNG whose header was read.
pub(crate) struct Png<'a>(Reader<Cursor<Cow<'a, [u8]>>>);

/// The file with its last chunk, which is added if the file ends after a whole chunk of pixels.
fn with_end(bytes: &[u8]) -> Cow<'_, [u8]> {
    if bytes.ends_with(END) {
        return Cow::Borrowed(bytes);
    }
    let (mut rest, mut last) = (bytes.get(SIGNATURE..).unwrap_or_default(), [0; 4]);
    while let Some((length, after)) = rest.split_first_chunk::<4>()
        && let Some((name, data)) = after.split_first_chunk::<4>()
        && let Some(next) = data.get(u32::from_be_bytes(*length) as usize..)
        && let Some((_, next)) = next.split_first_chunk::<4>()
    {
        (rest, last) = (next, *name);
    }
    match rest.is_empty() && &last == b"IDAT" {
        true => Cow::Owned([bytes, END].concat()),
        false => Cow::Borrowed(bytes),
    }
}

fn failed(error: DecodingError) -> DecodeError {
    match error {
        DecodingError::IoError(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => {
            DecodeError::corrupt("the file is truncated")
        }
        other => DecodeError::corrupt(other.to_string()),
    }
}

impl<'a> Png<'a> {
    pub(crate) fn open(bytes: &'a [u8]) -> Result<Self, DecodeError> {
        let mut decoder = Decoder::new_with_limits(Cursor::new(with_end(bytes)), Limits { bytes: METADATA });
        decoder.set_transformations(Transformations::EXPAND);
        decoder.set_ignore_text_chunk(true);
        decoder.set_ignore_iccp_chunk(true);
        Ok(Self(decoder.read_info().map_err(failed)?))
    }

    pub(crate) fn size(&self) -> (u32, u32) {
        (self.0.info().width, self.0.info().height)
    }

    /// Decodes the whole image: PNG cannot be decoded in part.
    pub(crate) fn decode(mut self, region: Region, pixels: &mut Pixels) -> Result<(), DecodeError> {
        let (width, height) = self.size();
        let (color, depth) = self.0.output_color_type();
        let bytes = self.0.output_buffer_size().ok_or_else(|| DecodeError::corrupt("the size overflows"))?;
        pixels.resize(width, height);
        pixels.begin_at(region);
        if (color, depth) == (ColorType::Rgb, BitDepth::Eight) {
            self.0.next_frame(&mut pixels.data).map_err(failed)?;
            return Ok(());
        }
        let mut raw = vec![0; bytes];
        self.0.next_frame(&mut raw).map_err(failed)?;
        let wide = depth == BitDepth::Sixteen;
        let grey = self.0.info().color_type == ColorType::Grayscale;
        let to = pixels.data.chunks_exact_mut(3);
        match (color, wide) {
            // With transparency of one level, which became a channel.
            (ColorType::Grayscale, true) | (ColorType::GrayscaleAlpha, true) if grey => {
                let values =
                    raw.chunks_exact(2 * color.samples()).map(|two| if two[0] > 0 { 255 } else { two[1] });
                to.zip(values).for_each(|(to, grey)| to.fill(grey));
            }
            (ColorType::Grayscale | ColorType::GrayscaleAlpha, _) => {
                let values = raw.chunks_exact(color.samples() * if wide { 2 } else { 1 });
                to.zip(values).for_each(|(to, from)| to.fill(from[0]));
            }
            (ColorType::Rgb | ColorType::Rgba | ColorType::Indexed, _) => {
                let step = if wide { 2 } else { 1 };
                let values = raw.chunks_exact(color.samples() * step);
                for (to, from) in to.zip(values) {
                    to.copy_from_slice(&[from[0], from[step], from[2 * step]]);
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn decoded(bytes: &[u8]) -> Result<Vec<u8>, DecodeError> {
        let image = Png::open(bytes)?;
        let (width, height) = image.size();
        let mut pixels = Pixels::default();
        image.decode(Region::whole(width, height), &mut pixels)?;
        Ok(pixels.data)
    }

    /// Pixels that no compression makes shorter, so that they take several chunks.
    fn file() -> (Vec<u8>, Vec<u8>) {
        let step = |state: &mut u64| {
            *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            Some((*state >> 56) as u8)
        };
        let pixels: Vec<u8> = (0..60 * 140 * 3).scan(7, |state, _| step(state)).collect();
        let mut bytes = Vec::new();
        let mut encoder = png::Encoder::new(&mut bytes, 60, 140);
        encoder.set_color(ColorType::Rgb);
        let mut writer = encoder.write_header().unwrap();
        let mut stream = writer.stream_writer_with_size(4096).unwrap();
        stream.write_all(&pixels).unwrap();
        stream.finish().unwrap();
        writer.finish().unwrap();
        (bytes, pixels)
    }

    #[test]
    // semantics: IMAGE-2
    fn file_without_its_last_chunk_is_whole() {
        let (bytes, pixels) = file();
        assert!(bytes.windows(4).filter(|name| name == b"IDAT").count() > 5);
        assert_eq!(decoded(&bytes).unwrap(), pixels);
        let without = &bytes[..bytes.len() - END.len()];
        assert_eq!(decoded(without).unwrap(), pixels);
    }

    #[test]
    // semantics: IMAGE-2
    fn cut_file_is_never_whole() {
        let (bytes, pixels) = file();
        let end = bytes.len() - END.len();
        let mut chunk = SIGNATURE;
        let ends = std::iter::from_fn(|| {
            let length = bytes.get(chunk..chunk + 4)?;
            chunk += 12 + u32::from_be_bytes(length.try_into().ok()?) as usize;
            Some(chunk)
        });
        let ends: Vec<usize> = ends.filter(|&at| at < end).collect();
        let inside = ends.iter().flat_map(|&at| [at - 1, at + 1, at + 8]).chain(end - 20..end);
        for cut in inside.chain(end + 1..end + 8).filter(|cut| !ends.contains(cut)) {
            assert!(decoded(&bytes[..cut]).is_err(), "{cut} of {end}");
        }
        // After a chunk, all pixels may be there.
        assert!(ends.iter().filter(|&&cut| decoded(&bytes[..cut]).is_err()).count() > 5);
        assert!(ends.iter().filter_map(|&cut| decoded(&bytes[..cut]).ok()).all(|found| found == pixels));
    }
}
