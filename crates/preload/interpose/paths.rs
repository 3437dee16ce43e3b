//! The file of a dataset that a path means. An uncertain path means none, and the kernel decides.

use core::ffi::{CStr, c_char, c_int};
use core::sync::atomic::{AtomicBool, Ordering};

use crate::identity::FileStat;
use crate::layout::{PathHash, Root, open_flags};
use crate::mapped::Mapped;
use crate::system;

/// Whether the working directory was outside of all datasets when it was looked at, which takes
/// three times as long as all else. `chdir` forgets it. A program that changes its directory by
/// other means reads originals. Changes of files are never decided by it.
static IS_OUTSIDE: AtomicBool = AtomicBool::new(false);

/// Forgets the facts of the working directory.
pub(crate) fn directory_changed() {
    IS_OUTSIDE.store(false, Ordering::Release);
}

/// The purpose for which a path is looked at.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    Read,
    Change,
}

/// The longest working directory that is looked at, in bytes.
const DIRECTORY_BYTES: usize = 512;

/// The dataset and the hash of the file that a path means by its words. `None` if it means none, or
/// may.
///
/// # Safety
/// `path` is a C string.
pub(crate) unsafe fn hash(
    mapped: Mapped,
    directory: c_int,
    path: *const c_char,
    purpose: Purpose,
) -> Option<(&'static Root, u64)> {
    if path.is_null() {
        return None;
    }
    // A change concerns the datasets of all runs.
    let roots = if purpose == Purpose::Read { mapped.own_roots() } else { mapped.roots() };
    // SAFETY: a C string.
    let path = unsafe { CStr::from_ptr(path) }.to_bytes();
    if *path.first()? == b'/' {
        return joined_hash(mapped, roots, b"", path);
    }
    let is_working = directory == system::AT_FDCWD;
    if is_working && purpose == Purpose::Read && IS_OUTSIDE.load(Ordering::Acquire) {
        return None;
    }
    let mut space = [0_u8; DIRECTORY_BYTES];
    let base = base(mapped, directory, &mut space)?;
    if is_working && !mapped.roots().iter().any(|root| are_related(root, base)) {
        IS_OUTSIDE.store(true, Ordering::Release);
    }
    joined_hash(mapped, roots, base, path)
}

/// The hash of the file of a dataset that a path really means: through links and `..`. `None` if it
/// is none. If the file is absent, or with `is_name`, it is the name that counts.
///
/// # Safety
/// `path` is a C string.
pub(crate) unsafe fn real_hash(
    mapped: Mapped,
    directory: c_int,
    path: *const c_char,
    is_name: bool,
) -> Option<(&'static Root, u64)> {
    if path.is_null() {
        return None;
    }
    let mut space = [0_u8; DIRECTORY_BYTES];
    if !is_name
        // SAFETY: a C string.
        && let Some(real) = unsafe { real_path(directory, path, 0, &mut space) }
    {
        return joined_hash(mapped, mapped.roots(), b"", real);
    }
    // SAFETY: a C string.
    let path = unsafe { CStr::from_ptr(path) }.to_bytes();
    let last = path.iter().rposition(|byte| *byte == b'/').map_or(0, |slash| slash + 1);
    let (parent, name) = path.split_at(last);
    let mut text = [0_u8; DIRECTORY_BYTES];
    let words = if parent.is_empty() { &b"."[..] } else { parent };
    text.get_mut(..words.len())?.copy_from_slice(words);
    // The zero after it ends it.
    *text.get_mut(words.len())? = 0;
    // SAFETY: it ends with a zero.
    let real = unsafe { real_path(directory, text.as_ptr().cast(), open_flags::DIRECTORY, &mut space) }?;
    joined_hash(mapped, mapped.roots(), real, name)
}

/// The path of the file that a path leads to.
///
/// # Safety
/// `path` is a C string.
unsafe fn real_path(directory: c_int, path: *const c_char, flags: c_int, space: &mut [u8]) -> Option<&[u8]> {
    let flags = flags | open_flags::PATH | system::O_CLOEXEC;
    // SAFETY: a C string.
    let opened = unsafe { system::openat(directory, path, flags, 0) };
    let descriptor = c_int::try_from(opened).ok().filter(|descriptor| *descriptor >= 0)?;
    let name = descriptor_name(descriptor);
    // A part of a dataset may be on another device.
    // SAFETY: the name ends with a zero.
    let real = unsafe { system::link_target(name.as_ptr().cast(), space) };
    system::close(descriptor);
    real
}

/// Whether a path below a directory can lead to a dataset without `..`.
fn are_related(root: &Root, base: &[u8]) -> bool {
    let root = root.path.bytes();
    rest(root, Joined::new(b"", base)).is_some() || rest(base, Joined::new(b"", root)).is_some()
}

/// Whether files of a dataset get other paths if a directory is renamed.
///
/// # Safety
/// `path` is a C string.
pub(crate) unsafe fn concerns_files(mapped: Mapped, directory: c_int, name: *const c_char) -> bool {
    // SAFETY: a C string.
    let path = unsafe { CStr::from_ptr(name) }.to_bytes();
    if path.windows(2).any(|two| two == b"..") {
        return true;
    }
    let mut space = [0_u8; DIRECTORY_BYTES];
    let base = match path.first() {
        Some(b'/') => &b""[..],
        _ => match base(mapped, directory, &mut space) {
            Some(base) => base,
            // A directory on another device, or one with a long path.
            None => return directory == system::AT_FDCWD,
        },
    };
    let is_related = |whole: Joined<'_>| {
        mapped.roots().iter().any(|root| {
            let root = root.path.bytes();
            rest(root, whole).is_some() || leads_to(whole, root)
        })
    };
    if is_related(Joined::new(base, path)) {
        return true;
    }
    // By another name of one of its directories.
    let mut space = [0_u8; DIRECTORY_BYTES];
    // SAFETY: a C string.
    match unsafe { real_path(directory, name, 0, &mut space) } {
        Some(real) => is_related(Joined::new(b"", real)),
        None => false,
    }
}

/// Whether a directory is on the way to a dataset.
fn leads_to(directory: Joined<'_>, mut root: &[u8]) -> bool {
    let mut path = directory;
    while let Some(byte) = path.first() {
        path = path.next();
        match root.split_first() {
            Some((first, after)) if *first == byte => root = after,
            // A slash at the end.
            None if byte == b'/' => {}
            _ => return false,
        }
        if byte == b'/' {
            path = after_empty_names(path);
        }
    }
    root.is_empty() || root.starts_with(b"/")
}

/// The directory that relative paths begin at.
fn base(mapped: Mapped, directory: c_int, space: &mut [u8]) -> Option<&[u8]> {
    if directory == system::AT_FDCWD {
        return system::working_directory(space);
    }
    descriptor_path(mapped, directory, space)
}

/// The path of an open file or directory, if it is on a device of a dataset.
fn descriptor_path(mapped: Mapped, descriptor: c_int, space: &mut [u8]) -> Option<&[u8]> {
    // SAFETY: an empty path is a C string.
    let found = unsafe { FileStat::of(descriptor, c"".as_ptr(), system::AT_EMPTY_PATH) }?;
    if !mapped.roots().iter().any(|root| root.device == found.device) {
        return None;
    }
    let name = descriptor_name(descriptor);
    // SAFETY: the name ends with a zero.
    unsafe { system::link_target(name.as_ptr().cast(), space) }
}

/// `/proc/self/fd/N`, with a zero at its end.
fn descriptor_name(descriptor: c_int) -> [u8; 32] {
    let mut name = [0_u8; 32];
    let prefix = b"/proc/self/fd/";
    name[..prefix.len()].copy_from_slice(prefix);
    let (mut digits, mut number, mut at) = ([0_u8; 10], descriptor.max(0), 10);
    loop {
        at -= 1;
        digits[at] = b'0' + (number % 10) as u8;
        number /= 10;
        if number == 0 || at == 0 {
            break;
        }
    }
    for (to, digit) in name[prefix.len()..].iter_mut().zip(&digits[at..]) {
        *to = *digit;
    }
    name
}

/// The dataset that a path is below, and the hash of the part of the path below it. The path is
/// absolute, or begins at `base`.
fn joined_hash(
    mapped: Mapped,
    roots: &'static [Root],
    base: &[u8],
    path: &[u8],
) -> Option<(&'static Root, u64)> {
    roots.iter().find_map(|root| {
        let rest = rest(root.path.bytes(), Joined::new(base, path))?;
        Some((root, PathHash::new(mapped.key(), root.dataset).add(rest.bytes(), true)?.finish()?))
    })
}

/// A path in pieces.
#[derive(Clone, Copy)]
struct Joined<'a>([&'a [u8]; 3]);

impl<'a> Joined<'a> {
    /// A path that begins at a directory, or one alone if that is empty.
    fn new(directory: &'a [u8], path: &'a [u8]) -> Self {
        Self([directory, if directory.is_empty() { b"" } else { b"/" }, path])
    }

    fn first(self) -> Option<u8> {
        self.0.iter().find_map(|piece| piece.first().copied())
    }

    fn next(mut self) -> Self {
        if let Some(piece) = self.0.iter_mut().find(|piece| !piece.is_empty()) {
            *piece = &piece[1..];
        }
        self
    }

    fn bytes(self) -> impl Iterator<Item = u8> + use<'a> {
        self.0.into_iter().flatten().copied()
    }
}

/// The rest of an absolute path after a directory, or `None` if the path is not below it. The path
/// may have `//` and `/./` in it.
fn rest<'a>(directory: &[u8], mut path: Joined<'a>) -> Option<Joined<'a>> {
    for byte in directory {
        if path.first()? != *byte {
            return None;
        }
        path = path.next();
        if *byte == b'/' {
            path = after_empty_names(path);
        }
    }
    // The name is longer, or it has ended.
    match path.first() {
        None | Some(b'/') => Some(path),
        Some(_) => None,
    }
}

/// A path without the empty names at its beginning.
fn after_empty_names(mut path: Joined<'_>) -> Joined<'_> {
    loop {
        match path.first() {
            Some(b'/') => path = path.next(),
            Some(b'.') if path.next().first() == Some(b'/') => path = path.next().next(),
            _ => return path,
        }
    }
}
