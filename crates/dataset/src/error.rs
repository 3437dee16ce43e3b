//! Errors of catalogs.

use std::fmt;
use std::sync::Arc;

use foreread_tier::BoxError;

/// The kinds of failure that callers can distinguish.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum DatasetErrorKind {
    /// A catalog file could not be read or written.
    Io,
    /// The file is not a catalog.
    NotACatalog,
    /// The file is a catalog whose bytes differ from the written ones, or whose content is
    /// contradictory.
    Corrupt,
    /// The catalog's version or format is not supported by this version of foreread. Or a shard is
    /// packed so that no sample can be read separately (compressed, encrypted, sparse).
    Unsupported,
    /// The catalog file was overwritten or truncated in place while the catalog was in use.
    Changed,
    /// The dataset has no samples.
    Empty,
    /// A path, a glob or a set of objects that no catalog can hold.
    Invalid,
    /// Another process is creating this catalog.
    InUse,
    /// The origin could not be listed. The source is its [`TierError`](foreread_tier::TierError).
    Listing,
    /// A shard's bytes are not of its format, or end early.
    BadShard,
    /// A shard could not be read while it was indexed. The source is the origin's
    /// [`TierError`](foreread_tier::TierError).
    Reading,
    /// The sample's number is unknown.
    OutOfRange,
}

/// A failed operation on a catalog, in one line: the file or object, the cause, and the remedy.
///
/// Cheap to clone. The text and the source are for people and may change. Programs use
/// [`kind`](Self::kind).
#[derive(Clone, Debug)]
pub struct DatasetError(Arc<ErrorInner>);

#[derive(Clone, Debug)]
struct ErrorInner {
    kind: DatasetErrorKind,
    message: String,
    source: Option<Arc<dyn std::error::Error + Send + Sync>>,
}

impl DatasetError {
    /// An error of this kind, with its text.
    pub fn new(kind: DatasetErrorKind, message: impl Into<String>) -> Self {
        Self(Arc::new(ErrorInner { kind, message: message.into(), source: None }))
    }

    pub(crate) fn with_source(mut self, source: impl Into<BoxError>) -> Self {
        Arc::make_mut(&mut self.0).source = Some(source.into().into());
        self
    }

    /// The kind of failure.
    pub fn kind(&self) -> DatasetErrorKind {
        self.0.kind
    }
}

impl fmt::Display for DatasetError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.message)
    }
}

impl std::error::Error for DatasetError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.0.source.as_deref().map(|source| source as &(dyn std::error::Error + 'static))
    }
}
