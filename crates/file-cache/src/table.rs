//! The table of copies and the marks, as the host sees them.

use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use foreread_preload::layout::{
    CopyEntry, CopyWait, FileCell, FileCells, FileSlot, HEADER_BYTES, Identity, MARKS_MAGIC, MAX_ROOTS, Mark,
    MarksHeader, PathText, Rights, Root, SMALL_HEADER_BYTES, SlotValue, TABLE_MAGIC, TableHeader, VERSION,
    Watch, entry_places, find_slot, marks_bytes, slot_places, table_bytes,
};

use crate::mapping::MappedFile;
use crate::root::RootIdentity;

/// A file that was open when its copy left may be compared with its original for so long.
const RETIRED: Duration = Duration::from_secs(60);

/// The mark of a file that differs from the file that its copy was made of.
const CHANGED: u8 = 1;

/// The names of the files in the directory of a cache.
const TABLE: &str = "table";
const MARKS: &str = "marks";

/// A name of a dataset.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RootName {
    pub(crate) path: PathBuf,
    /// The path without links.
    pub(crate) target: PathBuf,
    /// The directory that both lead to.
    pub(crate) identity: RootIdentity,
}

impl RootName {
    /// The number of the dataset, which is the same in every run.
    pub(crate) fn dataset(&self) -> u64 {
        self.identity.dataset
    }
}

/// The parameters of a new table.
#[derive(Debug)]
pub(crate) struct NewTable<'a> {
    pub(crate) checks: bool,
    pub(crate) key: u64,
    /// The least number of files that it has room for.
    pub(crate) files: u64,
    /// The most copies.
    pub(crate) copies: u64,
    pub(crate) copies_device: u64,
    pub(crate) directory: &'a Path,
    pub(crate) roots: &'a [RootName],
    /// The host's rights to read.
    pub(crate) rights: Rights,
}

/// A copy of an earlier host.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EarlierCopy {
    pub(crate) inode: u64,
    pub(crate) generation: u32,
    pub(crate) crc32c: u32,
    /// When the copy itself was changed last, in nanoseconds.
    pub(crate) changed: i64,
    pub(crate) identity: Identity,
}

/// A table and its marks.
#[derive(Debug)]
pub(crate) struct Table {
    table: MappedFile,
    marks: MappedFile,
    /// When each entry's copy has left. `None`: it is there, or the entry was never used.
    retired: Vec<Option<Instant>>,
    published: Vec<bool>,
}

impl Table {
    /// Makes a table in the directory of a cache, in place of a table that no program uses.
    pub(crate) fn create(cache: &Path, new: &NewTable<'_>) -> io::Result<Self> {
        let slots = (new.files.saturating_mul(2)).max(1 << 12).next_power_of_two();
        let copies = new.copies.min(new.files).saturating_mul(2).max(1 << 10).next_power_of_two();
        let (table_path, marks_path) = (cache.join(TABLE), cache.join(MARKS));
        let (table_new, marks_new) = (cache.join("table.new"), cache.join("marks.new"));
        for path in [&table_new, &marks_new] {
            match std::fs::remove_file(path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        let table = MappedFile::create(&table_new, table_bytes(slots, copies))?;
        let marks = MappedFile::create(&marks_new, marks_bytes(slots))?;
        let header = TableHeader {
            magic: TABLE_MAGIC,
            version: VERSION,
            checks: AtomicU32::new(u32::from(new.checks)),
            key: new.key,
            slots,
            copies,
            copies_device: new.copies_device,
            directory: text(new.directory)?,
            marks: text(&marks_path)?,
            roots: AtomicU64::new(0),
            root: [const { Root::EMPTY }; MAX_ROOTS],
            rights: new.rights.map(AtomicU64::new),
            alive: AtomicU64::new(0),
            asks: AtomicU64::new(0),
        };
        // SAFETY: the file was made here, and nothing has a reference to it.
        unsafe { table.write(0, header) };
        let [renames_begun, renames_ended, seen, checks] = [0; 4].map(AtomicU64::new);
        let header = MarksHeader { magic: MARKS_MAGIC, renames_begun, renames_ended, seen, checks };
        // SAFETY: as above.
        unsafe { marks.write(0, header) };
        let table = Self::of(table, marks);
        for name in new.roots {
            table.add_root(name)?;
        }
        // Programs look for the marks by the name in the table.
        std::fs::rename(marks_new, marks_path)?;
        std::fs::rename(table_new, table_path)?;
        Ok(table)
    }

    /// The table of an earlier host. `None` if there is none of this version.
    pub(crate) fn open(cache: &Path) -> Option<Self> {
        let (table, marks) =
            (MappedFile::open(&cache.join(TABLE)).ok()?, MappedFile::open(&cache.join(MARKS)).ok()?);
        if table.len() < HEADER_BYTES || marks.len() < SMALL_HEADER_BYTES {
            return None;
        }
        // SAFETY: the first bytes are numbers, whatever they are.
        let header = unsafe { &table.slice::<TableHeader>(0, 1)[0] };
        let is_whole = header.is_whole(table.len() as u64) && marks.len() as u64 >= marks_bytes(header.slots);
        is_whole.then(|| Self::of(table, marks))
    }

    fn of(table: MappedFile, marks: MappedFile) -> Self {
        let mut table = Self { table, marks, retired: Vec::new(), published: Vec::new() };
        let copies = table.header().copies as usize;
        (table.retired, table.published) = (vec![None; copies], vec![false; copies]);
        table
    }

    fn header(&self) -> &TableHeader {
        // SAFETY: the file begins with a header, as was checked, and its changing fields are
        // atomic.
        unsafe { &self.table.slice::<TableHeader>(0, 1)[0] }
    }

    fn slots(&self) -> &[FileSlot] {
        // SAFETY: all bits are slots, which are atomic.
        unsafe { self.table.slice(HEADER_BYTES, self.header().slots as usize) }
    }

    fn entries(&self) -> &[CopyEntry] {
        let at = HEADER_BYTES + self.header().slots as usize * size_of::<FileSlot>();
        // SAFETY: all bits are entries, which are atomic.
        unsafe { self.table.slice(at, self.header().copies as usize) }
    }

    fn marks_header(&self) -> &MarksHeader {
        // SAFETY: the file begins with a header, and its changing fields are atomic.
        unsafe { &self.marks.slice::<MarksHeader>(0, 1)[0] }
    }

    fn marks(&self) -> &[Mark] {
        let at = SMALL_HEADER_BYTES + self.header().slots as usize * size_of::<FileCell>();
        // SAFETY: marks are atomic bytes.
        unsafe { self.marks.slice(at, self.header().slots as usize) }
    }

    pub(crate) fn key(&self) -> u64 {
        self.header().key
    }

    /// The names of datasets, with their numbers.
    pub(crate) fn names(&self) -> Vec<(PathBuf, u64)> {
        use std::os::unix::ffi::OsStrExt;
        let count = self.header().roots.load(Ordering::Acquire) as usize;
        let name =
            |root: &Root| (PathBuf::from(std::ffi::OsStr::from_bytes(root.path.bytes())), root.dataset);
        self.header().root[..count.min(MAX_ROOTS)].iter().map(name).collect()
    }

    /// The datasets, with the paths by which the host has found them.
    pub(crate) fn datasets(&self) -> Vec<(PathBuf, u64)> {
        let mut found: Vec<(PathBuf, u64)> = Vec::new();
        for (path, dataset) in self.names() {
            if !found.iter().any(|(_, known)| *known == dataset) {
                found.push((path, dataset));
            }
        }
        found
    }

    /// Adds a name of a dataset. Returns whether the dataset is new.
    pub(crate) fn add_root(&self, name: &RootName) -> io::Result<bool> {
        let names = self.names();
        let is_new = !names.iter().any(|(_, dataset)| *dataset == name.dataset());
        // The name by which the host lists it comes first.
        for path in [&name.target, &name.path] {
            let (names, number) = (self.names(), self.names().len());
            if names.iter().any(|(known, dataset)| known == path && *dataset == name.dataset()) {
                continue;
            }
            if number >= MAX_ROOTS {
                let why = format!("a cache of files has at most {MAX_ROOTS} names of datasets");
                return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
            }
            let at = std::mem::offset_of!(TableHeader, root) + number * size_of::<Root>();
            let root = name.identity.root(path)?;
            // SAFETY: programs and this process look at roots below the number only, which follows.
            unsafe { self.table.write(at, root) };
            self.header().roots.store(number as u64 + 1, Ordering::Release);
        }
        Ok(is_new)
    }

    /// Notes the rights to read of the process that makes copies.
    pub(crate) fn set_rights(&self, rights: Rights) {
        for (to, word) in self.header().rights.iter().zip(rights) {
            to.store(word, Ordering::Release);
        }
    }

    fn files(&self) -> FileCells<'_> {
        // SAFETY: all bits are cells, which are atomic.
        FileCells(unsafe { self.marks.slice::<FileCell>(SMALL_HEADER_BYTES, self.header().slots as usize) })
    }

    /// Has programs note from now on when they change a file by any name.
    pub(crate) fn watch(&self, original: &Identity) -> Watch {
        self.files().watch((original.device, original.inode))
    }

    /// Notes that this process is alive, and whether it makes copies of files that are opened now.
    pub(crate) fn note_alive(&self, asks: bool) {
        let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        let now = time.tv_sec as u64 * 1000 + time.tv_nsec as u64 / 1_000_000;
        self.header().asks.store(u64::from(asks), Ordering::Relaxed);
        self.header().alive.store(now, Ordering::Relaxed);
    }

    /// Whether an open of a file waits for its copy.
    pub(crate) fn wait(&self, place: u32) -> CopyWait {
        SlotValue::decode(self.slots()[place as usize].value.load(Ordering::Relaxed)).wait
    }

    /// Has an open of a file wait for its copy, unless the copy is there.
    pub(crate) fn set_wait(&self, place: u32, wait: CopyWait) {
        let slot = &self.slots()[place as usize].value;
        let value = SlotValue::decode(slot.load(Ordering::Relaxed));
        if !value.is_present {
            slot.store(SlotValue { wait, ..value }.encode(), Ordering::Release);
        }
    }

    /// Whether a program has changed a file by any name.
    pub(crate) fn is_changed(&self, original: &Identity) -> bool {
        self.files().is_changed((original.device, original.inode))
    }

    /// Whether each open compares the original with the copy.
    pub(crate) fn set_checks(&self, checks: bool) {
        self.header().checks.store(u32::from(checks), Ordering::Release);
    }

    pub(crate) fn checks(&self) -> bool {
        let of_programs = self.marks_header().checks.load(Ordering::Acquire);
        self.header().checks.load(Ordering::Acquire) != 0 || of_programs != 0
    }

    /// The copies that an earlier host has published, by the hashes of their files.
    pub(crate) fn earlier(&self) -> HashMap<u64, EarlierCopy> {
        let entries = self.entries();
        let of_slot = |slot: &FileSlot| {
            let value = SlotValue::decode(slot.value.load(Ordering::Acquire));
            let (hash, entry) = (slot.hash.load(Ordering::Acquire), entries.get(value.entry as usize)?);
            let inode = entry.inode.load(Ordering::Relaxed);
            let is_its = entry.hash.load(Ordering::Relaxed) == hash;
            let is_copy = value.is_present || value.is_earlier;
            let identity = entry.identity(inode).filter(|_| is_copy && is_its && hash != 0)?;
            let crc32c = (entry.made.load(Ordering::Relaxed) >> 32) as u32;
            let changed = entry.copy_changed.load(Ordering::Relaxed) as i64;
            Some((hash, EarlierCopy { inode, generation: value.generation, crc32c, changed, identity }))
        };
        self.slots().iter().filter_map(of_slot).collect()
    }

    /// Publishes no copy any more, until each is known to be right. Files stay in their slots, and
    /// entries stay for programs that have copies open.
    pub(crate) fn withdraw_all(&mut self) {
        self.retired.fill(Some(Instant::now()));
        for slot in self.slots() {
            let value = SlotValue::decode(slot.value.load(Ordering::Relaxed));
            let is_earlier = value.is_earlier || value.is_present;
            let now = SlotValue { is_present: false, is_earlier, wait: CopyWait::No, ..value };
            if now != value {
                slot.value.store(now.encode(), Ordering::Release);
            }
        }
    }

    /// Notes a copy of an earlier host, so that the next one knows it if this one ends before it
    /// has looked at it.
    pub(crate) fn remember(&mut self, hash: u64, copy: &EarlierCopy) {
        let Some(place) = self.insert(hash, false) else { return };
        let slot = SlotValue::decode(self.slots()[place as usize].value.load(Ordering::Relaxed));
        if slot.is_earlier || slot.is_present {
            return;
        }
        let Some(entry) = self.free_entry(copy.inode) else { return };
        let made = (copy.generation, copy.crc32c);
        self.entries()[entry].set(copy.inode, hash, made, copy.changed, &copy.identity);
        // Not for other copies.
        (self.published[entry], self.retired[entry]) = (true, None);
        let value = SlotValue { is_earlier: true, generation: copy.generation, entry: entry as u32, ..slot };
        self.slots()[place as usize].value.store(value.encode(), Ordering::Release);
    }

    /// Forgets the copies of earlier hosts that were not published again, except the given ones: by
    /// hash and generation.
    pub(crate) fn forget_earlier(&mut self, stays: impl Fn(u64, u32) -> bool) {
        for place in 0..self.slots().len() as u32 {
            let slot = &self.slots()[place as usize];
            let value = SlotValue::decode(slot.value.load(Ordering::Relaxed));
            if value.is_earlier && !stays(slot.hash.load(Ordering::Relaxed), value.generation) {
                self.withdraw(place);
            }
        }
    }

    /// Forgets the copy of an earlier host, if it is this one.
    pub(crate) fn forget(&mut self, hash: u64, generation: u32) {
        let Some(place) = self.find(hash) else { return };
        let value = SlotValue::decode(self.slots()[place as usize].value.load(Ordering::Relaxed));
        if value.is_earlier && value.generation == generation {
            self.withdraw(place);
        }
    }

    /// The place of a file, which it gets if it has none. `None` if there is no room near its hash.
    pub(crate) fn insert(&self, hash: u64, is_link: bool) -> Option<u32> {
        let slots = self.slots();
        for at in slot_places(hash, slots.len() as u64) {
            let slot = &slots[at];
            match slot.hash.load(Ordering::Relaxed) {
                0 => {
                    let value = SlotValue { is_link, ..SlotValue::decode(0) };
                    slot.value.store(value.encode(), Ordering::Relaxed);
                    slot.hash.store(hash, Ordering::Release);
                    return Some(at as u32);
                }
                found if found == hash => return Some(at as u32),
                _ => {}
            }
        }
        None
    }

    /// The place of a file.
    pub(crate) fn find(&self, hash: u64) -> Option<u32> {
        find_slot(self.slots(), hash).map(|at| at as u32)
    }

    /// The hash of the file at a place.
    pub(crate) fn hash_at(&self, place: u32) -> u64 {
        self.slots()[place as usize].hash.load(Ordering::Relaxed)
    }

    /// Publishes a copy of a file. `false` if there is no entry left for it.
    pub(crate) fn publish(&mut self, place: u32, copy: &EarlierCopy, is_link: bool) -> bool {
        let Some(entry) = self.free_entry(copy.inode) else { return false };
        let hash = self.hash_at(place);
        let made = (copy.generation, copy.crc32c);
        self.entries()[entry].set(copy.inode, hash, made, copy.changed, &copy.identity);
        (self.published[entry], self.retired[entry]) = (true, None);
        let (generation, entry) = (copy.generation, entry as u32);
        let wait = CopyWait::No;
        let value = SlotValue { is_present: true, is_link, is_earlier: false, wait, generation, entry };
        self.slots()[place as usize].value.store(value.encode(), Ordering::Release);
        true
    }

    /// An entry that has no copy, near the place of a copy's number.
    fn free_entry(&self, inode: u64) -> Option<usize> {
        let entries = self.entries();
        let places = || entry_places(inode, entries.len() as u64);
        let of = |at: usize| entries[at].inode.load(Ordering::Relaxed);
        // Two entries of one number would be a contradiction.
        if let Some(same) = places().find(|at| of(*at) == inode) {
            return Some(same);
        }
        let is_free = |at: &usize| {
            let is_old = self.retired[*at].is_none_or(|since| since.elapsed() > RETIRED);
            of(*at) == 0 || !self.published[*at] && is_old
        };
        places().find(is_free)
    }

    /// Publishes a copy no longer. The entry stays for programs that have the copy open.
    pub(crate) fn withdraw(&mut self, place: u32) {
        let entry = self.set_withdrawn(place, false);
        if let Some(entry) = entry {
            self.published[entry] = false;
            self.retired[entry] = Some(Instant::now());
        }
    }

    /// Publishes a copy no longer, until it is known to be that of its path. If this host ends
    /// before, the next one looks at it.
    pub(crate) fn doubt(&mut self, place: u32) {
        self.set_withdrawn(place, true);
    }

    /// Returns the entry of the copy, if there was one.
    fn set_withdrawn(&self, place: u32, is_earlier: bool) -> Option<usize> {
        let FileSlot { hash: slot_hash, value: slot } = &self.slots()[place as usize];
        let value = SlotValue::decode(slot.load(Ordering::Relaxed));
        let is_copy = value.is_present || value.is_earlier;
        let is_earlier = is_earlier && is_copy;
        let now = SlotValue { is_present: false, is_earlier, wait: CopyWait::No, ..value };
        slot.store(now.encode(), Ordering::Release);
        // It may have become the entry of another copy.
        let hash = slot_hash.load(Ordering::Relaxed);
        let is_its = |entry: &CopyEntry| entry.hash.load(Ordering::Relaxed) == hash;
        self.entries().get(value.entry as usize).filter(|entry| is_copy && is_its(entry))?;
        Some(value.entry as usize)
    }

    /// Whether a program has marked a file.
    pub(crate) fn is_marked(&self, place: u32) -> bool {
        self.marks()[place as usize].load(Ordering::Acquire) != 0
    }

    /// Makes programs open the original of a file, which differs from the file that its copy was
    /// made of.
    pub(crate) fn mark(&self, place: u32) {
        self.marks()[place as usize].store(CHANGED, Ordering::Release);
    }

    /// How many renames of directories programs have begun and ended, and how many of them the host
    /// has seen.
    pub(crate) fn renames(&self) -> [u64; 3] {
        let MarksHeader { renames_begun, renames_ended, seen, .. } = self.marks_header();
        // The number of begun renames is read last, so that a rename that begins meanwhile does not
        // count as seen.
        let ended = renames_ended.load(Ordering::Acquire);
        [renames_begun.load(Ordering::Acquire), ended, seen.load(Ordering::Acquire)]
    }

    /// Notes that all copies are of the files that their paths mean, after so many renames.
    pub(crate) fn seen(&self, renamed: u64) {
        self.marks_header().seen.store(renamed, Ordering::Release);
    }
}

/// A path as it is in a mapped file.
pub(crate) fn text(path: &Path) -> io::Result<PathText> {
    use std::os::unix::ffi::OsStrExt;
    let too_long = || {
        let why = format!("{} is too long a path for programs", path.display());
        io::Error::new(io::ErrorKind::InvalidInput, why)
    };
    PathText::new(path.as_os_str().as_bytes()).ok_or_else(too_long)
}

#[cfg(test)]
mod tests {
    use foreread_preload::layout::mixed;

    use super::*;

    fn name(path: &str, target: &str) -> RootName {
        let dataset = target.bytes().fold(1, |hash, byte| mixed(hash, u64::from(byte)));
        let identity = RootIdentity { device: 1, inode: 2, mount: 3, dataset };
        RootName { path: path.into(), target: target.into(), identity }
    }

    fn table(cache: &Path, files: u64) -> Table {
        let roots = [name("/tmp", "/tmp")];
        let new = NewTable {
            checks: true,
            key: 5,
            files,
            copies: files,
            copies_device: 3,
            directory: Path::new("/c"),
            roots: &roots,
            rights: [1, 2, 3, 4],
        };
        Table::create(cache, &new).unwrap()
    }

    fn copy(inode: u64, generation: u32) -> EarlierCopy {
        EarlierCopy {
            inode,
            generation,
            crc32c: 1,
            changed: 5,
            identity: Identity { inode, ..Identity::default() },
        }
    }

    #[test]
    fn copies_are_published_withdrawn_and_found_by_the_next_host() {
        let cache = tempfile::tempdir().unwrap();
        let mut first = table(cache.path(), 1000);
        for hash in 1..=1000_u64 {
            let hash = hash.wrapping_mul(0x9e37_79b9_7f4a_7c15);
            let place = first.insert(hash, false).unwrap();
            assert_eq!(first.insert(hash, false), Some(place));
            assert!(first.publish(place, &copy(hash % 100_000, 9), false));
        }
        let hash = 7_u64.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let place = first.insert(hash, false).unwrap();
        first.withdraw(place);
        let mut next = Table::open(cache.path()).unwrap();
        let earlier = next.earlier();
        assert_eq!((earlier.len(), earlier.contains_key(&hash), next.datasets().len()), (999, false, 1));
        next.withdraw_all();
        assert_eq!(next.earlier().len(), 999);
        next.forget_earlier(|_, _| false);
        assert!(next.earlier().is_empty() && next.insert(hash, false) == Some(place));
    }

    #[test]
    fn roots_are_added_once_and_bounded() {
        let cache = tempfile::tempdir().unwrap();
        let table = table(cache.path(), 10);
        assert!(!table.add_root(&name("/tmp", "/tmp")).unwrap());
        // Another name of a dataset has its number.
        assert!(!table.add_root(&name("/link", "/tmp")).unwrap());
        assert!(table.add_root(&name("/other", "/usr")).unwrap());
        assert!(!table.add_root(&name("/usr", "/usr")).unwrap());
        // In another container, a path may lead to another directory.
        let other = RootName { path: "/tmp".into(), target: "/tmp".into(), ..name("/", "/var") };
        assert!(table.add_root(&other).unwrap());
        let id = |target| name("/", target).dataset();
        let names =
            [("/tmp", "/tmp"), ("/link", "/tmp"), ("/usr", "/usr"), ("/other", "/usr"), ("/tmp", "/var")];
        assert_eq!(table.names(), names.map(|(path, of)| (PathBuf::from(path), id(of))));
        let datasets = [("/tmp", "/tmp"), ("/usr", "/usr"), ("/tmp", "/var")];
        assert_eq!(table.datasets(), datasets.map(|(path, of)| (PathBuf::from(path), id(of))));
        for number in 5..MAX_ROOTS {
            table.add_root(&name(&format!("/{number}"), "/tmp")).unwrap();
        }
        assert!(table.add_root(&name("/one-more", "/tmp")).is_err());
    }

    #[test]
    // semantics: FILES-6
    fn file_that_a_program_has_changed_is_not_watched_again() {
        let cache = tempfile::tempdir().unwrap();
        let table = table(cache.path(), 10);
        let [one, other] = [7, 8].map(|inode| Identity { device: 1, inode, ..Identity::default() });
        assert!(table.watch(&one) == Watch::Noted && !table.is_changed(&one) && table.is_changed(&other));
        table.files().change((1, 7), false);
        assert!(table.watch(&one) == Watch::Changed && table.is_changed(&one));
        let again = Table::open(cache.path()).unwrap();
        assert!(again.is_changed(&one) && again.watch(&other) == Watch::Noted);
    }

    #[test]
    fn damaged_tables_are_none() {
        let cache = tempfile::tempdir().unwrap();
        assert!(Table::open(cache.path()).is_none());
        drop(table(cache.path(), 10));
        let path = cache.path().join(TABLE);
        let whole = std::fs::read(&path).unwrap();
        std::fs::write(&path, &whole[..whole.len() - 1]).unwrap();
        assert!(Table::open(cache.path()).is_none());
        std::fs::write(&path, &whole[..100]).unwrap();
        assert!(Table::open(cache.path()).is_none());
    }
}
