//! A listing that was broken off, kept in a file until it has come to its end.
//!
//! An origin that hands out its objects in the order of their paths can go on behind the last of them. So what has been
//! found is written down as it comes, a line of JSON for each object, and from time to time a line that says how far the
//! listing has come; what stands behind the last such line may be torn and is left out. The file belongs to one place and one choice of
//! objects, which its first line names; for any other it is begun anew. The price is a hundred bytes an object on disk for as long as
//! the listing takes, and nothing for origins that hand out objects in another order: the file is given up at the first,
//! or where the origin says that its store has another order.

use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, BufWriter, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use foreread_tier::{Object, Version};
use serde::{Deserialize, Serialize};

use crate::IndexOptions;

/// How many objects lie between two lines that say how far the listing has come.
const EVERY: u64 = 1_000;

/// From what age on an unfinished listing is too old to be gone on with: objects have come and gone since.
const OLDEST: Duration = Duration::from_secs(24 * 3600);

/// How such a file begins, by which it is told from anything else of its name.
const BEGINNING: &[u8] = b"{\"unfinished_listing\":";

/// What a file is for: its first line.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Head {
    unfinished_listing: u32,
    base_url: String,
    include: Vec<String>,
    exclude: Vec<String>,
}

#[derive(Debug, Serialize, Deserialize)]
enum Line {
    /// One that is wanted: path, length, time or tag.
    #[serde(rename = "o")]
    Object(String, u64, Option<i64>, Option<String>),
    /// All up to this path has been listed.
    #[serde(rename = "upto")]
    UpTo(String),
}

/// The file of a listing that is going on.
#[derive(Debug)]
pub(crate) struct Partial {
    path: PathBuf,
    out: BufWriter<File>,
    last: String,
    since: u64,
}

impl Partial {
    /// Opens or begins the file of this listing: with what it says, and the path behind which the listing goes on. None
    /// where no file can be had: then the listing is not kept.
    pub(crate) fn open(path: &Path, base_url: &str, options: &IndexOptions) -> Option<(Self, Vec<Object>)> {
        let head = Head {
            unfinished_listing: 1,
            base_url: base_url.to_owned(),
            include: options.include.clone(),
            exclude: options.exclude.clone(),
        };
        if !is_free_or_begins_with(path, BEGINNING) {
            tracing::debug!(path = %path.display(), "something else is there; the listing is not kept");
            return None;
        }
        let (found, last, length) = read(path, &head).unwrap_or_default();
        let begin = || -> std::io::Result<BufWriter<File>> {
            let mut file = OpenOptions::new().create(true).truncate(false).write(true).open(path)?;
            file.set_len(length)?;
            file.seek(SeekFrom::End(0))?;
            let mut out = BufWriter::new(file);
            if length == 0 {
                serde_json::to_writer(&mut out, &head)?;
                out.write_all(b"\n")?;
            }
            Ok(out)
        };
        match begin() {
            Ok(out) => Some((Self { path: path.to_owned(), out, last, since: 0 }, found)),
            Err(error) => {
                tracing::debug!(%error, path = %path.display(), "an unfinished listing cannot be kept");
                None
            }
        }
    }

    /// Behind which path the listing goes on.
    pub(crate) fn after(&self) -> Option<&str> {
        (!self.last.is_empty()).then_some(self.last.as_str())
    }

    /// Notes the next object that was listed, wanted or not; gives the file up, and returns `None`, where it came out of
    /// order or cannot be written.
    pub(crate) fn note(mut self, object: &Object, wanted: bool) -> Option<Self> {
        if *object.path <= *self.last || self.write(object, wanted).is_err() {
            self.end();
            return None;
        }
        Some(self)
    }

    fn write(&mut self, object: &Object, wanted: bool) -> std::io::Result<()> {
        if wanted {
            let (modified, tag) = match &object.version {
                Some(version @ (Version::Modified(_) | Version::Written { .. })) => {
                    (version.modified(), None)
                }
                Some(Version::ETag(tag)) => (None, Some(tag.to_string())),
                _ => (None, None),
            };
            let line = Line::Object(object.path.to_string(), object.size, modified, tag);
            serde_json::to_writer(&mut self.out, &line)?;
            self.out.write_all(b"\n")?;
        }
        self.last.clear();
        self.last.push_str(&object.path);
        self.since += 1;
        if self.since == EVERY { self.mark() } else { Ok(()) }
    }

    /// Writes down how far the listing has come, if that can be done.
    pub(crate) fn keep(&mut self) {
        if let Err(error) = self.mark() {
            tracing::debug!(%error, path = %self.path.display(), "an unfinished listing cannot be kept");
        }
    }

    fn mark(&mut self) -> std::io::Result<()> {
        if self.last.is_empty() {
            return self.out.flush();
        }
        self.since = 0;
        serde_json::to_writer(&mut self.out, &Line::UpTo(self.last.clone()))?;
        self.out.write_all(b"\n")?;
        self.out.flush()
    }

    /// Removes the file: the listing cannot be gone on with.
    fn end(self) {
        remove(&self.path);
    }
}

/// Removes the file of [`IndexOptions::partial`], and the one of shards beside it, when what they say is in a catalog that has
/// been saved. Anything else that lies there is left alone.
pub fn forget_listing(path: &Path) {
    forget(path);
    crate::partial_shards::forget(&crate::partial_shards::beside(path));
}

/// Removes the file of a listing that cannot be resumed.
pub(crate) fn forget(path: &Path) {
    remove_if_begins_with(path, BEGINNING);
}

/// Removes a file of ours.
pub(crate) fn remove_if_begins_with(path: &Path, beginning: &[u8]) {
    if std::fs::symlink_metadata(path).is_ok_and(|found| found.is_file()) && begins_with(path, beginning) {
        remove(path);
    }
}

/// A file that stays would only be begun anew.
fn remove(path: &Path) {
    if let Err(error) = std::fs::remove_file(path) {
        tracing::debug!(%error, path = %path.display(), "an unfinished listing could not be removed");
    }
}

/// Whether there is nothing, or a file of ours: a pipe would be waited for, and anything else is not ours to replace.
pub(crate) fn is_free_or_begins_with(path: &Path, beginning: &[u8]) -> bool {
    let Ok(found) = std::fs::symlink_metadata(path) else { return true };
    found.is_file() && (found.len() == 0 || begins_with(path, beginning))
}

fn begins_with(path: &Path, beginning: &[u8]) -> bool {
    let mut start = vec![0; beginning.len()];
    File::open(path).and_then(|mut file| file.read_exact(&mut start)).is_ok() && start == beginning
}

/// What a file of this head holds: the objects up to the last mark, the path there, and the length of the file up to there.
fn read(path: &Path, head: &Head) -> Option<(Vec<Object>, String, u64)> {
    let age = std::fs::metadata(path).ok()?.modified().ok()?.elapsed().unwrap_or_default();
    if age > OLDEST {
        return None;
    }
    let mut lines = BufReader::new(File::open(path).ok()?);
    let mut line = String::new();
    let mut length = lines.read_line(&mut line).ok()? as u64;
    if serde_json::from_str::<Head>(&line).ok()? != *head {
        return None;
    }
    let mut kept = (Vec::new(), String::new(), length);
    let mut found: Vec<Object> = Vec::new();
    loop {
        line.clear();
        match lines.read_line(&mut line) {
            Ok(0) | Err(_) => break,
            Ok(read) => length += read as u64,
        }
        match serde_json::from_str::<Line>(&line) {
            Ok(Line::Object(path, size, modified, tag)) => {
                let version =
                    modified.map(Version::Modified).or_else(|| tag.map(|tag| Version::ETag(tag.into())));
                found.push(Object { path: path.into(), size, version });
            }
            Ok(Line::UpTo(last)) => {
                kept.0.append(&mut found);
                (kept.1, kept.2) = (last, length);
            }
            Err(_) => break,
        }
    }
    Some(kept)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(path: &str) -> Object {
        Object { path: path.into(), size: 7, version: Some(Version::ETag("\"t\"".into())) }
    }

    fn open(path: &Path, options: &IndexOptions) -> (Partial, Vec<Object>) {
        Partial::open(path, "s3://b", options).unwrap()
    }

    #[test]
    fn a_listing_goes_on_behind_its_last_mark() {
        let directory = tempfile::tempdir().unwrap();
        let (path, options) = (directory.path().join("x.partial"), IndexOptions::default());
        let (mut partial, found) = open(&path, &options);
        assert!(found.is_empty() && partial.after().is_none());
        for (name, wanted) in [("a", true), ("b", false), ("c\n\"", true)] {
            partial = partial.note(&object(name), wanted).unwrap();
        }
        partial.keep();
        // What comes behind the mark is torn.
        partial = partial.note(&object("d"), true).unwrap();
        partial.out.write_all(b"{\"o\":[\"e").unwrap();
        drop(partial);
        for _ in 0..2 {
            let (partial, found) = open(&path, &options);
            assert_eq!(found, [object("a"), object("c\n\"")]);
            assert_eq!(partial.after(), Some("c\n\""));
            let partial = partial.note(&object("d"), true).unwrap();
            drop(partial);
        }
    }

    #[test]
    fn what_belongs_to_another_listing_is_begun_anew() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("x.partial");
        let (partial, _) = open(&path, &IndexOptions::default());
        let mut partial = partial.note(&object("a"), true).unwrap();
        partial.keep();
        drop(partial);
        let (partial, found) = open(&path, &IndexOptions::default().including("*.jpg"));
        assert!(found.is_empty() && partial.after().is_none());
        drop(partial);
        // What is no such file is not touched.
        std::fs::write(&path, b"precious").unwrap();
        assert!(Partial::open(&path, "s3://b", &IndexOptions::default()).is_none());
        assert_eq!(std::fs::read(&path).unwrap(), b"precious");
    }

    #[test]
    fn a_listing_out_of_order_is_given_up() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("x.partial");
        let (partial, _) = open(&path, &IndexOptions::default());
        let partial = partial.note(&object("b"), true).unwrap();
        assert!(partial.note(&object("a"), true).is_none());
        assert!(!path.exists());
    }
}
