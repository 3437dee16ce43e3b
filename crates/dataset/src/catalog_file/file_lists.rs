//! The files of a sample that has several, as a text in its catalog.
//!
//! A sample of an image and its mask is the bytes of both files, one after another. Its row has a
//! list of the files, in JSON, which stays in the catalog's file as paths do: the path, the length
//! and the version of each. The price: a read parses a hundred bytes of text.

use foreread_tier::{Object, StoredPart, Version};
use foreread_types::Recipe;
use serde::{Deserialize, Serialize};

use crate::catalog_file::fault::{CatalogFault, corrupt};
use crate::catalog_file::object_versions::{etag, modified, version};

/// One file: its path, length, modification time, digest of the last change, and ETag.
#[derive(Serialize, Deserialize)]
struct ListedFile(String, u64, Option<i64>, Option<u32>, Option<String>);

/// The text of a list.
pub(crate) fn text<'a>(objects: impl Iterator<Item = &'a Object>) -> String {
    let file = |object: &Object| {
        let change = object.version.as_ref().and_then(Version::change).map(|(digest, _)| digest);
        let tag = etag(object).map(str::to_owned);
        ListedFile(object.path.to_string(), object.size, modified(object), change, tag)
    };
    let files: Vec<ListedFile> = objects.map(file).collect();
    // Texts and numbers are always JSON.
    serde_json::to_string(&files).unwrap_or_default()
}

/// The files in a list. `location` is the directory of the changes.
pub(crate) fn files(text: &str, location: Option<u32>) -> Result<Vec<Object>, CatalogFault> {
    let files: Vec<ListedFile> =
        serde_json::from_str(text).map_err(|_| corrupt("the list of a sample's files is damaged"))?;
    let object = |ListedFile(path, size, modified, change, tag): ListedFile| {
        let version = version(modified, change, location, tag.map(Into::into));
        Object { path: path.into(), size, version }
    };
    Ok(files.into_iter().map(object).collect())
}

/// The parts of a sample: all bytes of its files. Empty files have none.
pub(crate) fn parts(files: &[Object]) -> Result<Vec<StoredPart>, CatalogFault> {
    let part = |object: &Object| {
        Ok(StoredPart {
            object: Some(object.clone()),
            stored: 0..object.size,
            recipe: Recipe::new([], object.size).map_err(corrupt)?,
            delivered: 0..object.size,
        })
    };
    files.iter().filter(|object| object.size > 0).map(part).collect()
}
