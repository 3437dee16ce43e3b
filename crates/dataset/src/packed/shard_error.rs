//! Errors of shards.

use foreread_tier::TierError;
use foreread_types::setting;

use crate::{DatasetError, DatasetErrorKind};

/// An error of a shard, without the shard's name.
#[derive(Debug)]
pub(crate) enum ShardError {
    /// Its bytes are damaged: the position and the reason.
    Damaged { at: u64, why: String },
    /// It is valid, but its packing allows no reads of single samples: the reason and the remedy.
    Unsupported { at: u64, why: String },
    /// It could not be read.
    Unread(TierError),
}

impl ShardError {
    pub(crate) fn damaged(at: u64, why: impl Into<String>) -> Self {
        Self::Damaged { at, why: why.into() }
    }

    pub(crate) fn unsupported(at: u64, why: impl Into<String>) -> Self {
        Self::Unsupported { at, why: why.into() }
    }

    /// The shard ends before the end of a required element.
    pub(crate) fn cut_short(at: u64, size: u64) -> Self {
        Self::damaged(
            at,
            format!("what begins here does not fit in the {size} bytes there are: it was cut short"),
        )
    }

    /// The error with the shard's name, as one line.
    pub(crate) fn into_dataset_error(self, base_url: &str, path: &str) -> DatasetError {
        match self {
            Self::Damaged { at, why } => DatasetError::new(
                DatasetErrorKind::BadShard,
                format!(
                    "{base_url}: {path}: byte {at}: {why}; make the shard again, or leave it out by {}",
                    setting("exclude")
                ),
            ),
            Self::Unsupported { at, why } => DatasetError::new(
                DatasetErrorKind::Unsupported,
                format!("{base_url}: {path}: byte {at}: {why}"),
            ),
            Self::Unread(error) => {
                let message = format!("{base_url}: a shard cannot be read: {error}");
                DatasetError::new(DatasetErrorKind::Reading, message).with_source(error)
            }
        }
    }
}

impl From<TierError> for ShardError {
    fn from(error: TierError) -> Self {
        Self::Unread(error)
    }
}

/// The name of the compression of these bytes, if their beginning shows one.
pub(crate) fn compression(start: &[u8]) -> Option<&'static str> {
    match start {
        [0x1f, 0x8b, ..] => Some("gzip"),
        [b'B', b'Z', b'h', ..] => Some("bzip2"),
        [0xfd, b'7', b'z', b'X', b'Z', ..] => Some("xz"),
        [0x28, 0xb5, 0x2f, 0xfd, ..] => Some("zstd"),
        [0x04, 0x22, 0x4d, 0x18, ..] => Some("lz4"),
        // zlib has no magic number, but its first two bytes are a multiple of 31.
        [0x78, flags @ (0x01 | 0x5e | 0x9c | 0xda), ..] if (0x7800 + u16::from(*flags)) % 31 == 0 => {
            Some("zlib")
        }
        _ => None,
    }
}

/// The error of a shard that is compressed as a whole.
pub(crate) fn compressed(how: &str) -> ShardError {
    // These are read as a whole where their names say so.
    let ending = match how {
        "gzip" => ", or let its name end in .gz",
        "zlib" => ", or let its name end in .zlib",
        "zstd" => ", or let its name end in .zst",
        _ => "",
    };
    ShardError::unsupported(
        0,
        format!(
            "it is compressed ({how}), so its samples cannot be read individually; write it without \
             compression, or decompress it and index the result{ending}"
        ),
    )
}
