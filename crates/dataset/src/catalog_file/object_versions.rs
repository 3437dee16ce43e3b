//! The version of an object, as the columns of a catalog have it: a time, a digest, an ETag.

use std::sync::Arc;

use foreread_tier::{FileChange, Object, Version};

/// The version of a file or an object, from its columns in a catalog. `location` is the directory
/// of the changes.
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

/// The modification time of an object, if its version is one.
pub(crate) fn modified(object: &Object) -> Option<i64> {
    object.version.as_ref().and_then(Version::modified)
}

/// The ETag of an object, if its version is one.
pub(crate) fn etag(object: &Object) -> Option<&str> {
    match &object.version {
        Some(Version::ETag(tag)) => Some(tag),
        _ => None,
    }
}
