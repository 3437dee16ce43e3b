//! Recognises a shard by its first bytes, where its name does not show the format.

use foreread_tier::{Object, OriginTier};

use super::reader::{ShardStore, StoredBytes};
use super::shard_error::{compression, dataset_error};
use super::tfrecord;
use crate::catalog_file::recognise::{HEAD, begins_a_catalog};
use crate::format::compressed;
use crate::{DatasetError, Format};

/// The bytes that are read of an object.
const LOOKED_AT: u64 = 4 << 10;

/// The kind of an object by its first bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FirstBytes {
    /// It is a shard of this format.
    Shard(Format),
    /// It is a catalog.
    Catalog,
    /// Nothing that is known. Compressed data are meant, too.
    Unknown,
}

/// Detects the format of shards whose names do not show it. It makes one small read, of the first
/// shard that is long enough.
///
/// # Errors
/// If the shard cannot be read, or is compressed.
pub(crate) async fn sniff(
    origin: &dyn OriginTier,
    base_url: &str,
    objects: &[&Object],
) -> Result<Format, DatasetError> {
    let long = objects.iter().filter(|object| object.size >= tfrecord::HEAD);
    let Some(object) = long.min_by(|a, b| a.path.cmp(&b.path)) else { return Ok(Format::Files) };
    // Shards with such names are those of writers whose signatures come first.
    let head = ShardStore::new(StoredBytes::Origin(origin)).read(object, 0, tfrecord::HEAD).await;
    let head = head.map_err(|error| dataset_error(error, base_url, &object.path))?;
    match recognised(&head, object.size) {
        Some(format) => Ok(format),
        None if matches!(compression(&head), Some("gzip" | "zlib")) => {
            Err(compressed(base_url, &object.path))
        }
        None => Ok(Format::Files),
    }
}

/// The kind of one object by its first bytes. An Arrow file is read once more, to distinguish a
/// catalog from a dataset. An object that cannot be read is unknown: listing it needs no read.
pub(crate) async fn look(origin: &dyn OriginTier, object: &Object) -> FirstBytes {
    let read = async |length: u64| {
        let head =
            ShardStore::new(StoredBytes::Origin(origin)).read(object, 0, length.min(object.size)).await;
        head.inspect_err(|error| tracing::debug!(%error, "its first bytes are unknown")).ok()
    };
    if object.size < tfrecord::HEAD {
        return FirstBytes::Unknown;
    }
    match read(LOOKED_AT).await.and_then(|head| recognised(&head, object.size)) {
        Some(Format::Arrow) => match read(HEAD as u64).await {
            Some(head) if begins_a_catalog(&head) => FirstBytes::Catalog,
            _ => FirstBytes::Shard(Format::Arrow),
        },
        Some(format) => FirstBytes::Shard(format),
        None => FirstBytes::Unknown,
    }
}

/// The packed format of an object of `size` bytes that begins with `head`. Zip is none of them,
/// because many files of single samples are zip archives (`.pt`, `.npz`, `.docx`).
fn recognised(head: &[u8], size: u64) -> Option<Format> {
    let at = |start: usize, magic: &[u8]| head.get(start..).is_some_and(|rest| rest.starts_with(magic));
    // A user block before HDF5's signature has a power of two of bytes.
    let is_hdf5 = [0, 512, 1024, 2048].iter().any(|&start| at(start, b"\x89HDF\r\n\x1a\n"));
    match () {
        () if at(0, b"ARROW1") => Some(Format::Arrow),
        () if at(0, b"PAR1") => Some(Format::Parquet),
        () if is_hdf5 => Some(Format::Hdf5),
        // The magic of a meta page, after a page's header. Databases of big-endian and 32-bit
        // machines are recognised, and refused by their parser.
        () if [12, 16]
            .iter()
            .any(|&start| at(start, b"\xde\xc0\xef\xbe") || at(start, b"\xbe\xef\xc0\xde")) =>
        {
            Some(Format::Lmdb)
        }
        () if at(257, b"ustar") => Some(Format::Tar),
        () if at(0, b"\x0a\x23\xd7\xce") => Some(Format::RecordIo),
        () if head.get(..tfrecord::HEAD as usize).is_some_and(|head| tfrecord::begins(head, size)) => {
            Some(Format::TfRecord)
        }
        () => None,
    }
}
