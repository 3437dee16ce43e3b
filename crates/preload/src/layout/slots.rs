//! The slots of a table: which files there are, and which copy each has.

use core::sync::atomic::{AtomicU64, Ordering};

/// The most slots after its first place where a file is looked for.
const PROBES: u64 = 16;

/// A file of a dataset.
#[repr(C)]
pub struct FileSlot {
    /// The hash of its path. 0: there is no file here, and none after it.
    pub hash: AtomicU64,
    /// Its [`SlotValue`].
    pub value: AtomicU64,
}

/// The places where the slot of a file may be, in a table with so many slots.
pub fn slot_places(hash: u64, slots: u64) -> impl Iterator<Item = usize> {
    (0..PROBES).map(move |probe| (hash.wrapping_add(probe) & (slots - 1)) as usize)
}

/// The place of a file.
pub fn find_slot(slots: &[FileSlot], hash: u64) -> Option<usize> {
    for at in slot_places(hash, slots.len() as u64) {
        match slots.get(at)?.hash.load(Ordering::Acquire) {
            0 => return None,
            found if found == hash => return Some(at),
            _ => {}
        }
    }
    None
}

/// The state of a slot's file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotValue {
    /// Whether a copy is there.
    pub is_present: bool,
    /// Whether the path is a symbolic link.
    pub is_link: bool,
    /// Whether an earlier host had a copy, which this one has not looked at yet. It is not served.
    pub is_earlier: bool,
    /// Whether an open waits for a copy, where none is there.
    pub wait: CopyWait,
    /// The number of the copy, below [`GENERATIONS`].
    pub generation: u32,
    /// The entry of the copy, below [`ENTRIES`].
    pub entry: u32,
}

/// Whether an open waits for a copy: only where the storage would be read twice otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyWait {
    /// The original is opened.
    No,
    /// The copying process decides when the file is opened.
    Ask,
    /// The copy is being made.
    Coming,
}

const PRESENT: u64 = 1 << 63;
const LINK: u64 = 1 << 62;
const EARLIER: u64 = 1 << 61;
/// The numbers of copies: 29 bits.
pub const GENERATIONS: u32 = 1 << 29;
const GENERATION_BITS: u64 = GENERATIONS as u64 - 1;
const COMING: u64 = 1 << 31;
const ASK: u64 = 1 << 30;
/// The entries of copies: 30 bits.
pub const ENTRIES: u32 = 1 << 30;
const ENTRY_BITS: u64 = ENTRIES as u64 - 1;

impl SlotValue {
    /// As the slot has it.
    pub const fn encode(self) -> u64 {
        let flags = if self.is_present { PRESENT } else { 0 } | if self.is_link { LINK } else { 0 };
        let flags = flags | if self.is_earlier { EARLIER } else { 0 };
        let wait = match self.wait {
            CopyWait::No => 0,
            CopyWait::Ask => ASK,
            CopyWait::Coming => COMING,
        };
        flags | wait | (self.generation as u64 & GENERATION_BITS) << 32 | self.entry as u64 & ENTRY_BITS
    }

    /// Decodes the value of a slot.
    pub const fn decode(value: u64) -> Self {
        let wait = match value & (COMING | ASK) {
            COMING => CopyWait::Coming,
            ASK => CopyWait::Ask,
            _ => CopyWait::No,
        };
        Self {
            wait,
            is_present: value & PRESENT != 0,
            is_link: value & LINK != 0,
            is_earlier: value & EARLIER != 0,
            generation: (value >> 32 & GENERATION_BITS) as u32,
            entry: (value & ENTRY_BITS) as u32,
        }
    }
}
