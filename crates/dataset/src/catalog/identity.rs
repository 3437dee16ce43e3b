//! The identity of a catalog: its fingerprint, and the name under which caches have its samples.

use foreread_types::{DatasetIdentity, Fingerprint};
use xxhash_rust::xxh3::Xxh3;

use crate::Catalog;
use crate::catalog_file::fingerprint::hash_text;
use crate::catalog_file::listing::Listing;

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

    /// The user's name for the place of the data
    /// ([`IndexOptions::name`](crate::IndexOptions::name)).
    pub fn place_name(&self) -> Option<&str> {
        self.0.place_name.as_deref()
    }
}
