//! The names of catalogs, which are never samples.

/// The name of a catalog that is stored next to its data, where it is found and used.
pub const CATALOG_NAME: &str = "catalog.foreread";

/// How names of catalogs end. Such files are never samples, so that a catalog may lie in the
/// directory it describes.
pub const CATALOG_SUFFIX: &str = ".foreread";

/// Whether a name is that of a catalog, or of a file of an unfinished index.
pub(crate) fn is_catalogs(path: &str) -> bool {
    let kept = path.strip_suffix("-shards").unwrap_or(path).strip_suffix(".partial");
    path.ends_with(CATALOG_SUFFIX) || kept.is_some_and(|path| path.ends_with(CATALOG_SUFFIX))
}
