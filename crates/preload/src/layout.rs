//! The shared state of programs and the process that makes copies: three mapped files.
//!
//! | file | programs | content |
//! |---|---|---|
//! | table | read | a [`TableHeader`], a [`FileSlot`] per file, a [`CopyEntry`] per copy |
//! | marks | write | a [`MarksHeader`], a [`FileCell`] and a [`Mark`] per slot |
//! | trace | write | a [`TraceHeader`] and a ring of [`OpenRecord`]s, for each run |
//!
//! A mark is not 0 if a program has changed the meaning of a path. A cell has a file that a program
//! has changed by any name.
//!
//! Damage in the fields that programs can write makes programs slower, and never wrong: a mark
//! makes them open the original, and a record is a hint. All fields that change are atomic. An
//! entry of a copy is protected by its version, which is odd while the entry changes.
//!
//! This file uses `core` alone, because it is also a part of the preloaded library.

use core::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};

#[path = "layout/cells.rs"]
mod cells;
#[path = "layout/programs.rs"]
mod programs;
#[path = "layout/slots.rs"]
mod slots;
#[path = "layout/waits.rs"]
mod waits;

pub use cells::{FileCell, FileCells, MarksHeader, Watch, marks_bytes, mixed};
pub use programs::{NAMES, PROGRAM_HEAD, ProgramKind, ProgramName};
pub use slots::{CopyWait, ENTRIES, FileSlot, GENERATIONS, SlotValue, find_slot, slot_places};
pub use waits::{WaitStep, is_copier_alive};

/// The first bytes of a table.
pub const TABLE_MAGIC: u64 = u64::from_le_bytes(*b"fr-table");
/// The first bytes of marks.
pub const MARKS_MAGIC: u64 = u64::from_le_bytes(*b"fr-marks");
/// The first bytes of a trace.
pub const TRACE_MAGIC: u64 = u64::from_le_bytes(*b"fr-trace");
/// The version of all three.
pub const VERSION: u32 = 6;
/// The most datasets of a table.
pub const MAX_ROOTS: usize = 16;
/// The longest path of a dataset, of the copies and of the mapped files, in bytes.
pub const MAX_PATH: usize = 496;
/// Where the slots of a table begin.
pub const HEADER_BYTES: usize = 16 << 10;
/// Where the cells of files begin in the marks.
pub const SMALL_HEADER_BYTES: usize = 4 << 10;
/// Where the records of a trace begin.
pub const TRACE_HEADER_BYTES: usize = 16 << 10;
/// The same for the entry of a copy.
pub const COPY_PROBES: u64 = 32;
/// The records of a trace. A reader that is further behind loses some.
pub const RECORDS: u64 = 1 << 15;
/// The longest name of a copy below the directory of copies, with its end.
pub const NAME_BYTES: usize = 32;
/// The bit of the mode of copies that tells them from other files. It has no meaning for files.
pub const COPY_BIT: u32 = 0o1000;

/// The mode of a copy: the permissions of the original, but those to write.
pub const fn copy_mode(original: u32) -> u32 {
    original & 0o555 | COPY_BIT
}

/// A path.
#[repr(C)]
pub struct PathText {
    length: u64,
    bytes: [u8; MAX_PATH],
}

impl PathText {
    /// No path.
    pub const EMPTY: Self = Self { length: 0, bytes: [0; MAX_PATH] };

    /// A path. `None` if it is too long.
    pub fn new(path: &[u8]) -> Option<Self> {
        let mut text = Self::EMPTY;
        text.bytes.get_mut(..path.len())?.copy_from_slice(path);
        text.length = path.len() as u64;
        Some(text)
    }

    /// Its bytes. None if the length is damaged.
    pub fn bytes(&self) -> &[u8] {
        self.bytes.get(..self.length as usize).unwrap_or_default()
    }
}

/// A dataset: a directory whose files are served.
#[repr(C)]
pub struct Root {
    /// Its path, without `/` at the end.
    pub path: PathText,
    /// The device of the directory.
    pub device: u64,
    /// Its number there.
    pub inode: u64,
    /// The mount that it is on, in the namespace of its run. 0: not known.
    pub mount: u64,
    /// The number of the dataset. All names of one directory have the same one.
    pub dataset: u64,
}

impl Root {
    /// No dataset.
    pub const EMPTY: Self = Self { path: PathText::EMPTY, device: 0, inode: 0, mount: 0, dataset: 0 };
}

/// The rights of a process to read, as far as they are known: user and group, capabilities, a hash
/// of other groups, the user namespace.
pub type Rights = [u64; 4];

/// The beginning of a table.
#[repr(C)]
pub struct TableHeader {
    /// [`TABLE_MAGIC`].
    pub magic: u64,
    /// [`VERSION`].
    pub version: u32,
    /// Whether each open compares the original with the copy.
    pub checks: AtomicU32,
    /// The key of all hashes.
    pub key: u64,
    /// The number of slots, a power of two.
    pub slots: u64,
    /// The number of entries for copies, a power of two.
    pub copies: u64,
    /// The device of the copies.
    pub copies_device: u64,
    /// The [`Rights`] of the process that makes copies.
    pub rights: [AtomicU64; 4],
    /// When that process was last seen alive, in milliseconds of the monotonic clock. 0: never.
    pub alive: AtomicU64,
    /// Whether it makes copies of files that are opened now. 0: it has no room or no budget.
    pub asks: AtomicU64,
    /// The directory of the copies.
    pub directory: PathText,
    /// The path of the marks.
    pub marks: PathText,
    /// The number of datasets.
    pub roots: AtomicU64,
    /// The datasets.
    pub root: [Root; MAX_ROOTS],
}

impl TableHeader {
    /// Whether this is the header of a table that is `bytes` long.
    pub fn is_whole(&self, bytes: u64) -> bool {
        self.magic == TABLE_MAGIC
            && self.version == VERSION
            && self.slots.is_power_of_two()
            && self.copies.is_power_of_two()
            && self.slots < 1 << 40
            && self.copies <= u64::from(ENTRIES)
            && table_bytes(self.slots, self.copies) <= bytes
            && self.roots.load(Ordering::Relaxed) <= MAX_ROOTS as u64
    }
}

/// The bytes of a table.
pub const fn table_bytes(slots: u64, copies: u64) -> u64 {
    HEADER_BYTES as u64 + slots * size_of::<FileSlot>() as u64 + copies * size_of::<CopyEntry>() as u64
}

/// The results of `fstat` for a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Identity {
    /// The device.
    pub device: u64,
    /// The number of the file there.
    pub inode: u64,
    /// The length in bytes.
    pub size: u64,
    /// Blocks of 512 bytes.
    pub blocks: u64,
    /// Names.
    pub links: u64,
    /// Kind and permissions.
    pub mode: u32,
    /// The owner.
    pub user: u32,
    /// The group.
    pub group: u32,
    /// The best length of a read.
    pub block_size: u32,
    /// When the content was changed: seconds and nanoseconds.
    pub modified: [i64; 2],
    /// When anything of it was changed.
    pub changed: [i64; 2],
}

impl Identity {
    /// Whether this is the same file with the same content as `other`.
    pub fn has_content_of(&self, other: &Self) -> bool {
        self.device == other.device
            && self.inode == other.inode
            && self.size == other.size
            && self.modified == other.modified
            && self.changed == other.changed
    }
}

const WORDS: usize = 11;

/// A copy, and the original's identity.
#[repr(C)]
pub struct CopyEntry {
    /// The copy's number in its file system. 0: there is none.
    pub inode: AtomicU64,
    /// Odd while the entry changes.
    pub version: AtomicU64,
    /// The hash of the original's path.
    pub hash: AtomicU64,
    /// The generation of the copy, and the CRC-32C of its content in the upper half.
    pub made: AtomicU64,
    /// When the copy itself was changed last, in nanoseconds: when it was made.
    pub copy_changed: AtomicU64,
    words: [AtomicU64; WORDS],
}

impl CopyEntry {
    /// The original's identity. `None` if the entry changes at this moment, or is of another copy
    /// than `inode`.
    pub fn identity(&self, inode: u64) -> Option<Identity> {
        let version = self.version.load(Ordering::Acquire);
        let words = [0_usize, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10].map(|at| self.words[at].load(Ordering::Relaxed));
        let is_it = self.inode.load(Ordering::Relaxed) == inode;
        core::sync::atomic::fence(Ordering::Acquire);
        let is_whole = version.is_multiple_of(2) && self.version.load(Ordering::Relaxed) == version;
        (is_it && is_whole && inode != 0).then(|| Identity {
            device: words[0],
            inode: words[1],
            size: words[2],
            blocks: words[3],
            links: words[4],
            mode: words[5] as u32,
            user: (words[5] >> 32) as u32,
            group: words[6] as u32,
            block_size: (words[6] >> 32) as u32,
            modified: [words[7] as i64, words[8] as i64],
            changed: [words[9] as i64, words[10] as i64],
        })
    }

    /// The number of the copy and the original's identity, if this is still the entry of its copy.
    pub fn original(&self, hash: u64, generation: u32) -> Option<(u64, Identity)> {
        let inode = self.inode.load(Ordering::Relaxed);
        let identity = self.identity(inode)?;
        let is_its = self.hash.load(Ordering::Relaxed) == hash
            && self.made.load(Ordering::Relaxed) as u32 == generation;
        is_its.then_some((inode, identity))
    }

    /// Makes it the entry of a copy. For the one process that makes copies.
    pub fn set(
        &self,
        inode: u64,
        hash: u64,
        (generation, crc32c): (u32, u32),
        changed: i64,
        original: &Identity,
    ) {
        let version = self.version.load(Ordering::Relaxed) | 1;
        self.version.store(version, Ordering::Relaxed);
        core::sync::atomic::fence(Ordering::Release);
        let pair = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
        let words = [
            original.device,
            original.inode,
            original.size,
            original.blocks,
            original.links,
            pair(original.mode, original.user),
            pair(original.group, original.block_size),
            original.modified[0] as u64,
            original.modified[1] as u64,
            original.changed[0] as u64,
            original.changed[1] as u64,
        ];
        for (to, word) in self.words.iter().zip(words) {
            to.store(word, Ordering::Relaxed);
        }
        self.hash.store(hash, Ordering::Relaxed);
        self.made.store(pair(generation, crc32c), Ordering::Relaxed);
        self.copy_changed.store(changed as u64, Ordering::Relaxed);
        self.inode.store(inode, Ordering::Relaxed);
        self.version.store(version + 1, Ordering::Release);
    }
}

/// A mark.
pub type Mark = AtomicU8;

/// A bit of [`TraceHeader::checks`]: the copies were not compared since the run has begun.
pub const CHECKS_EARLIER: u64 = 1;

/// A bit of [`TraceHeader::checks`]: the mounts of the run have changed, which is for good.
pub const CHECKS_MOUNTS: u64 = 2;

/// The beginning of a trace.
#[repr(C)]
pub struct TraceHeader {
    /// [`TRACE_MAGIC`].
    pub magic: u64,
    /// The path of the table.
    pub table: PathText,
    /// The bytes of the files that programs have got copies of.
    pub served_bytes: AtomicU64,
    /// The number of records so far.
    pub next: AtomicU64,
    /// How many of them the copying process has read. The next one continues there.
    pub read: AtomicU64,
    /// Opens of files of the datasets, by [`OpenKind`].
    pub counts: [AtomicU64; OpenKind::COUNT],
    /// Why each open of the run's programs compares the original: [`CHECKS_EARLIER`] and
    /// [`CHECKS_MOUNTS`]. 0: it does not.
    pub checks: AtomicU64,
    /// Whether the run can gain no rights (`no_new_privs`).
    pub is_restricted: u64,
    /// The number of datasets.
    pub roots: u64,
    /// The datasets of the run, by the names that its programs use.
    pub root: [Root; MAX_ROOTS],
    /// Whether no process reads the records any more: the run has ended, but not its programs.
    pub unheard: AtomicU64,
    /// Starts of programs that do not load the library, so they read originals.
    pub unserved: AtomicU64,
    /// The names of the first ones.
    pub names: [ProgramName; NAMES],
}

impl TraceHeader {
    /// Leaves a record of an open in the ring.
    pub fn record(&self, records: &[OpenRecord], hash: u64, kind: OpenKind) {
        if let Some(count) = self.counts.get(kind as usize) {
            count.fetch_add(1, Ordering::Relaxed);
        }
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        if let Some(record) = records.get((number % RECORDS) as usize) {
            record.hash.store(hash, Ordering::Relaxed);
            record.kind.store(kind as u64, Ordering::Release);
        }
    }
}

/// The bytes of a trace.
pub const TRACE_BYTES: u64 = TRACE_HEADER_BYTES as u64 + RECORDS * size_of::<OpenRecord>() as u64;

/// An open, for the process that makes copies.
#[repr(C)]
pub struct OpenRecord {
    /// The hash of the path.
    pub hash: AtomicU64,
    /// The [`OpenKind`]. 0: nothing is here.
    pub kind: AtomicU64,
}

/// The result of an open.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum OpenKind {
    /// The program has a copy.
    Served = 1,
    /// There is no copy.
    Absent = 2,
    /// The file is not in the table.
    Unknown = 3,
    /// The program may write.
    Writing = 4,
    /// The original has changed.
    Changed = 5,
    /// A directory was renamed a moment ago.
    Renamed = 6,
    /// The copy is not where it should be.
    Failed = 7,
    /// The program follows no symbolic link, and the file is one.
    Link = 8,
    /// The program cannot open the copy: it has no descriptor left, or has become another user. Or
    /// it may not read the original.
    Refused = 9,
    /// The path means another file for this program.
    Elsewhere = 10,
    /// The program waits for a copy that is to be made. The result of its open follows.
    Asked = 11,
}

impl OpenKind {
    /// One more than the highest number.
    pub const COUNT: usize = 12;

    /// All of them.
    pub const ALL: [Self; 11] = [
        Self::Served,
        Self::Absent,
        Self::Unknown,
        Self::Writing,
        Self::Changed,
        Self::Renamed,
        Self::Failed,
        Self::Link,
        Self::Refused,
        Self::Elsewhere,
        Self::Asked,
    ];
}

/// Flags of `open`.
pub mod open_flags {
    /// The bits that say whether the program reads or writes.
    pub const ACCESS: i32 = 3;
    /// A file that is absent is made.
    pub const CREATE: i32 = 0o100;
    /// Its content is removed.
    pub const TRUNCATE: i32 = 0o1000;
    /// The file is not read.
    pub const PATH: i32 = 0o10_000_000;
    /// The path must be a directory. Also set for a file without a name.
    pub const DIRECTORY: i32 = if cfg!(target_arch = "aarch64") { 0o40_000 } else { 0o200_000 };
    /// The path must not be a link.
    pub const NO_FOLLOW: i32 = if cfg!(target_arch = "aarch64") { 0o100_000 } else { 0o400_000 };
    /// Reads need alignment, which differs between file systems.
    pub const DIRECT: i32 = if cfg!(target_arch = "aarch64") { 0o200_000 } else { 0o40_000 };
}

/// The purpose for which a program opens a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenPurpose {
    /// To read its content, which may be that of a copy.
    Read,
    /// It may write to it, or makes it.
    Write,
    /// Something that no copy can stand for.
    Other,
}

impl OpenPurpose {
    /// The purpose of an open with these flags.
    pub const fn of(flags: i32) -> Self {
        if flags & open_flags::ACCESS != 0 || flags & (open_flags::CREATE | open_flags::TRUNCATE) != 0 {
            Self::Write
        } else if flags & (open_flags::DIRECTORY | open_flags::PATH | open_flags::DIRECT) != 0 {
            Self::Other
        } else {
            Self::Read
        }
    }
}

/// Hashes a path below a dataset, piece by piece. Each piece consists of whole names. Empty names
/// and `.` are left out. FNV-1a with a key, and the last steps of MurmurHash3.
#[derive(Clone, Copy, Debug)]
pub struct PathHash {
    state: u64,
    is_empty: bool,
}

impl PathHash {
    /// The hash of no name yet, in the dataset of this number.
    pub const fn new(key: u64, dataset: u64) -> Self {
        Self { state: key ^ dataset.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15), is_empty: true }
    }

    /// Adds names, which end at the first zero. `None` if one is `..`, or if the last one of a
    /// file's path may only be a directory.
    pub fn add(self, piece: impl Iterator<Item = u8>, is_file: bool) -> Option<Self> {
        let mut piece = piece.take_while(|byte| *byte != 0).peekable();
        let (mut hash, mut is_directory) = (self, false);
        while piece.peek().is_some() {
            let (mut after, mut dots, mut length) = (hash, 0_usize, 0_usize);
            after.push_separator();
            is_directory = false;
            for byte in piece.by_ref() {
                if byte == b'/' {
                    is_directory = true;
                    break;
                }
                length += 1;
                dots += usize::from(byte == b'.');
                after.push(byte);
            }
            match (length, dots) {
                (0, _) => {}
                (1, 1) => is_directory = true,
                (2, 2) => return None,
                _ => hash = Self { is_empty: false, ..after },
            }
        }
        (!(is_file && is_directory)).then_some(hash)
    }

    fn push_separator(&mut self) {
        if !self.is_empty {
            self.push(b'/');
        }
    }

    fn push(&mut self, byte: u8) {
        self.state = (self.state ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
    }

    /// The hash, which is not 0. `None` if there was no name.
    pub fn finish(self) -> Option<u64> {
        let mut mixed = self.state;
        mixed = (mixed ^ mixed >> 33).wrapping_mul(0xff51_afd7_ed55_8ccd);
        mixed = (mixed ^ mixed >> 33).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
        mixed ^= mixed >> 33;
        (!self.is_empty).then_some(mixed.max(1))
    }
}

/// The places where the entry of a copy may be, in a table with so many entries.
pub fn entry_places(inode: u64, entries: u64) -> impl Iterator<Item = usize> {
    let first = inode.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20;
    (0..COPY_PROBES).map(move |probe| (first.wrapping_add(probe) & (entries - 1)) as usize)
}

/// The name of a copy below the directory of copies, with a zero at its end.
pub fn copy_name(hash: u64, generation: u32) -> [u8; NAME_BYTES] {
    let digit = |value: u64, at: u32| b"0123456789abcdef"[(value >> (4 * at) & 15) as usize];
    let mut name = [0_u8; NAME_BYTES];
    let digits = (0..16).rev().map(|at| digit(hash, at));
    let numbers = (0..8).rev().map(|at| digit(generation.into(), at));
    let folder = [digit(hash, 15), digit(hash, 14), b'/'];
    for (to, byte) in name.iter_mut().zip(folder.into_iter().chain(digits).chain([b'-']).chain(numbers)) {
        *to = byte;
    }
    name
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn hash(path: &str) -> Option<u64> {
        PathHash::new(7, 0).add(path.bytes(), true).and_then(PathHash::finish)
    }

    #[test]
    fn sizes_are_those_of_the_files() {
        assert!(size_of::<TableHeader>() <= HEADER_BYTES && size_of::<MarksHeader>() <= SMALL_HEADER_BYTES);
        assert!(size_of::<TraceHeader>() <= TRACE_HEADER_BYTES);
        assert_eq!((size_of::<FileSlot>(), size_of::<CopyEntry>(), size_of::<OpenRecord>()), (16, 128, 16));
    }

    #[test]
    fn one_path_has_one_hash_however_it_is_written() {
        let written = ["a/b.jpg", "./a/b.jpg", "a//b.jpg", "a/./b.jpg", "/a/b.jpg", ".//a/.///b.jpg"];
        assert!(written.iter().all(|path| hash(path) == hash("a/b.jpg")));
        assert_eq!(hash("a/b.jpg\0x"), hash("a/b.jpg"));
        let others = ["a/b.jp", "a/b.jpgg", "ab.jpg", "a/b/jpg", "A/b.jpg", "a/b..jpg", "a/...", "a/.b"];
        assert!(others.iter().all(|path| hash(path).is_some() && hash(path) != hash("a/b.jpg")));
        for path in ["", "/", ".", "a/..", "..", "../a", "a/", "a/.", "a/../a/b.jpg", "\0a"] {
            assert_eq!(hash(path), None, "{path}");
        }
        let of_second = PathHash::new(7, 1).add("a/b.jpg".bytes(), true).and_then(PathHash::finish);
        assert!(of_second.is_some() && of_second != hash("a/b.jpg"));
    }

    proptest! {
        /// A path has the same hash in one piece and in two.
        #[test]
        fn pieces_are_one_path(path in "[a-c./]{1,12}", directory in "[a-c./]{0,12}") {
            let whole = format!("{directory}/{path}");
            let pieces = PathHash::new(3, 1).add(directory.bytes(), false);
            let pieces = pieces.and_then(|hash| hash.add(path.bytes(), true)).and_then(PathHash::finish);
            let whole = PathHash::new(3, 1).add(whole.bytes(), true).and_then(PathHash::finish);
            prop_assert_eq!(pieces, whole);
        }

        #[test]
        fn values_and_identities_round_trip(
            flags in any::<(bool, bool, bool)>(), generation in 0..GENERATIONS, entry in 0..ENTRIES,
            wait in prop::sample::select(vec![CopyWait::No, CopyWait::Ask, CopyWait::Coming]),
            numbers in any::<[u64; 5]>(), small in any::<[u32; 4]>(), times in any::<[i64; 4]>(),
        ) {
            let value = SlotValue {
                is_present: flags.0, is_link: flags.1, is_earlier: flags.2, wait, generation, entry,
            };
            prop_assert_eq!(SlotValue::decode(value.encode()), value);
            let [device, inode, size, blocks, links] = numbers;
            let [mode, user, group, block_size] = small;
            let (modified, changed) = ([times[0], times[1]], [times[2], times[3]]);
            let identity = Identity {
                device, inode, size, blocks, links, mode, user, group, block_size, modified, changed,
            };
            // All zeros are an entry without a copy.
            let place: CopyEntry = empty_entry();
            prop_assert_eq!(place.identity(0), None);
            place.set(9, 1, (2, 3), 4, &identity);
            prop_assert_eq!(place.identity(9), Some(identity));
            prop_assert_eq!(place.identity(8), None);
        }
    }

    fn empty_entry() -> CopyEntry {
        CopyEntry {
            inode: AtomicU64::new(0),
            version: AtomicU64::new(0),
            hash: AtomicU64::new(0),
            made: AtomicU64::new(0),
            copy_changed: AtomicU64::new(0),
            words: [const { AtomicU64::new(0) }; WORDS],
        }
    }

    #[test]
    fn copies_are_named_by_hash_and_generation() {
        let name = copy_name(0xab12_0000_0000_0009, 0x2f);
        assert_eq!(name, *b"ab/ab12000000000009-0000002f\0\0\0\0");
    }
}
