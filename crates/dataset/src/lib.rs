//! Catalogs: which samples a dataset has, in which order, and where in the origin each one lies.
//!
//! A [`Catalog`] is made once, by listing an origin ([`Catalog::index`]), and opened by later runs
//! ([`Catalog::open`]). Listing a million files takes minutes on a shared file system, opening
//! their catalog milliseconds. It fixes the number of each sample, so that an order drawn from a
//! seed means the same samples on every machine. Its [fingerprint](Catalog::fingerprint) shows
//! whether two ranks or two runs use the same data.
//!
//! Samples are files, or parts of shards (tar as WebDataset writes it, LMDB, HDF5, Parquet and
//! more): see [`Format`].
//!
//! This crate knows tiers and no backend: an origin is whatever implements
//! [`OriginTier`](foreread_tier::OriginTier).
//!
//! ```
//! use foreread_dataset::Catalog;
//! use foreread_tier::Object;
//! use foreread_types::SampleId;
//!
//! # fn main() -> Result<(), foreread_dataset::DatasetError> {
//! let object = |path: &str| Object { path: path.into(), size: 10, version: None };
//! let catalog = Catalog::from_objects("/data", [object("dog/1.jpg"), object("cat/2.jpg")])?;
//! assert_eq!((catalog.len(), catalog.total_bytes()), (2, 20));
//! assert_eq!(catalog.path(SampleId(0))?, "cat/2.jpg");
//! assert_eq!(catalog.label(SampleId(1)), Some("dog"));
//! # Ok(())
//! # }
//! ```

// Folders are layers. Each uses those before it in this list, and none after it:
// * `disk`: files of this machine
// * `catalog_file`: the file of a catalog, its columns and its metadata
// * `catalog`: the samples of a catalog, its parts and its growth
// * `packed`: the samples in shards
// * `build`: the file of a catalog from its samples
// * `list`: the objects of an origin
// * `table`: the catalog of a table
// * `index`: the catalog of an origin
mod braces;
mod build;
mod catalog;
mod catalog_file;
mod catalog_name;
mod checksum;
mod disk;
mod error;
mod format;
mod format_options;
mod index;
mod list;
mod messages;
mod names;
mod packed;
mod sample_value;
mod table;

#[cfg(test)]
mod tests;

pub use braces::expand;
pub use catalog::Catalog;
pub use catalog::growth::Growth;
pub use catalog::samples::{CatalogEntry, SampleField};
pub use catalog::server_shares::{ServerShare, ServerShares};
pub use catalog::split::SplitOptions;
pub use catalog_name::{CATALOG_NAME, CATALOG_SUFFIX};
pub use checksum::SampleChecksum;
pub use disk::lock_file::{LockAttempt, LockFile};
pub use disk::replace::replace_file;
pub use error::{DatasetError, DatasetErrorKind};
pub use foreread_formats::ArrayType;
pub use format::Format;
pub use format_options::FormatOptions;
pub use list::grouping::Grouping;
pub use list::listing_journal::forget_listing;
pub use list::options::IndexOptions;
pub use list::progress::IndexProgress;
pub use sample_value::SampleValue;
pub use table::{TableColumn, TableLabel, TableRows};
