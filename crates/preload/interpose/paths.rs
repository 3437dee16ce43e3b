//! Which file of a dataset a path means. What is not certain means none, and the kernel decides.

use core::ffi::{CStr, c_char, c_int, c_void};

use crate::identity::FileStat;
use crate::layout::{PathHash, Root};
use crate::mapped::Mapped;
use crate::system;

/// The longest working directory that is looked at, in bytes.
const DIRECTORY_BYTES: usize = 512;

/// The hash of the file of a dataset that a path means. `None` if it means none, or may.
///
/// # Safety
/// `path` is a C string.
pub(crate) unsafe fn hash(mapped: Mapped, directory: c_int, path: *const c_char) -> Option<u64> {
    if path.is_null() {
        return None;
    }
    // SAFETY: a C string.
    let path = unsafe { CStr::from_ptr(path) }.to_bytes();
    match path.first()? {
        b'/' => below_root(mapped, path, true)?.finish(),
        _ => {
            let mut space = [0_u8; DIRECTORY_BYTES];
            let base = base(mapped, directory, &mut space)?;
            let hash = below_root(mapped, base, false)?;
            hash.add(path.iter().copied(), true)?.finish()
        }
    }
}

/// Whether files of a dataset get other paths if a directory is renamed.
///
/// # Safety
/// `path` is a C string.
pub(crate) unsafe fn concerns_files(mapped: Mapped, directory: c_int, path: *const c_char) -> bool {
    // SAFETY: a C string.
    let path = unsafe { CStr::from_ptr(path) }.to_bytes();
    let mut space = [0_u8; DIRECTORY_BYTES];
    let base = match path.first() {
        Some(b'/') => path,
        _ => match base(mapped, directory, &mut space) {
            Some(base) => base,
            // A directory on another device, or one with a long path.
            None => return directory == system::AT_FDCWD,
        },
    };
    let has_dots = path.windows(2).any(|two| two == b"..");
    let is_near = |root: &Root| rest(root.path.bytes(), base).is_some() || rest(base, root.path.bytes()).is_some();
    has_dots || mapped.roots().iter().any(is_near)
}

/// The directory that relative paths begin at.
fn base(mapped: Mapped, directory: c_int, space: &mut [u8]) -> Option<&[u8]> {
    if directory == system::AT_FDCWD {
        return system::working_directory(space);
    }
    let mut found = FileStat::EMPTY;
    let to = (&raw mut found).cast::<c_void>();
    // SAFETY: an empty path, and room for the structure.
    let result = unsafe { system::stat(directory, c"".as_ptr(), to, system::AT_EMPTY_PATH) };
    if result != 0 || !mapped.roots().iter().any(|root| root.device == found.device) {
        return None;
    }
    let name = descriptor_name(directory);
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

/// The hash of the part of an absolute path that is below a dataset.
fn below_root(mapped: Mapped, path: &[u8], is_file: bool) -> Option<PathHash> {
    mapped.roots().iter().find_map(|root| {
        let rest = rest(root.path.bytes(), path)?;
        PathHash::new(mapped.key(), root.number as usize).add(rest.iter().copied(), is_file)
    })
}

/// What follows a directory in an absolute path, or `None` if the path is not below it. The path
/// may have `//` and `/./` in it.
fn rest<'a>(directory: &[u8], mut path: &'a [u8]) -> Option<&'a [u8]> {
    for byte in directory {
        if *byte == b'/' {
            path = after_slashes(path)?;
        } else {
            let (first, after) = path.split_first()?;
            if first != byte {
                return None;
            }
            path = after;
        }
    }
    // A name goes on, or it has ended.
    match path.first() {
        None | Some(b'/') => Some(path),
        Some(_) => None,
    }
}

/// A path without the slash at its beginning, and without the empty names after it.
fn after_slashes(path: &[u8]) -> Option<&[u8]> {
    let mut path = path.strip_prefix(b"/")?;
    while let Some(after) = path.strip_prefix(b"/").or_else(|| path.strip_prefix(b"./")) {
        path = after;
    }
    Some(path)
}
