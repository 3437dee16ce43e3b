//! The schema of a catalog's file, with its metadata.
//!
//! A version may be replaced by a later one here, because files with known changes are the same in
//! all tables.

use std::collections::HashMap;
use std::sync::Arc;

use arrow_ipc::writer::FileWriter;
use arrow_schema::{ArrowError, Field, Schema};
use foreread_types::Fingerprint;

use crate::build::changes::FileChanges;
use crate::build::header::CatalogHeader;
use crate::catalog_file::keys::{
    BASE_URL_KEY, FINGERPRINT_KEY, FORMAT_KEY, LISTING_KEY, NAME_KEY, ORDERED_KEY, REQUEST_KEY, VERSION_KEY,
};
use crate::catalog_file::version::{VERSION_ORDERED, VERSION_TABLE};
use crate::catalog_file::writer::begin_with;

/// Creates a writer for batches of these columns. `version` is that of a catalog without changes.
pub(crate) fn begin(
    fields: Vec<Field>,
    versions: (&str, FileChanges),
    head: CatalogHeader<'_>,
    format: &str,
    fingerprint: Fingerprint,
) -> Result<(Arc<Schema>, FileWriter<Vec<u8>>), ArrowError> {
    let schema = described(fields, versions, head, format, fingerprint);
    let writer = begin_with(&schema, Vec::new())?;
    Ok((schema, writer))
}

/// The schema of these columns, with the catalog's metadata.
pub(super) fn described(
    fields: Vec<Field>,
    (version, changes): (&str, FileChanges),
    head: CatalogHeader<'_>,
    format: &str,
    fingerprint: Fingerprint,
) -> Arc<Schema> {
    let metadata = [
        (VERSION_KEY, changes.version(version).to_owned()),
        (BASE_URL_KEY, head.base_url.to_owned()),
        (FORMAT_KEY, format.to_owned()),
        (FINGERPRINT_KEY, fingerprint.to_string()),
        (LISTING_KEY, head.listing.text()),
    ];
    let notes = [(NAME_KEY, head.notes.name), (REQUEST_KEY, head.notes.request)];
    let notes = notes.into_iter().filter_map(|(key, text)| Some((key, text?.to_owned())));
    // The version may be a later one, of catalogs with changes.
    let ordered =
        [VERSION_ORDERED, VERSION_TABLE].contains(&version).then(|| (ORDERED_KEY, String::from("1")));
    let extra = notes.chain(ordered).chain(changes.metadata()).chain(head.extra.iter().cloned());
    let all = metadata.into_iter().chain(extra);
    let metadata: HashMap<_, _> = all.map(|(key, value)| (key.to_owned(), value)).collect();
    Arc::new(Schema::new(fields).with_metadata(metadata))
}
