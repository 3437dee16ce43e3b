//! The bytes that texts, versions and values add to a fingerprint.
//!
//! Each has a number of its kind and its length before it, so that two lists of them differ.

use foreread_tier::Object;
use xxhash_rust::xxh3::Xxh3;

use crate::SampleValue;
use crate::catalog_file::object_versions::{etag, modified};

/// A text's part of a fingerprint.
pub(crate) fn hash_text(hash: &mut Xxh3, kind: u8, text: &str) {
    hash.update(&[kind]);
    hash.update(&(text.len() as u64).to_le_bytes());
    hash.update(text.as_bytes());
}

/// An object's state, in a fingerprint.
pub(crate) fn hash_version(hash: &mut Xxh3, object: &Object) {
    match (modified(object), etag(object)) {
        (Some(time), _) => {
            hash.update(&[2]);
            hash.update(&time.to_le_bytes());
        }
        (None, Some(tag)) => hash_text(hash, 3, tag),
        (None, None) => hash.update(&[0]),
    }
}

/// The part of chosen classes in a fingerprint.
pub(crate) fn hash_names(hash: &mut Xxh3, names: &[impl AsRef<str>]) {
    hash.update(&[12]);
    hash.update(&(names.len() as u64).to_le_bytes());
    names.iter().for_each(|name| hash_text(hash, 12, name.as_ref()));
}

/// A value's part of a fingerprint.
pub(crate) fn hash_value(hash: &mut Xxh3, value: Option<SampleValue<'_>>) {
    let (kind, bytes): (u8, &[u8]) = match &value {
        None => (7, &[]),
        Some(SampleValue::Integer(value)) => (8, &value.to_le_bytes()),
        Some(SampleValue::Float(value)) => (9, &value.to_bits().to_le_bytes()),
        Some(SampleValue::Text(text)) => (10, text.as_bytes()),
        Some(SampleValue::Array(_, bytes)) => (11, bytes),
    };
    hash.update(&[kind]);
    hash.update(&(bytes.len() as u64).to_le_bytes());
    hash.update(bytes);
}
