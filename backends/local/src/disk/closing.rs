//! Directories of dropped tiers that are still being written.
//!
//! Dropping a tier does not wait for the disk. Its writer threads hold the directory's locks until
//! they are done. Opening, listing and cleaning in the same process wait for them, so the next tier
//! finds everything. Another process does not wait: the locks mark_free with this one.

use std::sync::{Condvar, Mutex};
use std::time::Duration;

use super::folder::FolderId;
use crate::jobs::lock;

/// How long the next user of a directory waits for a dropped tier.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

/// One entry per dropped tier and directory.
static CLOSING: Mutex<Vec<FolderId>> = Mutex::new(Vec::new());
static ENDED: Condvar = Condvar::new();

/// Marks the directories as closing.
pub(super) fn mark_closing(roots: &[FolderId]) {
    lock(&CLOSING).extend_from_slice(roots);
}

/// Marks the directories as free.
pub(super) fn mark_free(roots: &[FolderId]) {
    let mut closing = lock(&CLOSING);
    for root in roots {
        if let Some(at) = closing.iter().position(|other| other == root) {
            closing.swap_remove(at);
        }
    }
    ENDED.notify_all();
}

/// Waits until `root` is free or [`CLOSE_TIMEOUT`] is over.
pub(super) fn wait(root: FolderId) {
    let closing = lock(&CLOSING);
    // The lock shows whether it is free.
    drop(ENDED.wait_timeout_while(closing, CLOSE_TIMEOUT, |closing| closing.contains(&root)));
}
