//! Decodes samples into batches, by threads that hold no lock of the caller.
//!
//! A [`Decoder`] makes a sample's bytes a fixed number of output bytes. [`ImageDecoder`] is the one
//! for JPEG, PNG and WebP: it decodes, crops, resizes, flips and normalises, with torchvision's
//! parameters and pixels. A [`Pool`] of threads decodes whole batches, straight into the memory of
//! each batch.
//!
//! Decision: random crops and flips are drawn from (seed, epoch, sample) and nothing else. So a
//! sample has the same pixels in any batch, on any rank and thread, and after any resume. The price
//! is that draws differ from those of torchvision, whose generators depend on the number of
//! workers.
//!
//! # Codecs
//!
//! * JPEG by libjpeg-turbo, as in `mozjpeg-sys`. It is the decoder of Pillow and torchvision, so
//!   pixels are equal, and it can decode a region. `zune-jpeg` took 2,020 us instead of 1,700 for a
//!   file of 110 KB, and 28 % of its values differ, by up to 8.
//! * PNG by `png` and WebP by `image-webp`: Rust, for hostile bytes. Pixels are equal to Pillow's.
//! * Resizing by `fast_image_resize`: Pillow's filter with AVX2. Values differ by 1, rarely 2.
//!
//! `mozjpeg-sys` needs a C compiler. With `nasm` at build time, decoding is two to three times as
//! fast on x86-64.
//!
//! The loader and the facade do not depend on this crate: their samples are bytes.

mod buffers;
mod crop;
mod decoder;
mod draw;
mod error;
mod format;
mod image;
mod jpeg;
mod options;
mod output;
mod pixels;
mod png;
mod pool;
mod resize;
mod webp;

pub use self::buffers::{BatchBuffer, BatchBuffers};
pub use self::crop::{Augmentation, Region};
pub use self::decoder::Decoder;
pub use self::draw::Draw;
pub use self::error::{DecodeError, DecodeErrorKind};
pub use self::format::ImageFormat;
pub use self::image::{ImageDecoder, Scratch};
pub use self::options::{ChannelOrder, Crop, ImageOptions, OptionsError, PixelType};
pub use self::pool::{DecodedBatch, Failure, Item, Output, Pending, Pool, threads_of_rank};
