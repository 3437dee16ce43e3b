//! The identity of a catalog: its fingerprint, and the name under which caches have its samples.

use std::sync::Arc;

use foreread_types::{DatasetIdentity, Fingerprint};
use xxhash_rust::xxh3::Xxh3;

use crate::catalog::part::with_metadata;
use crate::catalog::{CatalogInner, named_fault};
use crate::catalog_file::CatalogFile;
use crate::catalog_file::fault::{CatalogFault, corrupt};
use crate::catalog_file::fingerprint::hash_text;
use crate::catalog_file::keys::LISTING_KEY;
use crate::catalog_file::listing::Listing;
use crate::{Catalog, DatasetError};

impl Catalog {
    /// Identifies the data. It covers the path, offset, length, version and label of each sample,
    /// in order. Of a packed sample it also covers the name, fields and checksum. It depends
    /// neither on the place of the data nor on the process that indexed it. The fingerprint of a
    /// part covers the numbers of its samples as well.
    pub fn fingerprint(&self) -> Fingerprint {
        self.1.as_ref().map_or(self.0.fingerprint, |part| part.fingerprint)
    }

    /// The key under which caches hold these samples if they are read from an origin whose
    /// [`place`](foreread_tier::OriginTier::place) is `place`. It has 128 bits. They are derived
    /// from the fingerprint and the place, or the user's name for the place. They also cover the
    /// difference between listings that look the same (see
    /// [`keeps_identity`](Self::keeps_identity)). A part has that of the whole, because they share
    /// caches.
    pub fn identity(&self, place: &str) -> DatasetIdentity {
        self.identity_of(self.0.fingerprint, self.0.listing, place)
    }

    /// The identity of a listing at the same place.
    pub(crate) fn identity_of(
        &self,
        fingerprint: Fingerprint,
        listing: Listing,
        place: &str,
    ) -> DatasetIdentity {
        let mut hash = Xxh3::new();
        hash.update(b"foreread dataset 1\0");
        hash.update(&fingerprint.0.to_le_bytes());
        match &self.0.place_name {
            Some(name) => hash_text(&mut hash, 1, name),
            None => hash_text(&mut hash, 2, place),
        }
        match listing {
            Listing::Random(_) | Listing::Unversioned(_) => hash_text(&mut hash, 3, &listing.text()),
            // The user guarantees the content of named data. Modification times of a copy differ.
            Listing::Changed(_) if self.0.place_name.is_none() => {
                hash_text(&mut hash, 3, &listing.text());
            }
            Listing::Changed(_) | Listing::Versioned => {}
        }
        DatasetIdentity(hash.digest128())
    }

    /// Whether another listing of the same data has the same [`identity`](Self::identity). It has
    /// not if the objects have no versions, or versions that prove nothing. Examples are one
    /// modification time for most objects, or one before 1980. Then only a saved catalog keeps
    /// cached data valid.
    pub fn keeps_identity(&self) -> bool {
        !matches!(self.0.listing, Listing::Random(_))
    }

    /// The catalog with the identity that its listings have in all processes of one job, if it has
    /// none that other listings [have, too](Self::keeps_identity). `job` names the job.
    ///
    /// These processes list the data at nearly the same time. So files of equal names, sizes and
    /// times are the same, as for one process that lists once and then reads. A cache that outlives
    /// the job must not use this identity.
    ///
    /// # Errors
    /// [`DatasetErrorKind::Io`] if the catalog's file cannot be read.
    pub fn in_job(&self, job: &str) -> Result<Self, DatasetError> {
        if self.keeps_identity() {
            return Ok(self.clone());
        }
        let mut hash = Xxh3::new();
        hash.update(b"foreread listing of a job 1\0");
        hash.update(&self.0.fingerprint.0.to_le_bytes());
        hash_text(&mut hash, 1, job);
        let listing = Listing::Random(hash.digest128());
        self.with_listing(listing).map_err(|fault| named_fault(&self.0.name, fault))
    }

    fn with_listing(&self, listing: Listing) -> Result<Self, CatalogFault> {
        let changed = with_metadata(&self.0.image.bytes()?, |metadata| {
            metadata.insert(LISTING_KEY.to_owned(), listing.text());
        });
        let image = CatalogFile::owned(changed.map_err(|error| corrupt(error.to_string()))?.into())?;
        let inner = CatalogInner::new(image, self.0.name.clone())?;
        let inner = CatalogInner { base_url: self.0.base_url.clone(), ..inner };
        Ok(Self(Arc::new(inner), self.1.clone()))
    }

    /// The user's name for the place of the data
    /// ([`IndexOptions::name`](crate::IndexOptions::name)).
    pub fn place_name(&self) -> Option<&str> {
        self.0.place_name.as_deref()
    }
}

#[cfg(test)]
mod tests {
    use foreread_tier::{Object, Version};
    use foreread_types::SampleId;

    use super::*;

    fn listed(times: [i64; 2]) -> Catalog {
        let object = |(path, time): (&str, i64)| Object {
            path: path.into(),
            size: 3,
            version: Some(Version::Modified(time)),
        };
        Catalog::from_objects("/data", [("a", times[0]), ("b", times[1])].map(object)).unwrap()
    }

    #[test]
    fn listings_of_one_job_have_one_identity_if_all_times_are_equal() {
        let now = 1_700_000_000_000_000_000;
        let equal = || listed([now, now]);
        assert_ne!(equal().identity("/data"), equal().identity("/data"));
        let in_job = |catalog: Catalog, job| {
            let found = catalog.in_job(job).unwrap();
            let read_back = Catalog::from_bytes(found.to_bytes().unwrap(), "x").unwrap();
            assert_eq!(found.identity("/data"), read_back.identity("/data"));
            assert_eq!(found.path(SampleId(1)).unwrap(), catalog.path(SampleId(1)).unwrap());
            found.identity("/data")
        };
        assert_eq!(in_job(equal(), "1"), in_job(equal(), "1"));
        assert_ne!(in_job(equal(), "1"), in_job(equal(), "2"));
        assert_ne!(in_job(equal(), "1"), in_job(listed([now + 1, now + 1]), "1"));
        // Their own identity, where they have one.
        let own = listed([now, now + 1]);
        assert_eq!(in_job(own.clone(), "1"), own.identity("/data"));
    }
}
