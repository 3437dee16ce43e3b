//! The column of a catalog with the last change of each file.
//!
//! A modification time can be set to any value. So a catalog of a directory also has a digest of
//! each file's inode and change time, where the file system keeps that time. A read of a file with
//! another digest is an error. The digests hold for the directory that was listed, which the
//! catalog names by a hash of its place. A copy of the data elsewhere has other inodes and change
//! times, and only its sizes and modification times are compared. The same holds for data with a
//! name, whose content the user guarantees. The price is 4 bytes per sample.

use std::sync::Arc;

use arrow_array::{ArrayRef, UInt32Array};
use arrow_schema::{DataType, Field};
use foreread_tier::{FileChange, Object, Version};

use crate::catalog_file::LOCATION_KEY;
use crate::catalog_version::{VERSION_CHANGES, VERSION_TABLE};
use crate::encode::CatalogHeader;

/// The column's name.
pub(crate) const COLUMN: &str = "changed";

/// The version of a file or an object, from its entry in a catalog. `location` is the directory of
/// the changes.
pub(crate) fn version(
    modified: Option<i64>,
    change: Option<u32>,
    location: Option<u32>,
    tag: Option<Arc<str>>,
) -> Option<Version> {
    match (modified, change.zip(location), tag) {
        (Some(modified), Some((digest, location)), _) => {
            Some(Version::Written { modified, changed: FileChange::Indexed(digest), location })
        }
        (Some(time), None, _) => Some(Version::Modified(time)),
        (None, _, tag) => tag.map(Version::ETag),
    }
}

/// The location of an object's change, if it has one.
pub(crate) fn location(object: &Object) -> Option<u32> {
    object.version.as_ref()?.change().map(|(_, location)| location)
}

/// The changes of one listing: the location that they are of. `None` if there are none to keep.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FileChanges(Option<u32>);

impl FileChanges {
    pub(crate) fn of<'a>(mut objects: impl Iterator<Item = &'a Object>, head: CatalogHeader<'_>) -> Self {
        Self::at(objects.find_map(location), head)
    }

    /// Of a listing with changes of this location.
    pub(crate) fn at(location: Option<u32>, head: CatalogHeader<'_>) -> Self {
        Self(location.filter(|_| head.notes.name.is_none()))
    }

    pub(crate) fn field(self) -> Option<Field> {
        self.0.map(|_| Field::new(COLUMN, DataType::UInt32, true))
    }

    /// The column of these rows' objects, if there is one.
    pub(crate) fn column<'a>(self, objects: impl Iterator<Item = &'a Object>) -> Option<ArrayRef> {
        let here = self.0?;
        let digest = |object: &Object| {
            let (digest, location) = object.version.as_ref().and_then(Version::change)?;
            (location == here).then_some(digest)
        };
        Some(Arc::new(objects.map(digest).collect::<UInt32Array>()))
    }

    /// The version of a catalog with them, which would be `without` if there were none.
    pub(crate) fn version(self, without: &str) -> &str {
        if self.0.is_some() && without != VERSION_TABLE { VERSION_CHANGES } else { without }
    }

    pub(crate) fn metadata(self) -> Option<(&'static str, String)> {
        self.0.map(|location| (LOCATION_KEY, format!("{location:08x}")))
    }
}
