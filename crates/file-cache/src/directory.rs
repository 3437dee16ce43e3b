//! The directory of a cache of files, which belongs to one user and one node.
//!
//! | name | content |
//! |---|---|
//! | `lock` | locked by the host |
//! | `ready` | is there while a host serves other runs |
//! | `table`, `marks` | what programs map |
//! | `copies/ab/...` | the copies |
//! | `runs/N/` | of each run: `lock`, `trace`, `roots`, `checks` |
//! | `preload-N.so` | the library |
//!
//! Other users may be able to write to the parent, as to `/local/scratch`. So the directory is
//! named by user, has mode 0700, and is used only if the user owns it and it is no link. They must
//! not be able to put another one in its place, because programs load a library from it
//! ([`replaceable_through`]).

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use foreread_local::{is_private_directory, replaceable_through};
use foreread_preload::LIBRARY;
use rustix::fs::{FlockOperation, StatVfsMountFlags};

use crate::adoption::sweep;
use crate::error::FileCacheError;

/// The beginning of its name.
const PREFIX: &str = "foreread-files";

/// The names that are tried if another user has the first one.
const CANDIDATES: u32 = 4;

/// The directory of a cache.
#[derive(Clone, Debug)]
pub(crate) struct CacheDirectory(PathBuf);

impl CacheDirectory {
    /// The directory of this user below `parent`, which is made if it is absent. With `node`, it is
    /// for the node of this name alone.
    pub(crate) fn open(parent: &Path, node: Option<&str>) -> Result<Self, FileCacheError> {
        check_parents(parent)?;
        let user = rustix::process::geteuid().as_raw();
        let mut why = None;
        for candidate in 0..CANDIDATES {
            let suffix = if candidate == 0 { String::new() } else { format!(".{candidate}") };
            let path = parent.join(format!("{PREFIX}-{user}{suffix}"));
            match own_directory(&path) {
                Ok(()) => return Self::of_node(path, node),
                Err(error) => why = why.or(Some(error)),
            }
        }
        Err(why.unwrap_or_else(|| FileCacheError::new("no directory")))
    }

    /// The directories of this user below `parent` that are there.
    pub(crate) fn existing(parent: &Path) -> Vec<Self> {
        let user = rustix::process::geteuid().as_raw();
        let below = |directory: &Path| {
            let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
            let mut paths: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
            paths.sort_unstable();
            paths
        };
        let is_named = |path: &Path, start: &str| {
            path.file_name().is_some_and(|name| name.as_bytes().starts_with(start.as_bytes()))
        };
        let own = below(parent).into_iter().filter(|path| is_named(path, &format!("{PREFIX}-{user}")));
        let own = own.filter(|path| is_private_directory(path).is_ok_and(|is_own| is_own));
        own.flat_map(|path| {
            let nodes = below(&path).into_iter().filter(|path| is_named(path, "node-"));
            let nodes: Vec<PathBuf> = nodes.collect();
            [path].into_iter().chain(nodes)
        })
        .filter(|path| path.join("copies").is_dir())
        .map(Self)
        .collect()
    }

    /// A directory that exists.
    pub(crate) fn at(path: PathBuf) -> Self {
        Self(path)
    }

    fn of_node(path: PathBuf, node: Option<&str>) -> Result<Self, FileCacheError> {
        let path = match node {
            Some(node) => path.join(format!("node-{node}")),
            None => path,
        };
        for each in [path.clone(), path.join("copies"), path.join("runs")] {
            make(&each).map_err(|error| FileCacheError::system("make", &each, error))?;
        }
        // Programs may have any working directory.
        let path = path.canonicalize().map_err(|error| FileCacheError::system("find", &path, error))?;
        Ok(Self(path))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    pub(crate) fn table(&self) -> PathBuf {
        self.0.join("table")
    }

    /// Notes whether a host serves other runs.
    pub(crate) fn set_ready(&self, is_ready: bool) -> Result<(), FileCacheError> {
        let path = self.0.join("ready");
        let done = if is_ready { std::fs::write(&path, b"") } else { std::fs::remove_file(&path) };
        match done {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(FileCacheError::system("write", &path, error))
            }
            _ => Ok(()),
        }
    }

    /// Whether a host serves other runs.
    pub(crate) fn is_ready(&self) -> bool {
        self.0.join("ready").exists()
    }

    pub(crate) fn copies(&self) -> PathBuf {
        self.0.join("copies")
    }

    /// Removes the copies and their table. The directory and the library stay for runs that start.
    pub(crate) fn remove_copies(&self) {
        // The next host removes the files that stay.
        for name in ["table", "marks"] {
            let _ = std::fs::remove_file(self.0.join(name));
        }
        sweep(&self.copies(), |_, _| false);
        // Their folders are empty, except for files that could not be removed.
        for folder in std::fs::read_dir(self.copies()).into_iter().flatten().flatten() {
            let _ = std::fs::remove_dir(folder.path());
        }
    }

    pub(crate) fn runs(&self) -> PathBuf {
        self.0.join("runs")
    }

    /// The file that the host locks.
    pub(crate) fn lock_file(&self) -> Result<File, FileCacheError> {
        let path = self.0.join("lock");
        open_lock(&path).map_err(|error| FileCacheError::system("open", &path, error))
    }

    /// The library as a file that can be preloaded. `elsewhere` are other directories, for a cache
    /// on a file system without execution.
    pub(crate) fn library(&self) -> Result<PathBuf, FileCacheError> {
        let name = format!("preload-{:08x}.so", crc32c::crc32c(LIBRARY));
        let is_executable = |directory: &Path| {
            let flags = rustix::fs::statvfs(directory).map(|found| found.f_flag);
            flags.is_ok_and(|flags| !flags.contains(StatVfsMountFlags::NOEXEC))
        };
        let user = rustix::process::geteuid().as_raw();
        let others = [std::env::temp_dir(), "/dev/shm".into()];
        let others = others.map(|parent| parent.join(format!("{PREFIX}-{user}")));
        for directory in std::iter::once(self.0.clone()).chain(others) {
            // The dynamic linker divides its variable there.
            let is_plain = !directory.as_os_str().as_bytes().iter().any(|byte| b" :$\t\n".contains(byte));
            let is_safe = directory.parent().is_some_and(|parent| check_parents(parent).is_ok());
            let is_usable = || own_directory(&directory).is_ok_and(|()| is_executable(&directory));
            if !(is_plain && is_safe && is_usable()) {
                continue;
            }
            let path = directory.join(&name);
            if std::fs::read(&path).is_ok_and(|there| there == LIBRARY) {
                return Ok(path);
            }
            if write_whole(&path, LIBRARY).is_ok() {
                return Ok(path);
            }
        }
        let why =
            "no directory of this user allows to execute the preloaded library (they are mounted noexec)";
        Err(FileCacheError::new(why))
    }
}

/// Writes a file under another name first, so that no program sees a part of it.
fn write_whole(path: &Path, content: &[u8]) -> io::Result<()> {
    let partial = path.with_extension(format!("{}.part", std::process::id()));
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o500).open(&partial)?;
    file.write_all(content)?;
    std::fs::rename(&partial, path)
}

/// Makes a private directory, if it is absent.
pub(crate) fn make(path: &Path) -> io::Result<()> {
    match DirBuilder::new().mode(0o700).create(path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _ => Ok(()),
    }
}

/// Refuses a directory in which other users may replace the files of this user.
fn check_parents(parent: &Path) -> Result<(), FileCacheError> {
    let system = |error| FileCacheError::system("look at", parent, error);
    let found = replaceable_through(&parent.join(PREFIX)).map_err(system)?;
    found.map_or(Ok(()), |through| {
        let why =
            format!("{} cannot be used for copies, which others could replace: {through}", parent.display());
        Err(FileCacheError::invalid(why))
    })
}

/// Makes a directory, or checks that the existing one is this user's alone.
fn own_directory(path: &Path) -> Result<(), FileCacheError> {
    make(path).map_err(|error| FileCacheError::system("make", path, error))?;
    let is_own =
        is_private_directory(path).map_err(|error| FileCacheError::system("look at", path, error))?;
    let why = || format!("{} is not a private directory of this user (mode 0700)", path.display());
    is_own.then_some(()).ok_or_else(|| FileCacheError::new(why()))
}

/// Opens a file that is locked, which is made if it is absent.
pub(crate) fn open_lock(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(path)
}

/// Locks a file. `false` if another process has it, and `waits` is not set.
pub(crate) fn lock(file: &File, waits: bool) -> bool {
    let how = if waits { FlockOperation::LockExclusive } else { FlockOperation::NonBlockingLockExclusive };
    loop {
        match rustix::fs::flock(file, how) {
            Err(rustix::io::Errno::INTR) => {}
            result => return result.is_ok(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

    use super::*;

    #[test]
    // semantics: FILES-2
    fn directories_of_others_are_not_used() {
        let parent = tempfile::tempdir().unwrap();
        let user = rustix::process::geteuid().as_raw();
        let first = parent.path().join(format!("{PREFIX}-{user}"));
        std::fs::create_dir(&first).unwrap();
        std::fs::set_permissions(&first, std::fs::Permissions::from_mode(0o755)).unwrap();
        let elsewhere = tempfile::tempdir().unwrap();
        symlink(elsewhere.path(), parent.path().join(format!("{PREFIX}-{user}.1"))).unwrap();
        let found = CacheDirectory::open(parent.path(), None).unwrap();
        assert!(found.path().ends_with(format!("{PREFIX}-{user}.2")), "{found:?}");
        assert_eq!(std::fs::read_dir(elsewhere.path()).unwrap().count(), 0);
        let of_node = CacheDirectory::open(parent.path(), Some("n1")).unwrap();
        assert!(of_node.path().ends_with("node-n1"));
    }

    #[test]
    // semantics: FILES-2
    fn directory_that_others_may_replace_is_refused() {
        let parent = tempfile::tempdir().unwrap();
        let inner = parent.path().join("open/inner");
        std::fs::create_dir_all(&inner).unwrap();
        let set = |mode| {
            let mode = std::fs::Permissions::from_mode(mode);
            std::fs::set_permissions(parent.path().join("open"), mode).unwrap();
        };
        set(0o777);
        let error = CacheDirectory::open(&inner, None).unwrap_err();
        assert!(error.is_invalid());
        assert!(error.to_string().contains("mode 0777) can be written by others"), "{error}");
        assert_eq!(std::fs::read_dir(&inner).unwrap().count(), 0);
        set(0o1777);
        CacheDirectory::open(&inner, None).unwrap();
    }

    #[test]
    fn library_is_written_whole_and_once() {
        let parent = tempfile::tempdir().unwrap();
        let cache = CacheDirectory::open(parent.path(), None).unwrap();
        let path = cache.library().unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), LIBRARY);
        let before = std::fs::metadata(&path).unwrap().ino();
        assert_eq!((cache.library().unwrap(), std::fs::metadata(&path).unwrap().ino()), (path, before));
    }
}
