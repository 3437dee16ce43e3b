//! The root directory of one user's caches, and whether it is safe to use.
//!
//! All users may be able to write to the parent, as to `/local/scratch`. So the root is named per
//! user, is created with mode 0700, and is opened once. It is used only if the effective user owns
//! it and no other user can write to it. Any other object of that name (another user's directory, a
//! link, a pipe) is left unchanged, and the next of four names is tried. Another user who takes all
//! four costs this user the cache and nothing else.
//!
//! The check needs a file system that keeps owners and modes. CIFS mounts and NFS exports that map
//! users do not. There the run continues without the directory, unless the user declares it shared.
//! Then one root serves all users, and owners and modes are not checked.

use std::collections::BTreeSet;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use foreread_tier::{ErrorKind, TierError};
use foreread_types::setting;
use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

use super::config::DiskDirectory;
use super::error::{about, from_errno};
use super::file::retry;
use super::folder::{Folder, FolderId, Permissions, make_folder, open_folder};
use super::layout;
use crate::jobs::lock;

/// The prefix of all roots' names. Earlier versions used it as the whole name.
pub(crate) const PREFIX: &str = "foreread-cache";

/// The number of names to try.
const CANDIDATES: u32 = 4;

/// A root, or the reason for its absence. The run continues without it.
#[derive(Debug)]
pub(super) enum CacheRoot {
    Open(Folder),
    Unusable(TierError),
}

/// The object that has a candidate name.
enum Candidate {
    Missing,
    Own(OwnedFd),
    /// Not owned by this user alone, and why.
    Foreign(String),
    /// This user's, but readable for others.
    Exposed(String),
}

/// The roots' names in the order in which they are tried.
fn candidate_names(permissions: Permissions) -> impl Iterator<Item = String> {
    let whose = match permissions {
        Permissions::Private => rustix::process::geteuid().as_raw().to_string(),
        Permissions::Shared => "shared".to_owned(),
    };
    (0..CANDIDATES).map(move |number| match number {
        0 => format!("{PREFIX}-{whose}"),
        number => format!("{PREFIX}-{whose}.{number}"),
    })
}

/// Opens the directory that the user named. It may be a link.
fn open_parent(path: &Path) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::PATH;
    retry(|| rustix::fs::open(path, flags, Mode::empty()))
}

/// Why a directory is not this user's alone, or `None`.
fn foreign(stat: &Stat) -> Option<String> {
    if stat.st_uid != rustix::process::geteuid().as_raw() {
        return Some(format!("belongs to user {}", stat.st_uid));
    }
    let open = stat.st_mode & 0o022 != 0;
    open.then(|| format!("can be written by others (mode {:04o})", stat.st_mode & 0o7777))
}

/// Inspects one name. Objects of other users are not changed.
fn inspect(parent: impl AsFd, name: &str, permissions: Permissions) -> Result<Candidate, Errno> {
    let descriptor = match open_folder(parent.as_fd(), name) {
        Ok(descriptor) => descriptor,
        Err(Errno::NOENT) => return Ok(Candidate::Missing),
        Err(Errno::NOTDIR | Errno::LOOP) => {
            return Ok(Candidate::Foreign("is not a directory".to_owned()));
        }
        // Another user's, or one without access for its owner.
        Err(Errno::ACCESS | Errno::PERM) => {
            let stat = retry(|| rustix::fs::statat(parent.as_fd(), name, AtFlags::SYMLINK_NOFOLLOW))?;
            let why = foreign(&stat).unwrap_or_else(|| "cannot be read".to_owned());
            return Ok(Candidate::Foreign(why));
        }
        Err(errno) => return Err(errno),
    };
    if permissions == Permissions::Shared {
        return Ok(Candidate::Own(descriptor));
    }
    let stat = rustix::fs::fstat(&descriptor)?;
    if let Some(why) = foreign(&stat) {
        return Ok(Candidate::Foreign(why));
    }
    if stat.st_mode & 0o077 == 0 {
        return Ok(Candidate::Own(descriptor));
    }
    let closed = retry(|| rustix::fs::fchmod(&descriptor, Mode::from_raw_mode(stat.st_mode & 0o700)));
    // A read-only file system cannot be written, and its files were readable before.
    if closed == Err(Errno::ROFS) {
        return Ok(Candidate::Own(descriptor));
    }
    let mode = rustix::fs::fstat(&descriptor)?.st_mode & 0o7777;
    Ok(match mode & 0o077 {
        0 => Candidate::Own(descriptor),
        _ => Candidate::Exposed(format!(
            "it is readable for others (mode {mode:04o}), and that cannot be changed"
        )),
    })
}

/// Creates the root `name`, where nothing exists.
fn create_root(parent: impl AsFd, name: &str, permissions: Permissions) -> Result<Candidate, Errno> {
    let descriptor = match make_folder(parent.as_fd(), name, permissions) {
        Ok(descriptor) => descriptor,
        // Another process was faster: another rank, or another user.
        Err(Errno::EXIST | Errno::NOTDIR | Errno::LOOP) => return inspect(parent, name, permissions),
        Err(errno) => return Err(errno),
    };
    if permissions == Permissions::Shared {
        return Ok(Candidate::Own(descriptor));
    }
    let stat = rustix::fs::fstat(&descriptor)?;
    let mode = stat.st_mode & 0o7777;
    let why = if stat.st_uid != rustix::process::geteuid().as_raw() {
        format!("files that this user creates there belong to user {}", stat.st_uid)
    } else if mode & 0o077 != 0 {
        format!("a directory created there with mode 0700 has mode {mode:04o}")
    } else {
        return Ok(Candidate::Own(descriptor));
    };
    // Just created and useless. It stays if it is not empty.
    let _ = retry(|| rustix::fs::unlinkat(parent.as_fd(), name, AtFlags::REMOVEDIR));
    Ok(Candidate::Exposed(why))
}

/// Opens this user's root in `directory`, and creates it if there is none.
///
/// # Errors
/// If the directory cannot be opened or created, except for lack of space.
pub(super) fn open(directory: &DiskDirectory) -> Result<CacheRoot, TierError> {
    let path = &directory.path;
    let failed = |errno| from_errno(errno, path.display());
    let unusable = |why: String, remedy: &str| {
        CacheRoot::Unusable(about(ErrorKind::Denied, path.display(), format!("{why}; {remedy}")))
    };
    match std::fs::create_dir(path) {
        Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists && !path.is_dir() => {
            return full_or(super::error::from_io(&error, path.display()));
        }
        _ => {}
    }
    let parent = open_parent(path).map_err(failed)?;
    let permissions = directory.permissions();
    let mut taken = Vec::new();
    let mut missing = None;
    let root =
        |name: &str, descriptor| CacheRoot::Open(Folder::new(descriptor, path.join(name), permissions));
    let not_kept = |why: String| {
        let shared = setting("disk").to("DIR=SIZE,shared");
        let remedy = format!(
            "a cache there could be read or replaced by other users. If all who can write to it may be \
             trusted, give it as {shared}"
        );
        unusable(why, &remedy)
    };
    for name in candidate_names(permissions) {
        match inspect(&parent, &name, permissions).map_err(failed)? {
            Candidate::Own(descriptor) => return Ok(root(&name, descriptor)),
            Candidate::Exposed(why) => return Ok(not_kept(why)),
            Candidate::Foreign(why) => taken.push((name, why)),
            Candidate::Missing => missing = missing.or(Some(name)),
        }
    }
    while let Some(name) = missing.take() {
        match create_root(&parent, &name, permissions) {
            Ok(Candidate::Own(descriptor)) => {
                for (name, why) in &taken {
                    let path = path.join(name);
                    tracing::warn!("{}: {why}; it is left unchanged, another name is used", path.display());
                }
                return Ok(root(&name, descriptor));
            }
            Ok(Candidate::Exposed(why)) => return Ok(not_kept(why)),
            Ok(Candidate::Foreign(why)) => taken.push((name, why)),
            Ok(Candidate::Missing) => {} // created and removed by others: the next name is tried
            Err(errno) => return full_or(failed(errno)),
        }
        let is_free = |name: &String| matches!(inspect(&parent, name, permissions), Ok(Candidate::Missing));
        missing = candidate_names(permissions)
            .filter(|name| taken.iter().all(|(other, _)| other != name))
            .find(is_free);
    }
    let list: Vec<String> = taken.into_iter().map(|(name, why)| format!("{name} {why}")).collect();
    Ok(unusable(
        format!("all names of this user's cache are taken: {}", list.join(", ")),
        "remove these, or choose another directory",
    ))
}

/// The run continues without a full disk.
fn full_or(error: TierError) -> Result<CacheRoot, TierError> {
    match error.kind() {
        ErrorKind::Full => Ok(CacheRoot::Unusable(error)),
        _ => Err(error),
    }
}

/// Opens one rank's part of a root. The root itself is the first part.
pub(super) fn open_part(root: Folder, part: u32) -> Result<CacheRoot, TierError> {
    if part == 0 {
        return Ok(CacheRoot::Open(root));
    }
    let name = layout::part_name(part);
    match root.make_folder(&name) {
        Ok(folder) => Ok(CacheRoot::Open(folder)),
        Err(errno) => full_or(from_errno(errno, root.path_of(name).display())),
    }
}

/// All folders in `directory` that are this user's or shared: roots, and the parts of ranks in
/// them.
///
/// # Errors
/// If the directory cannot be opened.
pub(super) fn existing(directory: &Path) -> Result<Vec<Folder>, TierError> {
    let failed = |errno| from_errno(errno, directory.display());
    let parent = open_parent(directory).map_err(failed)?;
    let mut folders = Vec::new();
    for permissions in [Permissions::Private, Permissions::Shared] {
        for name in candidate_names(permissions) {
            if let Candidate::Own(root) = inspect(&parent, &name, permissions).map_err(failed)? {
                let root = Folder::new(root, directory.join(name), permissions);
                folders.extend(
                    layout::parts(&root)
                        .into_iter()
                        .filter_map(|part| root.folder(&layout::part_name(part)).ok()),
                );
                folders.push(root);
            }
        }
    }
    folders.extend(legacy(directory, &parent));
    Ok(folders)
}

/// This user's root in a directory, if there is one.
fn find(directory: &DiskDirectory) -> Option<Folder> {
    let permissions = directory.permissions();
    let parent = open_parent(&directory.path).ok()?;
    candidate_names(permissions).find_map(|name| match inspect(&parent, &name, permissions) {
        Ok(Candidate::Own(root)) => Some(Folder::new(root, directory.path.join(name), permissions)),
        _ => None,
    })
}

/// The part of this user's root that `directory` names, if it exists.
pub(super) fn find_part(directory: &DiskDirectory) -> Option<Folder> {
    let root = find(directory)?;
    match directory.part {
        0 => Some(root),
        part => root.folder(&layout::part_name(part)).ok(),
    }
}

/// The number of parts of this user's root in a directory. 1 without a root.
pub(super) fn count_parts(directory: &DiskDirectory) -> u32 {
    let most = find(directory).and_then(|root| layout::parts(&root).into_iter().max());
    most.map_or(1, |most| most + 1)
}

/// Roots of earlier versions in `directory` that are this user's. Those versions did not check the
/// owner, so their contents are not trusted. They are only listed and removed.
fn legacy(directory: &Path, parent: &OwnedFd) -> Vec<Folder> {
    let mut found = Vec::new();
    let mut add = |parent: &OwnedFd, path: PathBuf| {
        let Ok(descriptor) = open_folder(parent, PREFIX) else { return };
        let Ok(stat) = rustix::fs::fstat(&descriptor) else { return };
        if stat.st_uid == rustix::process::geteuid().as_raw() {
            found.push(Folder::new(descriptor, path.join(PREFIX), Permissions::Shared));
        }
    };
    add(parent, directory.to_owned());
    // Ranks had their own directories next to it.
    let Ok(whole) = open_folder(parent, ".") else { return found };
    let whole = Folder::new(whole, directory.to_owned(), Permissions::Shared);
    for part in layout::parts(&whole) {
        let name = layout::part_name(part);
        if let Ok(descriptor) = open_folder(parent, &*name) {
            add(&descriptor, directory.join(name));
        }
    }
    found
}

/// Whether an earlier version created the folder.
pub(super) fn is_legacy(folder: &Folder) -> bool {
    folder.path().file_name().is_some_and(|name| name == PREFIX)
}

/// Warns about roots of earlier versions in `directory`, once per process.
pub(super) fn warn_of_legacy(directory: &Path) {
    static NAMED: Mutex<BTreeSet<FolderId>> = Mutex::new(BTreeSet::new());
    let Ok(parent) = open_parent(directory) else { return };
    for folder in legacy(directory, &parent) {
        let Ok(id) = folder.id() else { continue };
        if lock(&NAMED).insert(id) {
            let (path, bytes) = (folder.path().display(), folder.allocated("."));
            tracing::warn!(
                "{path}: a cache of an earlier version takes {bytes} bytes and is not used any more; \
                 `foreread cache clean {} --all` removes it, and all other unused caches",
                directory.display()
            );
        }
    }
}

/// Whether a directory entry of that name is a cache and not a sample.
pub(crate) fn is_cache_name(name: &[u8]) -> bool {
    name.starts_with(PREFIX.as_bytes())
}

/// Only a directory can be a part.
pub(super) fn is_folder(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::Directory
}
