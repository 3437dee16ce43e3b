//! How the bytes of a sample are made from stored bytes.
//!
//! A recipe is data: catalogs keep it, requests carry it, and `foreread-formats` executes it. Every
//! length is known before the first byte is read. So a stored unit that would grow beyond its
//! length, or that could never reach it, is refused and costs no memory.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

/// The most bytes that a compressor adds to bytes that do not become shorter, beyond a sixth.
const MOST_OVERHEAD: u64 = 64 << 10;

/// The most bytes of a page's header and levels in a recipe with [`Decoder::ParquetPage`].
pub const MOST_PAGE_HEAD: u64 = 1 << 20;

/// The most steps of a recipe.
const MOST_STEPS: usize = 8;

/// One step that turns stored bytes into others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Decoder {
    /// A stream of RFC 1951, without a head: members of zip archives.
    Deflate,
    /// A stream of RFC 1950, with a checksum: HDF5's gzip filter.
    Zlib,
    /// Streams of RFC 1952, one or several: gzip files, and Parquet's GZIP.
    Gzip,
    /// A block of LibLZF.
    Lzf,
    /// Frames of RFC 8878.
    Zstd,
    /// HDF5's LZ4 filter: the length, the length of a block, and blocks of LZ4.
    Lz4,
    /// One block of LZ4 alone: Parquet's LZ4_RAW.
    Lz4Block,
    /// One block of Snappy alone, without frames.
    Snappy,
    /// A stream of RFC 7932.
    Brotli,
    /// The bytes of each element are apart: the first byte of each element, then the second one.
    /// The length of an element in bytes, which is at least 1.
    Shuffle(u32),
    /// A checksum of 4 bytes at the end.
    Fletcher32,
    /// A page of a Parquet file, whose header has a checksum. The values are left, which are
    /// compressed. The header stands in the file, so no catalog needs a checksum per page.
    ParquetPage,
}

impl Decoder {
    /// The most bytes that one stored byte can become. `None` for steps that do not compress.
    pub const fn most_growth(self) -> Option<u64> {
        match self {
            Self::Deflate | Self::Zlib | Self::Gzip => Some(1032),
            Self::Lzf => Some(264),
            Self::Lz4 | Self::Lz4Block => Some(255),
            // A copy of 64 bytes takes three.
            Self::Snappy => Some(22),
            // A copy of 16 MiB takes more than four bytes.
            Self::Brotli => Some(4 << 20),
            // A block of 128 KiB takes four bytes.
            Self::Zstd => Some(32 * 1024),
            Self::Shuffle(_) | Self::Fletcher32 | Self::ParquetPage => None,
        }
    }

    /// All decoders without parameters.
    const PLAIN: [Self; 11] = [
        Self::Deflate,
        Self::Zlib,
        Self::Gzip,
        Self::Lzf,
        Self::Zstd,
        Self::Lz4,
        Self::Lz4Block,
        Self::Snappy,
        Self::Brotli,
        Self::Fletcher32,
        Self::ParquetPage,
    ];

    const fn name(self) -> &'static str {
        match self {
            Self::Deflate => "deflate",
            Self::Zlib => "zlib",
            Self::Gzip => "gzip",
            Self::Lzf => "lzf",
            Self::Zstd => "zstd",
            Self::Lz4 => "hdf5-lz4",
            Self::Lz4Block => "lz4",
            Self::Snappy => "snappy",
            Self::Brotli => "brotli",
            Self::Shuffle(_) => "shuffle",
            Self::Fletcher32 => "fletcher32",
            Self::ParquetPage => "parquet-page",
        }
    }
}

impl fmt::Display for Decoder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())?;
        match self {
            Self::Shuffle(element) => write!(f, ":{element}"),
            _ => Ok(()),
        }
    }
}

/// The text names no [`Decoder`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParseDecoderError(String);

impl fmt::Display for ParseDecoderError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "unknown decoder {:?}", self.0)
    }
}

impl std::error::Error for ParseDecoderError {}

impl FromStr for Decoder {
    type Err = ParseDecoderError;

    fn from_str(text: &str) -> Result<Self, ParseDecoderError> {
        let unknown = || ParseDecoderError(text.to_owned());
        if let Some(element) = text.strip_prefix("shuffle:") {
            return element.parse().map(Self::Shuffle).map_err(|_| unknown());
        }
        Self::PLAIN.into_iter().find(|decoder| decoder.name() == text).ok_or_else(unknown)
    }
}

/// The steps that turn stored bytes into decoded ones, and the number of decoded bytes. Cheap to
/// clone.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Recipe {
    decoders: Arc<[Decoder]>,
    length: u64,
}

impl Recipe {
    /// The steps in the order of decoding, which result in `length` bytes.
    ///
    /// # Errors
    /// Why the lengths between the steps are unknown or the result is impossible.
    pub fn new(decoders: impl Into<Arc<[Decoder]>>, length: u64) -> Result<Self, &'static str> {
        let decoders = decoders.into();
        if decoders.len() > MOST_STEPS {
            return Err("it has more than 8 steps");
        }
        if decoders.iter().filter(|decoder| decoder.most_growth().is_some()).count() > 1 {
            return Err("it decompresses twice");
        }
        if decoders.contains(&Decoder::Shuffle(0)) {
            return Err("it shuffles elements without bytes");
        }
        // Otherwise its result would have an unknown length.
        let is_page = |decoder: &Decoder| *decoder == Decoder::ParquetPage;
        let compresses = |decoder: &Decoder| decoder.most_growth().is_some();
        if decoders.iter().skip(1).any(is_page)
            || decoders.first().is_some_and(is_page) && !decoders.get(1).is_some_and(compresses)
        {
            return Err("it has a page that is not compressed");
        }
        if length == 0 {
            return Err("it results in no bytes");
        }
        Ok(Self { decoders, length })
    }

    /// The steps in the order of decoding.
    pub fn decoders(&self) -> &[Decoder] {
        &self.decoders
    }

    /// The number of decoded bytes.
    pub const fn length(&self) -> u64 {
        self.length
    }

    /// The lengths after each step, for `stored` bytes before the first one. After a page's header
    /// it is the most bytes. `None` if no `stored` bytes can become [`length`](Self::length) bytes.
    pub fn lengths(&self, stored: u64) -> Option<Vec<u64>> {
        // Before the decompressor lengths follow from the stored one, after it from the last one.
        let expands = self.decoders.iter().position(|decoder| decoder.most_growth().is_some());
        let (before, after) = self.decoders.split_at(expands.unwrap_or(self.decoders.len()));
        let mut lengths = Vec::with_capacity(self.decoders.len());
        let mut length = stored;
        for decoder in before {
            length = after_step(*decoder, length)?;
            lengths.push(length);
        }
        let Some((decompressor, after)) = after.split_first() else {
            return (length == self.length).then_some(lengths);
        };
        let sums = after.iter().filter(|decoder| **decoder == Decoder::Fletcher32).count() as u64;
        let mut result = self.length.checked_add(4 * sums)?;
        // Memory for both is bounded by the delivered bytes, which budgets count. Compressors add
        // little to bytes that cannot become shorter.
        let head = if before.contains(&Decoder::ParquetPage) { MOST_PAGE_HEAD } else { 0 };
        let most_stored = result.saturating_add(result / 6).saturating_add(MOST_OVERHEAD + head);
        if result > length.saturating_mul(decompressor.most_growth()?) || length > most_stored {
            return None;
        }
        lengths.push(result);
        for decoder in after {
            result = after_step(*decoder, result)?;
            lengths.push(result);
        }
        Some(lengths)
    }
}

/// The length after a step that does not decompress.
const fn after_step(decoder: Decoder, length: u64) -> Option<u64> {
    match decoder {
        Decoder::Fletcher32 => length.checked_sub(4),
        _ => Some(length),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_decoders_are_read_back() {
        for decoder in Decoder::PLAIN.into_iter().chain([Decoder::Shuffle(u32::MAX)]) {
            assert_eq!(decoder.to_string().parse(), Ok(decoder));
        }
        let mut names: Vec<_> = Decoder::PLAIN.iter().map(ToString::to_string).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), Decoder::PLAIN.len());
        for unknown in ["", "shuffle", "shuffle:", "shuffle:-1", "shuffle:4294967296", "gz"] {
            assert!(unknown.parse::<Decoder>().is_err(), "{unknown}");
        }
    }

    #[test]
    // semantics: FORMAT-5
    fn lengths_between_steps_are_known() {
        let lengths = |decoders: &[Decoder], length, stored| {
            Recipe::new(decoders.to_vec(), length).unwrap().lengths(stored)
        };
        let (sum, shuffle) = (Decoder::Fletcher32, Decoder::Shuffle(4));
        assert_eq!(lengths(&[], 7, 7), Some(vec![]));
        assert_eq!(lengths(&[], 7, 8), None);
        assert_eq!(lengths(&[sum, Decoder::Zlib, shuffle], 100, 50), Some(vec![46, 100, 100]));
        assert_eq!(lengths(&[Decoder::Zlib, sum, shuffle], 100, 50), Some(vec![104, 100, 100]));
        assert_eq!(lengths(&[sum], 100, 104), Some(vec![100]));
        assert_eq!(lengths(&[sum], 100, 3), None);
        // More stored bytes than any compressor makes of so few.
        assert_eq!(lengths(&[Decoder::Zlib], 8, 1 << 30), None);
        // Bombs.
        assert_eq!(lengths(&[Decoder::Zlib], 1033, 1), None);
        assert_eq!(lengths(&[Decoder::Gzip], 1033, 1), None);
        assert_eq!(lengths(&[Decoder::Snappy], 23, 1), None);
        assert_eq!(lengths(&[Decoder::Lz4Block], 256, 1), None);
        assert_eq!(lengths(&[Decoder::Brotli], (8 << 20) + 1, 2), None);
        assert_eq!(lengths(&[Decoder::Snappy], 22 * 9, 9), Some(vec![22 * 9]));
        assert_eq!(lengths(&[Decoder::Zlib, sum], u64::MAX, u64::MAX), None);
        let page = [Decoder::ParquetPage, Decoder::Snappy];
        assert_eq!(lengths(&page, 100, 60), Some(vec![60, 100]));
        assert_eq!(lengths(&page, 600, 600 + 100 + (64 << 10) + MOST_PAGE_HEAD).map(|it| it[1]), Some(600));
        assert_eq!(lengths(&page, 600, 601 + 100 + (64 << 10) + MOST_PAGE_HEAD), None);
    }

    #[test]
    fn impossible_recipes_are_refused() {
        for (decoders, length) in [
            (vec![Decoder::Zlib, Decoder::Lzf], 1),
            (vec![Decoder::Shuffle(0)], 1),
            (vec![Decoder::Fletcher32; 9], 1),
            (vec![Decoder::Zlib], 0),
            (vec![Decoder::ParquetPage], 1),
            (vec![Decoder::ParquetPage, Decoder::Shuffle(4), Decoder::Zlib], 1),
            (vec![Decoder::Fletcher32, Decoder::ParquetPage, Decoder::Zlib], 1),
        ] {
            assert!(Recipe::new(decoders.clone(), length).is_err(), "{decoders:?} {length}");
        }
    }
}
