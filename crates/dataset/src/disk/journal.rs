//! A journal: the partial results of a long operation in a file, from which the next run resumes.
//!
//! The first line identifies the operation. For another operation the file starts anew. Each later
//! line is a record with a checksum. No record counts after the first torn or damaged one. The
//! writing process locks the file until it ends. It also writes a record with its identity, for the
//! error of a second process. The price is that two processes cannot share one file: the second
//! ends with an error. Where a file system has no locks (Lustre without `flock`, some NFS), only
//! the checksums protect the file.

use std::fs::File;
use std::io::{BufRead, BufReader, BufWriter, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::disk::lock_file::{LockOutcome, lock, this_process};
use crate::{DatasetError, DatasetErrorKind};

/// The process that writes the file. Each process begins with this record.
#[derive(Debug, Serialize, Deserialize)]
struct JournalWriter {
    writer: String,
}

impl JournalWriter {
    fn this() -> Self {
        Self { writer: this_process() }
    }
}

/// Whether a record counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RecordUse {
    /// All records up to this one count.
    Counts,
    /// It counts if a later one does.
    Pending,
    /// Neither this one nor any later one counts.
    Refused,
}

/// A journal that this process writes. Its lock ends when it is dropped.
#[derive(Debug)]
pub(crate) struct Journal {
    path: PathBuf,
    out: BufWriter<File>,
}

impl Journal {
    /// Opens or creates the journal of `head`, whose text begins with `beginning`. Passes each
    /// whole record to `take`, in order, unless the journal is older than `oldest`. Returns `None`
    /// if no file can be opened. Then no results are saved.
    ///
    /// # Errors
    /// [`DatasetErrorKind::InUse`] if another process writes it.
    pub(crate) fn open<H: Serialize + DeserializeOwned + PartialEq>(
        path: &Path,
        beginning: &[u8],
        head: &H,
        oldest: Duration,
        take: impl FnMut(&str) -> RecordUse,
    ) -> Result<Option<Self>, DatasetError> {
        let cannot = |error: std::io::Error| {
            tracing::debug!(%error, path = %path.display(), "what is found cannot be kept");
            Ok(None)
        };
        if !is_free_or_begins_with(path, beginning) {
            tracing::debug!(path = %path.display(), "something else is there; what is found is not kept");
            return Ok(None);
        }
        let file = match lock(path, true) {
            Ok(LockOutcome::Own(file)) => file,
            Ok(LockOutcome::Other) => return Err(in_use(path)),
            Err(error) => return cannot(error),
        };
        let length = read(&file, head, oldest, take).unwrap_or(0);
        match begin(file, head, length) {
            Ok(out) => Ok(Some(Self { path: path.to_owned(), out })),
            Err(error) => cannot(error),
        }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Appends a record, which is in the file after a flush.
    pub(crate) fn write(&mut self, record: &impl Serialize) -> std::io::Result<()> {
        let text = serde_json::to_string(record)?;
        writeln!(self.out, "{:08x} {text}", crc32c::crc32c(text.as_bytes()))
    }

    pub(crate) fn flush(&mut self) -> std::io::Result<()> {
        self.out.flush()
    }

    /// Removes the file.
    pub(crate) fn remove(self) {
        remove(&self.path);
    }
}

/// Continues a file after its `length` valid bytes. Without any, writes the head.
fn begin(mut file: File, head: &impl Serialize, length: u64) -> std::io::Result<BufWriter<File>> {
    file.set_len(length)?;
    file.seek(SeekFrom::End(0))?;
    let mut out = BufWriter::new(file);
    if length == 0 {
        serde_json::to_writer(&mut out, head)?;
        out.write_all(b"\n")?;
    }
    let text = serde_json::to_string(&JournalWriter::this())?;
    writeln!(out, "{:08x} {text}", crc32c::crc32c(text.as_bytes()))?;
    out.flush()?;
    Ok(out)
}

/// Passes the records of a file with this head to `take`. Returns the length of the valid bytes.
fn read<H: DeserializeOwned + PartialEq>(
    file: &File,
    head: &H,
    oldest: Duration,
    mut take: impl FnMut(&str) -> RecordUse,
) -> Option<u64> {
    if file.metadata().ok()?.modified().ok()?.elapsed().unwrap_or_default() > oldest {
        return None;
    }
    let mut lines = BufReader::new(file);
    let mut line = String::new();
    let mut length = lines.read_line(&mut line).ok()? as u64;
    if serde_json::from_str::<H>(&line).ok()? != *head {
        return None;
    }
    let mut counts = length;
    loop {
        line.clear();
        let Ok(read @ 1..) = lines.read_line(&mut line) else { break };
        length += read as u64;
        let Some(text) = whole(&line) else { break };
        if serde_json::from_str::<JournalWriter>(text).is_ok() {
            continue;
        }
        match take(text) {
            RecordUse::Counts => counts = length,
            RecordUse::Pending => {}
            RecordUse::Refused => break,
        }
    }
    Some(counts)
}

/// A line's text, if the line is whole.
fn whole(line: &str) -> Option<&str> {
    let (sum, text) = line.strip_suffix('\n')?.split_once(' ')?;
    (u32::from_str_radix(sum, 16) == Ok(crc32c::crc32c(text.as_bytes()))).then_some(text)
}

/// The error that names the writing process.
fn in_use(path: &Path) -> DatasetError {
    let mut writer = None;
    if let Ok(file) = File::open(path) {
        let lines = BufReader::new(file).lines().map_while(Result::ok);
        writer = lines
            .filter_map(|line| serde_json::from_str::<JournalWriter>(whole(&format!("{line}\n"))?).ok())
            .last();
    }
    let writer = writer.map_or_else(|| "another process".to_owned(), |last| last.writer);
    let message = format!(
        "{}: {writer} makes this catalog now; wait until it has ended, or name another output",
        path.display()
    );
    DatasetError::new(DatasetErrorKind::InUse, message)
}

/// Removes a journal with this beginning, unless a process writes it. Any other file is kept.
pub(crate) fn forget(path: &Path, beginning: &[u8]) {
    let is_file = std::fs::symlink_metadata(path).is_ok_and(|found| found.is_file());
    if is_file && begins_with(path, beginning) && matches!(lock(path, false), Ok(LockOutcome::Own(_))) {
        remove(path);
    }
}

/// Removes a file. An error is ignored, because the next run would start the file anew.
fn remove(path: &Path) {
    if let Err(error) = std::fs::remove_file(path) {
        tracing::debug!(%error, path = %path.display(), "a journal could not be removed");
    }
}

/// Whether the path is free or has a file of this library. Opening a pipe would block, and any
/// other file must not be replaced.
fn is_free_or_begins_with(path: &Path, beginning: &[u8]) -> bool {
    let Ok(found) = std::fs::symlink_metadata(path) else { return true };
    found.is_file() && (found.len() == 0 || begins_with(path, beginning))
}

fn begins_with(path: &Path, beginning: &[u8]) -> bool {
    let mut start = vec![0; beginning.len()];
    File::open(path).and_then(|mut file| file.read_exact(&mut start)).is_ok() && start == beginning
}

#[cfg(test)]
mod tests {
    use super::*;

    const BEGINNING: &[u8] = b"{\"test\":";

    #[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
    struct Head {
        test: u32,
    }

    fn open(path: &Path) -> Result<(Journal, Vec<u32>), DatasetError> {
        let mut found = Vec::new();
        let head = Head { test: 1 };
        let journal = Journal::open(path, BEGINNING, &head, Duration::MAX, |text| {
            found.push(serde_json::from_str(text).unwrap());
            RecordUse::Counts
        })?;
        Ok((journal.unwrap(), found))
    }

    #[test]
    // semantics: SAMPLE-15
    fn second_writer_of_a_journal_names_the_first() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("j");
        let (mut first, _) = open(&path).unwrap();
        first.write(&1u32).unwrap();
        first.flush().unwrap();
        let error = open(&path).unwrap_err();
        assert_eq!(error.kind(), DatasetErrorKind::InUse);
        let process = format!("process {} on ", std::process::id());
        assert!(error.to_string().contains(&process), "{error}");
        assert!(error.to_string().starts_with(path.to_str().unwrap()), "{error}");
        // It is not removed while its writer runs.
        forget(&path, BEGINNING);
        assert!(path.exists());
        drop(first);
        assert_eq!(open(&path).unwrap().1, [1]);
        forget(&path, BEGINNING);
        assert!(!path.exists());
    }

    #[test]
    // semantics: SAMPLE-15
    fn damaged_record_ends_a_journal() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("j");
        let (mut journal, _) = open(&path).unwrap();
        (101..105u32).for_each(|number| journal.write(&number).unwrap());
        drop(journal);
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::write(&path, text.replacen(" 103\n", " 193\n", 1)).unwrap();
        let (mut journal, found) = open(&path).unwrap();
        assert_eq!(found, [101, 102]);
        journal.write(&7u32).unwrap();
        drop(journal);
        assert_eq!(open(&path).unwrap().1, [101, 102, 7]);
    }

    #[test]
    // semantics: SAMPLE-15
    fn link_in_the_place_of_a_journal_is_not_followed() {
        let directory = tempfile::tempdir().unwrap();
        let (path, other) = (directory.path().join("j"), directory.path().join("other"));
        drop(open(&other).unwrap());
        let before = std::fs::read(&other).unwrap();
        std::os::unix::fs::symlink(&other, &path).unwrap();
        let journal =
            Journal::open(&path, BEGINNING, &Head { test: 2 }, Duration::MAX, |_| RecordUse::Counts);
        assert!(journal.unwrap().is_none());
        assert_eq!(std::fs::read(&other).unwrap(), before);
    }
}
