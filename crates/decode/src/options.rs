//! The form that an image gets.

/// Which part of an image is used.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Crop {
    /// For training: torchvision's `RandomResizedCrop` and `RandomHorizontalFlip`.
    Random {
        /// The smallest and largest share of the image's area.
        scale: (f64, f64),
        /// The smallest and largest aspect ratio, width by height.
        ratio: (f64, f64),
        /// The probability of a flip.
        flip: f64,
    },
    /// For validation: torchvision's `Resize` of the shorter side to this length, and `CenterCrop`.
    Center {
        /// The length of the shorter side, in pixels.
        resize: u32,
    },
    /// All of it, stretched to the output.
    Whole,
}

/// The type of output values.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum PixelType {
    /// Bytes, 0 to 255.
    U8,
    /// `(value / 255 - mean) / deviation` by channel, 32 bits, native byte order: the bits of
    /// torchvision's `ToTensor` and `Normalize`.
    F32 {
        /// Red, green and blue, of values from 0 to 1.
        mean: [f32; 3],
        /// The same, each above 0.
        deviation: [f32; 3],
    },
}

/// The order of output values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ChannelOrder {
    /// Channel, row, column: PyTorch's.
    Chw,
    /// Row, column, channel: TensorFlow's.
    Hwc,
}

/// The form that an image gets.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ImageOptions {
    /// The width of the output, in pixels.
    pub width: u32,
    /// The height of the output, in pixels.
    pub height: u32,
    /// Which part of an image is used.
    pub crop: Crop,
    /// The type of output values.
    pub pixels: PixelType,
    /// The order of output values.
    pub order: ChannelOrder,
    /// Images of more pixels are refused, because a file of a few kilobytes can contain billions.
    pub max_pixels: u64,
}

impl ImageOptions {
    /// Twice this number is an error in Pillow, which warns above it.
    pub const MAX_PIXELS: u64 = 89_478_485;

    /// Training with torchvision's defaults: `width` x `height` bytes per channel, channels first.
    pub fn training(width: u32, height: u32) -> Self {
        let crop = Crop::Random { scale: (0.08, 1.0), ratio: (3.0 / 4.0, 4.0 / 3.0), flip: 0.5 };
        let (pixels, order) = (PixelType::U8, ChannelOrder::Chw);
        Self { width, height, crop, pixels, order, max_pixels: Self::MAX_PIXELS }
    }

    /// Validation as is usual for ImageNet: the shorter side is resized to 8/7 of the crop's.
    pub fn validation(width: u32, height: u32) -> Self {
        let resize = (f64::from(width.max(height)) * 256.0 / 224.0).round() as u32;
        Self { crop: Crop::Center { resize }, ..Self::training(width, height) }
    }

    /// The values of an image.
    pub(crate) fn values(&self) -> usize {
        self.width as usize * self.height as usize * 3
    }

    /// Checks the options.
    pub(crate) fn check(&self) -> Result<(), OptionsError> {
        let refuse = |text: String| Err(OptionsError(text));
        // A side of 65,535 is the most that JPEG has.
        if !(1..=65_535).contains(&self.width) || !(1..=65_535).contains(&self.height) {
            return refuse(format!("size {}x{}: 1 to 65535 pixels a side", self.width, self.height));
        }
        match self.crop {
            Crop::Random { scale, ratio, flip } => {
                if !(scale.0 > 0.0 && scale.0 <= scale.1 && scale.1 <= 1.0) {
                    return refuse(format!("scale {scale:?}: two shares of the area, above 0 and at most 1"));
                }
                if !(ratio.0 > 0.0 && ratio.0 <= ratio.1 && ratio.1.is_finite()) {
                    return refuse(format!("ratio {ratio:?}: two aspect ratios above 0, the smaller first"));
                }
                if !(0.0..=1.0).contains(&flip) {
                    return refuse(format!("flip {flip}: a probability from 0 to 1"));
                }
            }
            Crop::Center { resize } => {
                if resize < self.width.max(self.height) || resize > 65_535 {
                    let least = self.width.max(self.height);
                    return refuse(format!("resize {resize}: at least the size, {least}, and at most 65535"));
                }
            }
            Crop::Whole => {}
        }
        if let PixelType::F32 { mean, deviation } = self.pixels
            && !(mean.iter().all(|value| value.is_finite())
                && deviation.iter().all(|value| *value > 0.0 && value.is_finite()))
        {
            return refuse(format!("mean {mean:?}, std {deviation:?}: finite, and each std above 0"));
        }
        Ok(())
    }
}

/// An option that makes no sense.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct OptionsError(String);
