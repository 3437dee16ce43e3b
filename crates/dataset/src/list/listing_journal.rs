//! An interrupted listing, kept in a file until it is complete.
//!
//! An origin that lists in the order of paths can resume after the last one. So each object is a
//! line of JSON, and a line marks the progress from time to time. Lines after the last mark do not
//! count. Lines have checksums, and one process at a time writes the file
//! ([`journal`]). The first line identifies the location and the selection of
//! objects. For any other listing the file starts anew. The price is a hundred bytes per object on
//! disk while the listing runs. An origin without that order gains nothing: the file is removed at
//! the first object out of order.

use std::path::Path;
use std::time::Duration;

use foreread_tier::Object;
use serde::{Deserialize, Serialize};

use crate::DatasetError;
use crate::catalog_file::object_versions::{etag, modified, version};
use crate::disk::journal::{self, Journal, RecordUse};
use crate::list::selection::Selection;

/// The number of objects between two marks of the listing's progress.
const OBJECTS_PER_MARK: u64 = 1_000;

/// The age above which an interrupted listing is not resumed, because objects may have changed.
const MAX_AGE: Duration = Duration::from_secs(24 * 3600);

/// The first bytes of such a file, which distinguish it from any other.
const BEGINNING: &[u8] = b"{\"unfinished_listing\":";

/// The first line of a file, which identifies the listing.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct ListingHead {
    unfinished_listing: u32,
    base_url: String,
    include: Vec<String>,
    exclude: Vec<String>,
}

#[derive(Debug, Serialize, Deserialize)]
enum ListingRecord {
    /// A selected object: path, length, time or tag.
    #[serde(rename = "o")]
    Object(String, u64, Option<i64>, Option<String>),
    /// All objects up to this path have been listed.
    #[serde(rename = "upto")]
    UpTo(String),
}

/// The file of a running listing.
#[derive(Debug)]
pub(crate) struct ListingJournal {
    journal: Journal,
    last: String,
    since: u64,
}

impl ListingJournal {
    /// Opens or creates the file of this listing, with the path after which it resumes. Passes its
    /// objects to `take`, in pieces. Returns `None` if no file can be opened. Then the listing is
    /// not saved.
    ///
    /// # Errors
    /// Those of `take`, and [`DatasetErrorKind::InUse`](crate::DatasetErrorKind::InUse) if another
    /// process writes it.
    pub(crate) fn open(
        path: &Path,
        base_url: &str,
        selection: &Selection<'_>,
        mut take: impl FnMut(Vec<Object>) -> Result<(), DatasetError>,
    ) -> Result<Option<Self>, DatasetError> {
        let (include, exclude) = selection.key();
        let head = ListingHead { unfinished_listing: 2, base_url: base_url.to_owned(), include, exclude };
        let (mut last, mut pending, mut failure) = (String::new(), Vec::new(), None);
        let journal =
            Journal::open(path, BEGINNING, &head, MAX_AGE, |text| match serde_json::from_str(text) {
                Ok(ListingRecord::Object(path, size, modified, tag)) => {
                    let version = version(modified, None, None, tag.map(Into::into));
                    pending.push(Object { path: path.into(), size, version });
                    RecordUse::Pending
                }
                Ok(ListingRecord::UpTo(path)) => {
                    last = path;
                    // After a failure, the rest is not needed, and stays in the file.
                    let pending = std::mem::take(&mut pending);
                    if failure.is_none() {
                        failure = take(pending).err();
                    }
                    RecordUse::Counts
                }
                Err(_) => RecordUse::Refused,
            })?;
        match failure {
            Some(error) => Err(error),
            None => Ok(journal.map(|journal| Self { journal, last, since: 0 })),
        }
    }

    /// The path after which the listing resumes.
    pub(crate) fn after(&self) -> Option<&str> {
        (!self.last.is_empty()).then_some(self.last.as_str())
    }

    /// Records the next listed object, selected or not. If it is out of order or cannot be written,
    /// removes the file and returns `None`.
    pub(crate) fn note(mut self, object: &Object, wanted: bool) -> Option<Self> {
        if *object.path <= *self.last || self.write(object, wanted).is_err() {
            self.journal.remove();
            return None;
        }
        Some(self)
    }

    fn write(&mut self, object: &Object, wanted: bool) -> std::io::Result<()> {
        if wanted {
            let (path, tag) = (object.path.to_string(), etag(object).map(str::to_owned));
            self.journal.write(&ListingRecord::Object(path, object.size, modified(object), tag))?;
        }
        self.last.clear();
        self.last.push_str(&object.path);
        self.since += 1;
        if self.since == OBJECTS_PER_MARK { self.mark() } else { Ok(()) }
    }

    /// Writes a mark of the listing's progress, if possible.
    pub(crate) fn keep(&mut self) {
        if let Err(error) = self.mark() {
            let path = self.journal.path().display();
            tracing::debug!(%error, %path, "an unfinished listing cannot be kept");
        }
    }

    fn mark(&mut self) -> std::io::Result<()> {
        if !self.last.is_empty() {
            self.since = 0;
            self.journal.write(&ListingRecord::UpTo(self.last.clone()))?;
        }
        self.journal.flush()
    }
}

/// Removes the file of [`partial`](crate::IndexOptions::partial), and that of its shards, after a
/// catalog with their content has been saved. Any other file is kept, and so is a file that another
/// process writes.
pub fn forget_listing(path: &Path) {
    forget(path);
    crate::packed::shard_journal::forget(&crate::packed::shard_journal::next_to(path));
}

/// Removes the file of a listing that cannot be resumed.
pub(crate) fn forget(path: &Path) {
    journal::forget(path, BEGINNING);
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use foreread_tier::Version;

    use super::*;
    use crate::IndexOptions;
    use crate::list::selection::GlobFilter;

    fn selection(options: &IndexOptions) -> Selection<'static> {
        Selection::Globs(Box::new(GlobFilter::new(options).unwrap()))
    }

    fn object(path: &str) -> Object {
        Object { path: path.into(), size: 7, version: Some(Version::ETag("\"t\"".into())) }
    }

    fn open(path: &Path, options: &IndexOptions) -> (ListingJournal, Vec<Object>) {
        let mut found = Vec::new();
        let journal = ListingJournal::open(path, "s3://b", &selection(options), |mut piece| {
            found.append(&mut piece);
            Ok(())
        });
        (journal.unwrap().unwrap(), found)
    }

    #[test]
    // semantics: SAMPLE-14
    fn listing_resumes_after_its_last_mark() {
        let directory = tempfile::tempdir().unwrap();
        let (path, options) = (directory.path().join("x.partial"), IndexOptions::default());
        let (mut partial, found) = open(&path, &options);
        assert!(found.is_empty() && partial.after().is_none());
        for (name, wanted) in [("a", true), ("b", false), ("c\n\"", true)] {
            partial = partial.note(&object(name), wanted).unwrap();
        }
        partial.keep();
        // The data after the mark is torn.
        partial = partial.note(&object("d"), true).unwrap();
        drop(partial);
        let mut file = std::fs::OpenOptions::new().append(true).open(&path).unwrap();
        file.write_all(b"01234567 {\"o\":[\"e").unwrap();
        for _ in 0..2 {
            let (partial, found) = open(&path, &options);
            assert_eq!(found, [object("a"), object("c\n\"")]);
            assert_eq!(partial.after(), Some("c\n\""));
            let partial = partial.note(&object("d"), true).unwrap();
            drop(partial);
        }
    }

    #[test]
    fn objects_that_cannot_be_taken_stay_in_the_file() {
        let directory = tempfile::tempdir().unwrap();
        let (path, options) = (directory.path().join("x.partial"), IndexOptions::default());
        let (mut partial, _) = open(&path, &options);
        for name in ["a", "b", "c"] {
            partial = partial.note(&object(name), true).unwrap();
            partial.keep();
        }
        drop(partial);
        let mut taken = 0;
        let refused = ListingJournal::open(&path, "s3://b", &selection(&options), |piece| {
            taken += piece.len();
            Err(DatasetError::new(crate::DatasetErrorKind::Io, "no room"))
        });
        assert_eq!((refused.unwrap_err().to_string().as_str(), taken), ("no room", 1));
        assert_eq!(open(&path, &options).1.len(), 3);
    }

    #[test]
    fn journal_of_another_listing_starts_anew() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("x.partial");
        let (partial, _) = open(&path, &IndexOptions::default());
        let mut partial = partial.note(&object("a"), true).unwrap();
        partial.keep();
        drop(partial);
        let (partial, found) = open(&path, &IndexOptions::default().including("*.jpg"));
        assert!(found.is_empty() && partial.after().is_none());
        drop(partial);
        // Other files are not changed.
        std::fs::write(&path, b"precious").unwrap();
        let none = ListingJournal::open(&path, "s3://b", &selection(&IndexOptions::default()), |_| Ok(()));
        assert!(none.unwrap().is_none());
        assert_eq!(std::fs::read(&path).unwrap(), b"precious");
    }

    #[test]
    fn listing_journal_is_removed_when_out_of_order() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("x.partial");
        let (partial, _) = open(&path, &IndexOptions::default());
        let partial = partial.note(&object("b"), true).unwrap();
        assert!(partial.note(&object("a"), true).is_none());
        assert!(!path.exists());
    }
}
