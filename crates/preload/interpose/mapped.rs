//! The mapped files: the table, the marks and the trace. They are mapped before the program begins,
//! and stay mapped over forks.

use core::ffi::{CStr, c_char, c_int};
use core::slice;
use core::sync::atomic::{AtomicPtr, Ordering};

use crate::identity::FileStat;
use crate::layout::{
    CopyEntry, FileCell, FileCells, FileSlot, HEADER_BYTES, Identity, MARKS_MAGIC, MAX_PATH, Mark,
    MarksHeader, OpenKind, OpenRecord, PathText, RECORDS, Rights, Root, SMALL_HEADER_BYTES, TRACE_BYTES,
    TRACE_HEADER_BYTES, TRACE_MAGIC, TableHeader, TraceHeader, entry_places, find_slot, marks_bytes,
};
use crate::{next, rights, system};

/// The environment variable that names the trace, with the text after the name.
pub(crate) const VARIABLE: &[u8] = b"FOREREAD_RUN_TRACE=";

static TABLE: AtomicPtr<TableHeader> = AtomicPtr::new(core::ptr::null_mut());
static MARKS: AtomicPtr<MarksHeader> = AtomicPtr::new(core::ptr::null_mut());
static TRACE: AtomicPtr<TraceHeader> = AtomicPtr::new(core::ptr::null_mut());

unsafe extern "C" {
    pub(crate) static environ: *const *const c_char;
}

/// Runs before `main`.
#[used]
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn() = start;

extern "C" fn start() {
    next::find_all();
    #[cfg(target_arch = "x86_64")]
    crate::raw_calls::find();
    // A program without the files runs as if the library were not there.
    let _ = map_all();
}

fn map_all() -> Option<()> {
    let path = variable()?;
    let trace: *mut TraceHeader = map_file(path, TRACE_BYTES as usize, TRACE_BYTES as usize, true)?.0;
    // SAFETY: the file is as long as a trace, and stays mapped.
    let trace = unsafe { &*trace };
    if trace.magic != TRACE_MAGIC {
        return None;
    }
    let mut space = [0_u8; MAX_PATH + 1];
    let table_path = text(&trace.table, &mut space)?;
    let (table, length) = map_file::<TableHeader>(table_path, HEADER_BYTES, usize::MAX, false)?;
    // SAFETY: the file is as long as the header, and stays mapped.
    let header = unsafe { &*table };
    if !header.is_whole(length as u64) {
        return None;
    }
    let marks_path = text(&header.marks, &mut space)?;
    let bytes = marks_bytes(header.slots) as usize;
    let (marks, _) = map_file::<MarksHeader>(marks_path, bytes, bytes, true)?;
    // SAFETY: the file is as long as the header, and stays mapped.
    if unsafe { (*marks).magic } != MARKS_MAGIC {
        return None;
    }
    MARKS.store(marks, Ordering::Relaxed);
    TRACE.store(core::ptr::from_ref(trace).cast_mut(), Ordering::Relaxed);
    TABLE.store(table, Ordering::Release);
    rights::look(Mapped::get()?);
    Some(())
}

/// The path of the trace, from the environment.
fn variable() -> Option<&'static CStr> {
    // SAFETY: libc has set it before any library starts, and its strings stay.
    unsafe { find_variable(environ, VARIABLE) }
}

/// The value of a variable, by its name and `=`.
///
/// # Safety
/// Null, or an environment: C strings with a null pointer at the end.
pub(crate) unsafe fn find_variable(mut at: *const *const c_char, name: &[u8]) -> Option<&'static CStr> {
    if at.is_null() {
        return None;
    }
    loop {
        // SAFETY: not beyond the null pointer.
        let entry = unsafe { *at };
        if entry.is_null() {
            return None;
        }
        // SAFETY: the strings of the environment are C strings.
        let entry = unsafe { CStr::from_ptr(entry) };
        if let Some(path) = entry.to_bytes_with_nul().strip_prefix(name) {
            return CStr::from_bytes_with_nul(path).ok();
        }
        // SAFETY: the null pointer was not reached.
        at = unsafe { at.add(1) };
    }
}

/// A path of a mapped file as a C string.
fn text<'a>(path: &PathText, space: &'a mut [u8; MAX_PATH + 1]) -> Option<&'a CStr> {
    let bytes = path.bytes();
    let end = space.get_mut(bytes.len())?;
    *end = 0;
    space.get_mut(..bytes.len())?.copy_from_slice(bytes);
    CStr::from_bytes_with_nul(space.get(..=bytes.len())?).ok()
}

/// Maps a file that has at least `least` bytes: at most `most` of them. Also returns how many.
fn map_file<T>(path: &CStr, least: usize, most: usize, is_writable: bool) -> Option<(*mut T, usize)> {
    let access = if is_writable { 2 } else { 0 };
    // SAFETY: a C string.
    let opened = unsafe { system::openat(system::AT_FDCWD, path.as_ptr(), access | system::O_CLOEXEC, 0) };
    let descriptor = c_int::try_from(opened).ok().filter(|descriptor| *descriptor >= 0)?;
    // SAFETY: an empty path is a C string.
    let found = unsafe { FileStat::of(descriptor, c"".as_ptr(), system::AT_EMPTY_PATH) };
    let length = found.map(|found| found.size as usize).filter(|length| *length >= least);
    let length = length.map(|length| length.min(most));
    let place = length.and_then(|length| system::map(descriptor, length, is_writable));
    system::close(descriptor);
    Some((place?.cast(), length?))
}

/// The mapped files of this process.
#[derive(Clone, Copy)]
pub(crate) struct Mapped {
    table: &'static TableHeader,
    marks: &'static MarksHeader,
    trace: &'static TraceHeader,
}

impl Mapped {
    /// `None` in a program without them.
    pub(crate) fn get() -> Option<Self> {
        let table = TABLE.load(Ordering::Acquire);
        if table.is_null() {
            return None;
        }
        let (marks, trace) = (MARKS.load(Ordering::Relaxed), TRACE.load(Ordering::Relaxed));
        // SAFETY: they were mapped and checked before the table was stored, and stay mapped. All
        // fields that change are atomic.
        unsafe { Some(Self { table: &*table, marks: &*marks, trace: &*trace }) }
    }

    /// The datasets of all runs.
    pub(crate) fn roots(&self) -> &'static [Root] {
        self.table.root.get(..self.table.roots.load(Ordering::Acquire) as usize).unwrap_or_default()
    }

    /// The datasets of this program's run.
    pub(crate) fn own_roots(&self) -> &'static [Root] {
        self.trace.root.get(..self.trace.roots as usize).unwrap_or_default()
    }

    /// The rights of the process that makes copies.
    pub(crate) fn rights(&self) -> Rights {
        [0, 1, 2, 3].map(|at: usize| self.table.rights[at].load(Ordering::Relaxed))
    }

    /// Whether the run can gain no rights.
    pub(crate) fn is_restricted(&self) -> bool {
        self.trace.is_restricted != 0
    }

    /// Calls a function with the path of a dataset, as a C string.
    pub(crate) fn with_path<T>(root: &Root, each: impl FnOnce(*const c_char) -> T) -> Option<T> {
        let mut space = [0_u8; MAX_PATH + 1];
        text(&root.path, &mut space).map(|path| each(path.as_ptr()))
    }

    pub(crate) fn key(&self) -> u64 {
        self.table.key
    }

    /// Whether each open compares the original.
    pub(crate) fn checks(&self) -> bool {
        self.table.checks.load(Ordering::Relaxed) != 0
            || self.marks.checks.load(Ordering::Relaxed) != 0
            || self.trace.checks.load(Ordering::Relaxed) != 0
    }

    /// The directory of copies.
    pub(crate) fn directory(&self) -> &'static [u8] {
        self.table.directory.bytes()
    }

    /// The device of copies.
    pub(crate) fn copies_device(&self) -> u64 {
        self.table.copies_device
    }

    fn slots(&self) -> &'static [FileSlot] {
        let first = core::ptr::from_ref(self.table).cast::<u8>();
        // SAFETY: the file has all slots after the header, as was checked when it was mapped.
        unsafe { slice::from_raw_parts(first.add(HEADER_BYTES).cast(), self.table.slots as usize) }
    }

    fn entries(&self) -> &'static [CopyEntry] {
        let first = core::ptr::from_ref(self.table).cast::<u8>();
        let at = HEADER_BYTES + self.table.slots as usize * size_of::<FileSlot>();
        // SAFETY: the file has all entries after the slots, as was checked when it was mapped.
        unsafe { slice::from_raw_parts(first.add(at).cast(), self.table.copies as usize) }
    }

    fn all_marks(&self) -> &'static [Mark] {
        let first = core::ptr::from_ref(self.marks).cast::<u8>();
        let at = SMALL_HEADER_BYTES + self.table.slots as usize * size_of::<FileCell>();
        // SAFETY: the file has a mark for each slot, as was checked when it was mapped.
        unsafe { slice::from_raw_parts(first.add(at).cast(), self.table.slots as usize) }
    }

    /// Which files programs have changed.
    pub(crate) fn files(&self) -> FileCells<'static> {
        let first = core::ptr::from_ref(self.marks).cast::<u8>();
        // SAFETY: the file has a cell for each slot, as was checked when it was mapped.
        let cells =
            unsafe { slice::from_raw_parts(first.add(SMALL_HEADER_BYTES).cast(), self.table.slots as usize) };
        FileCells(cells)
    }

    /// The place of a file in the table, and the table's entry for it.
    pub(crate) fn find(&self, hash: u64) -> Option<(usize, u64)> {
        let at = find_slot(self.slots(), hash)?;
        Some((at, self.slots().get(at)?.value.load(Ordering::Acquire)))
    }

    /// The identity of the original of a copy, by the entry's place.
    pub(crate) fn original_at(&self, place: u32, hash: u64, generation: u32) -> Option<(u64, Identity)> {
        self.entries().get(place as usize)?.original(hash, generation)
    }

    /// The identity of the original of a copy, by the copy's number in its file system.
    pub(crate) fn original_of(&self, inode: u64) -> Option<Identity> {
        let entries = self.entries();
        entry_places(inode, self.table.copies).find_map(|at| entries.get(at)?.identity(inode))
    }

    pub(crate) fn is_marked(&self, place: usize) -> bool {
        self.all_marks().get(place).is_none_or(|mark| mark.load(Ordering::Acquire) != 0)
    }

    /// Has the original of a file opened from now on.
    pub(crate) fn mark(&self, place: usize) {
        if let Some(mark) = self.all_marks().get(place) {
            mark.store(1, Ordering::Release);
        }
    }

    /// Has each open compare the original from now on, in all programs of the cache.
    pub(crate) fn check_from_now_on(&self) {
        self.marks.checks.store(1, Ordering::Release);
    }

    /// When the copying process was last seen alive, in milliseconds of the monotonic clock.
    pub(crate) fn alive(&self) -> u64 {
        self.table.alive.load(Ordering::Relaxed)
    }

    /// Whether the copying process makes copies of files that are opened now.
    pub(crate) fn asks(&self) -> bool {
        self.table.asks.load(Ordering::Relaxed) != 0
    }

    /// Whether a copying process reads the records of this run.
    pub(crate) fn is_heard(&self) -> bool {
        self.trace.unheard.load(Ordering::Relaxed) == 0
    }

    /// Whether a directory was renamed that the copying process has not seen yet.
    pub(crate) fn is_renamed(&self) -> bool {
        self.marks.is_renamed()
    }

    /// Has originals opened until the copying process has seen that a directory was renamed.
    pub(crate) fn rename_begins(&self) {
        self.marks.renames_begun.fetch_add(1, Ordering::AcqRel);
    }

    /// The rename is over.
    pub(crate) fn rename_ends(&self) {
        self.marks.renames_ended.fetch_add(1, Ordering::AcqRel);
    }

    /// Notes the start of a program that does not load this library.
    pub(crate) fn starts_unserved(&self, path: &[u8]) {
        self.trace.starts_unserved(path);
    }

    /// Counts the bytes of a file whose copy a program gets.
    pub(crate) fn count_bytes(&self, bytes: u64) {
        self.trace.served_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Leaves a record of an open.
    pub(crate) fn record(&self, hash: u64, kind: OpenKind) {
        let first = core::ptr::from_ref(self.trace).cast::<u8>();
        // SAFETY: the file has all records after the header, as was checked when it was mapped.
        let records: &[OpenRecord] =
            unsafe { slice::from_raw_parts(first.add(TRACE_HEADER_BYTES).cast(), RECORDS as usize) };
        self.trace.record(records, hash, kind);
    }
}
