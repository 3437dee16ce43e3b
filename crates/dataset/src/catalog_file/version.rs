//! Versions of the layout of catalogs.
//!
//! Decision: a catalog is written as the lowest version that can express it. So older versions of
//! foreread read it, or refuse unknown features. The price is a constant for each addition.

use crate::catalog_file::fault::{CatalogFault, foreign, unsupported};

/// Files, one a sample.
pub(crate) const VERSION: &str = "1";
/// Packed samples.
pub(crate) const VERSION_PACKED: &str = "2";
/// Packed samples with values, or with places that are computed.
pub(crate) const VERSION_VALUES: &str = "3";
/// Packed samples of which some are decoded, or have several parts. Files of version 3 may have
/// decoded samples too.
pub(crate) const VERSION_DECODED: &str = "4";
/// Members of zip archives with their checksums.
pub(crate) const VERSION_CHECKED: &str = "5";
/// The samples or the classes are in another order than that of their names: a list's, the user's.
pub(crate) const VERSION_ORDERED: &str = "6";
/// Samples of files whose last change is known, of any format.
pub(crate) const VERSION_CHANGES: &str = "7";
/// Files with values, or parts of files, as a table names them.
pub(crate) const VERSION_TABLE: &str = "8";

/// Checks that a catalog of this version can be read.
pub(crate) fn check(version: Option<&str>) -> Result<(), CatalogFault> {
    match version {
        Some(
            VERSION | VERSION_PACKED | VERSION_VALUES | VERSION_DECODED | VERSION_CHECKED | VERSION_ORDERED
            | VERSION_CHANGES | VERSION_TABLE,
        ) => Ok(()),
        Some(other) if other.bytes().all(|byte| byte.is_ascii_digit()) && other.len() < 8 => {
            Err(unsupported(format!(
                "it is of version {other}, and this foreread reads versions {VERSION} to {VERSION_TABLE}"
            )))
        }
        _ => Err(foreign("it is an Arrow file of another kind")),
    }
}
