//! Resizes with Pillow's bilinear filter, which averages over all source pixels where an image
//! becomes smaller.
//!
//! Pillow's coefficients have 22 bits after the point, these have at most 16. So results differ by
//! 1 from Pillow's, in one of a thousand images by 2.
//!
//! Only the kernels of RGB pixels are compiled. Those of all types take two minutes.

use fast_image_resize::images::{TypedCroppedImage, TypedImage, TypedImageRef};
use fast_image_resize::pixels::U8x3;
use fast_image_resize::{FilterType, ResizeAlg, ResizeOptions, Resizer};

use crate::crop::Region;
use crate::error::DecodeError;
use crate::image::MOST_KEPT;
use crate::pixels::Pixels;

/// The coefficients and intermediate rows of the last image.
#[derive(Debug, Default)]
pub(crate) struct Resize(Resizer);

impl Resize {
    /// Resizes the needed region of `pixels` to `width` x `height` RGB pixels in `to`.
    pub(crate) fn resize(
        &mut self,
        pixels: &Pixels,
        region: Region,
        (width, height): (u32, u32),
        to: &mut Vec<u8>,
    ) -> Result<(), DecodeError> {
        let failed = |error: String| DecodeError::corrupt(format!("cannot be resized: {error}"));
        to.resize(width as usize * height as usize * 3, 0);
        let used = &pixels.data[..pixels.width as usize * pixels.height as usize * 3];
        let from = TypedImageRef::<U8x3>::from_buffer(pixels.width, pixels.height, used)
            .map_err(|error| failed(error.to_string()))?;
        let cropped =
            TypedCroppedImage::from_ref(&from, pixels.left, pixels.top, region.width, region.height)
                .map_err(|error| failed(error.to_string()))?;
        let mut result =
            TypedImage::<U8x3>::from_buffer(width, height, to).map_err(|error| failed(error.to_string()))?;
        let filter = ResizeOptions::new().resize_alg(ResizeAlg::Convolution(FilterType::Bilinear));
        let resized = self.0.resize_typed(&cropped, &mut result, &filter);
        if self.0.size_of_internal_buffers() > MOST_KEPT {
            self.0.reset_internal_buffers();
        }
        resized.map_err(|error| failed(error.to_string()))
    }
}
