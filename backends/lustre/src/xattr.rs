//! The layout of a file, read from the file system.
//!
//! Decision: by path, not by an open file. An open is a request to the metadata server that a
//! listing does not need otherwise. By path the layout costs one request, or none after a `stat`
//! of the file. Linux has no `getxattr` relative to a directory, so the path goes through
//! `/proc/self/fd`. The price is that `/proc` must be mounted.

use std::fmt::Write;
use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::fs::getxattr;
use rustix::io::Errno;

use crate::layout::Layout;

/// The attribute with a file's layout.
const NAME: &str = "lustre.lov";

/// Enough for 168 stripes.
const USUAL: usize = 4 << 10;

/// The most that Linux allows.
const MOST: usize = 64 << 10;

/// The layout of the file `path` below the directory `dir`, or of `dir` itself for an empty path.
///
/// `None` where the file system has no such attribute. File systems in user space may pretend to
/// have all attributes. There the answer is a layout without objects, as for an empty file of
/// Lustre, so only a layout with a target proves Lustre.
///
/// # Errors
/// Those of `getxattr`, such as `ENOENT`.
pub fn read_layout(dir: BorrowedFd<'_>, path: &str) -> Result<Option<Layout>, Errno> {
    let mut whole = String::with_capacity(24 + path.len());
    // Writing to a string never fails.
    let _ = write!(whole, "/proc/self/fd/{}/{path}", dir.as_raw_fd());
    let mut usual = [0; USUAL];
    let found = match getxattr(&*whole, NAME, &mut usual) {
        Err(Errno::RANGE) => {
            let mut large = vec![0; MOST];
            getxattr(&*whole, NAME, &mut large[..]).map(|length| Layout::parse(&large[..length]))
        }
        other => other.map(|length| Layout::parse(&usual[..length])),
    };
    match found {
        Ok(layout) => Ok(Some(layout)),
        Err(Errno::OPNOTSUPP) => Ok(None),
        Err(Errno::NODATA) => Ok(Some(Layout::without_objects())),
        // Larger than any layout.
        Err(Errno::RANGE | Errno::TOOBIG) => Ok(Some(Layout::default())),
        Err(errno) => Err(errno),
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn file_system_without_layouts_is_none() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("file"), "x").unwrap();
        let dir = File::open(directory.path()).unwrap();
        assert_eq!(read_layout(dir.as_fd(), "file"), Ok(None));
        assert_eq!(read_layout(dir.as_fd(), ""), Ok(None));
        assert_eq!(read_layout(dir.as_fd(), "absent"), Err(Errno::NOENT));
        assert_eq!(read_layout(dir.as_fd(), "file/below"), Err(Errno::NOTDIR));
        assert_eq!(read_layout(dir.as_fd(), "with\0zero"), Err(Errno::INVAL));
    }
}
