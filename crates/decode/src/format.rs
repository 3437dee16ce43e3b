//! Recognises image formats by their first bytes, whatever a file's name says.

use crate::crop::Region;
use crate::error::{DecodeError, DecodeErrorKind};
use crate::jpeg::Jpeg;
use crate::pixels::Pixels;
use crate::png::Png;
use crate::webp::WebP;

/// A supported image format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ImageFormat {
    /// JPEG: baseline, progressive, grey, CMYK.
    Jpeg,
    /// PNG of any depth. Of animations the first picture.
    Png,
    /// WebP, lossy or lossless. Of animations the first frame.
    WebP,
}

/// Formats that are recognised to name them in errors.
const OTHERS: &[(&[u8], &str)] = &[
    (b"GIF8", "GIF"),
    (b"BM", "BMP"),
    (b"II*\0", "TIFF"),
    (b"MM\0*", "TIFF"),
    (b"\0\0\0\x0cjP  ", "JPEG 2000"),
    (b"\xff\x0a", "JPEG XL"),
];

impl ImageFormat {
    /// The format of a file that begins with these bytes.
    ///
    /// # Errors
    /// If the format is not supported.
    pub fn of(bytes: &[u8]) -> Result<Self, DecodeError> {
        if bytes.starts_with(b"\xff\xd8\xff") {
            return Ok(Self::Jpeg);
        }
        if bytes.starts_with(b"\x89PNG\r\n\x1a\n") {
            return Ok(Self::Png);
        }
        if bytes.starts_with(b"RIFF") && bytes.get(8..12) == Some(b"WEBP") {
            return Ok(Self::WebP);
        }
        if bytes.is_empty() {
            return Err(DecodeError::corrupt("the sample is empty"));
        }
        let other = OTHERS.iter().find(|(start, _)| bytes.starts_with(start));
        let other = match (other, bytes.get(4..12)) {
            (Some((_, name)), _) => name,
            (None, Some(b"ftypavif")) => "AVIF",
            (None, Some(b"ftypheic")) => "HEIC",
            _ => return Err(DecodeError::corrupt("not an image: neither JPEG, PNG nor WebP")),
        };
        let message =
            format!("{other} is not supported: JPEG, PNG and WebP are; a function as decode= can use Pillow");
        Err(DecodeError::unsupported(message))
    }
}

/// An image whose header was read.
pub(crate) enum Opened<'a> {
    Jpeg(Jpeg<'a>),
    Png(Box<Png<'a>>),
    WebP(WebP<'a>),
}

impl<'a> Opened<'a> {
    /// Reads the header, and refuses images of more than `max_pixels`.
    pub(crate) fn new(bytes: &'a [u8], max_pixels: u64) -> Result<Self, DecodeError> {
        let opened = match ImageFormat::of(bytes)? {
            ImageFormat::Jpeg => Self::Jpeg(Jpeg::open(bytes)?),
            ImageFormat::Png => Self::Png(Box::new(Png::open(bytes)?)),
            ImageFormat::WebP => Self::WebP(WebP::open(bytes)?),
        };
        let (width, height) = opened.size();
        let pixels = u64::from(width) * u64::from(height);
        if pixels == 0 {
            return Err(DecodeError::corrupt("the image has no pixels"));
        }
        if pixels > max_pixels {
            let message = format!("{width} x {height} pixels: more than max_pixels={max_pixels} are refused");
            return Err(DecodeError::new(DecodeErrorKind::TooLarge, message));
        }
        Ok(opened)
    }

    /// Width and height.
    pub(crate) fn size(&self) -> (u32, u32) {
        match self {
            Self::Jpeg(image) => image.size(),
            Self::Png(image) => image.size(),
            Self::WebP(image) => image.size(),
        }
    }

    /// Decodes at least `region` into `pixels`.
    pub(crate) fn decode(self, region: Region, pixels: &mut Pixels) -> Result<(), DecodeError> {
        match self {
            Self::Jpeg(image) => image.decode(region, pixels),
            Self::Png(image) => image.decode(region, pixels),
            Self::WebP(image) => image.decode(region, pixels),
        }
    }
}
