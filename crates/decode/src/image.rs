//! The decoder of images.

use crate::crop::{self, Augmentation, Region};
use crate::decoder::Decoder;
use crate::draw::Draw;
use crate::error::{DecodeError, DecodeErrorKind};
use crate::format::Opened;
use crate::options::{Crop, ImageOptions, OptionsError};
use crate::output::Values;
use crate::pixels::Pixels;
use crate::resize::Resize;

/// Decodes JPEG, PNG and WebP: crops, resizes, flips and normalises as torchvision's transforms of
/// a Pillow image.
///
/// The format is recognised by a sample's first bytes. Orientation in EXIF data is ignored, as by
/// torchvision's `ImageFolder`.
///
/// ```
/// use foreread_decode::{Decoder as _, ImageDecoder, ImageOptions};
///
/// let decoder = ImageDecoder::new(ImageOptions::training(224, 224))?;
/// assert_eq!(decoder.output_bytes(), 3 * 224 * 224);
/// # Ok::<_, foreread_decode::OptionsError>(())
/// ```
#[derive(Debug)]
pub struct ImageDecoder {
    options: ImageOptions,
    values: Values,
}

/// The bytes of an image whose memory a thread keeps for the next one: 22 million pixels. A single
/// larger image must not cost memory for the rest of the run.
pub(crate) const MOST_KEPT: usize = 64 << 20;

/// A thread's memory for images.
#[derive(Debug, Default)]
pub struct Scratch {
    pixels: Pixels,
    resize: Resize,
    resized: Vec<u8>,
}

impl ImageDecoder {
    /// A decoder with these options.
    ///
    /// # Errors
    /// If an option is out of range.
    pub fn new(options: ImageOptions) -> Result<Self, OptionsError> {
        options.check()?;
        Ok(Self { options, values: Values::new(options.pixels) })
    }

    /// The options.
    pub fn options(&self) -> &ImageOptions {
        &self.options
    }

    /// The region of an image of this size that `draw` selects, and whether it is flipped. With
    /// [`Crop::Center`] the region is that of the resized image.
    ///
    /// # Panics
    /// If a side is 0.
    pub fn augmentation(&self, width: u32, height: u32, draw: Draw) -> Augmentation {
        let size = (width, height);
        match self.options.crop {
            Crop::Random { scale, ratio, flip } => crop::random(size, scale, ratio, flip, draw),
            Crop::Center { resize } => {
                let output = (self.options.width, self.options.height);
                let region = crop::center(crop::resized(size, resize), output);
                Augmentation { region, flipped: false }
            }
            Crop::Whole => Augmentation { region: Region::whole(width, height), flipped: false },
        }
    }

    /// Refuses to resize where it would take much more memory than the image.
    fn check_resizing(&self, from: Region, to: (u32, u32)) -> Result<(), String> {
        let is_allowed =
            |width: u32, height: u32| u64::from(width) * u64::from(height) <= self.options.max_pixels;
        if !is_allowed(to.0, to.1) {
            let (width, height) = to;
            return Err(format!(
                "{width} x {height} after resizing is too large; stretch or omit such images"
            ));
        }
        // The first pass makes rows of the source's width for each row of the result. Coefficients
        // have a part for each row and column of the source.
        if !is_allowed(from.width, to.1) || !is_allowed(from.height, to.0) {
            return Err(format!("a side is too long to be resized to {} x {}; omit such images", to.0, to.1));
        }
        Ok(())
    }
}

impl Decoder for ImageDecoder {
    type Scratch = Scratch;

    fn output_bytes(&self) -> usize {
        self.options.values() * self.values.size()
    }

    fn decode(
        &self,
        sample: &[u8],
        draw: Draw,
        scratch: &mut Scratch,
        output: &mut [u8],
    ) -> Result<(), DecodeError> {
        let Scratch { pixels, resize, resized } = scratch;
        let image = Opened::new(sample, self.options.max_pixels)?;
        let (width, height) = image.size();
        let Augmentation { region, flipped } = self.augmentation(width, height, draw);
        let output_size = (self.options.width, self.options.height);
        let whole = Region::whole(output_size.0, output_size.1);
        let (from, to, used) = match self.options.crop {
            Crop::Center { resize } => {
                (Region::whole(width, height), crop::resized((width, height), resize), region)
            }
            Crop::Random { .. } | Crop::Whole => (region, output_size, whole),
        };
        self.check_resizing(from, to).map_err(|why| {
            let message = format!("{width} x {height} pixels: {why}");
            DecodeError::new(DecodeErrorKind::TooLarge, message)
        })?;
        image.decode(from, pixels)?;
        resize.resize(pixels, from, to, resized)?;
        self.values.write(&self.options, (resized, to.0), used, flipped, output);
        for kept in [&mut pixels.data, resized] {
            if kept.capacity() > MOST_KEPT {
                *kept = Vec::new();
            }
        }
        Ok(())
    }
}
