//! The layout of files on CephFS, for people.
//!
//! CephFS spreads objects over its servers by a hash, so a layout names a pool and lengths, but no
//! server. It is logged when a directory is opened, as CephFS writes it, and nothing depends on it.
//! The price is one request.

use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::fs::getxattr;

/// The attribute with a file's layout, as text.
const NAME: &str = "ceph.file.layout";

/// Longer than any layout: four numbers and two names.
const MOST: usize = 1 << 10;

/// The layout of the file `name` in `directory`: `stripe_unit=4194304 stripe_count=1
/// object_size=4194304 pool=cephfs.data`. `None` on other file systems.
pub(crate) fn layout(directory: BorrowedFd<'_>, name: &str) -> Option<String> {
    let mut text = [0; MOST];
    let path = format!("/proc/self/fd/{}/{name}", directory.as_raw_fd());
    let length = getxattr(path, NAME, &mut text).ok()?;
    shown(text.get(..length)?)
}

/// The layout in one line. File systems in user space may answer anything.
fn shown(text: &[u8]) -> Option<String> {
    let text = std::str::from_utf8(text).ok()?;
    let is_layout = text.starts_with("stripe_unit=") && text.contains(" pool=");
    is_layout.then(|| text.escape_debug().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    // semantics: HPC-6
    fn layout_of_ceph_is_one_line_of_text() {
        let text = "stripe_unit=4194304 stripe_count=1 object_size=4194304 pool=cephfs.data";
        assert_eq!(shown(text.as_bytes()).as_deref(), Some(text));
        assert_eq!(shown(b"stripe_unit=1 pool=a\nb").as_deref(), Some("stripe_unit=1 pool=a\\nb"));
        for other in [&b""[..], b"pool=a", b"stripe_unit=1", b"stripe_unit=1 pool=\xff"] {
            assert_eq!(shown(other), None);
        }
    }
}
