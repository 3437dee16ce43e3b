//! Catalogs.

mod catalog;
mod error;
mod index;

pub use catalog::{Catalog, Entry, Format};
pub use error::{DatasetError, DatasetErrorKind};
pub use index::{IndexOptions, Progress};

/// The file name that a catalog has where nobody chose one. Names that end in `.foreread` are never samples.
pub const CATALOG_FILE_NAME: &str = "catalog.foreread";
