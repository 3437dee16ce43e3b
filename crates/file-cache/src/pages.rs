//! Whether the kernel keeps pages of a file over opens.
//!
//! Most file systems keep them, so a copy that is made next to a program reads the storage no
//! second time. Some in user space drop them at each open, such as those of buckets, or have none.
//! There, one page of one file is read, and looked for after another open. The kernel answers that
//! for files that the process owns or may write. For others it says that all pages are there, and
//! copies are made next to programs as usual. So they are if no answer comes soon.

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

/// Files that say nothing of their pages are passed over, but no more.
const MOST_PROBES: usize = 16;

/// How long the first file may take. Its server may be dead, or its content on tape.
const PATIENCE: Duration = Duration::from_millis(500);

/// Finds out whether the pages of a dataset's files are kept.
#[derive(Debug, Default)]
pub(crate) struct PageProbe {
    probes: usize,
    are_kept: Option<bool>,
}

impl PageProbe {
    /// Looks at a file, unless it is known already.
    pub(crate) fn look(&mut self, path: &Path) -> bool {
        if self.are_kept.is_none() && self.probes < MOST_PROBES {
            self.probes += 1;
            self.are_kept = if may_drop(path) { are_kept_soon(path.to_owned()) } else { Some(true) };
        }
        self.are_kept.unwrap_or(true)
    }
}

/// Whether a file is on one of the file systems that may keep no pages. Others may read from caches
/// of their own.
fn may_drop(path: &Path) -> bool {
    const FUSE: i64 = 0x6573_5546;
    const PLAN_9: i64 = 0x0102_1997;
    #[allow(clippy::unnecessary_cast, reason = "the type depends on the processor")]
    rustix::fs::statfs(path).is_ok_and(|found| [FUSE, PLAN_9].contains(&(found.f_type as i64)))
}

/// As [`are_kept`], in a thread of its own.
fn are_kept_soon(path: PathBuf) -> Option<bool> {
    let (sender, answer) = channel();
    let thread = std::thread::Builder::new().name("foreread-pages".to_owned());
    thread.spawn(move || sender.send(are_kept(&path))).ok()?;
    match answer.recv_timeout(PATIENCE) {
        Ok(found) => found,
        Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => Some(true),
    }
}

/// Whether pages of a file are kept over opens. `None` if that cannot be seen from this file.
fn are_kept(path: &Path) -> Option<bool> {
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
