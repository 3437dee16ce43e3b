//! Files that programs change, by their devices and numbers: whichever of its names a file is
//! changed by, no copy of it is served again.

use core::sync::atomic::{AtomicU64, Ordering};

use super::{Mark, SMALL_HEADER_BYTES, slot_places};

/// The beginning of the marks.
#[repr(C)]
pub struct MarksHeader {
    /// [`MARKS_MAGIC`](super::MARKS_MAGIC).
    pub magic: u64,
    /// Renames of directories that programs have begun. While the copying process has seen fewer,
    /// no path is certain, and originals are opened.
    pub renames_begun: AtomicU64,
    /// Renames of directories that have ended.
    pub renames_ended: AtomicU64,
    /// Begun renames that the copying process has seen.
    pub seen: AtomicU64,
    /// Whether each open compares the original, because a program changes files unseen.
    pub checks: AtomicU64,
}

/// A file of any name: twice a hash of its device and number, and 1 more if a program has changed
/// it. 0: no file.
pub type FileCell = AtomicU64;

/// Whether changes of a file are noted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Watch {
    /// From now on, and there was none.
    Noted,
    /// A program has changed it before.
    Changed,
    /// There is no cell for it: programs have changed many files.
    Full,
}

/// The cells of files, in which each is found by its device and number.
#[derive(Clone, Copy, Debug)]
pub struct FileCells<'a>(pub &'a [FileCell]);

impl FileCells<'_> {
    /// The cell of a file, which it gets if it has none. `None` if there is no place.
    fn place(&self, hash: u64, is_added: bool) -> Option<&FileCell> {
        for at in slot_places(hash, self.0.len() as u64) {
            let cell = self.0.get(at)?;
            let found = match cell.load(Ordering::Acquire) {
                0 if !is_added => return None,
                0 => match cell.compare_exchange(0, hash << 1, Ordering::AcqRel, Ordering::Acquire) {
                    Ok(_) => return Some(cell),
                    Err(other) => other,
                },
                found => found,
            };
            if found >> 1 == hash {
                return Some(cell);
            }
        }
        None
    }

    /// Has changes of a file noted from now on.
    pub fn watch(&self, (device, inode): (u64, u64)) -> Watch {
        match self.place(file_hash(device, inode), true) {
            Some(cell) if cell.load(Ordering::Acquire) & 1 == 0 => Watch::Noted,
            Some(_) => Watch::Changed,
            None => Watch::Full,
        }
    }

    /// Whether a file may have changed.
    pub fn is_changed(&self, (device, inode): (u64, u64)) -> bool {
        let cell = self.place(file_hash(device, inode), false);
        cell.is_none_or(|cell| cell.load(Ordering::Acquire) & 1 != 0)
    }

    /// Notes that a file changes. With `is_added`, also if its changes are not noted yet. `false`
    /// if there is no place for it.
    pub fn change(&self, (device, inode): (u64, u64), is_added: bool) -> bool {
        match self.place(file_hash(device, inode), is_added) {
            Some(cell) => {
                cell.fetch_or(1, Ordering::AcqRel);
                true
            }
            None => !is_added,
        }
    }
}

/// A hash of the device and the number of a file: not 0, and below half of all numbers.
fn file_hash(device: u64, inode: u64) -> u64 {
    (mixed(mixed(1, device), inode) >> 1).max(1)
}

/// A hash of numbers, which begins with any number and takes one after another.
pub const fn mixed(state: u64, number: u64) -> u64 {
    let mut mixed = (state ^ number).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ mixed >> 33).wrapping_mul(0xff51_afd7_ed55_8ccd);
    mixed = (mixed ^ mixed >> 33).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    mixed ^ mixed >> 33
}

/// The bytes of the marks of so many slots.
pub const fn marks_bytes(slots: u64) -> u64 {
    SMALL_HEADER_BYTES as u64 + slots * (size_of::<FileCell>() + size_of::<Mark>()) as u64
}

impl MarksHeader {
    /// Whether a directory was renamed that the copying process has not seen yet.
    pub fn is_renamed(&self) -> bool {
        self.renames_begun.load(Ordering::Acquire) != self.seen.load(Ordering::Acquire)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changed_file_is_found_by_its_number() {
        let cells: Vec<FileCell> = (0..64).map(|_| AtomicU64::new(0)).collect();
        let cells = FileCells(&cells);
        assert!(cells.is_changed((1, 2)), "its changes are not noted yet");
        assert_eq!([cells.watch((1, 2)), cells.watch((1, 2))], [Watch::Noted; 2]);
        assert!(!cells.is_changed((1, 2)));
        assert!(cells.change((1, 3), false) && cells.watch((1, 3)) == Watch::Noted);
        assert!(cells.change((1, 2), false) && cells.is_changed((1, 2)));
        assert_eq!(cells.watch((1, 2)), Watch::Changed);
        assert!(cells.change((1, 4), true) && cells.watch((1, 4)) == Watch::Changed);
        let places = (10..200).filter(|inode| cells.change((1, *inode), true)).count();
        assert!(places <= 61 && (10..200).any(|inode| !cells.change((1, inode), true)));
        assert!((200..300).any(|inode| cells.watch((1, inode)) == Watch::Full));
    }
}
