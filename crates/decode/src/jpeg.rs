//! JPEG by libjpeg-turbo, with the pixels of Pillow's `convert("RGB")`.
//!
//! Only the needed region is transformed. Huffman codes must be read from the start, so that saves
//! a quarter of the time for half of the area. libjpeg interpolates colours between neighbours.
//! So a region is decoded with a margin of one block, and has the pixels of the whole image.
//!
//! A file that was cut off is an error, as in Pillow, even if the needed region lies before the
//! cut: otherwise it would depend on the epoch whether a sample is readable.

use std::any::Any;
use std::ffi::{CStr, c_int, c_ulong};
use std::mem::MaybeUninit;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::ptr;

use mozjpeg_sys::{
    J_COLOR_SPACE, JDIMENSION, JPEG_LIB_VERSION, JWRN_JPEG_EOF, jpeg_CreateDecompress, jpeg_abort_decompress,
    jpeg_common_struct, jpeg_crop_scanline, jpeg_decompress_struct, jpeg_destroy_decompress, jpeg_error_mgr,
    jpeg_has_multiple_scans, jpeg_mem_src, jpeg_progress_mgr, jpeg_read_header, jpeg_read_scanlines,
    jpeg_skip_scanlines, jpeg_start_decompress, jpeg_std_error,
};

use crate::crop::Region;
use crate::error::DecodeError;
use crate::pixels::Pixels;

#[cfg(panic = "abort")]
compile_error!("libjpeg's errors unwind: build with panic = \"unwind\"");

/// The most scans of a progressive file. Each takes time for all pixels, however short it is.
/// Encoders write about ten.
const MAX_SCANS: c_int = 100;

/// How far before the end of a file its last marker is looked for. Cameras append other data.
const TRAILER: usize = 4096;

/// Rows per call of libjpeg. It gives at most four.
const ROWS: usize = 4;

/// libjpeg's state, at an address that does not change, because it points to its handlers.
struct State {
    decompress: jpeg_decompress_struct,
    errors: jpeg_error_mgr,
    progress: jpeg_progress_mgr,
}

/// A JPEG whose header was read.
pub(crate) struct Jpeg<'a> {
    state: Box<State>,
    bytes: &'a [u8],
    /// Where the data of the first scan begins.
    scan: usize,
}

/// Ends the call of libjpeg by unwinding, which its C code was compiled for.
unsafe extern "C-unwind" fn on_error(common: &mut jpeg_common_struct) {
    resume_unwind(Box::new(DecodeError::corrupt(message(common))));
}

/// Damaged data is decoded as far as possible, as in Pillow. Missing data is an error.
unsafe extern "C-unwind" fn on_message(common: &mut jpeg_common_struct, level: c_int) {
    // SAFETY: the error handler is part of the `State` that libjpeg was called with.
    let code = unsafe { (*common.err).msg_code };
    if level < 0 && code == JWRN_JPEG_EOF as c_int {
        resume_unwind(Box::new(DecodeError::corrupt("the file is truncated")));
    }
}

/// Called for each row of blocks that is read. Ends an image of too many scans.
unsafe extern "C-unwind" fn on_progress(common: &mut jpeg_common_struct) {
    let decompress: *const jpeg_decompress_struct = common.client_data.cast();
    // SAFETY: `open` has set the pointer to the whole struct, which lives as long as the call.
    let scan = unsafe { (&raw const (*decompress).input_scan_number).read() };
    if scan > MAX_SCANS {
        resume_unwind(Box::new(DecodeError::unsupported(format!("a JPEG of more than {MAX_SCANS} scans"))));
    }
}

/// libjpeg prints nothing.
unsafe extern "C-unwind" fn on_output(_: &mut jpeg_common_struct) {}

/// The text of the current error.
fn message(common: &jpeg_common_struct) -> String {
    // SAFETY: the error handler is part of the `State` that libjpeg was called with. Its table has
    // `last_jpeg_message + 1` C strings that are never freed.
    let (text, parameters) = unsafe {
        let errors = &*common.err;
        if !(0..=errors.last_jpeg_message).contains(&errors.msg_code) {
            return format!("error {} of libjpeg", errors.msg_code);
        }
        let text = *errors.jpeg_message_table.add(errors.msg_code as usize);
        (CStr::from_ptr(text.cast()).to_string_lossy(), errors.msg_parm._bindgen_data_)
    };
    filled(&text, &parameters)
}

/// A format of C, with numbers in place of its parameters.
fn filled(format: &str, parameters: &[u32]) -> String {
    let mut parts = format.split('%');
    let mut made = parts.next().unwrap_or_default().to_owned();
    for (part, number) in parts.zip(parameters) {
        let end = part.find(|end: char| end.is_ascii_alphabetic() && end != 'l').map_or(0, |at| at + 1);
        let (kind, rest) = part.split_at(end);
        match kind.ends_with('x') {
            true => made.push_str(&format!("{number:02x}")),
            false => made.push_str(&number.to_string()),
        }
        made.push_str(rest);
    }
    made
}

/// Runs calls of libjpeg. Afterwards, on an error, its state may only be destroyed.
fn caught<T>(work: impl FnOnce() -> T) -> Result<T, DecodeError> {
    // The state is not used after an error but for its end, which libjpeg allows at any time.
    catch_unwind(AssertUnwindSafe(work)).map_err(|payload: Box<dyn Any + Send>| {
        match payload.downcast::<DecodeError>() {
            Ok(error) => *error,
            // A fault of this file.
            Err(other) => resume_unwind(other),
        }
    })
}

impl<'a> Jpeg<'a> {
    pub(crate) fn open(bytes: &'a [u8]) -> Result<Self, DecodeError> {
        let mut state = Box::new(State {
            // SAFETY: a C struct of numbers, nullable pointers, and enumerations that have 0.
            decompress: unsafe { MaybeUninit::zeroed().assume_init() },
            // SAFETY: a C struct of numbers, nullable pointers and optional functions.
            errors: unsafe { MaybeUninit::zeroed().assume_init() },
            progress: jpeg_progress_mgr {
                progress_monitor: Some(on_progress),
                pass_counter: 0,
                pass_limit: 0,
                completed_passes: 0,
                total_passes: 0,
            },
        });
        let length = bytes.len() as c_ulong;
        let State { decompress, errors, progress } = &mut *state;
        // SAFETY: `errors` lives as long as `decompress`, in one box. The bindings were made for
        // this version and size. After the call the struct is valid.
        unsafe {
            decompress.common.err = jpeg_std_error(errors);
            errors.error_exit = Some(on_error);
            errors.emit_message = Some(on_message);
            errors.output_message = Some(on_output);
            let created = caught(|| {
                jpeg_CreateDecompress(decompress, JPEG_LIB_VERSION, size_of::<jpeg_decompress_struct>());
            });
            created?;
        }
        decompress.common.progress = progress;
        let whole: *mut jpeg_decompress_struct = decompress;
        decompress.common.client_data = whole.cast();
        let mut this = Self { state, bytes, scan: 0 };
        let decompress = &mut this.state.decompress;
        // SAFETY: `decompress` was created, and `bytes` outlive it: `Self` borrows them.
        caught(|| unsafe {
            jpeg_mem_src(decompress, bytes.as_ptr(), length);
            jpeg_read_header(decompress, 1);
        })?;
        // SAFETY: `jpeg_mem_src` has set the source, which lives as long as `decompress`.
        let unread = unsafe { (*decompress.src).bytes_in_buffer };
        this.scan = bytes.len().saturating_sub(unread);
        match decompress.num_components {
            1 | 3 | 4 => Ok(this),
            other => Err(DecodeError::unsupported(format!("a JPEG of {other} components"))),
        }
    }

    pub(crate) fn size(&self) -> (u32, u32) {
        (self.state.decompress.image_width, self.state.decompress.image_height)
    }

    /// Decodes the region with a margin.
    pub(crate) fn decode(mut self, region: Region, pixels: &mut Pixels) -> Result<(), DecodeError> {
        let cmyk = self.state.decompress.num_components == 4;
        // A thumbnail in the header has an end of its own.
        let complete = has_end(&self.bytes[self.scan..]);
        let decompress = &mut self.state.decompress;
        // SAFETY: reads the header, which was read.
        let several = unsafe { jpeg_has_multiple_scans(decompress) } != 0;
        // Where scans are missing, libjpeg smooths over more than a margin: then a region would
        // have other pixels than in the whole image.
        let whole = Region::whole(decompress.image_width, decompress.image_height);
        let used = if several { whole } else { region };
        caught(|| decoded(decompress, used, cmyk, complete, pixels))?;
        if several {
            pixels.begin_at(region);
        }
        if cmyk {
            to_rgb(pixels);
        }
        Ok(())
    }
}

impl Drop for Jpeg<'_> {
    fn drop(&mut self) {
        // SAFETY: the struct was created, is not used afterwards, and neither call fails.
        unsafe {
            jpeg_abort_decompress(&mut self.state.decompress);
            jpeg_destroy_decompress(&mut self.state.decompress);
        }
    }
}

/// Decodes into `pixels`: RGB, or CMYK with four bytes per pixel. Unwinds with libjpeg's errors.
fn decoded(
    decompress: &mut jpeg_decompress_struct,
    region: Region,
    cmyk: bool,
    complete: bool,
    pixels: &mut Pixels,
) {
    decompress.out_color_space = if cmyk { J_COLOR_SPACE::JCS_CMYK } else { J_COLOR_SPACE::JCS_RGB };
    let whole = decompress.image_width;
    // SAFETY: `decompress` was created and its header read.
    unsafe { jpeg_start_decompress(decompress) };
    let (mut left, mut width) = (0, whole);
    if region.width < whole {
        let block = decompress.max_h_samp_factor as u32 * 8;
        left = region.left.saturating_sub(block);
        width = (region.left + region.width + block).min(whole) - left;
        // SAFETY: decompression has started, no row was read, and the columns lie in the image.
        unsafe { jpeg_crop_scanline(decompress, &mut left, &mut width) };
    }
    let each = if cmyk { 4 } else { 3 };
    let row = width as usize * each;
    pixels.resize(width, region.height);
    pixels.data.resize(row * region.height as usize, 0);
    (pixels.top, pixels.left) = (0, region.left - left);
    if region.top > 0 {
        // SAFETY: decompression has started, and the image has more rows than these. The source is
        // memory and thus never suspends.
        unsafe { jpeg_skip_scanlines(decompress, region.top) };
    }
    let mut done = 0;
    while done < region.height as usize {
        let mut rows: [*mut u8; ROWS] = [ptr::null_mut(); ROWS];
        let count = ROWS.min(region.height as usize - done);
        for (at, to) in rows.iter_mut().take(count).enumerate() {
            *to = pixels.data[(done + at) * row..][..row].as_mut_ptr();
        }
        // SAFETY: each of the `count` pointers has room for a row of the width that was set.
        done += unsafe { jpeg_read_scanlines(decompress, rows.as_mut_ptr(), count as JDIMENSION) } as usize;
    }
    let rest = decompress.output_height - decompress.output_scanline;
    if !complete && rest > 0 {
        // Fails if data is missing. Skipping all rows would read nothing, so the last one is
        // decoded.
        let mut last = vec![0; row];
        let mut rows = [last.as_mut_ptr()];
        // SAFETY: as above, with one row.
        unsafe {
            if rest > 1 {
                jpeg_skip_scanlines(decompress, rest - 1);
            }
            jpeg_read_scanlines(decompress, rows.as_mut_ptr(), 1);
        }
    }
}

/// Whether the file has its end marker. In compressed data 0xff is never followed by its code.
fn has_end(bytes: &[u8]) -> bool {
    bytes[bytes.len().saturating_sub(TRAILER)..].windows(2).rev().any(|two| two == [0xff, 0xd9])
}

/// Converts inverted CMYK of four bytes per pixel in place, exactly as Pillow: Adobe's programs
/// write it inverted, and Pillow expects all to.
fn to_rgb(pixels: &mut Pixels) {
    let count = pixels.width as usize * pixels.height as usize;
    for at in 0..count {
        let [cyan, magenta, yellow, key] = [0, 1, 2, 3].map(|ink| 255 - u32::from(pixels.data[at * 4 + ink]));
        let light = 255 - key;
        for (channel, ink) in [cyan, magenta, yellow].into_iter().enumerate() {
            let product = ink * light + 128;
            let product = ((product >> 8) + product) >> 8;
            pixels.data[at * 3 + channel] = light.saturating_sub(product) as u8;
        }
    }
    pixels.data.truncate(count * 3);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_have_their_numbers() {
        let text = filled("Unsupported marker type 0x%02x in %ld bytes", &[0xc3, 12, 7]);
        assert_eq!(text, "Unsupported marker type 0xc3 in 12 bytes");
        assert_eq!(filled("no parameter", &[1]), "no parameter");
    }

    #[test]
    fn too_large_sides_are_named() {
        let mut header = b"\xff\xd8\xff\xc0\0\x0b\x08".to_vec();
        header.extend([0xff, 0xff, 0xff, 0xff, 1, 1, 0x11, 0]);
        header.extend(b"\xff\xda\0\x08\x01\x01\0\0\x3f\0");
        let error = Jpeg::open(&header).err().unwrap();
        assert_eq!(error.to_string(), "Maximum supported image dimension is 65500 pixels");
    }
}
