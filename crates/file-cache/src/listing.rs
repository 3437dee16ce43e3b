//! The files of a dataset, with the hashes of their paths.
//!
//! Directories are read one after another, in the order in which their parents list them. Programs
//! that do not sort find files in this order. The kinds of files come with the names, so no file is
//! looked at, but one for its pages. Links to files are files here. Links to directories are
//! not followed.

use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use foreread_preload::layout::PathHash;

use crate::pages::PageProbe;
use crate::root::RootIdentity;

/// How long the table of a new cache waits for the number of files.
const LIST_TIMEOUT: Duration = Duration::from_secs(2);

/// A file of a dataset.
#[derive(Clone, Debug)]
pub(crate) struct ListedFile {
    pub(crate) hash: u64,
    pub(crate) path: PathBuf,
    pub(crate) is_link: bool,
    /// Whether the kernel keeps its pages over opens.
    pub(crate) keeps_pages: bool,
}

/// The files of all datasets, as they are found.
pub(crate) struct Lists {
    pub(crate) files: Receiver<ListedFile>,
}

impl Lists {
    /// Lists datasets. One whose path leads to another directory for this process is left out.
    pub(crate) fn of(datasets: Vec<(PathBuf, u64)>, key: u64) -> Self {
        let (sender, files) = channel();
        // Without a thread, no file is known, and originals are opened.
        let thread = std::thread::Builder::new().name("foreread-list".to_owned());
        let _ = thread.spawn(move || {
            for (root, dataset) in datasets {
                if !is_dataset(&root, dataset) {
                    continue;
                }
                let mut probe = PageProbe::default();
                let mut each = |file: ListedFile| {
                    let keeps_pages = probe.look(&file.path);
                    sender.send(ListedFile { keeps_pages, ..file }).is_ok()
                };
                if let Err(error) = list(&root, (dataset, key), &mut each) {
                    let root = root.display();
                    tracing::warn!(%error, %root, "cannot list; its files are opened as they are");
                }
            }
        });
        Self { files }
    }

    /// The files that are found soon, and whether these are all.
    pub(crate) fn first(&self) -> (Vec<ListedFile>, bool) {
        let (begun, mut first) = (Instant::now(), Vec::new());
        loop {
            match self.files.recv_timeout(LIST_TIMEOUT.saturating_sub(begun.elapsed())) {
                Ok(file) => first.push(file),
                Err(RecvTimeoutError::Disconnected) => return (first, true),
                Err(RecvTimeoutError::Timeout) => return (first, false),
            }
        }
    }
}

/// Whether a path leads to this dataset, for this process.
pub(crate) fn is_dataset(path: &Path, dataset: u64) -> bool {
    RootIdentity::of(path).is_ok_and(|found| found.dataset == dataset)
}

/// Lists the files below a directory, a dataset of this number in a table with this key.
/// Ends early if `each` returns `false`.
fn list(
    directory: &Path,
    (dataset, key): (u64, u64),
    each: &mut dyn FnMut(ListedFile) -> bool,
) -> io::Result<bool> {
    let mut open = vec![(directory.to_owned(), PathHash::new(key, dataset))];
    let mut is_first = true;
    while let Some((path, hash)) = open.pop() {
        let entries = match read(&path) {
            Ok(entries) => entries,
            Err(error) if is_first => return Err(error),
            // A directory that has gone, or may not be read: its files are opened as they are.
            Err(error) => {
                tracing::debug!(%error, path = %path.display(), "a directory is left out");
                continue;
            }
        };
        is_first = false;
        let mut directories = Vec::new();
        for (name, kind) in entries {
            let below = |is_file| hash.add(name.as_bytes().iter().copied(), is_file);
            if kind.is_dir() {
                directories.extend(below(false).map(|hash| (path.join(&name), hash)));
            } else if kind.is_file() || kind.is_symlink() {
                let Some(hash) = below(true).and_then(PathHash::finish) else { continue };
                let path = path.join(&name);
                if !each(ListedFile { hash, path, is_link: kind.is_symlink(), keeps_pages: true }) {
                    return Ok(false);
                }
            }
        }
        // The last one is taken first.
        open.extend(directories.into_iter().rev());
    }
    Ok(true)
}

fn read(path: &Path) -> io::Result<Vec<(OsString, std::fs::FileType)>> {
    let mut entries = Vec::new();
    for entry in std::fs::read_dir(path)? {
        let entry = entry?;
        if let Ok(kind) = entry.file_type() {
            entries.push((entry.file_name(), kind));
        }
    }
    Ok(entries)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_are_those_that_programs_compute() {
        let directory = tempfile::tempdir().unwrap();
        for name in ["a/b", "c"] {
            std::fs::create_dir_all(directory.path().join(name)).unwrap();
        }
        for name in ["a/b/2.jpg", "a/1.jpg", "0.jpg", "c/.hidden"] {
            std::fs::write(directory.path().join(name), name).unwrap();
        }
        std::os::unix::fs::symlink("../0.jpg", directory.path().join("a/link")).unwrap();
        std::os::unix::fs::symlink("a", directory.path().join("d")).unwrap();
        let mut found = Vec::new();
        let mut each = |file: ListedFile| {
            let below = file.path.strip_prefix(directory.path()).unwrap().to_str().unwrap().to_owned();
            let hash = PathHash::new(9, 2).add(below.bytes(), true).and_then(PathHash::finish);
            assert_eq!(Some(file.hash), hash, "{below}");
            found.push((below, file.is_link));
            true
        };
        assert!(list(directory.path(), (2, 9), &mut each).unwrap());
        // Files come before those of the directories next to them.
        assert!(found[..2].iter().all(|(name, _)| !name.contains('/')), "{found:?}");
        found.sort();
        let names: Vec<_> = found.iter().map(|(name, is_link)| (&**name, *is_link)).collect();
        let expected = [("0.jpg", false), ("a/1.jpg", false), ("a/b/2.jpg", false), ("a/link", true)];
        assert_eq!(names, [&expected[..], &[("c/.hidden", false), ("d", true)]].concat());
        assert!(list(&directory.path().join("absent"), (0, 0), &mut |_| true).is_err());
    }
}
