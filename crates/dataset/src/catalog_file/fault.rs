//! Why a file is not a usable catalog.
//!
//! A fault does not have the name of the file, which only the caller knows.

use std::io;

use crate::DatasetErrorKind;

/// The reason why a file is not a usable catalog, without the file's name.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct CatalogFault {
    pub(crate) kind: DatasetErrorKind,
    pub(crate) why: String,
}

impl CatalogFault {
    pub(crate) fn io(error: &io::Error) -> Self {
        Self { kind: DatasetErrorKind::Io, why: error.to_string() }
    }
}

/// The fault of a damaged catalog.
pub(crate) fn corrupt(why: impl Into<String>) -> CatalogFault {
    CatalogFault { kind: DatasetErrorKind::Corrupt, why: why.into() }
}

/// A newer foreread wrote the file.
pub(crate) fn unsupported(why: impl Into<String>) -> CatalogFault {
    CatalogFault { kind: DatasetErrorKind::Unsupported, why: why.into() }
}

/// The file was changed after it was opened.
pub(crate) fn changed(why: impl Into<String>) -> CatalogFault {
    CatalogFault { kind: DatasetErrorKind::Changed, why: why.into() }
}

/// The fault of a file that is no catalog.
pub(crate) fn foreign(why: impl Into<String>) -> CatalogFault {
    CatalogFault { kind: DatasetErrorKind::NotACatalog, why: why.into() }
}
