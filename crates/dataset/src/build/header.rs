//! The values that an index passes to the metadata of each kind of catalog.

use crate::catalog_file::listing::Listing;

/// The values that the options of an index add to its catalog.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct IndexNotes<'a> {
    /// The user's name for the location of the data.
    pub(crate) name: Option<&'a str>,
    /// How the index was requested.
    pub(crate) request: Option<&'a str>,
}

/// The metadata of a catalog.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CatalogHeader<'a> {
    pub(crate) base_url: &'a str,
    pub(crate) notes: IndexNotes<'a>,
    pub(crate) listing: Listing,
    /// Further metadata.
    pub(crate) extra: &'a [(&'static str, String)],
}
