//! The identity of a listing, which distinguishes it from another that looks the same.
//!
//! Bytes are cached under a dataset's identity. Names, sizes and modification times do not prove
//! that bytes are equal. Data can be rewritten in place with the old times, and file system images
//! often have one time for all files. So a catalog contains a number for its listing where versions
//! prove nothing:
//! * If the file system keeps change times, which no user can set, it is a digest of these and the
//!   files' inodes. It is the same for every listing until a file is written.
//! * Without versions, or if they prove nothing, it is a random number. A saved catalog keeps it,
//!   and so caches keep their content. A new listing has another number, and everything is read
//!   again.
//! * If versions suffice (ETags, times that differ), no number is added.
//!
//! Files on other file systems than the listed directory (mounted below it, or targets of links)
//! prove nothing. A listing with such a file is random.
//!
//! The price of the digest is that a change of owner or mode invalidates a cache. The price of the
//! random number is that a cache is valid only as long as its catalog.

use std::io;

use foreread_tier::{FileChange, Object, Version};
use xxhash_rust::xxh3::Xxh3;

/// Modification times before this are made up. It is 1 January 1980 in nanoseconds, the first time
/// of the FAT file system.
const NINETEEN_EIGHTY: i64 = 315_532_800_000_000_000;

/// Distinguishes a listing from others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Listing {
    /// Versions suffice.
    Versioned,
    /// Versions suffice, and there is a digest of changes. Data that were recreated with the old
    /// times have another digest.
    Changed(u128),
    /// Versions prove nothing, but there is a digest of changes, which does.
    Unversioned(u128),
    /// A random number.
    Random(u128),
}

impl Listing {
    /// The listing of `objects`, whose order depends only on their paths.
    ///
    /// # Errors
    /// If a random number is needed and the system has none.
    pub(crate) fn of<'a>(objects: impl Iterator<Item = &'a Object> + Clone) -> io::Result<Self> {
        let mut versions = ListedVersions::default();
        objects.clone().for_each(|object| versions.add(object));
        let common = versions.common_time();
        let share = common.map_or(0, |time| objects.filter(|object| has_time(object, time)).count() as u64);
        versions.listing(share)
    }

    /// As a value of a catalog's metadata.
    pub(crate) fn text(self) -> String {
        match self {
            Self::Versioned => "versioned".to_owned(),
            Self::Changed(digest) => format!("changed:{digest:032x}"),
            Self::Unversioned(digest) => format!("unversioned:{digest:032x}"),
            Self::Random(number) => format!("random:{number:032x}"),
        }
    }

    /// A listing of unknown content, which differs from any other.
    pub(crate) fn unknown() -> io::Result<Self> {
        random().map(Self::Random)
    }

    /// The listing with this [`text`](Self::text).
    pub(crate) fn parse(text: &str) -> Option<Self> {
        if text == "versioned" {
            return Some(Self::Versioned);
        }
        let (kind, digits) = text.split_once(':')?;
        let number = u128::from_str_radix(digits, 16).ok().filter(|_| digits.len() == 32)?;
        match kind {
            "changed" => Some(Self::Changed(number)),
            "unversioned" => Some(Self::Unversioned(number)),
            "random" => Some(Self::Random(number)),
            _ => None,
        }
    }
}

/// The strength of the versions of all objects as proofs, from one look at each.
///
/// Versions cannot distinguish the objects from later replacements if they are made-up times: a
/// time that more than half of several objects share, or one before 1980.
#[derive(Default)]
pub(crate) struct ListedVersions {
    count: u64,
    /// Whether some version is missing, or a time is made up.
    prove_nothing: bool,
    /// Majority vote: pairs of unequal times cancel. A time of more than half of the objects, if
    /// there is one, remains.
    common: i64,
    ahead: u64,
    /// The changes that the file system has recorded.
    changes: Xxh3,
    /// Whether some objects are on other file systems, so their changes are unknown.
    are_elsewhere: bool,
    /// Whether some objects have no record of changes.
    lack_changes: bool,
    /// Whether another file system has claimed some of the changes.
    are_claimed: bool,
}

impl ListedVersions {
    pub(crate) fn add(&mut self, object: &Object) {
        self.count += 1;
        match object.version {
            Some(Version::Written { changed: FileChange::Elsewhere, .. }) => self.are_elsewhere = true,
            Some(Version::Written { changed: FileChange::Kept(number), .. }) => {
                self.changes.update(&number.to_le_bytes());
            }
            Some(Version::Written { changed: FileChange::Claimed(number), .. }) => {
                self.are_claimed = true;
                self.changes.update(&number.to_le_bytes());
            }
            _ => self.lack_changes = true,
        }
        let Some(version) = &object.version else {
            self.prove_nothing = true;
            return;
        };
        let Some(time) = version.modified() else { return };
        self.prove_nothing |= time < NINETEEN_EIGHTY;
        match (self.ahead, time == self.common) {
            (0, _) => (self.common, self.ahead) = (time, 1),
            (_, true) => self.ahead += 1,
            (_, false) => self.ahead -= 1,
        }
    }

    /// The time that more than half of the objects may have.
    pub(crate) fn common_time(&self) -> Option<i64> {
        (self.ahead > 0 && !self.prove_nothing && !self.are_elsewhere).then_some(self.common)
    }

    /// The listing, of which so many objects have the common time.
    ///
    /// # Errors
    /// If a random number is needed and the system has none.
    pub(crate) fn listing(self, with_common_time: u64) -> io::Result<Listing> {
        let distinguish = !self.prove_nothing && (with_common_time < 2 || with_common_time * 2 <= self.count);
        let digest = (!self.lack_changes).then(|| self.changes.digest128());
        match (distinguish, digest) {
            _ if self.are_elsewhere => random().map(Listing::Random),
            (true, Some(digest)) => Ok(Listing::Changed(digest)),
            (true, None) => Ok(Listing::Versioned),
            (false, Some(digest)) if !self.are_claimed => Ok(Listing::Unversioned(digest)),
            (false, _) => random().map(Listing::Random),
        }
    }
}

/// Whether an object has this modification time.
pub(crate) fn has_time(object: &Object, time: i64) -> bool {
    object.version.as_ref().and_then(Version::modified) == Some(time)
}

fn random() -> io::Result<u128> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes)?;
    Ok(u128::from_le_bytes(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: i64 = 1_000_000_000;
    const NOW: i64 = 1_700_000_000 * SECOND;

    fn listing(versions: &[Option<Version>]) -> Listing {
        let object = |(number, version): (usize, &Option<Version>)| Object {
            path: format!("{number}").into(),
            size: 1,
            version: version.clone(),
        };
        let objects: Vec<Object> = versions.iter().enumerate().map(object).collect();
        Listing::of(objects.iter()).unwrap()
    }

    fn times(times: &[i64]) -> Listing {
        listing(&times.iter().map(|time| Some(Version::Modified(*time))).collect::<Vec<_>>())
    }

    #[test]
    // semantics: DISK-5
    fn times_that_many_share_are_no_versions() {
        assert_eq!(times(&[NOW]), Listing::Versioned);
        assert_eq!(times(&[NOW, NOW + 1]), Listing::Versioned);
        assert_eq!(times(&[NOW, NOW + 1, NOW, NOW + 2]), Listing::Versioned);
        assert!(matches!(times(&[NOW, NOW]), Listing::Random(_)));
        assert!(matches!(times(&[NOW, NOW + 1, NOW]), Listing::Random(_)));
        assert!(matches!(times(&[NOW + 1, NOW + 2, NOW, NOW, NOW]), Listing::Random(_)));
        assert!(matches!(times(&[NOW, 0]), Listing::Random(_)), "one before 1980");
        assert_ne!(times(&[0, 0]), times(&[0, 0]), "each listing has its own number");
    }

    #[test]
    fn tags_are_versions_and_their_absence_is_none() {
        let tag = |tag: &str| Some(Version::ETag(tag.into()));
        assert_eq!(listing(&[tag("a"), tag("a"), tag("a")]), Listing::Versioned);
        assert!(matches!(listing(&[tag("a"), None]), Listing::Random(_)));
    }

    #[test]
    fn change_times_distinguish_listings_if_all_have_one() {
        let written = |modified, changed| Some(Version::Written { modified, changed, location: 1 });
        let kept = |changed| written(0, FileChange::Kept(changed));
        let one = listing(&[kept(5), kept(6)]);
        assert!(matches!(one, Listing::Unversioned(_)));
        assert_eq!(one, listing(&[kept(5), kept(6)]));
        assert_ne!(one, listing(&[kept(5), kept(7)]));
        assert!(matches!(listing(&[kept(5), Some(Version::Modified(0))]), Listing::Random(_)));
        let versioned = listing(&[written(NOW, FileChange::Kept(5)), written(NOW + 1, FileChange::Kept(5))]);
        assert!(matches!(versioned, Listing::Changed(_)));
    }

    #[test]
    fn changes_that_another_file_system_claims_prove_nothing_alone() {
        let claimed = |modified, changed| {
            Some(Version::Written { modified, changed: FileChange::Claimed(changed), location: 1 })
        };
        assert!(matches!(listing(&[claimed(0, 5), claimed(0, 6)]), Listing::Random(_)));
        let versioned = listing(&[claimed(NOW, 5), claimed(NOW + 1, 6)]);
        assert!(matches!(versioned, Listing::Changed(_)));
        assert_ne!(versioned, listing(&[claimed(NOW, 5), claimed(NOW + 1, 7)]));
    }

    #[test]
    // semantics: DISK-5
    fn listing_with_a_file_elsewhere_has_its_own_id() {
        let with = |changed| {
            let here = Version::Written { modified: NOW, changed: FileChange::Kept(1), location: 1 };
            listing(&[Some(here), Some(Version::Written { modified: NOW + 1, changed, location: 1 })])
        };
        assert!(matches!(with(FileChange::Kept(2)), Listing::Changed(_)));
        assert!(matches!(with(FileChange::Elsewhere), Listing::Random(_)));
    }

    #[test]
    fn listing_is_text_and_back() {
        for listing in
            [Listing::Versioned, Listing::Changed(7), Listing::Unversioned(8), Listing::Random(u128::MAX)]
        {
            assert_eq!(Listing::parse(&listing.text()), Some(listing));
        }
        for text in ["", "random:", "random:7", "other:00000000000000000000000000000007"] {
            assert_eq!(Listing::parse(text), None, "{text}");
        }
    }
}
