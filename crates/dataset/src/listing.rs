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
        let digest = match changes(objects.clone()) {
            Changes::Elsewhere => return random().map(Self::Random),
            Changes::None => None,
            Changes::Some { digest, kept } => Some((digest, kept)),
        };
        match (distinguish(objects), digest) {
            (true, Some((digest, _))) => Ok(Self::Changed(digest)),
            (true, None) => Ok(Self::Versioned),
            (false, Some((digest, true))) => Ok(Self::Unversioned(digest)),
            (false, _) => random().map(Self::Random),
        }
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

/// The known changes of all objects.
enum Changes {
    /// Some objects are on other file systems, so their changes are unknown.
    Elsewhere,
    /// The origin is not a file system that keeps changes.
    None,
    /// A digest, and whether all file systems keep its input themselves.
    Some { digest: u128, kept: bool },
}

fn changes<'a>(objects: impl Iterator<Item = &'a Object>) -> Changes {
    let (mut hash, mut kept, mut without) = (Xxh3::new(), true, false);
    for object in objects {
        let number = match object.version {
            Some(Version::Written { changed: FileChange::Elsewhere, .. }) => return Changes::Elsewhere,
            Some(Version::Written { changed: FileChange::Kept(number), .. }) => number,
            Some(Version::Written { changed: FileChange::Claimed(number), .. }) => {
                kept = false;
                number
            }
            _ => {
                without = true;
                continue;
            }
        };
        hash.update(&number.to_le_bytes());
    }
    if without { Changes::None } else { Changes::Some { digest: hash.digest128(), kept } }
}

/// Whether the versions can distinguish the objects from later replacements. Made-up times cannot.
/// These are a time that more than half of several objects share, and times before 1980.
fn distinguish<'a>(objects: impl Iterator<Item = &'a Object> + Clone) -> bool {
    // Majority vote: pairs of unequal times cancel. A time of more than half of the objects, if
    // there is one, remains.
    let (mut common, mut ahead, mut count) = (0, 0u64, 0u64);
    for object in objects.clone() {
        let Some(version) = &object.version else { return false };
        count += 1;
        let Some(time) = version.modified() else { continue };
        if time < NINETEEN_EIGHTY {
            return false;
        }
        match (ahead, time == common) {
            (0, _) => (common, ahead) = (time, 1),
            (_, true) => ahead += 1,
            (_, false) => ahead -= 1,
        }
    }
    let has = |object: &&Object| object.version.as_ref().and_then(Version::modified) == Some(common);
    let share = objects.filter(has).count() as u64;
    share < 2 || share * 2 <= count
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
