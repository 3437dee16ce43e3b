//! Read requests, objects and versions.

use std::ops::Range;
use std::sync::Arc;

use foreread_types::{Recipe, SampleKey, Tick};

use crate::{Lifetime, StorageServer};

/// Identifies one state of an object.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Version {
    /// Time of the last modification, in nanoseconds since 1970 (negative before).
    Modified(i64),
    /// A file's modification time, and its file system's record of the last change. The first can
    /// be set to any value, the second cannot, so listings and reads with it detect data that were
    /// replaced. A change of owner, mode or links also changes the second.
    Written {
        /// As in [`Modified`](Self::Modified).
        modified: i64,
        /// The record of the last change.
        changed: FileChange,
        /// The directory and file system that the record is of. Records of others are not compared.
        location: u32,
    },
    /// The store's own tag.
    ETag(Arc<str>),
}

/// A file system's record of a file's last change. The numbers combine the file's inode and the
/// time of the change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum FileChange {
    /// The file system sets the time itself, at every write.
    Kept(u64),
    /// The file system passes on the time of an underlying one, which may be an image: equal
    /// numbers prove nothing.
    Claimed(u64),
    /// The file is on another file system than the listed directory, so it has no record.
    Elsewhere,
    /// The [digest](Self::digest) of a number, from a catalog.
    Indexed(u32),
}

impl FileChange {
    /// The part of the record that catalogs keep. `None` without a record.
    pub fn digest(self) -> Option<u32> {
        match self {
            Self::Kept(number) | Self::Claimed(number) => {
                Some((number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as u32)
            }
            Self::Elsewhere => None,
            Self::Indexed(digest) => Some(digest),
        }
    }
}

impl Version {
    /// The modification time, unless the version is an ETag.
    pub fn modified(&self) -> Option<i64> {
        match self {
            Self::Modified(modified) | Self::Written { modified, .. } => Some(*modified),
            Self::ETag(_) => None,
        }
    }

    /// The digest of a file's last change and the location of its record, if there is one.
    pub fn change(&self) -> Option<(u32, u32)> {
        match self {
            Self::Written { changed, location, .. } => Some((changed.digest()?, *location)),
            _ => None,
        }
    }
}

/// A modification time as [`Version::Modified`] stores it. Saturates.
pub fn unix_nanoseconds(seconds: i64, nanoseconds: impl Into<i64>) -> i64 {
    seconds.saturating_mul(1_000_000_000).saturating_add(nanoseconds.into())
}

/// One object of an origin, as listings return it and reads name it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Object {
    /// UTF-8 path below the origin's prefix with `/` between its components. See
    /// [`check_path`](crate::check_path).
    pub path: Arc<str>,
    /// Length in bytes.
    pub size: u64,
    /// The indexed state. A read of another state is
    /// [`ErrorKind::Changed`](crate::ErrorKind::Changed). `None` if the origin has no versions.
    pub version: Option<Version>,
}

/// The part of an object that a sample is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Span {
    /// The whole object, in one request. A length other than [`Object::size`] means that the object
    /// has changed.
    Whole,
    /// These bytes. Never empty (an empty sample is `Whole` of an empty object, or never read).
    Range(Range<u64>),
    /// Bytes that are decoded: these parts, one after another. The outermost layer of an origin
    /// reads and decodes the stored bytes, so no backend gets such a request.
    Made(Arc<[StoredPart]>),
}

/// Stored bytes of an object, and the decoded bytes that a sample has of them. The parts of a
/// sample may be in several objects, such as an image and its mask.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct StoredPart {
    /// The object that has the bytes, if it is not the request's.
    pub object: Option<Object>,
    /// The bytes in the object. Never empty.
    pub stored: Range<u64>,
    /// How they are decoded.
    pub recipe: Recipe,
    /// The part of the decoded bytes that is delivered. Never empty.
    pub delivered: Range<u64>,
}

impl StoredPart {
    /// Whether other samples may have much of the same decoded bytes. A page with one value has a
    /// few bytes that are not delivered.
    pub fn is_shared(&self) -> bool {
        /// A part that delivers all but this fraction of the rest is alone.
        const ALONE: u64 = 16;
        let delivered = length(&self.delivered);
        let rest = self.recipe.length().saturating_sub(delivered);
        !self.recipe.decoders().is_empty() && rest.saturating_mul(ALONE) > delivered
    }

    /// Whether this part and another one of the same object are cut out of the same decoded bytes.
    pub fn is_same_unit(&self, other: &Self) -> bool {
        self.stored == other.stored && self.recipe == other.recipe && self.object == other.object
    }

    /// The lengths after each step of the recipe.
    ///
    /// # Errors
    /// The reason, if the stored bytes cannot become the delivered ones, or end after their object.
    /// That of the request has `size` bytes.
    pub fn check(&self, size: u64) -> Result<Vec<u64>, String> {
        let Self { object, stored, recipe, delivered } = self;
        let size = object.as_ref().map_or(size, |object| object.size);
        if stored.start >= stored.end || stored.end > size {
            return Err(format!("invalid range: bytes {}..{} of {size}", stored.start, stored.end));
        }
        if delivered.start >= delivered.end || delivered.end > recipe.length() {
            return Err(format!(
                "invalid range: bytes {}..{} of {} decoded ones",
                delivered.start,
                delivered.end,
                recipe.length()
            ));
        }
        let length = stored.end - stored.start;
        recipe
            .lengths(length)
            .ok_or_else(|| format!("{length} stored bytes cannot become {} bytes", recipe.length()))
    }
}

/// One read. It has everything that any tier may need, so it can pass through layers to another
/// tier. Layers and tiers share it ([`Arc`]) instead of copying it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadRequest {
    /// The sample's key in caches and peers.
    pub key: SampleKey,
    /// The sample's object in the origin. Reads from caches and peers may pass an object without a
    /// path and with the sample's length. A path may be stored in a file, so its lookup takes time.
    pub object: Object,
    /// The part of the object.
    pub span: Span,
    /// When the trainer needs it: a smaller tick is more urgent.
    pub due: Tick,
    /// The block that the read belongs to, if any.
    pub block: Option<Arc<ReadBlock>>,
    /// The server of the storage that holds the first byte, if the catalog knows it. A hint.
    pub server: Option<StorageServer>,
    /// How long the memory of the answer will be in use. A hint.
    pub lifetime: Lifetime,
}

/// A part of an object that the caller reads in one request, by several reads in one burst. A layer
/// that joins reads always joins these. Other tiers ignore it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadBlock {
    /// The bytes that contain its reads. They identify the block within the object.
    pub bytes: Range<u64>,
    /// The number of its reads.
    pub reads: usize,
}

impl ReadRequest {
    /// A read without a block, from an unknown server, of a sample that passes.
    pub const fn new(key: SampleKey, object: Object, span: Span, due: Tick) -> Self {
        Self { key, object, span, due, block: None, server: None, lifetime: Lifetime::Passing }
    }

    /// The length of the answer, in bytes.
    pub fn len(&self) -> u64 {
        match &self.span {
            Span::Whole => self.object.size,
            Span::Range(range) => length(range),
            Span::Made(parts) => {
                parts.iter().map(|part| length(&part.delivered)).fold(0, u64::saturating_add)
            }
        }
    }

    /// The bytes that the origin sends for it: those of the answer, before they are decoded.
    pub fn stored_len(&self) -> u64 {
        match &self.span {
            Span::Made(parts) => parts.iter().map(|part| length(&part.stored)).fold(0, u64::saturating_add),
            _ => self.len(),
        }
    }

    /// The requested bytes of the object.
    ///
    /// # Errors
    /// The reason, if the range is empty or ends after the object, or if the bytes are decoded
    /// ones. Origins read without the layers never decode.
    pub fn range(&self) -> Result<Range<u64>, String> {
        let size = self.object.size;
        match &self.span {
            Span::Whole => Ok(0..size),
            Span::Range(range) if range.start < range.end && range.end <= size => Ok(range.clone()),
            Span::Range(Range { start, end }) => {
                Err(format!("invalid range: bytes {start}..{end} of {size}"))
            }
            Span::Made(_) => Err("its bytes are decoded, which the layers of an origin do".to_owned()),
        }
    }

    /// Whether the answer has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

fn length(range: &Range<u64>) -> u64 {
    range.end.saturating_sub(range.start)
}
