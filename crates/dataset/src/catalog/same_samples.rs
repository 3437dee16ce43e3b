//! Samples that several catalogs of one location have in common: two tables over one bucket, an
//! index and a later one.
//!
//! A sample is the same if its file, its place in the file and its version are the same. The
//! version includes the file system's records of changes. The price: both catalogs are read row by
//! row, about a microsecond for each row.

use foreread_tier::{Span, Version};
use foreread_types::SampleId;
use xxhash_rust::xxh3::Xxh3;

use crate::catalog_file::fingerprint::{hash_text, hash_value};
use crate::catalog_file::listing::Listing;
use crate::{Catalog, DatasetError};

impl Catalog {
    /// Whether several samples may be one file: a listing has each file once, and a table may
    /// repeat it.
    pub fn may_repeat_files(&self) -> bool {
        self.image().is_ordered()
    }

    /// A digest of each sample's file, its place there and its version. Two catalogs of one
    /// location have the same digest for the same bytes. `None` where versions do not prove that,
    /// and for shards.
    ///
    /// # Errors
    /// A damaged row.
    pub fn sample_digests(&self) -> Result<Option<Vec<u128>>, DatasetError> {
        let is_proven = matches!(self.0.listing, Listing::Versioned | Listing::Changed(_));
        if !is_proven || self.format().is_packed() || self.image().runs().are_there() {
            return Ok(None);
        }
        let digest = |id| {
            let (digest, changes) = self.row_digest(id)?;
            let mut hash = Xxh3::new();
            hash.update(&digest.to_le_bytes());
            hash.update(&changes.to_le_bytes());
            Ok(hash.digest128())
        };
        (0..self.with_gone().len()).map(digest).collect::<Result<_, _>>().map(Some)
    }

    /// A digest of a row's samples: the file, the place in it and the version, but for the file
    /// system's record of a change. That differs after a change of rights and in a copy, too. The
    /// second digest is of the record.
    pub(crate) fn row_digest(&self, row: u64) -> Result<(u128, u64), DatasetError> {
        let (first, samples) = self.run(row);
        let id = SampleId(first);
        let entry = self.entry(id)?;
        let mut hash = Xxh3::new();
        hash_text(&mut hash, 1, &entry.object.path);
        hash.update(&entry.object.size.to_le_bytes());
        let mut changes = Xxh3::new();
        let mut hash_version = |hash: &mut Xxh3, version: &Option<Version>| {
            let modified = version.as_ref().and_then(Version::modified);
            match version {
                Some(Version::ETag(tag)) => hash_text(hash, 2, tag),
                _ => {
                    hash.update(&[7, u8::from(modified.is_some())]);
                    hash.update(&modified.unwrap_or_default().to_le_bytes());
                }
            }
            let change = version.as_ref().and_then(Version::change);
            let (digest, location) = change.unwrap_or_default();
            changes.update(&[u8::from(change.is_some())]);
            changes.update(&digest.to_le_bytes());
            changes.update(&location.to_le_bytes());
        };
        hash_version(&mut hash, &entry.object.version);
        match entry.span {
            Span::Whole => hash_text(&mut hash, 3, ""),
            span => hash_text(&mut hash, 4, &format!("{span:?}")),
        }
        hash.update(&samples.to_le_bytes());
        hash.update(&self.sizes().bytes(id).to_le_bytes());
        for (name, object) in self.files(id)? {
            hash_text(&mut hash, 5, &name);
            hash_text(&mut hash, 6, &format!("{} {}", object.path, object.size));
            hash_version(&mut hash, &object.version);
        }
        Ok((hash.digest128(), changes.digest()))
    }

    /// A digest of the label and of these values of a row's first sample.
    pub(crate) fn content_digest(&self, row: u64, names: &[&String]) -> Result<u128, DatasetError> {
        let id = SampleId(self.run(row).0);
        let mut hash = Xxh3::new();
        hash_text(&mut hash, 1, self.label(id).unwrap_or_default());
        for name in names {
            hash_value(&mut hash, self.value(id, name)?);
        }
        Ok(hash.digest128())
    }
}
