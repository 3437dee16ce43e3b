//! Whether a program gets a copy or the original.

use core::ffi::{c_char, c_int};
use core::sync::atomic::{AtomicBool, Ordering};

use crate::identity::FileStat;
use crate::layout::{Identity, MAX_PATH, NAME_BYTES, OpenKind, Root, SlotValue, copy_name, open_flags};
use crate::mapped::Mapped;
use crate::paths::Purpose;
use crate::{paths, rights, system, waiting};

/// The path of a copy, as a C string.
pub(crate) struct CopyPath([u8; MAX_PATH + NAME_BYTES + 1]);

impl CopyPath {
    fn new(directory: &[u8], name: &[u8]) -> Option<Self> {
        let mut path = [0_u8; MAX_PATH + NAME_BYTES + 1];
        path.get_mut(..directory.len())?.copy_from_slice(directory);
        *path.get_mut(directory.len())? = b'/';
        path.get_mut(directory.len() + 1..directory.len() + 1 + name.len())?.copy_from_slice(name);
        Some(Self(path))
    }

    pub(crate) fn as_ptr(&self) -> *const c_char {
        self.0.as_ptr().cast()
    }
}

/// A copy that may be opened in place of a file.
pub(crate) struct Copy {
    mapped: Mapped,
    hash: u64,
    bytes: u64,
    /// The number of the copy in its file system.
    inode: u64,
    pub(crate) path: CopyPath,
}

impl Copy {
    /// Whether an open file is the copy: its path may mean another one for this process.
    pub(crate) fn is_open(&self, descriptor: c_int) -> bool {
        // SAFETY: an empty path is a C string.
        let found = unsafe { FileStat::of(descriptor, c"".as_ptr(), system::AT_EMPTY_PATH) };
        self.is_found(found)
    }

    /// Whether its path leads to the copy.
    pub(crate) fn is_there(&self) -> bool {
        // SAFETY: the path is a C string.
        let found = unsafe { FileStat::of(system::AT_FDCWD, self.path.as_ptr(), 0) };
        self.is_found(found)
    }

    fn is_found(&self, found: Option<FileStat>) -> bool {
        found.is_some_and(|found| (found.device, found.inode) == (self.mapped.copies_device(), self.inode))
    }

    /// Records that the program has the copy.
    pub(crate) fn opened(&self) {
        self.mapped.count_bytes(self.bytes);
        self.mapped.record(self.hash, OpenKind::Served);
    }

    /// Records that the copy could not be opened, by the kernel's result.
    pub(crate) fn failed(&self, result: isize) {
        let is_gone = matches!(-result as i32, system::ENOENT | system::EIO | system::ESTALE);
        self.mapped.record(self.hash, if is_gone { OpenKind::Failed } else { OpenKind::Refused });
    }
}

/// Whether this process has another root, in which no path has its former meaning.
static HAS_OTHER_ROOT: AtomicBool = AtomicBool::new(false);

/// Notes that this process has another root. Its changes are not seen any more, so all programs
/// compare originals from now on.
pub(crate) fn root_changes() {
    HAS_OTHER_ROOT.store(true, Ordering::Release);
    if let Some(mapped) = Mapped::get() {
        mapped.check_from_now_on();
    }
}

/// The copy for an open that only reads. `None`: the original is to be opened.
///
/// # Safety
/// `path` is a C string.
pub(crate) unsafe fn copy(directory: c_int, path: *const c_char, flags: c_int) -> Option<Copy> {
    let mapped = Mapped::get().filter(|_| !HAS_OTHER_ROOT.load(Ordering::Acquire))?;
    // SAFETY: as for this function.
    let (root, hash) = unsafe { paths::hash(mapped, directory, path, Purpose::Read) }?;
    // SAFETY: as for this function.
    let decide = || unsafe { decide(mapped, (root, hash), (directory, path), flags) };
    let mut decided = decide();
    if matches!(decided, Err(OpenKind::Absent)) && may_come(mapped, (root, hash), flags) {
        mapped.record(hash, OpenKind::Asked);
        if waiting::for_copy(mapped, hash) {
            decided = decide();
        }
    }
    match decided {
        Ok(copy) => Some(copy),
        Err(kind) => {
            mapped.record(hash, kind);
            None
        }
    }
}

/// Whether a copy of a file may come that this program would get.
fn may_come(mapped: Mapped, (root, hash): (&Root, u64), flags: c_int) -> bool {
    let Some((_, value)) = mapped.find(hash) else { return false };
    let value = SlotValue::decode(value);
    let is_followed = !value.is_link || flags & open_flags::NO_FOLLOW == 0;
    is_followed
        && waiting::may_come(mapped, value)
        && !mapped.is_renamed()
        && rights::may_have_copies()
        && rights::are_those_of_host(mapped)
        && rights::has_root(root)
}

/// # Safety
/// The path is a C string.
unsafe fn decide(
    mapped: Mapped,
    (root, hash): (&Root, u64),
    (directory, path): (c_int, *const c_char),
    flags: c_int,
) -> Result<Copy, OpenKind> {
    let (place, value) = mapped.find(hash).ok_or(OpenKind::Unknown)?;
    let value = SlotValue::decode(value);
    if mapped.is_marked(place) {
        return Err(OpenKind::Changed);
    }
    if !value.is_present {
        return Err(OpenKind::Absent);
    }
    if mapped.is_renamed() {
        return Err(OpenKind::Renamed);
    }
    if value.is_link && flags & open_flags::NO_FOLLOW != 0 {
        return Err(OpenKind::Link);
    }
    // It is being replaced at this moment.
    let found = mapped.original_at(value.entry, hash, value.generation).ok_or(OpenKind::Absent)?;
    let (inode, original) = found;
    if mapped.files().is_changed((original.device, original.inode)) {
        return Err(OpenKind::Changed);
    }
    if !rights::may_have_copies() {
        return Err(OpenKind::Refused);
    }
    // A link may lead to another one, whose change has no mark.
    if mapped.checks() || value.is_link || !rights::are_those_of_host(mapped) || !rights::has_root(root) {
        // SAFETY: as for this function.
        unsafe { compare(mapped, root, (directory, path), place, &original) }?;
    }
    let path = CopyPath::new(mapped.directory(), &copy_name(hash, value.generation));
    let path = path.ok_or(OpenKind::Failed)?;
    Ok(Copy { mapped, hash, bytes: original.size, inode, path })
}

/// Compares the file that a path means for this process with the original of a copy.
///
/// # Safety
/// The path is a C string.
unsafe fn compare(
    mapped: Mapped,
    root: &Root,
    (directory, path): (c_int, *const c_char),
    place: usize,
    original: &Identity,
) -> Result<(), OpenKind> {
    // SAFETY: as for this function.
    let found = unsafe { FileStat::look(directory, path, 0) };
    // Other failures, such as a missing right, are those of this process alone.
    let is_changed = match &found {
        Ok(found) => !found.identity().has_content_of(original),
        Err(error) => matches!(*error, system::ENOENT | system::ENOTDIR),
    };
    if is_changed {
        // In another namespace, it says nothing about the original.
        if root.mount != 0 && !rights::has_root(root) {
            return Err(OpenKind::Elsewhere);
        }
        mapped.mark(place);
        return Err(OpenKind::Changed);
    }
    let Ok(found) = found else { return Err(OpenKind::Refused) };
    // SAFETY: as for this function.
    let may_read = unsafe { rights::may_read(found.mode, directory, path) };
    if may_read { Ok(()) } else { Err(OpenKind::Refused) }
}

/// Notes that a program changes the meaning of a path, or with `follows` the file that it leads to.
/// Before it happens.
///
/// # Safety
/// `path` is a C string.
pub(crate) unsafe fn change(directory: c_int, path: *const c_char, follows: bool) {
    let Some(mapped) = Mapped::get().filter(|_| !path.is_null()) else { return };
    // SAFETY: as for this function.
    unsafe {
        change_name(mapped, directory, path, follows);
        // Other names of the file, such as links to it, mean another content, too.
        let found = FileStat::of(directory, path, 0);
        if let Some(found) = found.filter(FileStat::is_file) {
            // A file without a cell has no copy. After the change it may be copied.
            change_file(mapped, &found, false);
        }
    }
}

/// Notes once more that a file has changed, after it has happened: a copy may have been begun since
/// [`may_change`].
///
/// # Safety
/// `path` is a C string or null.
pub(crate) unsafe fn has_changed(directory: c_int, path: *const c_char, follows: bool) {
    let Some(mapped) = Mapped::get().filter(|_| !path.is_null()) else { return };
    let flags = if follows { 0 } else { system::AT_SYMLINK_NOFOLLOW };
    // SAFETY: as for this function.
    let found = unsafe { FileStat::of(directory, path, flags) };
    if let Some(found) = found.filter(FileStat::is_file) {
        change_file(mapped, &found, false);
    }
}

/// Notes the file that a program has opened to write. It may have been made by that open, so its
/// path had no file before. An error, which is negative, has none.
pub(crate) fn changed_descriptor(opened: c_int) {
    let Some(mapped) = Mapped::get().filter(|_| opened >= 0) else { return };
    // SAFETY: an empty path is a C string.
    let found = unsafe { FileStat::of(opened, c"".as_ptr(), system::AT_EMPTY_PATH) };
    if let Some(found) = found.filter(FileStat::is_file) {
        change_file(mapped, &found, true);
    }
}

/// Notes that a file changes. With `is_written`, it may change further.
fn change_file(mapped: Mapped, found: &FileStat, is_written: bool) {
    // A file that has no copy yet is not copied from now on.
    let is_added = is_written && mapped.roots().iter().any(|root| root.device == found.device);
    if !mapped.files().change((found.device, found.inode), is_added) {
        mapped.check_from_now_on();
    }
}

/// # Safety
/// `path` is a C string.
unsafe fn change_name(mapped: Mapped, directory: c_int, path: *const c_char, follows: bool) {
    // SAFETY: as for this function.
    let hash = unsafe { paths::hash(mapped, directory, path, Purpose::Change) };
    let is_plain = hash.is_some_and(|(_, hash)| mark(mapped, hash));
    if !is_plain {
        // Through a link or `..`, it may be a file of a dataset all the same.
        // SAFETY: as for this function.
        let real = unsafe { paths::real_hash(mapped, directory, path, !follows) };
        if let Some((_, real)) = real.filter(|(_, real)| hash.is_none_or(|(_, hash)| hash != *real)) {
            mark(mapped, real);
        }
    }
}

/// Marks a file. Whether it is in the table, and no link.
fn mark(mapped: Mapped, hash: u64) -> bool {
    let Some((place, value)) = mapped.find(hash) else { return false };
    mapped.mark(place);
    mapped.record(hash, OpenKind::Writing);
    !SlotValue::decode(value).is_link
}

/// A rename under way of a directory, or of a link to one.
pub(crate) struct Rename(Option<Mapped>);

impl Rename {
    /// Notes that a program renames or removes a name: of a file, or of a directory with all files
    /// in it.
    ///
    /// # Safety
    /// `path` is a C string.
    pub(crate) unsafe fn begin(directory: c_int, path: *const c_char) -> Self {
        let Some(mapped) = Mapped::get().filter(|_| !path.is_null()) else { return Self(None) };
        // SAFETY: as for this function.
        unsafe { change(directory, path, false) };
        // SAFETY: as for this function.
        let found = unsafe { FileStat::of(directory, path, system::AT_SYMLINK_NOFOLLOW) };
        let may_lead = found.is_some_and(|found| found.is_directory() || found.is_link());
        // SAFETY: as for this function.
        if !may_lead || !unsafe { paths::concerns_files(mapped, directory, path) } {
            return Self(None);
        }
        mapped.rename_begins();
        Self(Some(mapped))
    }

    /// The call has returned.
    pub(crate) fn end(self) {
        if let Self(Some(mapped)) = self {
            mapped.rename_ends();
        }
    }
}

/// Notes that a program writes to the file that a path leads to. Before it happens. `false` if the
/// path leads to a copy, by the name of an open descriptor: a copy must not be changed.
///
/// # Safety
/// `path` is a C string.
pub(crate) unsafe fn may_change(directory: c_int, path: *const c_char, follows: bool) -> bool {
    // SAFETY: as for this function.
    unsafe {
        if is_copy(directory, path, 0) {
            return false;
        }
        change(directory, path, follows);
    }
    true
}

/// Whether a path, or with `AT_EMPTY_PATH` a descriptor, is that of a copy.
///
/// # Safety
/// `path` is a C string.
pub(crate) unsafe fn is_copy(directory: c_int, path: *const c_char, flags: c_int) -> bool {
    let Some(mapped) = Mapped::get().filter(|_| !path.is_null()) else { return false };
    // SAFETY: as for this function.
    let found = unsafe { FileStat::of(directory, path, flags) };
    found.is_some_and(|found| found.device == mapped.copies_device() && found.is_copy())
}
