//! PNG, with the pixels of Pillow's `convert("RGB")`: transparency is dropped, and 16 bits per
//! channel become 8 by their high byte. Of grey with 16 bits, Pillow limits values to 255 instead.

use std::io::Cursor;

use png::{BitDepth, ColorType, Decoder, DecodingError, Limits, Reader, Transformations};

use crate::crop::Region;
use crate::error::DecodeError;
use crate::pixels::Pixels;

/// The most bytes that headers and text of a file may take.
const METADATA: usize = 64 << 20;

/// A PNG whose header was read.
pub(crate) struct Png<'a>(Reader<Cursor<&'a [u8]>>);

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
        let mut decoder = Decoder::new_with_limits(Cursor::new(bytes), Limits { bytes: METADATA });
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
