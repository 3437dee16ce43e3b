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

mod batch_layout;
mod braces;
mod build_catalog;
mod catalog;
mod catalog_checksum;
mod catalog_file;
mod catalog_identity;
mod catalog_values;
mod catalog_version;
mod changes;
mod checksum;
mod choose_format;
mod classes;
mod columns;
mod directory_markers;
mod encode;
mod encode_packed;
mod encode_runs;
mod error;
mod field_lists;
mod file_lists;
mod format;
mod format_options;
mod found_objects;
mod groups;
mod growth;
mod index;
mod journal;
mod large_listing;
mod listing;
mod listing_journal;
mod lock_file;
mod made;
mod names;
mod object_runs;
mod packed;
mod part_column;
mod partitions;
mod recognise;
mod released;
mod replace;
mod runs;
mod same_samples;
mod select;
mod selection;
mod servers;
mod shard_columns;
mod shard_journal;
mod shared_file;
mod shared_numbers;
mod sparse;
mod split;
mod stored;
mod table;
mod value_columns;
mod value_layout;
mod values;

#[cfg(test)]
mod tests;

pub use braces::expand;
pub use catalog::{Catalog, CatalogEntry, SampleField};
pub use checksum::SampleChecksum;
pub use error::{DatasetError, DatasetErrorKind};
pub use foreread_formats::ArrayType;
pub use format::Format;
pub use format_options::FormatOptions;
pub use groups::Grouping;
pub use growth::Growth;
pub use index::{IndexOptions, IndexProgress};
pub use listing_journal::forget_listing;
pub use lock_file::{LockAttempt, LockFile};
pub use replace::replace_file;
pub use servers::{ServerShare, ServerShares};
pub use split::SplitOptions;
pub use table::{TableColumn, TableLabel, TableRows};
pub use values::SampleValue;

/// The name of a catalog that is stored next to its data, where it is found and used.
pub const CATALOG_NAME: &str = "catalog.foreread";

/// How names of catalogs end. Such files are never samples, so that a catalog may lie in the
/// directory it describes.
pub const CATALOG_SUFFIX: &str = ".foreread";
