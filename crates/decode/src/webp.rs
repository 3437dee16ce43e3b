//! WebP, lossy and lossless, with the pixels of Pillow's `convert("RGB")`: transparency is dropped.

use std::io::Cursor;

use image_webp::{DecodingError, WebPDecoder};

use crate::crop::Region;
use crate::error::DecodeError;
use crate::pixels::Pixels;

/// A WebP file whose header was read.
pub(crate) struct WebP<'a>(WebPDecoder<Cursor<&'a [u8]>>);

fn failed(error: DecodingError) -> DecodeError {
    match error {
        DecodingError::IoError(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => {
            DecodeError::corrupt("the file is truncated")
        }
        other => DecodeError::corrupt(other.to_string()),
    }
}

impl<'a> WebP<'a> {
    pub(crate) fn open(bytes: &'a [u8]) -> Result<Self, DecodeError> {
        Ok(Self(WebPDecoder::new(Cursor::new(bytes)).map_err(failed)?))
    }

    pub(crate) fn size(&self) -> (u32, u32) {
        self.0.dimensions()
    }

    /// Decodes the whole image: WebP cannot be decoded in part.
    pub(crate) fn decode(mut self, region: Region, pixels: &mut Pixels) -> Result<(), DecodeError> {
        let (width, height) = self.size();
        let bytes = self.0.output_buffer_size().ok_or_else(|| DecodeError::corrupt("the size overflows"))?;
        pixels.resize(width, height);
        pixels.begin_at(region);
        if !self.0.has_alpha() {
            return self.0.read_image(&mut pixels.data).map_err(failed);
        }
        let mut raw = vec![0; bytes];
        self.0.read_image(&mut raw).map_err(failed)?;
        for (to, from) in pixels.data.chunks_exact_mut(3).zip(raw.chunks_exact(4)) {
            to.copy_from_slice(&from[..3]);
        }
        Ok(())
    }
}
