//! What a read asks for.

use std::ops::Range;
use std::sync::Arc;

use foreread_types::{SampleKey, Tick};

/// What tells one state of an object from another.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Version {
    /// Time of the last modification, in nanoseconds since 1970 (negative before).
    Modified(i64),
    /// A file's time of the last modification, and what its file system knows of its last change. The first can be set to
    /// anything, the second cannot: a listing that has it tells data from others that were put in their place. Reads
    /// compare the first alone, because a change of owner or mode changes the second, too, and catalogs keep the first.
    Written {
        /// As in [`Modified`](Self::Modified).
        modified: i64,
        /// What is known of the last change.
        changed: Change,
    },
    /// The store's own tag.
    ETag(Arc<str>),
}

/// What is known of a file's last change. Numbers stand for the file (its inode) and the time of the change together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Change {
    /// The file system sets the time itself, at every write.
    Kept(u64),
    /// The file system passes on the time of another one below it, which may be an image: equal numbers prove nothing.
    Claimed(u64),
    /// The file lies on another file system than the directory that was listed: nothing is known.
    Elsewhere,
}

impl Version {
    /// The time of the last modification, where that is what tells states apart.
    pub fn modified(&self) -> Option<i64> {
        match self {
            Self::Modified(modified) | Self::Written { modified, .. } => Some(*modified),
            Self::ETag(_) => None,
        }
    }
}

/// A modification time as [`Version::Modified`] stores it; saturates.
pub fn unix_nanoseconds(seconds: i64, nanoseconds: impl Into<i64>) -> i64 {
    seconds.saturating_mul(1_000_000_000).saturating_add(nanoseconds.into())
}

/// One object of an origin: what a listing finds and what a read names.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Object {
    /// Path below the origin's prefix, `/` between its parts, UTF-8, neither absolute nor climbing.
    pub path: Arc<str>,
    /// Length in bytes.
    pub size: u64,
    /// The state that was indexed; a read of another state is [`ErrorKind::Changed`](crate::ErrorKind::Changed).
    /// `None` where the origin has none.
    pub version: Option<Version>,
}

/// Which part of an object a sample is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Span {
    /// All of it, in one request; a length other than [`Object::size`] means that the object has changed.
    Whole,
    /// These bytes of it; never empty (an empty sample is `Whole` of an empty object, or read by nobody).
    Range(Range<u64>),
}

/// One read. It says everything that any tier may need, so that it can travel through layers and on to another tier.
/// Layers and backends share it ([`Arc`]) instead of copying it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadRequest {
    /// What caches and peers know the sample by.
    pub key: SampleKey,
    /// What the origin knows it by. For caches and peers, which know it by its key, this may be an object without a path that
    /// is as long as the sample: names may lie in a file, and looking one up takes time.
    pub object: Object,
    /// Which part of the object.
    pub span: Span,
    /// When the trainer needs it: a smaller tick is more urgent.
    pub due: Tick,
    /// The block that it is a part of, where it is read together with others.
    pub block: Option<Arc<Block>>,
}

/// A part of an object that its caller has decided to read in one request, by several reads in one burst. A layer that joins
/// reads joins these whatever that costs; other tiers need not know it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Block {
    /// What tells it from other blocks of the object: bytes that its reads lie in.
    pub bytes: Range<u64>,
    /// How many reads it has.
    pub reads: usize,
}

impl ReadRequest {
    /// A read by itself.
    pub const fn new(key: SampleKey, object: Object, span: Span, due: Tick) -> Self {
        Self { key, object, span, due, block: None }
    }

    /// The length of the answer, in bytes.
    pub fn len(&self) -> u64 {
        match &self.span {
            Span::Whole => self.object.size,
            Span::Range(range) => range.end.saturating_sub(range.start),
        }
    }

    /// The requested bytes of the object.
    ///
    /// # Errors
    /// The reason, if the range is empty or ends after the object.
    pub fn range(&self) -> Result<Range<u64>, String> {
        let size = self.object.size;
        match &self.span {
            Span::Whole => Ok(0..size),
            Span::Range(range) if range.start < range.end && range.end <= size => Ok(range.clone()),
            Span::Range(Range { start, end }) => {
                Err(format!("invalid range: bytes {start}..{end} of {size}"))
            }
        }
    }

    /// Whether the answer has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}
