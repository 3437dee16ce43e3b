//! Decoded pixels, as codecs leave them.

use crate::crop::Region;

/// RGB pixels of 8 bits, rows without gaps. Codecs may decode more than the needed region.
#[derive(Debug, Default)]
pub(crate) struct Pixels {
    /// The pixels: 3 bytes each.
    pub(crate) data: Vec<u8>,
    /// The width of all rows, in pixels.
    pub(crate) width: u32,
    /// The number of rows.
    pub(crate) height: u32,
    /// Where the needed region begins.
    pub(crate) top: u32,
    pub(crate) left: u32,
}

impl Pixels {
    /// Makes room for an image of this size. The content is undefined.
    pub(crate) fn resize(&mut self, width: u32, height: u32) {
        (self.width, self.height) = (width, height);
        let bytes = width as usize * height as usize * 3;
        // Only new memory is cleared: each codec writes all of it.
        self.data.resize(bytes, 0);
    }

    /// The whole image was decoded. The needed region begins at `region`.
    pub(crate) fn begin_at(&mut self, region: Region) {
        (self.top, self.left) = (region.top, region.left);
    }
}
