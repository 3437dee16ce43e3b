//! Calls that change which file a path means, or the content of the file. The table must not answer
//! for such a path again, so it is marked before the call. If the call fails, the file is not
//! served either.

use core::ffi::{c_char, c_int, c_long, c_uint};

use crate::decision::{self, Rename, change};
use crate::next::{self, Next};
use crate::opens::stand_in;
use crate::paths::directory_changed;
use crate::system::{self, AT_FDCWD};

/// A path, with the directory that it begins at.
type At = (c_int, *const c_char);

stand_in! {
    /// `rename`.
    rename(from: *const c_char, to: *const c_char) -> c_int = {
        during((AT_FDCWD, from), Some((AT_FDCWD, to)), || match next::RENAME.get::<Paths>() {
            Some(rename) => rename(from, to),
            None => system::returned(system::rename((AT_FDCWD, from), (AT_FDCWD, to), 0)),
        })
    };
    /// `renameat`.
    renameat(at: c_int, from: *const c_char, to_at: c_int, to: *const c_char) -> c_int = {
        type RenameAt = unsafe extern "C" fn(c_int, *const c_char, c_int, *const c_char) -> c_int;
        during((at, from), Some((to_at, to)), || match next::RENAMEAT.get::<RenameAt>() {
            Some(renameat) => renameat(at, from, to_at, to),
            None => system::returned(system::rename((at, from), (to_at, to), 0)),
        })
    };
    /// `renameat2`.
    renameat2(at: c_int, from: *const c_char, to_at: c_int, to: *const c_char, flags: c_uint) -> c_int = {
        type RenameAt2 =
            unsafe extern "C" fn(c_int, *const c_char, c_int, *const c_char, c_uint) -> c_int;
        during((at, from), Some((to_at, to)), || match next::RENAMEAT2.get::<RenameAt2>() {
            Some(renameat2) => renameat2(at, from, to_at, to, flags),
            None => system::returned(system::rename((at, from), (to_at, to), flags)),
        })
    };
    /// `unlink`.
    unlink(path: *const c_char) -> c_int = {
        during((AT_FDCWD, path), None, || match next::UNLINK.get::<OnePath>() {
            Some(unlink) => unlink(path),
            None => system::returned(system::unlink(AT_FDCWD, path, 0)),
        })
    };
    /// `unlinkat`.
    unlinkat(at: c_int, path: *const c_char, flags: c_int) -> c_int = {
        during((at, path), None, || match next::UNLINKAT.get::<UnlinkAt>() {
            Some(unlinkat) => unlinkat(at, path, flags),
            None => system::returned(system::unlink(at, path, flags)),
        })
    };
    /// `remove`.
    remove(path: *const c_char) -> c_int = {
        during((AT_FDCWD, path), None, || match next::REMOVE.get::<OnePath>() {
            Some(remove) => remove(path),
            None => removed(path),
        })
    };
    /// `truncate`.
    truncate(path: *const c_char, length: c_long) -> c_int = truncate_by(&next::TRUNCATE, path, length);
    /// Its name for long files.
    truncate64(path: *const c_char, length: c_long) -> c_int = truncate_by(&next::TRUNCATE64, path, length);
    /// `link`.
    link(from: *const c_char, to: *const c_char) -> c_int = {
        // A file with another name can be changed by it.
        change(AT_FDCWD, from, false);
        change(AT_FDCWD, to, false);
        match next::LINK.get::<Paths>() {
            Some(link) => link(from, to),
            None => system::returned(system::link((AT_FDCWD, from), (AT_FDCWD, to), 0)),
        }
    };
    /// `linkat`.
    linkat(at: c_int, from: *const c_char, to_at: c_int, to: *const c_char, flags: c_int) -> c_int = {
        if decision::is_copy(at, from, flags & system::AT_EMPTY_PATH) {
            return system::returned(-(system::EACCES as isize));
        }
        change(at, from, flags & system::AT_SYMLINK_FOLLOW != 0);
        change(to_at, to, false);
        type LinkAt = unsafe extern "C" fn(c_int, *const c_char, c_int, *const c_char, c_int) -> c_int;
        match next::LINKAT.get::<LinkAt>() {
            Some(linkat) => linkat(at, from, to_at, to, flags),
            None => system::returned(system::link((at, from), (to_at, to), flags)),
        }
    };
    /// `symlink`.
    symlink(target: *const c_char, path: *const c_char) -> c_int = {
        change(AT_FDCWD, path, false);
        match next::SYMLINK.get::<Paths>() {
            Some(symlink) => symlink(target, path),
            None => system::returned(system::symlink(target, (AT_FDCWD, path))),
        }
    };
    /// `symlinkat`.
    symlinkat(target: *const c_char, at: c_int, path: *const c_char) -> c_int = {
        change(at, path, false);
        match next::SYMLINKAT.get::<unsafe extern "C" fn(*const c_char, c_int, *const c_char) -> c_int>() {
            Some(symlinkat) => symlinkat(target, at, path),
            None => system::returned(system::symlink(target, (at, path))),
        }
    };
}

stand_in! {
    /// `chdir`.
    chdir(path: *const c_char) -> c_int = {
        let result = match next::CHDIR.get::<unsafe extern "C" fn(*const c_char) -> c_int>() {
            Some(chdir) => chdir(path),
            None => system::returned(system::chdir(path)),
        };
        directory_changed();
        result
    };
    /// `fchdir`.
    fchdir(descriptor: c_int) -> c_int = {
        let result = match next::FCHDIR.get::<unsafe extern "C" fn(c_int) -> c_int>() {
            Some(fchdir) => fchdir(descriptor),
            None => system::returned(system::fchdir(descriptor)),
        };
        directory_changed();
        result
    };
}

/// `unlink` and `remove`.
pub(crate) type OnePath = unsafe extern "C" fn(*const c_char) -> c_int;
type UnlinkAt = unsafe extern "C" fn(c_int, *const c_char, c_int) -> c_int;
type Paths = unsafe extern "C" fn(*const c_char, *const c_char) -> c_int;

/// Notes that names change, and carries the change out.
///
/// # Safety
/// The paths are C strings.
unsafe fn during(from: At, to: Option<At>, change: impl FnOnce() -> c_int) -> c_int {
    // SAFETY: C strings. The target is one too: an exchange renames both.
    let (from, to) = unsafe { (Rename::begin(from.0, from.1), to.map(|to| Rename::begin(to.0, to.1))) };
    let result = change();
    from.end();
    to.into_iter().for_each(Rename::end);
    result
}

/// # Safety
/// `path` is a C string.
unsafe fn removed(path: *const c_char) -> c_int {
    // SAFETY: a C string.
    unsafe {
        let result = system::unlink(AT_FDCWD, path, 0);
        /// The path is a directory.
        const EISDIR: isize = -21;
        match result {
            EISDIR => system::returned(system::unlink(AT_FDCWD, path, system::AT_REMOVEDIR)),
            _ => system::returned(result),
        }
    }
}

/// # Safety
/// `path` is a C string, and `next` is a function like `truncate`.
unsafe fn truncate_by(next: &Next, path: *const c_char, length: c_long) -> c_int {
    // SAFETY: the caller's proof, for both.
    unsafe {
        if !decision::may_change(AT_FDCWD, path, true) {
            return system::returned(-(system::EACCES as isize));
        }
        let result = match next.get::<unsafe extern "C" fn(*const c_char, c_long) -> c_int>() {
            Some(truncate) => truncate(path, length),
            None => system::returned(system::truncate(path, length)),
        };
        system::keeping_error(|| decision::has_changed(AT_FDCWD, path, true));
        result
    }
}
