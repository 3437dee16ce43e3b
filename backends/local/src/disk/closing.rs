//! Directories that were let go by a tier of this process and are still being written to.
//!
//! Dropping a tier does not wait for the disk: the threads that write own the directory's locks until they are done. So
//! that the next tier of the same process, in the next line of the program, finds the directory free and everything in
//! it, opening waits for them, and so do listing and cleaning. Another process need not: the locks end with this one.

use std::sync::{Condvar, Mutex};
use std::time::Duration;

use super::folder::FolderId;
use crate::jobs::lock;

/// How long a tier that was dropped may hold up whoever comes next.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

/// One entry a tier and directory.
static CLOSING: Mutex<Vec<FolderId>> = Mutex::new(Vec::new());
static ENDED: Condvar = Condvar::new();

/// These are let go from now on.
pub(super) fn begin(roots: &[FolderId]) {
    lock(&CLOSING).extend_from_slice(roots);
}

/// These are free.
pub(super) fn end(roots: &[FolderId]) {
    let mut closing = lock(&CLOSING);
    for root in roots {
        if let Some(at) = closing.iter().position(|other| other == root) {
            closing.swap_remove(at);
        }
    }
    ENDED.notify_all();
}

/// Waits until `root` is free, or has held up for long enough.
pub(super) fn wait(root: FolderId) {
    let closing = lock(&CLOSING);
    // Free or not, the lock tells.
    drop(ENDED.wait_timeout_while(closing, CLOSE_TIMEOUT, |closing| closing.contains(&root)));
}
