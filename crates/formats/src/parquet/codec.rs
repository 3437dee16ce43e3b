//! The codecs of column chunks, and pages that the parser decodes.
//!
//! A page is decoded in memory to find the lengths of its values. Decision: many small pages at a
//! time, but one large page at a time. So memory stays at a few pages, whatever a file declares.

use std::borrow::Cow;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use foreread_types::{Decoder, Recipe};
use futures::lock::{Mutex, MutexGuard};

use super::metadata::codec_name;
use crate::decode::{decode, limit};
use crate::found::MOST_DECODED;
use crate::{FileSource, FormatError};

/// The codec of uncompressed pages.
const UNCOMPRESSED: i64 = 0;

/// The bytes that the pages of any file may become in all.
const LEAST_TOTAL: u64 = 4 << 30;

/// The most bytes that the pages of a file become in all, for each of its bytes and beyond that.
const MOST_GROWTH: u64 = 1024;

/// The stored and decoded bytes from which a page is large.
const LARGE: u64 = 16 << 20;

/// The decoder of a codec. `None` for uncompressed pages.
///
/// # Errors
/// [`Unsupported`](crate::FormatErrorKind::Unsupported) for codecs that are not decoded, with the
/// remedy.
pub(super) fn decoder(codec: i64, path: &str, at: u64) -> Result<Option<Decoder>, FormatError> {
    Ok(Some(match codec {
        UNCOMPRESSED => return Ok(None),
        1 => Decoder::Snappy,
        2 => Decoder::Gzip,
        4 => Decoder::Brotli,
        6 => Decoder::Zstd,
        7 => Decoder::Lz4Block,
        _ => {
            let why = format!(
                "column {path} is compressed with {}: write it again with pq.write_table(table, path, \
                 compression='zstd')",
                codec_name(codec)
            );
            return Err(FormatError::unsupported(at, why));
        }
    }))
}

/// A compressed part of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Packed {
    /// Where it lies in the file.
    pub(super) at: u64,
    /// Its lengths in the file, and after decoding.
    pub(super) stored: u64,
    pub(super) plain: u64,
    pub(super) decoder: Decoder,
}

/// The pages that are decoded.
#[derive(Debug)]
pub(super) struct PageMemory {
    /// The most bytes of a decoded page.
    most: u64,
    /// The length of the file.
    size: u64,
    /// The bytes that pages may still become. So a small file keeps no processor busy for hours.
    left: AtomicU64,
    large: Mutex<()>,
}

impl PageMemory {
    pub(super) fn new(source: &dyn FileSource) -> Self {
        let size = source.size();
        let left = AtomicU64::new(size.saturating_mul(MOST_GROWTH).saturating_add(LEAST_TOTAL));
        Self { most: limit(size), size, left, large: Mutex::new(()) }
    }

    /// Whether so many values of a dictionary may be in memory: no more than the file has bytes.
    pub(super) fn has_room(&self, values: u64) -> bool {
        values <= self.size
    }

    /// Waits until a page of so many bytes may be in memory. It may be there until the guard is
    /// dropped.
    pub(super) async fn reserve(&self, stored: u64, plain: u64) -> Option<MutexGuard<'_, ()>> {
        if stored.saturating_add(plain) < LARGE { None } else { Some(self.large.lock().await) }
    }

    /// Decodes a part of a page of column `path`.
    pub(super) fn decode<'a>(
        &self,
        packed: &Packed,
        bytes: &'a [u8],
        path: &str,
    ) -> Result<Cow<'a, [u8]>, FormatError> {
        let Packed { at, plain, decoder, .. } = *packed;
        if plain > self.most || plain > MOST_DECODED {
            let why = format!(
                "column {path} has a page of {plain} bytes that are decoded together: write it again with \
                 pq.write_table(table, path, data_page_size=1 << 20, row_group_size=1000)"
            );
            return Err(FormatError::unsupported(at, why));
        }
        let left = self.left.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(plain));
        if left.is_err() {
            let why = format!(
                "the pages of column {path} become more than 1024 times as long as the file: write it again \
                 with pq.write_table(table, path, compression='none')"
            );
            return Err(FormatError::unsupported(at, why));
        }
        let recipe = Recipe::new([decoder], plain);
        let damaged = |why: &dyn std::fmt::Display| {
            FormatError::damaged(at, format!("a page of column {path} is damaged: {why}"))
        };
        let recipe = recipe.map_err(|why| damaged(&why))?;
        decode(&recipe, bytes).map_err(|error| damaged(&error))
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use futures::FutureExt;

    use super::*;
    use crate::FormatErrorKind;

    #[test]
    // semantics: FORMAT-4
    fn codecs_without_a_decoder_have_a_remedy() {
        for (codec, name) in [(3, "LZO"), (5, "LZ4"), (8, "number 8"), (-1, "number -1")] {
            let error = decoder(codec, "jpg", 7).unwrap_err();
            assert_eq!(error.kind(), FormatErrorKind::Unsupported);
            assert!(error.why().contains(&format!("with {name}: write it again with")), "{error}");
        }
        assert_eq!(decoder(0, "jpg", 7).unwrap(), None);
        assert_eq!(decoder(7, "jpg", 7).unwrap(), Some(Decoder::Lz4Block));
    }

    #[test]
    // semantics: FORMAT-4
    fn pages_far_longer_than_the_file_are_refused() {
        let memory = PageMemory::new(&Bytes::from(vec![0; 1000]));
        let packed = Packed { at: 3, stored: 5000, plain: 65 << 20, decoder: Decoder::Zstd };
        let error = memory.decode(&packed, &[0; 5000], "jpg").unwrap_err();
        assert!(error.why().contains("68157440 bytes that are decoded together: write"), "{error}");
        let error = memory.decode(&Packed { plain: 0, ..packed }, &[0; 5000], "jpg").unwrap_err();
        assert_eq!((error.kind(), error.at()), (FormatErrorKind::Damaged, 3));
    }

    #[test]
    // semantics: FORMAT-4
    fn decoded_bytes_of_all_pages_are_bounded() {
        let memory = PageMemory::new(&Bytes::from(vec![0; 1000]));
        let packed = Packed { at: 3, stored: 16, plain: 64 << 10, decoder: Decoder::Brotli };
        assert_eq!(memory.left.load(Relaxed), (4 << 30) + 1000 * 1024);
        memory.left.store(2 * packed.plain, Relaxed);
        let kind = |_| memory.decode(&packed, &[0; 16], "jpg").unwrap_err().kind();
        // None of these streams is one, but each is counted.
        let (damaged, refused) = (FormatErrorKind::Damaged, FormatErrorKind::Unsupported);
        assert_eq!([0, 1, 2].map(kind), [damaged, damaged, refused]);
    }

    #[test]
    fn one_large_page_is_in_memory_at_a_time() {
        let memory = PageMemory::new(&Bytes::from(vec![0; 1000]));
        let large = memory.reserve(LARGE, 0).now_or_never().unwrap();
        assert!(large.is_some() && memory.reserve(1, LARGE).now_or_never().is_none());
        assert!(memory.reserve(1, LARGE - 2).now_or_never().unwrap().is_none());
        drop(large);
        assert!(memory.reserve(1, LARGE).now_or_never().is_some());
        assert!(memory.has_room(1000) && !memory.has_room(1001));
    }
}
