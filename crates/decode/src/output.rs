//! Writes resized pixels in the order and type of the batch.

use crate::crop::Region;
use crate::options::{ChannelOrder, ImageOptions, PixelType};

/// The value of each byte, for each channel: with a table, results have the bits of torchvision's
/// two operations, at the price of one.
#[derive(Debug)]
pub(crate) enum Values {
    Bytes,
    Floats(Box<[[f32; 256]; 3]>),
}

impl Values {
    pub(crate) fn new(pixels: PixelType) -> Self {
        let PixelType::F32 { mean, deviation } = pixels else { return Self::Bytes };
        let mut table = Box::new([[0.0; 256]; 3]);
        for (channel, values) in table.iter_mut().enumerate() {
            for (byte, value) in values.iter_mut().enumerate() {
                *value = (byte as f32 / 255.0 - mean[channel]) / deviation[channel];
            }
        }
        Self::Floats(table)
    }

    /// The bytes of a value.
    pub(crate) fn size(&self) -> usize {
        match self {
            Self::Bytes => 1,
            Self::Floats(_) => 4,
        }
    }

    /// Writes the region of RGB pixels in rows of `stride` pixels.
    pub(crate) fn write(
        &self,
        options: &ImageOptions,
        (rgb, stride): (&[u8], u32),
        region: Region,
        flipped: bool,
        output: &mut [u8],
    ) {
        let width = region.width as usize;
        let rows =
            rgb.chunks_exact(stride as usize * 3).skip(region.top as usize).take(region.height as usize);
        let rows = rows.map(|row| &row[region.left as usize * 3..][..width * 3]);
        match (self, options.order) {
            (Self::Bytes, ChannelOrder::Hwc) => {
                for (row, to) in rows.zip(output.chunks_exact_mut(width * 3)) {
                    let (row, _) = row.as_chunks::<3>();
                    let (to, _) = to.as_chunks_mut::<3>();
                    copy(row, to, flipped, |pixel| *pixel);
                }
            }
            (Self::Bytes, ChannelOrder::Chw) => {
                let (red, green, blue) = thirds(output);
                let planes = red.chunks_exact_mut(width).zip(green.chunks_exact_mut(width));
                for ((row, (red, green)), blue) in rows.zip(planes).zip(blue.chunks_exact_mut(width)) {
                    let (row, _) = row.as_chunks::<3>();
                    copy(row, red, flipped, |pixel| pixel[0]);
                    copy(row, green, flipped, |pixel| pixel[1]);
                    copy(row, blue, flipped, |pixel| pixel[2]);
                }
            }
            (Self::Floats(table), ChannelOrder::Hwc) => {
                for (row, to) in rows.zip(output.chunks_exact_mut(width * 12)) {
                    let (row, _) = row.as_chunks::<3>();
                    let (to, _) = to.as_chunks_mut::<12>();
                    copy(row, to, flipped, |pixel| {
                        let mut bytes = [0; 12];
                        for channel in 0..3 {
                            let value = table[channel][usize::from(pixel[channel])];
                            bytes[channel * 4..][..4].copy_from_slice(&value.to_ne_bytes());
                        }
                        bytes
                    });
                }
            }
            (Self::Floats(table), ChannelOrder::Chw) => {
                let (red, green, blue) = thirds(output);
                let planes = red.chunks_exact_mut(width * 4).zip(green.chunks_exact_mut(width * 4));
                for ((row, (red, green)), blue) in rows.zip(planes).zip(blue.chunks_exact_mut(width * 4)) {
                    let (row, _) = row.as_chunks::<3>();
                    for (channel, plane) in [red, green, blue].into_iter().enumerate() {
                        let (plane, _) = plane.as_chunks_mut::<4>();
                        let table = &table[channel];
                        copy(row, plane, flipped, |pixel| table[usize::from(pixel[channel])].to_ne_bytes());
                    }
                }
            }
        }
    }
}

/// The planes of the three channels.
fn thirds(output: &mut [u8]) -> (&mut [u8], &mut [u8], &mut [u8]) {
    let each = output.len() / 3;
    let (red, rest) = output.split_at_mut(each);
    let (green, blue) = rest.split_at_mut(each);
    (red, green, blue)
}

/// Converts a row, from left to right or mirrored.
fn copy<T>(row: &[[u8; 3]], to: &mut [T], flipped: bool, convert: impl Fn(&[u8; 3]) -> T) {
    if flipped {
        to.iter_mut().zip(row.iter().rev()).for_each(|(to, pixel)| *to = convert(pixel));
    } else {
        to.iter_mut().zip(row).for_each(|(to, pixel)| *to = convert(pixel));
    }
}
