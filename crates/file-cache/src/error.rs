//! Failures to start a cache of files.

use std::io;
use std::path::Path;

/// A failure.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{message}")]
pub struct FileCacheError {
    message: String,
    is_invalid: bool,
}

impl FileCacheError {
    pub(crate) fn new(message: impl Into<String>) -> Self {
        Self { message: message.into(), is_invalid: false }
    }

    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Self { message: message.into(), is_invalid: true }
    }

    /// A failed operation on a path.
    pub(crate) fn system(what: &str, path: &Path, error: impl Into<io::Error>) -> Self {
        Self::new(format!("cannot {what} {}: {}", path.display(), error.into()))
    }

    /// Whether a dataset or a directory cannot be used as it is given.
    pub fn is_invalid(&self) -> bool {
        self.is_invalid
    }
}
