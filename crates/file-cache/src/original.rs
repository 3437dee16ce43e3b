//! The originals: their identities, and whether a copy can stand for one.

use std::fs::File;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use foreread_preload::layout::Identity;
use rustix::fs::{FileType, Mode, OFlags, SeekFrom, Stat};
use rustix::io::Errno;

/// A file that was changed less than this time ago may change again without another time, because
/// some file systems count whole seconds: in milliseconds.
const SETTLED: u64 = 2000;

/// The same in this process.
static SETTLED_HERE: AtomicU64 = AtomicU64::new(SETTLED);

/// Takes files for settled after another time, in this process: tests, on file systems that count
/// nanoseconds, need not wait.
#[doc(hidden)]
pub fn settle_after(time: Duration) {
    SETTLED_HERE.store(time.as_millis() as u64, Ordering::Relaxed);
}

/// The bits of a mode by which a program gains rights, and by which files are programs.
const SET_ID: u32 = 0o6000;
const EXECUTES: u32 = 0o111;

/// Attributes of a file's place and not of its content.
const HARMLESS: [&[u8]; 3] = [b"security.selinux", b"lustre.", b"trusted."];

/// Why a file has no copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unfit {
    /// It is no regular file, empty, or cannot be read.
    Kind,
    /// It has extended attributes, which a copy has not.
    Attributes,
    /// It has holes, which some programs look for.
    Holes,
    /// It has several names, by any of which it may be changed unseen.
    Names,
    /// It was changed a moment ago.
    Fresh,
    /// It changed while it was copied.
    Changed,
    /// A program has written to it, by any name.
    Written,
    /// Programs have changed so many files that changes of it could not be noted.
    Unwatched,
    /// It is in memory, where changes through mappings have no time.
    Memory,
    /// It is a database. Its reader needs other files and locks that belong to the original.
    Database,
}

/// An open original.
#[derive(Debug)]
pub(crate) struct Original {
    pub(crate) file: File,
    pub(crate) identity: Identity,
}

fn identity(stat: &Stat) -> Identity {
    #[allow(clippy::unnecessary_cast, reason = "the types of the fields depend on the processor")]
    Identity {
        device: stat.st_dev as u64,
        inode: stat.st_ino as u64,
        size: stat.st_size as u64,
        blocks: stat.st_blocks as u64,
        links: stat.st_nlink as u64,
        mode: stat.st_mode,
        user: stat.st_uid,
        group: stat.st_gid,
        block_size: stat.st_blksize as u32,
        modified: [stat.st_mtime as i64, stat.st_mtime_nsec as i64],
        changed: [stat.st_ctime as i64, stat.st_ctime_nsec as i64],
    }
}

/// The file that a path means now. `None` if that is no file.
pub(crate) fn identity_of(path: &Path) -> Option<Identity> {
    rustix::fs::stat(path).ok().map(|stat| identity(&stat))
}

impl Original {
    /// Opens the file that a path means, if a copy can stand for it. `is_checked`: whether each
    /// open compares the file with its copy.
    pub(crate) fn open(path: &Path, is_checked: bool) -> Result<Self, Unfit> {
        // A path that has become a pipe must not block.
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
        // A device that a link leads to must not be opened.
        let named = rustix::fs::stat(path).map_err(|_| Unfit::Kind)?;
        if FileType::from_raw_mode(named.st_mode) != FileType::RegularFile {
            return Err(Unfit::Kind);
        }
        let file = File::from(rustix::fs::open(path, flags, Mode::empty()).map_err(|_| Unfit::Kind)?);
        let stat = rustix::fs::fstat(&file).map_err(|_| Unfit::Kind)?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile || stat.st_size == 0 {
            return Err(Unfit::Kind);
        }
        let identity = identity(&stat);
        // A copy of such a program would not gain its rights.
        if identity.mode & SET_ID != 0 && identity.mode & EXECUTES != 0 {
            return Err(Unfit::Kind);
        }
        if is_in_memory(&file) {
            return Err(Unfit::Memory);
        }
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        if !is_settled(&identity, now, Duration::from_millis(SETTLED_HERE.load(Ordering::Relaxed))) {
            return Err(Unfit::Fresh);
        }
        if !is_checked && identity.links > 1 {
            return Err(Unfit::Names);
        }
        if is_checked {
            // Writes by mappings of other processes change its time from now on. On file servers,
            // it would wait for them.
            let _ = rustix::fs::fdatasync(&file);
        }
        if has_attributes(&file) {
            return Err(Unfit::Attributes);
        }
        if identity.blocks.saturating_mul(512) < identity.size && has_holes(&file, identity.size) {
            return Err(Unfit::Holes);
        }
        Ok(Self { file, identity })
    }

    /// Whether the file and its path are unchanged.
    pub(crate) fn is_same(&self, path: &Path) -> bool {
        let now = rustix::fs::fstat(&self.file).map(|stat| identity(&stat));
        now.is_ok_and(|now| now == self.identity)
            && identity_of(path).is_some_and(|named| named == self.identity)
    }
}

/// Whether a file is in a file system in memory, where it needs no copy.
pub(crate) fn is_in_memory(file: &File) -> bool {
    const TMPFS: i64 = 0x0102_1994;
    const RAMFS: i64 = 0x8584_58f6;
    const HUGETLBFS: i64 = 0x9584_58f6;
    #[allow(clippy::unnecessary_cast, reason = "the type depends on the processor")]
    rustix::fs::fstatfs(file).is_ok_and(|found| [TMPFS, RAMFS, HUGETLBFS].contains(&(found.f_type as i64)))
}

/// Whether a file that begins with these bytes is a database that programs may change while others
/// read it: SQLite, or LMDB with the file of its locks next to it.
pub(crate) fn is_database(head: &[u8], path: &Path) -> bool {
    const LMDB: [u8; 4] = 0xbeef_c0de_u32.to_ne_bytes();
    /// The magic number comes after the header of the first page.
    const LMDB_AT: usize = 16;
    let has_locks = || {
        let in_directory = path.file_name().is_some_and(|name| name == "data.mdb");
        let mut own = path.as_os_str().to_owned();
        own.push("-lock");
        Path::new(&own).exists() || in_directory && path.with_file_name("lock.mdb").exists()
    };
    head.starts_with(b"SQLite format 3\0")
        || head.get(LMDB_AT..).is_some_and(|head| head.starts_with(&LMDB)) && has_locks()
}

/// Whether a file was changed long enough before `now`, since 1970. Clocks of file servers differ.
/// A clock that is ahead makes files wait.
fn is_settled(identity: &Identity, now: Duration, after: Duration) -> bool {
    let [seconds, nanos] = identity.changed.max(identity.modified);
    let changed = i128::from(seconds) * 1_000_000_000 + i128::from(nanos);
    changed.saturating_add(after.as_nanos() as i128) < now.as_nanos() as i128
}

fn has_attributes(file: &File) -> bool {
    let mut names = [0_u8; 4096];
    match rustix::fs::flistxattr(file, &mut names[..]) {
        Ok(length) => names[..length]
            .split(|byte| *byte == 0)
            .any(|name| !name.is_empty() && !HARMLESS.iter().any(|start| name.starts_with(start))),
        Err(Errno::NOTSUP | Errno::NOSYS) => false,
        // More than the space has.
        Err(_) => true,
    }
}

fn has_holes(file: &File, size: u64) -> bool {
    let hole = rustix::fs::seek(file.as_fd(), SeekFrom::Hole(0));
    let _ = rustix::fs::seek(file.as_fd(), SeekFrom::Start(0));
    // A file system that does not know holes has one at the end.
    hole.is_ok_and(|hole| hole < size)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    // semantics: FILES-3
    fn databases_are_known_by_content_and_locks() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        assert!(is_database(b"SQLite format 3\0more", &at("any")));
        let mut page = [0_u8; 64];
        page[16..20].copy_from_slice(&0xbeef_c0de_u32.to_ne_bytes());
        // A database without locks is a file like others.
        assert!(!is_database(&page, &at("data.mdb")) && !is_database(&page, &at("one")));
        std::fs::write(at("lock.mdb"), b"").unwrap();
        std::fs::write(at("one-lock"), b"").unwrap();
        assert!(is_database(&page, &at("data.mdb")) && is_database(&page, &at("one")));
        assert!(!is_database(&page, &at("other")) && !is_database(b"short", &at("data.mdb")));
    }

    #[test]
    // semantics: FILES-3
    fn files_in_memory_are_left_out() {
        let Ok(directory) = tempfile::tempdir_in("/dev/shm") else { return };
        let path = directory.path().join("file");
        std::fs::write(&path, b"bytes").unwrap();
        assert_eq!(Original::open(&path, true).unwrap_err(), Unfit::Memory);
    }

    #[test]
    // semantics: FILES-3
    fn files_settle_after_their_later_time() {
        let at = |modified, changed| Identity { modified, changed, ..Identity::default() };
        let now = Duration::new(1000, 500);
        let settled = Duration::from_millis(SETTLED);
        let is_settled = |modified, changed| is_settled(&at(modified, changed), now, settled);
        assert!(is_settled([5, 0], [998, 499]) && is_settled([998, 499], [5, 0]));
        // Whatever the modification time is, which programs set.
        assert!(!is_settled([5, 0], [998, 500]) && !is_settled([998, 500], [5, 0]));
        assert!(!is_settled([5, 0], [2000, 0]) && !is_settled([i64::MAX, 0], [5, 0]));
    }

    #[test]
    // semantics: FILES-3
    fn files_that_a_copy_cannot_stand_for_are_left_out() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        settle_after(Duration::from_millis(10));
        std::fs::write(at("empty"), b"").unwrap();
        assert_eq!(Original::open(&at("empty"), true).unwrap_err(), Unfit::Kind);
        assert_eq!(Original::open(directory.path(), true).unwrap_err(), Unfit::Kind);
        assert_eq!(Original::open(&at("absent"), true).unwrap_err(), Unfit::Kind);
        File::create(at("sparse")).unwrap().set_len(1 << 20).unwrap();
        std::fs::write(at("plain"), b"bytes").unwrap();
        std::os::unix::fs::symlink("plain", at("link")).unwrap();
        let attribute =
            rustix::fs::setxattr(at("empty"), "user.colour", b"red", rustix::fs::XattrFlags::empty());
        std::fs::write(at("empty"), b"x").unwrap();
        std::thread::sleep(Duration::from_millis(20));
        assert_eq!(Original::open(&at("sparse"), true).unwrap_err(), Unfit::Holes);
        if attribute.is_ok() {
            assert_eq!(Original::open(&at("empty"), true).unwrap_err(), Unfit::Attributes);
        }
        let (plain, link) =
            (Original::open(&at("plain"), true).unwrap(), Original::open(&at("link"), true).unwrap());
        assert_eq!(plain.identity, link.identity);
        assert!(plain.is_same(&at("plain")) && link.is_same(&at("link")));
        std::fs::hard_link(at("plain"), at("second")).unwrap();
        std::thread::sleep(Duration::from_millis(20));
        assert_eq!(Original::open(&at("plain"), false).unwrap_err(), Unfit::Names);
        std::fs::write(at("plain"), b"other").unwrap();
        assert!(!plain.is_same(&at("plain")));
    }
}
