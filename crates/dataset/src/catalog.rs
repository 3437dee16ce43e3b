//! stub
use std::path::Path;
use std::sync::Arc;

use foreread_tier::{Object, OriginTier, Span};
use foreread_types::{Fingerprint, SampleId, Sizes};

use crate::{DatasetError, IndexOptions, Progress};

/// How samples lie in objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Format {
    /// Each object is one sample.
    Files,
}

/// Where one sample's bytes are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The object that holds it.
    pub object: Object,
    /// Which part of the object it is.
    pub span: Span,
}

/// The samples of one dataset; cheap to clone.
#[derive(Clone, Debug)]
pub struct Catalog(Arc<()>);

impl Catalog {
    /// stub
    pub fn from_objects(
        _base_url: &str,
        _objects: impl IntoIterator<Item = Object>,
    ) -> Result<Self, DatasetError> {
        todo!()
    }
    /// stub
    pub async fn index(
        _origin: &dyn OriginTier,
        _base_url: &str,
        _options: &IndexOptions,
        _progress: impl FnMut(Progress),
    ) -> Result<Self, DatasetError> {
        todo!()
    }
    /// stub
    pub fn open(_path: impl AsRef<Path>) -> Result<Self, DatasetError> {
        todo!()
    }
    /// stub
    pub fn save(&self, _path: impl AsRef<Path>) -> Result<(), DatasetError> {
        todo!()
    }
    /// stub
    pub fn is_catalog_file(_path: impl AsRef<Path>) -> bool {
        todo!()
    }
    /// stub
    pub fn len(&self) -> u64 {
        todo!()
    }
    /// stub
    pub fn is_empty(&self) -> bool {
        todo!()
    }
    /// stub
    pub fn total_bytes(&self) -> u64 {
        todo!()
    }
    /// stub
    pub fn sizes(&self) -> Sizes {
        todo!()
    }
    /// stub
    pub fn fingerprint(&self) -> Fingerprint {
        todo!()
    }
    /// stub
    pub fn base_url(&self) -> &str {
        todo!()
    }
    /// stub
    pub fn format(&self) -> Format {
        todo!()
    }
    /// stub
    pub fn entry(&self, _id: SampleId) -> Result<Entry, DatasetError> {
        todo!()
    }
    /// stub
    pub fn path(&self, _id: SampleId) -> Result<&str, DatasetError> {
        todo!()
    }
    /// stub
    pub fn label(&self, _id: SampleId) -> Option<&str> {
        todo!()
    }
    /// stub
    pub fn label_index(&self, _id: SampleId) -> Option<u32> {
        todo!()
    }
    /// stub
    pub fn labels(&self) -> &[Arc<str>] {
        todo!()
    }
}
