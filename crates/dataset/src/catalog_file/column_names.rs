//! The names of the columns that writers and the reader of a catalog know.
//!
//! Columns that each table has (`path`, `offset`, `length`) are named where they are used.

/// The column of texts that is the catalog's column of labels.
pub(crate) const LABEL: &str = "label";
/// The beginning of the names of columns of values.
pub(crate) const VALUE_PREFIX: &str = "value.";
/// The digest of each file's last change.
pub(crate) const CHANGED: &str = "changed";
/// The list of a sample's files, if it has several.
pub(crate) const FILES: &str = "files";
/// How samples are made of stored bytes: four columns, in their order.
pub(crate) const MADE: [&str; 4] = ["stored", "decoded", "slice", "recipe"];
/// The further parts of samples.
pub(crate) const PARTS: &str = "parts";
/// The storage server of each sample: Lustre's word, for readers of catalogs.
pub(crate) const SERVER: &str = "ost";
