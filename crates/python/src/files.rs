//! Files that somebody else has named: a catalog of these alone, and what a listing leaves out.
//!
//! A dataset in Python says itself which files it reads. Listing the directory that they lie in would look at others too, and
//! refuse it for one of them that is no sample's; so these are looked up by their names. What cannot be a sample (it is not
//! there, its name is no UTF-8) is left out, and is its reader's alone. The price is a system call a file, by a path from the
//! root down, where a listing looks at names in a directory that it holds open.

use std::collections::{HashMap, HashSet};
use std::ffi::OsString;
use std::fs::Metadata;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use foreread::SampleId;
use foreread::backend::Object;
use foreread::cache::ChangeTimes;
use foreread::dataset::CATALOG_NAME;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::catalog::Catalog;
use crate::errors;
use crate::{allocator, here, logs, settings, waiting};

/// Threads that look at files; more than this a file server does not reward.
const THREADS: usize = 16;

/// The longest path that a catalog takes, in bytes.
const LONGEST: usize = 16 << 10;

/// What was found of the named files.
struct Found {
    catalog: Option<foreread::Catalog>,
    /// By a file's place among those that were named: its number in the catalog, or -1.
    numbers: Vec<i64>,
    /// Likewise, when it was modified, in nanoseconds.
    times: Vec<i64>,
}

/// The catalog of `paths`, which lie below the directory `base`, that their beginnings may call `root`; None if none of them does. With it, for each path, its number there, or -1,
/// and its modification time in nanoseconds: both as 64-bit integers in a row.
#[pyfunction]
pub(crate) fn catalog_of<'py>(
    py: Python<'py>,
    root: PathBuf,
    base: &Bound<'py, PyAny>,
    paths: Vec<PathBuf>,
) -> PyResult<(Option<Catalog>, Bound<'py, PyBytes>, Bound<'py, PyBytes>)> {
    allocator::set_up();
    here::watch();
    logs::set_up(py)?;
    let base = settings::path("root", base)?;
    let found = waiting::apart(py, Duration::ZERO, move |_| look(&root, &base, &paths))?;
    let Found { catalog, numbers, times } = found.map_err(|error| errors::raised(&error))?;
    Ok((catalog.map(Catalog::from), integers(py, &numbers), integers(py, &times)))
}

/// Integers in a row, as Python's `array` takes them.
pub(crate) fn integers<'py>(py: Python<'py>, numbers: &[i64]) -> Bound<'py, PyBytes> {
    let bytes: Vec<u8> = numbers.iter().flat_map(|number| number.to_ne_bytes()).collect();
    PyBytes::new(py, &bytes)
}

fn look(root: &Path, base: &str, paths: &[PathBuf]) -> foreread::Result<Found> {
    let threads = THREADS.min(paths.len().div_ceil(1024)).max(1);
    let each = paths.len().div_ceil(threads).max(1);
    let times = ChangeTimes::below(Path::new(base));
    let seen: Vec<Option<Object>> = std::thread::scope(|scope| {
        let parts: Vec<_> = paths
            .chunks(each)
            .map(|part| {
                scope.spawn(move || {
                    part.iter().map(|path| object(root, Path::new(base), path, times)).collect::<Vec<_>>()
                })
            })
            .collect();
        // What a thread that has panicked was to look at is not there, and read as ever.
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
        return Ok(Found { catalog: None, times: none.clone(), numbers: none });
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
    Ok(Found { catalog: Some(catalog), numbers, times })
}

/// What lies at `path`, if it is a file below the root, which is `base` and was called `root`.
fn object(root: &Path, base: &Path, path: &Path, times: ChangeTimes) -> Option<Object> {
    let plain = below(root, path).or_else(|| below(base, path));
    let (inside, file) = match plain {
        Some(inside) => {
            let file = std::fs::metadata(base.join(&inside)).ok()?;
            (inside, file)
        }
        None => straightened(base, path)?,
    };
    let inside = inside.into_os_string().into_string().ok().filter(|inside| inside.len() <= LONGEST)?;
    let version = Some(times.version_of(&file));
    file.is_file().then(|| Object { path: inside.into(), size: file.len(), version })
}

/// What of `path` comes after `root/`, if it is written as a catalog would.
fn below(root: &Path, path: &Path) -> Option<PathBuf> {
    let root = root.as_os_str().as_bytes();
    let root = root.strip_suffix(b"/").unwrap_or(root);
    let rest = path.as_os_str().as_bytes().strip_prefix(root)?.strip_prefix(b"/")?;
    let odd = rest.split(|&byte| byte == b'/').any(|part| matches!(part, b"" | b"." | b".."));
    (!odd).then(|| PathBuf::from(OsString::from_vec(rest.to_vec())))
}

/// The same for a path with detours in it (`..`, `//`), if the file is the same one without them: behind a symbolic link it
/// need not be.
fn straightened(base: &Path, path: &Path) -> Option<(PathBuf, Metadata)> {
    let mut straight = PathBuf::new();
    for part in std::path::absolute(path).ok()?.components() {
        match part {
            Component::ParentDir => {
                straight.pop();
            }
            part => straight.push(part),
        }
    }
    let inside = straight.strip_prefix(base).ok()?;
    let (there, here) = (std::fs::metadata(path).ok()?, std::fs::metadata(&straight).ok()?);
    ((there.dev(), there.ino()) == (here.dev(), here.ino())).then(|| (inside.to_owned(), here))
}

/// The path of a file below a class of `root` that is hidden, or in something that is, and ends like one of `endings` (in
/// lower case): a listing leaves it out, and ImageFolder does not. None where there is no such file, and where a catalog
/// lies, so that nothing is listed.
#[pyfunction]
pub(crate) fn hidden_file(py: Python<'_>, root: PathBuf, endings: Vec<String>) -> PyResult<Option<String>> {
    waiting::apart(py, Duration::ZERO, move |_| {
        let found = if root.join(CATALOG_NAME).exists() { None } else { hidden(&root, &endings) };
        found.map(|path| path.to_string_lossy().into_owned())
    })
}

fn hidden(root: &Path, endings: &[String]) -> Option<PathBuf> {
    let linked = Mutex::default();
    let mut classes = Vec::new();
    let walk = Walk { linked: &linked, endings };
    walk.directory(&Directory { path: root.to_owned(), is_hidden: false, in_class: false }, &mut classes);
    let each = classes.len().div_ceil(THREADS).max(1);
    std::thread::scope(|scope| {
        let walk = &walk;
        let parts: Vec<_> =
            classes.chunks(each).map(|part| scope.spawn(move || walk.below(part.to_vec()))).collect();
        parts.into_iter().find_map(|part| part.join().ok().flatten())
    })
}

/// A directory that is to be looked into.
#[derive(Clone)]
struct Directory {
    path: PathBuf,
    /// Whether something on the way there is hidden.
    is_hidden: bool,
    /// Whether it is a class, or in one.
    in_class: bool,
}

struct Walk<'a> {
    /// Directories that links led to: they may lead in a circle.
    linked: &'a Mutex<HashSet<(u64, u64)>>,
    endings: &'a [String],
}

impl Walk<'_> {
    fn below(&self, mut left: Vec<Directory>) -> Option<PathBuf> {
        while let Some(directory) = left.pop() {
            if let Some(found) = self.directory(&directory, &mut left) {
                return Some(found);
            }
        }
        None
    }

    /// What is looked for in one directory; directories in it are added to `left`.
    fn directory(&self, of: &Directory, left: &mut Vec<Directory>) -> Option<PathBuf> {
        // What cannot be read, the listing has complained of.
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

/// When a file was modified, in nanoseconds, as [`catalog_of`] says it; None if it is not there.
#[pyfunction]
pub(crate) fn modified(py: Python<'_>, path: PathBuf) -> Option<i64> {
    py.detach(|| std::fs::metadata(path).ok().map(|file| time_of(&file)))
}

fn time_of(file: &Metadata) -> i64 {
    file.mtime().saturating_mul(1_000_000_000).saturating_add(file.mtime_nsec())
}

/// Whether a name ends like one of these, upper and lower case alike.
pub(crate) fn ends(name: &[u8], endings: &[String]) -> bool {
    let with = |ending: &String| {
        let from = name.len().checked_sub(ending.len())?;
        Some(name[from..].eq_ignore_ascii_case(ending.as_bytes()))
    };
    endings.iter().any(|ending| with(ending) == Some(true))
}
