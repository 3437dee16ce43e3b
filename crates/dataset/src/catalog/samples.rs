//! The samples of a catalog: where the bytes of each lie, its path, its parts and its checksum.
//!
//! An entry is read by the number of its sample. The price: a path of a file is read from the
//! catalog's file, which may block for as long as a file server does.

use std::borrow::Cow;
use std::cmp::Ordering;
use std::ops::Range;
use std::sync::Arc;

use foreread_tier::{Object, Span, StorageServer};
use foreread_types::SampleId;

use crate::catalog_file::fault::{CatalogFault, corrupt};
use crate::catalog_file::{CatalogRow, ObjectPath, file_lists, object_versions, server_column};
use crate::messages::shortened;
use crate::names::{SplitName, compare, refuse};
use crate::{Catalog, DatasetError, Format, SampleChecksum};

/// The position of one sample's bytes, as a read request to an origin needs it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CatalogEntry {
    /// The object that contains the sample.
    pub object: Object,
    /// The part of the object.
    pub span: Span,
}

/// One named part of a sample: a WebDataset member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SampleField<'a> {
    /// The member's name after its first dot, in lower case: `jpg`, `cls`, `seg.png`.
    pub name: &'a str,
    /// The field's bytes within the sample.
    pub range: Range<u64>,
}

impl Catalog {
    /// The position of a sample's bytes.
    ///
    /// # Errors
    /// [`OutOfRange`](crate::DatasetErrorKind::OutOfRange) if there is no such sample.
    /// [`Corrupt`](crate::DatasetErrorKind::Corrupt) if its path would leave the origin.
    /// [`Io`](crate::DatasetErrorKind::Io) or [`Changed`](crate::DatasetErrorKind::Changed) if the
    /// catalog's file is no longer readable or was overwritten.
    pub fn entry(&self, id: SampleId) -> Result<CatalogEntry, DatasetError> {
        let row = self.row(id)?;
        if let Some(files) = &row.files {
            return self.files_entry(files, row.length).map_err(|fault| self.failed(id, fault));
        }
        let version = object_versions::version(row.modified, row.changed, self.0.location, row.etag);
        let path = match row.object {
            ObjectPath::File(path) => path,
            ObjectPath::IndexedShard(path) => Arc::clone(path),
        };
        Ok(match row.part {
            None => CatalogEntry { object: Object { path, size: row.length, version }, span: Span::Whole },
            Some((size, part)) => {
                let span = match row.made {
                    Some(parts) => Span::Made(parts),
                    None => Span::Range(part),
                };
                CatalogEntry { object: Object { path, size, version }, span }
            }
        })
    }

    /// The files of a sample that has several, with their names. Empty for any other.
    ///
    /// # Errors
    /// Those of [`entry`](Self::entry).
    pub fn files(&self, id: SampleId) -> Result<Vec<(String, Object)>, DatasetError> {
        let Some(list) = self.row(id)?.files else { return Ok(Vec::new()) };
        let files = file_lists::files(&list, self.0.location).map_err(|fault| self.failed(id, fault))?;
        let names = self.fields(id)?.into_iter().map(|field| field.name.to_owned());
        Ok(names.zip(files).collect())
    }

    /// The entry of a sample of several files, which has `length` bytes.
    fn files_entry(&self, list: &str, length: u64) -> Result<CatalogEntry, CatalogFault> {
        let files = file_lists::files(list, self.0.location)?;
        if let Some(why) = files.iter().find_map(|object| refuse(&object.path)) {
            return Err(corrupt(why));
        }
        let parts = file_lists::parts(&files)?;
        let sum = files.iter().try_fold(0, |sum: u64, object| sum.checked_add(object.size));
        let first = files.into_iter().next().filter(|_| sum == Some(length));
        let object = first.ok_or_else(|| corrupt("the list of a sample's files is damaged"))?;
        let span = if parts.is_empty() { Span::Whole } else { Span::Made(parts.into()) };
        Ok(CatalogEntry { object, span })
    }

    /// Whether [`entry`](Self::entry) reads the catalog's file, because names of files are not in
    /// memory. Then it may block for as long as a file server does.
    pub fn reads_entries(&self) -> bool {
        self.0.image.reads_rows()
    }

    /// A sample's path, relative to the base URL. The path of a packed sample is only for people:
    /// its shard, a slash, and its name or record number in the shard.
    ///
    /// # Errors
    /// Those of [`entry`](Self::entry).
    pub fn path(&self, id: SampleId) -> Result<Cow<'_, str>, DatasetError> {
        let shard = match self.row(id)?.object {
            ObjectPath::File(path) => return Ok(Cow::Owned(path.to_string())),
            ObjectPath::IndexedShard(shard) => shard,
        };
        Ok(Cow::Owned(match self.key(id)? {
            Some(key) => format!("{shard}/{key}"),
            None => format!("{shard}/{}", self.0.image.number_in_object(self.number_or_none(id))),
        }))
    }

    /// The sample of the file at `path`, relative to the base URL. `None` if there is none, samples
    /// are packed or names cannot be read. A binary search, unless samples have a list's order.
    pub fn find(&self, path: &str) -> Option<SampleId> {
        if let Some(numbers) = self.numbers() {
            let number = self.with_gone().find(path)?.0;
            return numbers.iter().position(|known| *known == number).map(|at| SampleId(at as u64));
        }
        if self.0.image.is_ordered() {
            let is_it = |id: &u64| match self.row(SampleId(*id)).map(|row| row.object) {
                Ok(ObjectPath::File(here)) => *here == *path,
                _ => false,
            };
            return (0..self.len()).find(is_it).map(SampleId);
        }
        let wanted = (path, SplitName::of(path));
        let (mut from, mut to) = (0, self.len());
        while from < to {
            let middle = from + (to - from) / 2;
            let ObjectPath::File(here) = self.row(SampleId(middle)).ok()?.object else { return None };
            match compare((&here, SplitName::of(&here)), wanted) {
                Ordering::Less => from = middle + 1,
                Ordering::Greater => to = middle,
                Ordering::Equal => return Some(SampleId(middle)),
            }
        }
        None
    }

    /// The name of a packed sample in its shard: WebDataset's `__key__`, a zip member's name.
    /// `None` for files and records, and if there is no such sample.
    ///
    /// # Errors
    /// [`Corrupt`](crate::DatasetErrorKind::Corrupt) if it is not valid text.
    /// [`Io`](crate::DatasetErrorKind::Io) or [`Changed`](crate::DatasetErrorKind::Changed) if the
    /// catalog's file is no longer readable or was overwritten.
    pub fn key(&self, id: SampleId) -> Result<Option<Cow<'_, str>>, DatasetError> {
        self.0.image.key(self.number_or_none(id)).map_err(|fault| self.failed(id, fault))
    }

    /// The fields of a WebDataset sample, in their order. Empty for other formats.
    ///
    /// # Errors
    /// [`OutOfRange`](crate::DatasetErrorKind::OutOfRange) if there is no such sample.
    pub fn fields(&self, id: SampleId) -> Result<Vec<SampleField<'_>>, DatasetError> {
        if id.0 >= self.len() {
            return Err(self.out_of_range(id));
        }
        let fields = self.0.image.fields(self.number_or_none(id)).into_iter().flatten();
        Ok(fields.map(|(name, range)| SampleField { name, range }).collect())
    }

    /// The bytes of the field `name` within a WebDataset sample. `None` if it has no such field.
    /// Cheaper than [`fields`](Self::fields).
    pub fn field(&self, id: SampleId, name: &str) -> Option<Range<u64>> {
        self.0.image.fields(self.number_or_none(id))?.find(|field| field.0 == name).map(|(_, range)| range)
    }

    /// The checksum of a sample's bytes, if its format has one (TFRecord, zip). Catalogs of earlier
    /// versions have none of zip archives.
    pub fn checksum(&self, id: SampleId) -> Option<SampleChecksum> {
        let sum = self.0.image.crc32c(self.number_or_none(id))?;
        Some(match self.format() {
            Format::Zip => SampleChecksum::Crc32(sum),
            _ => SampleChecksum::Crc32c(sum),
        })
    }

    /// The storage server that holds a sample's first byte, if the storage has several and the
    /// catalog names it. A hint, because files may move.
    pub fn server(&self, id: SampleId) -> Option<StorageServer> {
        self.server_value(id).and_then(server_column::decode)
    }

    /// A sample's value in the column of servers.
    pub(crate) fn server_value(&self, id: SampleId) -> Option<u32> {
        self.0.image.server(self.number_or_none(id))
    }

    /// Whether a sample was released to an archive when the dataset was indexed.
    pub fn is_released(&self, id: SampleId) -> bool {
        self.server_value(id).is_some_and(server_column::is_released)
    }

    fn row(&self, id: SampleId) -> Result<CatalogRow<'_>, DatasetError> {
        let row = self.0.image.row(self.number_or_none(id)).ok_or_else(|| self.out_of_range(id))?;
        let row = row.map_err(|fault| self.failed(id, fault))?;
        match refuse(&row.object) {
            None => Ok(row),
            Some(why) => Err(self.failed(id, corrupt(format!("path {:?}: {why}", shortened(&row.object))))),
        }
    }
}
