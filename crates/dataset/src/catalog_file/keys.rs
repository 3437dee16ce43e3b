//! The magic bytes of a catalog file, and the keys of its metadata.

/// The magic bytes at the beginning and the end of an Arrow IPC file.
pub(crate) const MAGIC: &[u8; 6] = b"ARROW1";
pub(crate) const VERSION_KEY: &str = "foreread.catalog";
/// Set if the samples or the classes are in another order than that of their names.
pub(crate) const ORDERED_KEY: &str = "foreread.ordered";
pub(crate) const BASE_URL_KEY: &str = "foreread.base_url";
pub(crate) const FORMAT_KEY: &str = "foreread.format";
pub(crate) const FINGERPRINT_KEY: &str = "foreread.fingerprint";
/// The user's name for the location of the data, if it has one.
pub(crate) const NAME_KEY: &str = "foreread.name";
/// The types of arrays. See [`array_types`](super::array_types).
pub(crate) const ARRAYS_KEY: &str = "foreread.arrays";
/// The types of fields. See [`array_types`](super::array_types).
pub(crate) const FIELD_ARRAYS_KEY: &str = "foreread.field_arrays";
/// The lists of decoders. See [`made`](super::columns::made).
pub(crate) const RECIPES_KEY: &str = "foreread.recipes";
/// The result of the index, for people.
pub(crate) const SUMMARY_KEY: &str = "foreread.summary";
/// The column of a table that has the labels.
pub(crate) const LABEL_COLUMN_KEY: &str = "foreread.label_column";
/// The directory whose changes the catalog contains. See [`changes`](crate::build::changes).
pub(crate) const LOCATION_KEY: &str = "foreread.changes_at";
/// Distinguishes the listing from others. See [`listing`](super::listing).
pub(crate) const LISTING_KEY: &str = "foreread.listing";
/// How the index was requested, for the program that did.
pub(crate) const REQUEST_KEY: &str = "foreread.request";
/// The growth of a catalog: samples that came and went. See [`growth`](crate::catalog::growth).
pub(crate) const GROWTH_KEY: &str = "foreread.growth";
/// The numbers of the samples of a part. See [`part`](crate::catalog::part).
pub(crate) const SAMPLES_KEY: &str = "foreread.samples";
pub(crate) const CHECKSUM_KEY: &str = "foreread.checksum";
pub(crate) const CHECKSUM_PREFIX: &str = "xxh3:";
/// Replaces the checksum's digits while it is computed.
pub(crate) const CHECKSUM_BLANK: [u8; 32] = [b'0'; 32];
