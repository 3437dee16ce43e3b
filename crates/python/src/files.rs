//! Catalogs of given files, and the search for files that a listing omits.
//!
//! A dataset in Python names the files that it reads. Listing their directory would look at other
//! files too and refuse it because of a file that is not a sample. So these files are looked up by
//! name. A file that cannot be a sample (missing, or its name is not UTF-8) is left out, and only
//! its reader sees the error. The price is a system call per file, by a path from the root. A
//! listing uses names in an open directory instead.

use std::collections::{HashMap, HashSet};
use std::ffi::OsString;
use std::fs::Metadata;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use foreread::SampleId;
use foreread::backend::Object;
use foreread::cache::ChangeTimes;
use foreread::dataset::CATALOG_NAME;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::catalog::PyCatalog;
use crate::values::integers;
use crate::{interrupt, logs, process_local, settings};

/// Threads that look up files. File servers do not benefit from more.
const THREADS: usize = 16;

/// The maximum length of a path in a catalog, in bytes.
const MAX_PATH: usize = 16 << 10;

/// The result of looking up the named files.
struct FoundFiles {
    catalog: Option<foreread::Catalog>,
    /// For each named file, its id in the catalog, or -1.
    numbers: Vec<i64>,
    /// For each named file, its modification time in nanoseconds.
    times: Vec<i64>,
}

/// The catalog of `paths` below the directory `base`, which the paths may spell `root`. None
/// without such files. Also returns for each path its id there, or -1, and its modification time in
/// nanoseconds, both as arrays of 64-bit integers.
#[pyfunction]
pub(crate) fn catalog_of<'py>(
    py: Python<'py>,
    root: PathBuf,
    base: &Bound<'py, PyAny>,
    paths: Vec<PathBuf>,
) -> PyResult<(Option<PyCatalog>, Bound<'py, PyBytes>, Bound<'py, PyBytes>)> {
    process_local::count_forks();
    logs::set_up(py)?;
    let base = settings::path("root", base)?;
    let found = interrupt::run_fallible(py, move |_| look_up(&root, &base, &paths))?;
    let FoundFiles { catalog, numbers, times } = found;
    Ok((catalog.map(PyCatalog::from), integers(py, &numbers), integers(py, &times)))
}

fn look_up(root: &Path, base: &str, paths: &[PathBuf]) -> foreread::Result<FoundFiles> {
    let threads = THREADS.min(paths.len().div_ceil(1024)).max(1);
    let each = paths.len().div_ceil(threads).max(1);
    let times = ChangeTimes::below(Path::new(base));
    let base_path = Path::new(base);
    let directory = Base { root, base: base_path, canonical: std::fs::canonicalize(base_path).ok() };
    let seen: Vec<Option<Object>> = std::thread::scope(|scope| {
        let parts: Vec<_> = paths
            .chunks(each)
            .map(|part| {
                let directory = &directory;
                scope.spawn(move || part.iter().map(|path| directory.object(path, times)).collect::<Vec<_>>())
            })
            .collect();
        // The files of a panicked thread count as missing and are read as usual.
        let lost = |part: usize| vec![None; each.min(paths.len() - part * each)];
        let parts = parts.into_iter().enumerate();
        parts.flat_map(|(at, part)| part.join().unwrap_or_else(|_| lost(at))).collect()
    });
    let mut samples: HashMap<Arc<str>, i64> = HashMap::new();
    let mut objects = Vec::new();
    for object in seen.iter().flatten() {
        // A dataset may name a file twice.
        if samples.insert(Arc::clone(&object.path), -1).is_none() {
            objects.push(object.clone());
        }
    }
    if objects.is_empty() {
        let none = vec![-1; paths.len()];
        return Ok(FoundFiles { catalog: None, times: none.clone(), numbers: none });
    }
    let catalog = foreread::Catalog::from_objects(base, objects)?;
    for id in 0..catalog.len() {
        if let Some(number) = samples.get_mut(&*catalog.path(SampleId(id))?) {
            *number = id as i64;
        }
    }
    let number = |object: &Option<Object>| object.as_ref().and_then(|object| samples.get(&object.path));
    let time = |object: &Option<Object>| match object.as_ref().and_then(|object| object.version.as_ref()) {
        Some(version) => version.modified().unwrap_or_default(),
        None => 0,
    };
    let numbers = seen.iter().map(|object| number(object).copied().unwrap_or(-1)).collect();
    let times = seen.iter().map(time).collect();
    Ok(FoundFiles { catalog: Some(catalog), numbers, times })
}

/// The directory of a dataset's files.
struct Base<'a> {
    /// As the dataset may spell it.
    root: &'a Path,
    base: &'a Path,
    /// Without symbolic links, if it exists.
    canonical: Option<PathBuf>,
}

impl Base<'_> {
    /// The object at `path`, if it is a file below the directory.
    fn object(&self, path: &Path, times: ChangeTimes) -> Option<Object> {
        let plain = below(self.root, path).or_else(|| below(self.base, path));
        let inside = plain.or_else(|| self.resolved(path))?;
        let file = std::fs::metadata(self.base.join(&inside)).ok()?;
        let inside = inside.into_os_string().into_string().ok().filter(|inside| inside.len() <= MAX_PATH)?;
        let version = Some(times.version_of(&file));
        file.is_file().then(|| Object { path: inside.into(), size: file.len(), version })
    }

    /// The part of a path below the directory, if the path is relative, or has `..` or symbolic
    /// links. The file itself may be a link to elsewhere.
    fn resolved(&self, path: &Path) -> Option<PathBuf> {
        let (directory, name) = (path.parent()?, path.file_name()?);
        let directory = if directory.as_os_str().is_empty() { Path::new(".") } else { directory };
        let directory = std::fs::canonicalize(directory).ok()?;
        Some(directory.strip_prefix(self.canonical.as_ref()?).ok()?.join(name))
    }
}

/// The part of `path` after `root/`, if it is in the form of catalog paths.
fn below(root: &Path, path: &Path) -> Option<PathBuf> {
    let root = root.as_os_str().as_bytes();
    let root = root.strip_suffix(b"/").unwrap_or(root);
    let rest = path.as_os_str().as_bytes().strip_prefix(root)?.strip_prefix(b"/")?;
    let odd = rest.split(|&byte| byte == b'/').any(|part| matches!(part, b"" | b"." | b".."));
    (!odd).then(|| PathBuf::from(OsString::from_vec(rest.to_vec())))
}

/// The path of a hidden file, or one in a hidden directory, below a class of `root`, with one of
/// `endings` (in lower case). A listing omits such a file, and ImageFolder does not. None without
/// such a file, and if a catalog makes the listing unnecessary.
#[pyfunction]
pub(crate) fn hidden_file(py: Python<'_>, root: PathBuf, endings: Vec<String>) -> PyResult<Option<String>> {
    interrupt::run_interruptible(py, Duration::ZERO, move |_| {
        let found = if root.join(CATALOG_NAME).exists() { None } else { hidden(&root, &endings) };
        found.map(|path| path.to_string_lossy().into_owned())
    })
}

fn hidden(root: &Path, endings: &[String]) -> Option<PathBuf> {
    let linked = Mutex::default();
    let mut classes = Vec::new();
    let walk = HiddenWalk { linked: &linked, endings };
    walk.directory(&Directory { path: root.to_owned(), is_hidden: false, in_class: false }, &mut classes);
    let each = classes.len().div_ceil(THREADS).max(1);
    std::thread::scope(|scope| {
        let walk = &walk;
        let parts: Vec<_> =
            classes.chunks(each).map(|part| scope.spawn(move || walk.below(part.to_vec()))).collect();
        parts.into_iter().find_map(|part| part.join().ok().flatten())
    })
}

/// A directory to search.
#[derive(Clone)]
struct Directory {
    path: PathBuf,
    /// Whether it or a parent is hidden.
    is_hidden: bool,
    /// Whether it is a class or below one.
    in_class: bool,
}

struct HiddenWalk<'a> {
    /// Targets of directory links, to detect cycles.
    linked: &'a Mutex<HashSet<(u64, u64)>>,
    endings: &'a [String],
}

impl HiddenWalk<'_> {
    fn below(&self, mut left: Vec<Directory>) -> Option<PathBuf> {
        while let Some(directory) = left.pop() {
            if let Some(found) = self.directory(&directory, &mut left) {
                return Some(found);
            }
        }
        None
    }

    /// Searches one directory and adds its directories to `left`.
    fn directory(&self, of: &Directory, left: &mut Vec<Directory>) -> Option<PathBuf> {
        // The listing has already reported unreadable directories.
        for entry in std::fs::read_dir(&of.path).into_iter().flatten().flatten() {
            let name = entry.file_name();
            let is_hidden = of.is_hidden || name.as_bytes().starts_with(b".");
            let Ok(mut kind) = entry.file_type() else { continue };
            if kind.is_symlink() {
                let Ok(target) = std::fs::metadata(entry.path()) else { continue };
                kind = target.file_type();
                let mut linked = self.linked.lock().unwrap_or_else(PoisonError::into_inner);
                if kind.is_dir() && !linked.insert((target.dev(), target.ino())) {
                    continue;
                }
            }
            if kind.is_dir() {
                left.push(Directory { path: entry.path(), is_hidden, in_class: true });
            } else if is_hidden && of.in_class && ends(name.as_bytes(), self.endings) {
                return Some(entry.path());
            }
        }
        None
    }
}

/// The modification time of a file in nanoseconds, as in [`catalog_of`]. None for a missing file.
#[pyfunction]
pub(crate) fn modified(py: Python<'_>, path: PathBuf) -> Option<i64> {
    py.detach(|| std::fs::metadata(path).ok().map(|file| time_of(&file)))
}

fn time_of(file: &Metadata) -> i64 {
    file.mtime().saturating_mul(1_000_000_000).saturating_add(file.mtime_nsec())
}

/// Whether a name has one of these endings, ignoring case.
pub(crate) fn ends(name: &[u8], endings: &[String]) -> bool {
    let with = |ending: &String| {
        let from = name.len().checked_sub(ending.len())?;
        Some(name[from..].eq_ignore_ascii_case(ending.as_bytes()))
    };
    endings.iter().any(|ending| with(ending) == Some(true))
}
