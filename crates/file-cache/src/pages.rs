//! Whether the kernel keeps pages of a file over opens.
//!
//! Most file systems keep them, so a copy that is made next to a program reads the storage no
//! second time. Some in user space drop them at each open, such as those of buckets, or have none.
//! Which one it is says one page of one file: it is read, and looked for after another open. The
//! kernel answers that for files that the process owns or may write. For others it says that all
//! pages are there, and copies are made next to programs as usual.

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

/// Whether pages of a file are kept over opens. `None` if that cannot be seen from this file.
pub(crate) fn are_kept(path: &Path) -> Option<bool> {
    {
        let file = open(path).ok()?;
        // One page, and none ahead of it.
        let _ = rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::Random);
        file.read_exact_at(&mut [0], 0).ok()?;
    }
    let file = open(path).ok()?;
    // Files without pages cannot be mapped, or their pages are never there.
    Some(has_first_page(&file).unwrap_or(false))
}

/// Opens a file with content.
fn open(path: &Path) -> io::Result<File> {
    // A device that a link leads to must not be opened, and a pipe must not block.
    if !std::fs::metadata(path)?.is_file() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    File::options().read(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY).open(path)
}

fn has_first_page(file: &File) -> io::Result<bool> {
    // SAFETY: the bytes are never looked at, so it does not matter who changes the file.
    let map = unsafe { memmap2::MmapOptions::new().len(1).map_copy_read_only(file)? };
    let mut is_there = 0_u8;
    // SAFETY: the mapping begins at a page and has one, so the kernel writes one byte.
    let result = unsafe { libc::mincore(map.as_ptr().cast_mut().cast(), 1, &raw mut is_there) };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(is_there & 1 != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_of_local_files_are_kept() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        std::fs::write(&path, b"").unwrap();
        assert_eq!(are_kept(&path), None, "a file without content says nothing");
        std::fs::write(&path, b"bytes").unwrap();
        assert_eq!(are_kept(&path), Some(true));
        assert_eq!((are_kept(directory.path()), are_kept(Path::new("/dev/zero"))), (None, None));
    }
}
