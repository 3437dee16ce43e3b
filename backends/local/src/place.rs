//! Where a directory lies: one name_of for it, whichever path, bind mount or second mount point leads there.
//!
//! The name_of is the mount's source, the type of its file system and the path inside of that file system, as
//! `/proc/self/mountinfo` has them. So containers and hosts that see the same data by different paths agree. Three kinds
//! of sources name nothing by themselves:
//! * a loop device is whatever image it was set up with, so its image stands in its place;
//! * file systems without a source of their own (tmpfs, most of FUSE) and devices that anything may be attached to are told
//!   apart by what the kernel numbers unique_name since its start, because another one may have the same path later;
//! * an overlay is what it is made of.
//!
//! The price is a cache that is not found again where such a file system is mounted anew; a name in the catalog
//! (`foreread index --name`) is the remedy.
//!
//! Beside the name_of stands whether the file system keeps change times that nobody can set: with those a listing can tell
//! files from others that were put in their place with the same names, sizes and modification times.

use std::fmt::Write as _;
use std::fs;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use foreread_tier::{Change, Version};
use rustix::fs::{AtFlags, Statx, StatxFlags};

use crate::file_reader::nanoseconds;

/// Images may lie on file systems that are images themselves; deeper than this nobody looks.
const MAX_DEPTH: u32 = 4;

/// A directory's place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DirectoryPlace {
    /// The name_of.
    pub(crate) place: String,
    /// Which files have change times that can be believed.
    pub(crate) times: ChangeTimes,
}

/// What is known of the changes of files below a directory: of those on its own device as much as its file system tells,
/// of what is mounted below it or linked to nothing.
///
/// Made for a directory; the versions of the files below it come from here, as a listing of the directory has them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChangeTimes {
    device: (u32, u32),
    trust: CtimeTrust,
}

/// What change times of a file system are worth.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum CtimeTrust {
    Kept,
    Claimed,
    #[default]
    None,
}

/// What has to be asked of a file for [`ChangeTimes::version`].
pub(crate) const WANTED: StatxFlags =
    StatxFlags::TYPE.union(StatxFlags::SIZE).union(StatxFlags::MTIME).union(StatxFlags::CTIME);

impl ChangeTimes {
    /// Those below `directory`; nothing where it cannot be opened.
    pub fn below(directory: &Path) -> Self {
        fs::File::open(directory).map_or_else(|_| Self::default(), |directory| times_of(directory.as_fd()))
    }

    /// The version of a file below the directory.
    pub fn version_of(self, file: &fs::Metadata) -> Version {
        let device = (rustix::fs::major(file.dev()), rustix::fs::minor(file.dev()));
        let modified = nanoseconds(file.mtime(), file.mtime_nsec() as u32);
        self.made(device, modified, nanoseconds(file.ctime(), file.ctime_nsec() as u32), file.ino())
    }

    /// The same of what `statx` says, asked for [`WANTED`].
    pub(crate) fn version(self, stat: &Statx) -> Version {
        let modified = nanoseconds(stat.stx_mtime.tv_sec, stat.stx_mtime.tv_nsec);
        if stat.stx_mask & StatxFlags::CTIME.bits() == 0 {
            return Version::Modified(modified);
        }
        let changed = nanoseconds(stat.stx_ctime.tv_sec, stat.stx_ctime.tv_nsec);
        self.made((stat.stx_dev_major, stat.stx_dev_minor), modified, changed, stat.stx_ino)
    }

    fn made(self, device: (u32, u32), modified: i64, changed: i64, inode: u64) -> Version {
        // Files that change places keep their times, so the number is the file's, too.
        let number = (changed as u64).rotate_left(32) ^ inode.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let changed = match self.trust {
            _ if device != self.device => Change::Elsewhere,
            CtimeTrust::Kept => Change::Kept(number),
            CtimeTrust::Claimed => Change::Claimed(number),
            CtimeTrust::None => return Version::Modified(modified),
        };
        Version::Written { modified, changed }
    }
}

impl DirectoryPlace {
    /// The place of an open directory, which was opened as `path`.
    pub(crate) fn of(directory: BorrowedFd<'_>, path: &Path) -> Self {
        Self { place: place_of(directory, path, MAX_DEPTH), times: times_of(directory) }
    }
}

fn times_of(directory: BorrowedFd<'_>) -> ChangeTimes {
    let trust = match rustix::fs::fstatfs(directory).map(|stat| stat.f_type as u64 & 0xFFFF_FFFF) {
        Ok(OVERLAY) => CtimeTrust::Claimed,
        Ok(magic) if keeps_change_times(magic) => CtimeTrust::Kept,
        _ => CtimeTrust::None,
    };
    let stat = rustix::fs::statx(directory, "", AtFlags::EMPTY_PATH, StatxFlags::TYPE);
    stat.map_or_else(
        |_| ChangeTimes::default(),
        |stat| ChangeTimes { device: (stat.stx_dev_major, stat.stx_dev_minor), trust },
    )
}

/// Overlays show the times of what they are made of.
const OVERLAY: u64 = 0x794C_7630;

/// Whether a file system of this magic number sets the change time itself, at every write, and keeps it. Not here: file
/// systems that are made at unique_name and read only (squashfs, EROFS, ISO 9660), those that have no such time (FAT) and those
/// whose servers may make it up (FUSE, SMB, 9p).
fn keeps_change_times(magic: u64) -> bool {
    const KEEPING: [u64; 14] = [
        0xEF53,      // ext2, ext3, ext4
        0x5846_5342, // XFS
        0x9123_683E, // Btrfs
        0x2FC1_2FC1, // ZFS
        0xCA45_1A4E, // bcachefs
        0xF2F5_2010, // F2FS
        0x0102_1994, // tmpfs
        0x8584_58F6, // ramfs
        0x3153_464A, // JFS
        0x6969,      // NFS
        0x0BD0_0BD0, // Lustre
        0x4750_4653, // GPFS
        0x00C3_6400, // CephFS
        0x1983_0326, // BeeGFS
    ];
    KEEPING.contains(&magic)
}

/// One mount.
#[derive(Debug, PartialEq, Eq)]
struct MountEntry {
    id: u64,
    /// The file system's device, `major:minor`.
    device: String,
    /// What of the file system is mounted.
    root: PathBuf,
    /// Where.
    at: PathBuf,
    kind: String,
    source: Vec<u8>,
    options: Vec<u8>,
    /// The kernel's number of it that is never used again until the next start; newer kernels have it.
    unique: Option<u64>,
}

impl MountEntry {
    /// A line of `/proc/self/mountinfo`; `None` if it is not one.
    fn parse(line: &[u8]) -> Option<Self> {
        let mut fields = line.split(|&byte| byte == b' ');
        let mut next = || fields.next();
        let id = std::str::from_utf8(next()?).ok()?.parse().ok()?;
        next()?; // the parent
        let device = String::from_utf8(next()?.to_vec()).ok()?;
        let root = PathBuf::from(std::ffi::OsString::from_vec(unescape(next()?)));
        let at = PathBuf::from(std::ffi::OsString::from_vec(unescape(next()?)));
        while next()? != b"-" {} // the mount's own options, and what comes and goes
        let kind = String::from_utf8(next()?.to_vec()).ok()?;
        let (source, options) = (unescape(next()?), next().map(unescape).unwrap_or_default());
        Some(Self { id, device, root, at, kind, source, options, unique: None })
    }
}

/// The bytes that octal escapes stand for (`\040` is a space).
fn unescape(text: &[u8]) -> Vec<u8> {
    let (mut bytes, mut rest) = (Vec::with_capacity(text.len()), text);
    while let Some((&first, tail)) = rest.split_first() {
        let octal = |digits: &[u8]| {
            let mut digits = digits.get(..3)?.iter().map(|byte| char::from(*byte).to_digit(8));
            digits.try_fold(0, |sum, digit| Some(sum * 8 + digit?)).and_then(|sum| u8::try_from(sum).ok())
        };
        match octal(tail).filter(|_| first == b'\\') {
            Some(byte) => {
                bytes.push(byte);
                rest = &tail[3..];
            }
            None => {
                bytes.push(first);
                rest = tail;
            }
        }
    }
    bytes
}

/// The mount that `directory`, whose path is `path`, lies in.
fn mount_of(directory: BorrowedFd<'_>, path: &Path) -> Option<MountEntry> {
    let table = fs::read("/proc/self/mountinfo").ok()?;
    let mut mounts = table.split(|&byte| byte == b'\n').filter_map(MountEntry::parse);
    let id_of = |kind: StatxFlags| {
        let stat = rustix::fs::statx(directory, "", AtFlags::EMPTY_PATH, kind).ok()?;
        (stat.stx_mask & kind.bits() != 0).then_some(stat.stx_mnt_id)
    };
    let found = match id_of(StatxFlags::MNT_ID) {
        Some(id) => mounts.find(|mount| mount.id == id),
        // An old kernel: the longest mount point, and of those at one place the last.
        None => {
            let above = mounts.filter(|mount| path.starts_with(&mount.at));
            above.max_by_key(|mount| mount.at.as_os_str().len())
        }
    };
    found.map(|mount| MountEntry { unique: id_of(UNIQUE), ..mount })
}

/// `STATX_MNT_ID_UNIQUE`.
const UNIQUE: StatxFlags = StatxFlags::from_bits_retain(0x4000);

fn place_of(directory: BorrowedFd<'_>, path: &Path, depth: u32) -> String {
    let link = fs::read_link(format!("/proc/self/fd/{}", directory.as_raw_fd()));
    let real = link.or_else(|_| path.canonicalize()).unwrap_or_else(|_| path.to_owned());
    let Some(mount) = mount_of(directory, &real) else { return format!("path {}", shown(&real)) };
    let inside = real.strip_prefix(&mount.at).unwrap_or(&real);
    let inside = if inside.as_os_str().is_empty() { mount.root.clone() } else { mount.root.join(inside) };
    name_of(&mount, &inside, depth)
}

/// A path or another name, as text that no two of them share.
fn shown(path: &Path) -> String {
    path.as_os_str().as_bytes().escape_ascii().to_string()
}

fn name_of(mount: &MountEntry, inside: &Path, depth: u32) -> String {
    let (kind, source) = (mount.kind.as_str(), mount.source.escape_ascii().to_string());
    let inside = shown(inside);
    if let Some(image) = image_of(mount, depth) {
        return format!("{kind} {image} {inside}");
    }
    if kind == "overlay" {
        let layers = layers_of(mount, depth).unwrap_or_else(|| mount.unique_name());
        return format!("{kind} {layers} {inside}");
    }
    if matches!(kind, "tmpfs" | "ramfs") {
        // What lies there has change times, by which a later one of the same number is told apart.
        return format!("{kind} {} {} {inside}", boot(), mount.device);
    }
    if is_anonymous(mount) || is_attached(mount) {
        return format!("{kind} {source} {} {inside}", mount.unique_name());
    }
    // A server's directory may be mounted itself, or one above it.
    if source.contains(':') {
        let kind = if kind.starts_with("nfs") { "nfs" } else { kind };
        let place = format!("{kind} {}{inside}", source.trim_end_matches('/'));
        return place.trim_end_matches('/').to_owned();
    }
    format!("{kind} {source} {inside}")
}

/// What tells this start of the machine from others.
fn boot() -> String {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    boot.trim().to_owned()
}

/// The places of all that an overlay is made of, where they can be seen.
fn layers_of(mount: &MountEntry, depth: u32) -> Option<String> {
    let depth = depth.checked_sub(1)?;
    let mut layers = Vec::new();
    for option in mount.options.split(|&byte| byte == b',') {
        let Some(paths) =
            [&b"lowerdir="[..], b"upperdir="].iter().find_map(|name| option.strip_prefix(*name))
        else {
            continue;
        };
        for path in paths.split(|&byte| byte == b':').filter(|path| !path.is_empty()) {
            let path = PathBuf::from(std::ffi::OsString::from_vec(path.to_vec()));
            let directory = path.is_absolute().then(|| fs::File::open(&path).ok()).flatten()?;
            layers.push(place_of(directory.as_fd(), &path, depth));
        }
    }
    (!layers.is_empty()).then(|| format!("[{}]", layers.join("; ")))
}

/// Whether a mount's source says nothing of what is mounted.
fn is_anonymous(mount: &MountEntry) -> bool {
    let names_something =
        mount.source.iter().any(|byte| b"/:".contains(byte)) && mount.source != b"/dev/fuse";
    match mount.kind.as_str() {
        kind if kind == "fuse" || kind == "fuseblk" || kind.starts_with("fuse.") => !names_something,
        _ => mount.source == b"none" || mount.source.is_empty(),
    }
}

/// Whether the device is one that anything may be attached to, one after another: a loop device whose image cannot be seen,
/// a network block device.
fn is_attached(mount: &MountEntry) -> bool {
    const LOOP: &str = "7:";
    const NBD: &str = "43:";
    mount.device.starts_with(LOOP) || mount.device.starts_with(NBD)
}

impl MountEntry {
    /// What this mount, or the device below it, has alone since the machine's start; where that cannot be seen, something
    /// that nothing has ever.
    fn unique_name(&self) -> String {
        let sequence = fs::read_to_string(format!("/sys/dev/block/{}/diskseq", self.device)).ok();
        let own = sequence.map(|sequence| format!("disk {}", sequence.trim()));
        match own.or_else(|| self.unique.map(|id| format!("mount {id}"))) {
            Some(own) => format!("{} {own}", boot()),
            None => format!("unknown {:032x}", random()),
        }
    }
}

/// A number like no other.
fn random() -> u128 {
    let mut bytes = [0; 16];
    if getrandom::fill(&mut bytes).is_err() {
        // Where there are none, a time that passes only unique_name does.
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        return now.map_or(0, |now| now.as_nanos()) ^ (u128::from(std::process::id()) << 96);
    }
    u128::from_le_bytes(bytes)
}

/// The file that the mount is an image in, where that can be seen: its own place, and which file there and in which state.
fn image_of(mount: &MountEntry, depth: u32) -> Option<String> {
    let depth = depth.checked_sub(1)?;
    let backing = fs::read(format!("/sys/dev/block/{}/loop/backing_file", mount.device)).ok();
    let backing = backing.map(|path| path.strip_suffix(b"\n").unwrap_or(&path).to_vec());
    let path = PathBuf::from(std::ffi::OsString::from_vec(backing.unwrap_or_else(|| mount.source.clone())));
    if !path.is_absolute() {
        return None;
    }
    let file = fs::metadata(&path).ok().filter(fs::Metadata::is_file)?;
    // In a container another file may have the image's name.
    let sectors = fs::read_to_string(format!("/sys/dev/block/{}/size", mount.device)).ok();
    let sectors = sectors.and_then(|sectors| sectors.trim().parse::<u64>().ok());
    if sectors.is_some_and(|sectors| sectors != file.len() / 512) {
        return None;
    }
    let real = path.canonicalize().ok()?;
    let above = real.parent()?;
    let directory = fs::File::open(above).ok()?;
    let mut image = place_of(directory.as_fd(), above, depth);
    let (modified, changed) =
        ((file.mtime(), file.mtime_nsec() as u32), (file.ctime(), file.ctime_nsec() as u32));
    // Text takes everything.
    let _ = write!(
        image,
        " image {} {} {} {}",
        file.ino(),
        file.size(),
        nanoseconds(modified.0, modified.1),
        nanoseconds(changed.0, changed.1)
    );
    Some(format!("[{image}]"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mount(line: &str) -> MountEntry {
        MountEntry::parse(line.as_bytes()).unwrap()
    }

    fn place(line: &str, path: &str) -> String {
        let mount = mount(line);
        let inside = mount.root.join(Path::new(path).strip_prefix(&mount.at).unwrap());
        name_of(&mount, &inside, 0)
    }

    #[test]
    fn mounts_are_read_as_the_kernel_writes_them() {
        let line = r"36 35 98:0 /mnt1 /mnt\0402 rw,noatime master:1 shared:2 - ext3 /dev/root\134x rw,errors=continue";
        let mount = mount(line);
        assert_eq!((mount.id, mount.device.as_str(), mount.kind.as_str()), (36, "98:0", "ext3"));
        assert_eq!((mount.root.as_path(), mount.at.as_path()), (Path::new("/mnt1"), Path::new("/mnt 2")));
        assert_eq!(mount.source, br"/dev/root\x");
        assert_eq!(MountEntry::parse(b""), None);
        assert_eq!(MountEntry::parse(b"36 35 98:0 / /x rw"), None);
        assert_eq!(unescape(br"a\04"), br"a\04");
    }

    #[test]
    // semantics: DISK-4
    fn bind_mounts_and_second_mount_points_agree() {
        let disk = place("1 0 8:1 / /data rw - ext4 /dev/sda1 rw", "/data/train/x");
        assert_eq!(disk, place("2 0 8:1 /train /container rw - ext4 /dev/sda1 rw", "/container/x"));
        assert_ne!(disk, place("1 0 8:2 / /data rw - ext4 /dev/sda2 rw", "/data/train/x"));
        let server = place("1 0 0:40 / /a rw - nfs4 host:/export rw", "/a/train");
        assert_eq!(server, place("2 0 0:41 / /b rw - nfs host:/export/train rw", "/b"));
        assert_ne!(server, place("1 0 0:40 / /a rw - nfs4 other:/export rw", "/a/train"));
    }

    #[test]
    // semantics: DISK-4
    fn file_systems_without_a_source_are_told_apart() {
        let one = place("1 0 0:40 / /a rw - tmpfs tmpfs rw", "/a/x");
        assert_ne!(one, place("2 0 0:41 / /b rw - tmpfs tmpfs rw", "/b/x"));
        assert_eq!(one, place("3 0 0:40 / /c rw - tmpfs tmpfs rw", "/c/x"));
        let fuse = place("1 0 0:50 / /a rw - fuse.squashfuse squashfuse rw", "/a");
        assert_ne!(
            fuse,
            place("1 0 0:50 / /a rw - fuse.squashfuse squashfuse rw", "/a"),
            "numbers come again"
        );
        let named = place("1 0 0:50 / /a rw - fuse.sshfs me@host:/data rw", "/a");
        assert_eq!(named, place("9 0 0:77 / /b rw - fuse.sshfs me@host:/data rw", "/b"));
        let made = tempfile::tempdir().unwrap();
        ["one", "two", "up"].iter().for_each(|name| fs::create_dir(made.path().join(name)).unwrap());
        let layers = |dev: &str, lower: &str| {
            let at = made.path().display();
            let line =
                format!("1 0 {dev} / / rw - overlay overlay rw,lowerdir={at}/{lower},upperdir={at}/up");
            name_of(&mount(&line), Path::new("/data"), 2)
        };
        assert_eq!(layers("0:60", "one"), layers("0:61", "one"));
        assert_ne!(layers("0:60", "one"), layers("0:60", "two"));
        assert_ne!(layers("0:60", "gone"), layers("0:60", "gone"), "layers that cannot be seen");
    }

    #[test]
    fn place_does_not_depend_on_how_the_path_is_written() {
        let made = tempfile::tempdir().unwrap();
        fs::create_dir_all(made.path().join("a/b")).unwrap();
        std::os::unix::fs::symlink("a", made.path().join("link")).unwrap();
        let home = |path: &str| {
            let path = made.path().join(path);
            DirectoryPlace::of(fs::File::open(&path).unwrap().as_fd(), &path)
        };
        assert_eq!(home("a/b"), home("link/b"));
        assert_eq!(home("a/b"), home("a/../a/b/"));
        assert_ne!(home("a/b").place, home("a").place);
    }
}
