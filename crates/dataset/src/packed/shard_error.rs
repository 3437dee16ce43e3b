//! Errors of shards.

use foreread_formats::{FormatError, FormatErrorKind};
use foreread_types::setting;

use crate::{DatasetError, DatasetErrorKind};

/// The error of a shard with the shard's name, as one line.
pub(crate) fn dataset_error(error: FormatError, base_url: &str, path: &str) -> DatasetError {
    let (at, why) = (error.at(), error.why());
    match error.kind() {
        FormatErrorKind::Unread => {
            let message = format!("{base_url}: a shard cannot be read: {why}");
            let unread = DatasetError::new(DatasetErrorKind::Reading, message);
            error.into_read_error().into_iter().fold(unread, DatasetError::with_source)
        }
        FormatErrorKind::Damaged => {
            let exclude = setting("exclude");
            let remedy = format!("make the shard again, or leave it out by {exclude}");
            let message = format!("{base_url}: {path}: byte {at}: {why}; {remedy}");
            DatasetError::new(DatasetErrorKind::BadShard, message)
        }
        _ => {
            DatasetError::new(DatasetErrorKind::Unsupported, format!("{base_url}: {path}: byte {at}: {why}"))
        }
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
pub(crate) fn compressed(how: &str) -> FormatError {
    // These are read as a whole where their names say so.
    let ending = match how {
        "gzip" => ", or let its name end in .gz",
        "zlib" => ", or let its name end in .zlib",
        "zstd" => ", or let its name end in .zst",
        _ => "",
    };
    FormatError::unsupported(
        0,
        format!(
            "it is compressed ({how}), so its samples cannot be read individually; write it without \
             compression, or decompress it and index the result{ending}"
        ),
    )
}
