//! The copies that an earlier host has left: the check of their content, and the removal of unknown
//! files.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::copying::{change_time, copy_path, has_checksum};
use crate::host_state::footprint;
use crate::original::identity_of;
use crate::table::EarlierCopy;

/// The file with the boot whose copies are believed.
const BOOT: &str = "boot";

/// Earlier copies whose files were not found yet. Those of datasets that no run has now stay until
/// their room is needed.
#[derive(Debug)]
pub(crate) struct EarlierCopies {
    copies: BTreeMap<u64, EarlierCopy>,
    /// The bytes that they take.
    bytes: u64,
    /// Whether the machine has started again since, so that content may not have been written.
    is_checked: bool,
}

impl EarlierCopies {
    /// These copies, in the directory of a cache.
    pub(crate) fn new(cache: &Path, copies: impl IntoIterator<Item = (u64, EarlierCopy)>) -> Self {
        let is_same =
            boot().is_some_and(|boot| std::fs::read(cache.join(BOOT)).is_ok_and(|there| there == boot));
        let copies: BTreeMap<u64, EarlierCopy> = copies.into_iter().collect();
        let bytes = copies.values().map(|copy| footprint(copy.identity.size)).fold(0, u64::saturating_add);
        Self { copies, bytes, is_checked: !is_same }
    }

    /// The bytes that all of them take.
    pub(crate) fn held(&self) -> u64 {
        self.bytes
    }

    /// Whether this copy is one of them.
    pub(crate) fn has(&self, hash: u64, generation: u32) -> bool {
        self.copies.get(&hash).is_some_and(|copy| copy.generation == generation)
    }

    /// Takes the copy of a file, and whether its content must be read to believe it.
    pub(crate) fn take(&mut self, hash: u64) -> Option<(EarlierCopy, bool)> {
        let copy = self.copies.remove(&hash)?;
        self.bytes -= footprint(copy.identity.size).min(self.bytes);
        Some((copy, self.is_checked))
    }

    /// Takes any of them.
    pub(crate) fn take_any(&mut self) -> Option<(u64, EarlierCopy)> {
        let (hash, copy) = self.copies.pop_first()?;
        self.bytes -= footprint(copy.identity.size).min(self.bytes);
        Some((hash, copy))
    }

    /// Drops copies that only a checksum could confirm: a later host of this boot would believe
    /// them.
    pub(crate) fn drop_unchecked(&mut self) {
        if self.is_checked {
            (self.copies, self.bytes) = (BTreeMap::new(), 0);
        }
    }
}

/// Notes that later hosts of this boot may believe the copies: those of earlier boots were compared
/// with their checksums, or are not known any more.
pub(crate) fn believe(cache: &Path) {
    let Some(boot) = boot() else { return };
    if let Err(error) = std::fs::write(cache.join(BOOT), boot) {
        tracing::debug!(%error, "copies are compared with their checksums at each start");
    }
}

/// The id of this boot of the machine.
pub(crate) fn boot() -> Option<Vec<u8>> {
    std::fs::read("/proc/sys/kernel/random/boot_id").ok().filter(|boot| !boot.is_empty())
}

/// Whether a copy that an earlier host has left is that of the file at `path` as it is now.
pub(crate) fn is_right(
    (hash, copy): (u64, &EarlierCopy),
    path: &Path,
    copies: &Path,
    checks_content: bool,
) -> bool {
    let size = copy.identity.size;
    let there = copy_path(copies, hash, copy.generation);
    // A program may have changed it through a descriptor.
    let is_its = std::fs::metadata(&there).is_ok_and(|found| {
        let is_same = found.ino() == copy.inode && found.len() == size;
        is_same && change_time(&found) == copy.changed && found.nlink() == 1
    });
    is_its
        && identity_of(path) == Some(copy.identity)
        && (!checks_content || has_checksum(&there, size, copy.crc32c))
}

/// Removes the copies that no host knows, and the files of hosts that died.
pub(crate) fn sweep(copies: &Path, is_known: impl Fn(u64, u32) -> bool) {
    let own = format!("new-{}-", std::process::id());
    let folders = std::fs::read_dir(copies).into_iter().flatten().flatten();
    for file in folders.filter_map(|folder| std::fs::read_dir(folder.path()).ok()).flatten().flatten() {
        let name = file.file_name();
        let name = name.to_string_lossy();
        let parsed = name.split_once('-').and_then(|(hash, generation)| {
            Some((u64::from_str_radix(hash, 16).ok()?, u32::from_str_radix(generation, 16).ok()?))
        });
        let stays = parsed.is_some_and(|(hash, generation)| is_known(hash, generation));
        if !stays && !name.starts_with(&own) {
            // A file that stays takes room until the next sweep.
            let _ = std::fs::remove_file(file.path());
        }
    }
}
