//! Failures to start a cache of files.

use std::fmt;
use std::io;
use std::path::Path;
use std::sync::Arc;

/// The kinds of failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FileCacheErrorKind {
    /// A dataset or a directory cannot be used as it is given.
    Invalid,
    /// The system refused something.
    System,
    /// The directory belongs to another user, or others can write to it.
    Foreign,
}

/// A failure. Cheap to clone.
#[derive(Clone, Debug)]
pub struct FileCacheError(Arc<(FileCacheErrorKind, String, Option<io::Error>)>);

impl FileCacheError {
    pub(crate) fn new(kind: FileCacheErrorKind, message: impl Into<String>) -> Self {
        Self(Arc::new((kind, message.into(), None)))
    }

    /// A failed operation on a path.
    pub(crate) fn system(what: &str, path: &Path, error: impl Into<io::Error>) -> Self {
        let message = format!("cannot {what} {}", path.display());
        Self(Arc::new((FileCacheErrorKind::System, message, Some(error.into()))))
    }

    /// The kind.
    pub fn kind(&self) -> FileCacheErrorKind {
        self.0.0
    }
}

impl fmt::Display for FileCacheError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0.2 {
            Some(cause) => write!(f, "{}: {cause}", self.0.1),
            None => f.write_str(&self.0.1),
        }
    }
}

impl std::error::Error for FileCacheError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.0.2.as_ref().map(|cause| cause as _)
    }
}
