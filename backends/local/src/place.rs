//! The place of a directory: one name for every path, bind mount or second mount point that leads
//! there.
//!
//! The name consists of the mount's source, the type of its file system and the path inside it,
//! from `/proc/self/mountinfo`. So containers and hosts that see the same data by different paths
//! agree. Three kinds of sources are ambiguous:
//! * A loop device is replaced by its image.
//! * File systems without a source (tmpfs, most of FUSE) and reusable devices: the number that the
//!   kernel assigns once per boot. Another may get the same path later.
//! * An overlay is replaced by its layers.
//!
//! The price is a cache that is not found again after such a file system is mounted again. A name
//! in the catalog (`foreread index --name`) is the remedy.
//!
//! The module also determines whether the file system keeps change times that no program can set.
//! With those a listing detects files that were replaced with the same names, sizes and
//! modification times. Change times are compared in one location only. For file systems of one
//! machine, it contains the machine and the file system's number next to the place. So each machine
//! may have a copy at one path of one device. Containers with a machine id of their own compare
//! sizes and modification times alone.

use std::fmt::Write as _;
use std::fs;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use foreread_tier::{FileChange, Version, unix_nanoseconds};
use rustix::fs::{AtFlags, Mode, OFlags, Stat, Statx, StatxFlags};
use rustix::io::Errno;

use crate::file_system::is_on_this_machine;

/// The limit for images on file systems that are images themselves.
const MAX_DEPTH: u32 = 4;

/// A directory's place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DirectoryPlace {
    /// The name.
    pub(crate) place: String,
    /// Which files have reliable change times.
    pub(crate) times: ChangeTimes,
}

/// The change times of files below a directory. Files on its own device have those of its file
/// system. Files on file systems mounted or linked below it have none.
///
/// It is made for a directory and gives the versions of its files, as a listing of the directory
/// has them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChangeTimes {
    device: (u32, u32),
    trust: CtimeTrust,
    /// The hash of the directory's place, and of its machine if the file system belongs to one.
    /// Change times elsewhere are of other files.
    location: u32,
}

/// How reliable the change times of a file system are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum CtimeTrust {
    Kept,
    Claimed,
    #[default]
    None,
}

/// The `statx` fields for [`ChangeTimes::version`].
pub(crate) const WANTED: StatxFlags = StatxFlags::TYPE
    .union(StatxFlags::SIZE)
    .union(StatxFlags::MTIME)
    .union(StatxFlags::CTIME)
    .union(StatxFlags::INO);

impl ChangeTimes {
    /// The change times below `directory`. None if it cannot be opened.
    pub fn below(directory: &Path) -> Self {
        let opened = fs::File::open(directory);
        opened.map_or_else(|_| Self::default(), |opened| DirectoryPlace::of(opened.as_fd(), directory).times)
    }

    /// The version of a file below the directory.
    pub fn version_of(self, file: &fs::Metadata) -> Version {
        let device = (rustix::fs::major(file.dev()), rustix::fs::minor(file.dev()));
        let modified = unix_nanoseconds(file.mtime(), file.mtime_nsec());
        let changed = unix_nanoseconds(file.ctime(), file.ctime_nsec());
        self.version_with(device, modified, changed, file.ino())
    }

    /// The version from `fstat`.
    pub(crate) fn version_of_stat(self, stat: &Stat) -> Version {
        let device = (rustix::fs::major(stat.st_dev), rustix::fs::minor(stat.st_dev));
        let modified = unix_nanoseconds(stat.st_mtime, stat.st_mtime_nsec as u32);
        let changed = unix_nanoseconds(stat.st_ctime, stat.st_ctime_nsec as u32);
        self.version_with(device, modified, changed, stat.st_ino)
    }

    /// The version from `statx` with the fields [`WANTED`].
    pub(crate) fn version(self, stat: &Statx) -> Version {
        let modified = unix_nanoseconds(stat.stx_mtime.tv_sec, stat.stx_mtime.tv_nsec);
        if stat.stx_mask & StatxFlags::CTIME.bits() == 0 {
            return Version::Modified(modified);
        }
        let changed = unix_nanoseconds(stat.stx_ctime.tv_sec, stat.stx_ctime.tv_nsec);
        self.version_with((stat.stx_dev_major, stat.stx_dev_minor), modified, changed, stat.stx_ino)
    }

    fn version_with(self, device: (u32, u32), modified: i64, changed: i64, inode: u64) -> Version {
        // Two files that swap names keep their times, so the inode is included.
        let number = (changed as u64).rotate_left(32) ^ inode.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let changed = match self.trust {
            _ if device != self.device => FileChange::Elsewhere,
            CtimeTrust::Kept => FileChange::Kept(number),
            CtimeTrust::Claimed => FileChange::Claimed(number),
            CtimeTrust::None => return Version::Modified(modified),
        };
        Version::Written { modified, changed, location: self.location }
    }
}

/// Checks that files can be opened, as [`DirectoryPlace::of`] does. Without that, a directory would
/// seem to be at another place, and its data would be others.
///
/// # Errors
/// If the process or the system has no descriptor left.
pub(crate) fn check_descriptors() -> Result<(), Errno> {
    /// The most files that are open at once, one for each layer of a file system in another.
    const NEEDED: usize = MAX_DEPTH as usize + 2;
    let mut open = Vec::with_capacity(NEEDED);
    for _ in 0..NEEDED {
        match rustix::fs::open("/proc/self/mountinfo", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()) {
            Ok(file) => open.push(file),
            Err(errno @ (Errno::MFILE | Errno::NFILE)) => return Err(errno),
            // A sandbox without it has places all the same.
            Err(_) => return Ok(()),
        }
    }
    Ok(())
}

impl DirectoryPlace {
    /// The place of an open directory that was opened as `path`.
    pub(crate) fn of(directory: BorrowedFd<'_>, path: &Path) -> Self {
        let place = place_of(directory, path, MAX_DEPTH);
        let machine = is_on_this_machine(directory).then(|| machine(Path::new("/etc/machine-id")));
        let number = rustix::fs::fstatvfs(directory).map_or(0, |stat| stat.f_fsid);
        let location = hash(&location_of(&place, machine.as_deref(), number));
        Self { times: ChangeTimes { location, ..times_of(directory) }, place }
    }
}

/// A name of the files at `place`. Several machines may have copies at one place of a file system
/// that belongs to `machine`. `number` is that of the file system.
fn location_of(place: &str, machine: Option<&str>, number: u64) -> String {
    // A server's file system has another number on each of its clients.
    machine.map_or_else(|| place.to_owned(), |machine| format!("{machine} {number:016x} {place}"))
}

/// Identifies this machine by the file `id`, or this boot of it if the file has no id.
fn machine(id: &Path) -> String {
    let id = fs::read_to_string(id).unwrap_or_default();
    let id = id.trim();
    // An image's file may be empty, or contain the word `uninitialized`.
    let is_id = !id.is_empty() && id.bytes().all(|byte| byte.is_ascii_hexdigit());
    if is_id { id.to_owned() } else { boot() }
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
        |stat| ChangeTimes { device: (stat.stx_dev_major, stat.stx_dev_minor), trust, location: 0 },
    )
}

/// FNV-1a. Catalogs contain it, so it never changes.
fn hash(text: &str) -> u32 {
    text.bytes().fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}

/// Overlays show the times of their layers.
const OVERLAY: u64 = 0x794C_7630;

/// Whether file systems with this magic number set the change time at every write and keep it. Not
/// listed: read-only images (squashfs, EROFS, ISO 9660), file systems without it (FAT), and those
/// whose servers may invent it (FUSE, SMB, 9p).
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

/// A mount.
#[derive(Debug, PartialEq, Eq)]
struct MountEntry {
    id: u64,
    /// The file system's device, `major:minor`.
    device: String,
    /// The mounted path of the file system.
    root: PathBuf,
    /// The mount point.
    at: PathBuf,
    kind: String,
    source: Vec<u8>,
    options: Vec<u8>,
    /// The kernel's number of the mount, unique until the next boot. Only newer kernels have it.
    unique: Option<u64>,
}

impl MountEntry {
    /// Parses a line of `/proc/self/mountinfo`. `None` if it is invalid.
    fn parse(line: &[u8]) -> Option<Self> {
        let mut fields = line.split(|&byte| byte == b' ');
        let mut next = || fields.next();
        let id = std::str::from_utf8(next()?).ok()?.parse().ok()?;
        next()?; // the parent
        let device = String::from_utf8(next()?.to_vec()).ok()?;
        let root = PathBuf::from(std::ffi::OsString::from_vec(unescaped(next()?)));
        let at = PathBuf::from(std::ffi::OsString::from_vec(unescaped(next()?)));
        while next()? != b"-" {} // the mount's own options, and optional fields
        let kind = String::from_utf8(next()?.to_vec()).ok()?;
        let (source, options) = (unescaped(next()?), next().map(unescaped).unwrap_or_default());
        Some(Self { id, device, root, at, kind, source, options, unique: None })
    }
}

/// A text of `mountinfo`, where spaces and line ends are octal numbers (`\040` is a space).
pub fn unescaped(text: &[u8]) -> Vec<u8> {
    let (mut bytes, mut at) = (Vec::with_capacity(text.len()), 0);
    while let Some(byte) = text.get(at) {
        let octal = text.get(at + 1..at + 4).filter(|_| *byte == b'\\');
        let number = octal.and_then(|digits| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 8).ok());
        bytes.push(number.unwrap_or(*byte));
        at += if number.is_some() { 4 } else { 1 };
    }
    bytes
}

/// The mount of `directory`, whose path is `path`.
fn mount_of(directory: BorrowedFd<'_>, path: &Path) -> Option<MountEntry> {
    let table = fs::read("/proc/self/mountinfo").ok()?;
    let mut mounts = table.split(|&byte| byte == b'\n').filter_map(MountEntry::parse);
    let id_of = |kind: StatxFlags| {
        let stat = rustix::fs::statx(directory, "", AtFlags::EMPTY_PATH, kind).ok()?;
        (stat.stx_mask & kind.bits() != 0).then_some(stat.stx_mnt_id)
    };
    let found = match id_of(StatxFlags::MNT_ID) {
        Some(id) => mounts.find(|mount| mount.id == id),
        // An old kernel: the longest mount point, and the last of several at one path.
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
    let Some(mount) = mount_of(directory, &real) else { return format!("path {}", escaped(&real)) };
    let inside = real.strip_prefix(&mount.at).unwrap_or(&real);
    let inside = if inside.as_os_str().is_empty() { mount.root.clone() } else { mount.root.join(inside) };
    name_of(&mount, &inside, depth)
}

/// A unique text for a path or another name.
fn escaped(path: &Path) -> String {
    path.as_os_str().as_bytes().escape_ascii().to_string()
}

fn name_of(mount: &MountEntry, inside: &Path, depth: u32) -> String {
    let (kind, source) = (mount.kind.as_str(), mount.source.escape_ascii().to_string());
    let inside = escaped(inside);
    if let Some(image) = image_of(mount, depth) {
        return format!("{kind} {image} {inside}");
    }
    if kind == "overlay" {
        let layers = layers_of(mount, depth).unwrap_or_else(|| mount.unique_name());
        return format!("{kind} {layers} {inside}");
    }
    if matches!(kind, "tmpfs" | "ramfs") {
        // Files there have change times, which distinguish later file systems with the same number.
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

/// Identifies this boot of the machine.
fn boot() -> String {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    boot.trim().to_owned()
}

/// The places of an overlay's layers, where they are visible.
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

/// Whether a mount's source does not identify the file system.
fn is_anonymous(mount: &MountEntry) -> bool {
    let names_something =
        mount.source.iter().any(|byte| b"/:".contains(byte)) && mount.source != b"/dev/fuse";
    match mount.kind.as_str() {
        kind if kind == "fuse" || kind == "fuseblk" || kind.starts_with("fuse.") => !names_something,
        _ => mount.source == b"none" || mount.source.is_empty(),
    }
}

/// Whether the device can be attached to different data: a loop device without a visible image, or
/// a network block device.
fn is_attached(mount: &MountEntry) -> bool {
    const LOOP: &str = "7:";
    const NBD: &str = "43:";
    mount.device.starts_with(LOOP) || mount.device.starts_with(NBD)
}

impl MountEntry {
    /// A name of this mount or its device that is unique since boot. If there is none, a random
    /// one.
    fn unique_name(&self) -> String {
        let sequence = fs::read_to_string(format!("/sys/dev/block/{}/diskseq", self.device)).ok();
        let own = sequence.map(|sequence| format!("disk {}", sequence.trim()));
        match own.or_else(|| self.unique.map(|id| format!("mount {id}"))) {
            Some(own) => format!("{} {own}", boot()),
            None => format!("unknown {:032x}", random()),
        }
    }
}

/// A random number.
fn random() -> u128 {
    let mut bytes = [0; 16];
    if getrandom::fill(&mut bytes).is_err() {
        // Without random bytes, the current time.
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        return now.map_or(0, |now| now.as_nanos()) ^ (u128::from(std::process::id()) << 96);
    }
    u128::from_le_bytes(bytes)
}

/// The image file of a mount, where it is visible: its place, inode, size and times.
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
    let (modified, changed) = ((file.mtime(), file.mtime_nsec()), (file.ctime(), file.ctime_nsec()));
    // Writing to a string cannot fail.
    let _ = write!(
        image,
        " image {} {} {} {}",
        file.ino(),
        file.size(),
        unix_nanoseconds(modified.0, modified.1),
        unix_nanoseconds(changed.0, changed.1)
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
    fn mountinfo_lines_are_parsed() {
        let line = concat!(
            r"36 35 98:0 /mnt1 /mnt\0402 rw,noatime master:1 shared:2 ",
            r"- ext3 /dev/root\134x rw,errors=continue"
        );
        let mount = mount(line);
        assert_eq!((mount.id, mount.device.as_str(), mount.kind.as_str()), (36, "98:0", "ext3"));
        assert_eq!((mount.root.as_path(), mount.at.as_path()), (Path::new("/mnt1"), Path::new("/mnt 2")));
        assert_eq!(mount.source, br"/dev/root\x");
        assert_eq!(MountEntry::parse(b""), None);
        assert_eq!(MountEntry::parse(b"36 35 98:0 / /x rw"), None);
        assert_eq!(unescaped(br"a\04"), br"a\04");
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
    fn file_systems_without_a_source_are_distinguished() {
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
    // semantics: FAIL-2
    fn copies_of_two_machines_at_one_path_are_not_compared() {
        let place = place("1 0 8:1 / /data rw - ext4 /dev/sda1 rw", "/data/train");
        let here = location_of(&place, Some("a"), 1);
        assert_eq!(here, location_of(&place, Some("a"), 1));
        assert_ne!(here, location_of(&place, Some("b"), 1), "another machine");
        assert_ne!(here, location_of(&place, Some("a"), 2), "another file system in its place");
        let served = location_of("nfs host:/export", None, 1);
        assert_eq!(served, location_of("nfs host:/export", None, 2), "one directory of a server");
        let made = tempfile::tempdir().unwrap();
        let id = made.path().join("machine-id");
        assert_eq!(machine(&id), boot());
        fs::write(&id, "uninitialized\n").unwrap();
        assert_eq!(machine(&id), boot());
        fs::write(&id, "0123456789abcdef0123456789abcdef\n").unwrap();
        assert_eq!(machine(&id), "0123456789abcdef0123456789abcdef");
    }

    #[test]
    fn place_does_not_depend_on_the_spelling_of_the_path() {
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
