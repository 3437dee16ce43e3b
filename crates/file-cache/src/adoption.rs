//! The copies that an earlier host has left: which of them are right, and the removal of all
//! others.

use std::collections::HashMap;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::copying::{change_time, copy_path, has_checksum};
use crate::host_state::footprint;
use crate::original::identity_of;
use crate::table::EarlierCopy;

/// Earlier copies that were not looked at yet.
#[derive(Debug)]
pub(crate) struct EarlierCopies {
    copies: HashMap<u64, EarlierCopy>,
    /// Whether the machine has started again since, so that content may not have been written.
    is_checked: bool,
}

impl EarlierCopies {
    /// These copies, in the directory of a cache. Notes that later hosts of this boot may believe
    /// them.
    pub(crate) fn new(cache: &Path, copies: HashMap<u64, EarlierCopy>) -> Self {
        let path = cache.join("boot");
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        let is_same = !boot.is_empty() && std::fs::read_to_string(&path).is_ok_and(|there| there == boot);
        if !is_same && let Err(error) = std::fs::write(&path, boot) {
            tracing::debug!(%error, "copies are compared with their checksums at each start");
        }
        Self { copies, is_checked: !is_same }
    }

    /// The bytes that all of them take.
    pub(crate) fn held(&self) -> u64 {
        self.copies.values().map(|copy| footprint(copy.identity.size)).fold(0, u64::saturating_add)
    }

    /// The earlier copy of a file, if it is that of the file as it is now.
    pub(crate) fn of_file(&mut self, hash: u64, path: &Path, copies: &Path) -> Option<EarlierCopy> {
        let copy = *self.copies.get(&hash)?;
        let size = copy.identity.size;
        let there = copy_path(copies, hash, copy.generation);
        // A program may have changed it through a descriptor.
        let is_its = std::fs::metadata(&there).is_ok_and(|found| {
            let is_same = found.ino() == copy.inode && found.len() == size;
            is_same && change_time(&found) == copy.changed && found.nlink() == 1
        });
        let is_right = is_its
            && identity_of(path) == Some(copy.identity)
            && (!self.is_checked || has_checksum(&there, size, copy.crc32c));
        if !is_right {
            return None;
        }
        self.copies.remove(&hash);
        Some(copy)
    }
}

/// Removes the copies that are not published, and what hosts that died have left.
pub(crate) fn sweep(copies: &Path, is_published: impl Fn(u64, u32) -> bool) {
    let own = format!("new-{}-", std::process::id());
    let folders = std::fs::read_dir(copies).into_iter().flatten().flatten();
    for file in folders.filter_map(|folder| std::fs::read_dir(folder.path()).ok()).flatten().flatten() {
        let name = file.file_name();
        let name = name.to_string_lossy();
        let parsed = name.split_once('-').and_then(|(hash, generation)| {
            Some((u64::from_str_radix(hash, 16).ok()?, u32::from_str_radix(generation, 16).ok()?))
        });
        let stays = parsed.is_some_and(|(hash, generation)| is_published(hash, generation));
        if !stays && !name.starts_with(&own) {
            // One that stays takes room until the next sweep.
            let _ = std::fs::remove_file(file.path());
        }
    }
}
