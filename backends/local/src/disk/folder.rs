//! An open directory of a cache. Its files are named relative to its descriptor.
//!
//! Each call looks a path up again, and another user may have replaced a part of it. A descriptor
//! always means the directory that was checked. So links are never followed, and names are single
//! components.
//!
//! With private permissions, directories get mode 0700 and files 0600, whatever the umask. The
//! price is one `fstat` per file opened for writing, and one `fchmod` where the mode differs.

use std::ffi::OsString;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

use super::file::retry;

/// The error for an object that is neither a file nor a directory where a file is to be written.
pub(super) const NOT_A_FILE: Errno = Errno::MEDIUMTYPE;

/// The permissions of new files and directories.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Permissions {
    /// For the effective user only.
    Private,
    /// As the umask and the file system allow. Owners and modes are not checked.
    Shared,
}

/// Device and inode: the same for every path to a directory.
pub(super) type FolderId = (u64, u64);

/// An open directory.
#[derive(Debug)]
pub(super) struct Folder {
    descriptor: OwnedFd,
    /// For messages only.
    path: PathBuf,
    permissions: Permissions,
}

impl Folder {
    pub(super) fn new(descriptor: OwnedFd, path: PathBuf, permissions: Permissions) -> Self {
        Self { descriptor, path, permissions }
    }

    #[cfg(test)]
    pub(super) fn for_test(path: &Path) -> Self {
        let parent = std::fs::File::open("/").unwrap();
        let opened = open_folder(&parent, path.strip_prefix("/").unwrap()).unwrap();
        Self::new(opened, path.to_owned(), Permissions::Private)
    }

    /// The path at the time of opening, for messages.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// The path of `name` in it, for messages.
    pub(super) fn path_of(&self, name: impl AsRef<Path>) -> PathBuf {
        self.path.join(name)
    }

    pub(super) fn id(&self) -> Result<FolderId, Errno> {
        rustix::fs::fstat(&self.descriptor).map(|stat| (stat.st_dev, stat.st_ino))
    }

    /// The metadata of `name`. A link is not followed.
    pub(super) fn stat(&self, name: impl rustix::path::Arg) -> Result<Stat, Errno> {
        retry_named(name, |name| rustix::fs::statat(&self.descriptor, name, AtFlags::SYMLINK_NOFOLLOW))
    }

    /// Whether `file` is the one with this name here.
    pub(super) fn has_file(&self, file: impl AsFd, name: &str) -> bool {
        rustix::fs::fstat(file).is_ok_and(|own| {
            self.stat(name).is_ok_and(|named| (own.st_dev, own.st_ino) == (named.st_dev, named.st_ino))
        })
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.stat(name).is_ok()
    }

    /// Opens the file `name`, or creates it if `flags` allow that. It never blocks and never
    /// follows a link.
    ///
    /// # Errors
    /// [`NOT_A_FILE`] for a pipe or device opened for writing, otherwise the file system's.
    pub(super) fn open(&self, name: &str, flags: OFlags) -> Result<OwnedFd, Errno> {
        let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
        let mode = match self.permissions {
            Permissions::Private => Mode::RUSR | Mode::WUSR,
            Permissions::Shared => Mode::from_raw_mode(0o666),
        };
        let file = retry(|| rustix::fs::openat(&self.descriptor, name, flags, mode))?;
        if flags.contains(OFlags::RDWR) {
            let stat = rustix::fs::fstat(&file)?;
            if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
                return Err(NOT_A_FILE);
            }
            if self.permissions == Permissions::Private && stat.st_mode & 0o7777 != 0o600 {
                // A second line of defence in case the directory's mode is changed.
                let _ = retry(|| rustix::fs::fchmod(&file, mode));
            }
        }
        Ok(file)
    }

    /// Opens the directory `name`.
    ///
    /// # Errors
    /// [`Errno::NOTDIR`] for a link, [`Errno::PERM`] for a directory of another user.
    pub(super) fn folder(&self, name: &str) -> Result<Self, Errno> {
        let folder = Self::new(open_folder(&self.descriptor, name)?, self.path_of(name), self.permissions);
        if self.permissions == Permissions::Private {
            let stat = rustix::fs::fstat(&folder.descriptor)?;
            if stat.st_uid != rustix::process::geteuid().as_raw() {
                return Err(Errno::PERM);
            }
            if stat.st_mode & 0o077 != 0 {
                let mode = Mode::from_raw_mode(stat.st_mode & 0o700);
                let _ = retry(|| rustix::fs::fchmod(&folder.descriptor, mode)); // as for files
            }
        }
        Ok(folder)
    }

    /// Opens the directory `name` and creates it if it is missing.
    pub(super) fn make_folder(&self, name: &str) -> Result<Self, Errno> {
        match make_folder(&self.descriptor, name, self.permissions) {
            Ok(made) => Ok(Self::new(made, self.path_of(name), self.permissions)),
            Err(Errno::EXIST) => self.folder(name),
            Err(errno) => Err(errno),
        }
    }

    /// Removes a file, or an empty directory with its name. A missing one is not an error.
    pub(super) fn remove(&self, name: impl rustix::path::Arg) -> Result<(), Errno> {
        retry_named(name, |name| match rustix::fs::unlinkat(&self.descriptor, name, AtFlags::empty()) {
            Err(Errno::NOENT) => Ok(()),
            Err(Errno::ISDIR) => rustix::fs::unlinkat(&self.descriptor, name, AtFlags::REMOVEDIR),
            done => done,
        })
    }

    /// Removes the directory `name` if it is empty.
    pub(super) fn remove_folder(&self, name: &str) -> Result<(), Errno> {
        retry(|| rustix::fs::unlinkat(&self.descriptor, name, AtFlags::REMOVEDIR))
    }

    pub(super) fn rename(&self, from: &str, to: &str) -> Result<(), Errno> {
        retry(|| rustix::fs::renameat(&self.descriptor, from, &self.descriptor, to))
    }

    /// The names in it, sorted.
    pub(super) fn names(&self) -> Result<Vec<OsString>, Errno> {
        names(self.descriptor.as_fd())
    }

    /// The allocated bytes of `name` and everything below it. Files that vanish in the meantime
    /// count as 0.
    pub(super) fn allocated(&self, name: impl rustix::path::Arg) -> u64 {
        retry_named(name, |name| Ok(allocated(self.descriptor.as_fd(), name))).unwrap_or(0)
    }
}

fn names(folder: BorrowedFd<'_>) -> Result<Vec<OsString>, Errno> {
    let mut names = Vec::new();
    for entry in rustix::fs::Dir::read_from(folder)? {
        let name = entry?.file_name().to_bytes().to_owned();
        if name != b"." && name != b".." {
            names.push(OsString::from_vec(name));
        }
    }
    names.sort_unstable();
    Ok(names)
}

fn allocated(parent: BorrowedFd<'_>, name: &std::ffi::CStr) -> u64 {
    let Ok(stat) = rustix::fs::statat(parent, name, AtFlags::SYMLINK_NOFOLLOW) else { return 0 };
    let own = stat.st_blocks as u64 * 512;
    if FileType::from_raw_mode(stat.st_mode) != FileType::Directory {
        return own;
    }
    let Ok(folder) = open_folder(parent, name) else { return own };
    let below = names(folder.as_fd()).unwrap_or_default().into_iter();
    let below = below.filter_map(|name| std::ffi::CString::new(name.into_vec()).ok());
    below.fold(own, |sum, name| sum + allocated(folder.as_fd(), &name))
}

/// Calls with a C string and repeats interrupted calls.
fn retry_named<T>(
    name: impl rustix::path::Arg,
    mut call: impl FnMut(&std::ffi::CStr) -> Result<T, Errno>,
) -> Result<T, Errno> {
    name.into_with_c_str(|name| retry(|| call(name)))
}

/// Opens the directory `name` in `parent`. A link is not followed.
pub(super) fn open_folder(parent: impl AsFd, name: impl rustix::path::Arg) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    retry_named(name, |name| rustix::fs::openat(parent.as_fd(), name, flags, Mode::empty()))
}

/// Creates and opens the directory `name` in `parent`, where it must not exist.
///
/// # Errors
/// The file system's. The caller checks whether owner and mode were kept.
pub(super) fn make_folder(parent: impl AsFd, name: &str, permissions: Permissions) -> Result<OwnedFd, Errno> {
    let mode = match permissions {
        Permissions::Private => Mode::RWXU,
        Permissions::Shared => Mode::from_raw_mode(0o777),
    };
    retry(|| rustix::fs::mkdirat(parent.as_fd(), name, mode))?;
    let opened = match open_folder(parent.as_fd(), name) {
        // The umask removes the owner's rights too.
        Err(Errno::ACCESS) if permissions == Permissions::Private => {
            let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let found = retry(|| rustix::fs::openat(parent.as_fd(), name, flags, Mode::empty()))?;
            // This descriptor does not support `fchmod`. The path below names the same directory,
            // even if it was renamed.
            rustix::fs::chmod(format!("/proc/self/fd/{}", found.as_raw_fd()), mode)?;
            open_folder(&found, ".")
        }
        opened => opened,
    }?;
    if permissions == Permissions::Private {
        let _ = retry(|| rustix::fs::fchmod(&opened, mode)); // the caller checks the result
    }
    Ok(opened)
}
