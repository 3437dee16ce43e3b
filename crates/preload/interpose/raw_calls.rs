//! `syscall` of libc, by which some programs look at descriptors (Node.js), change files, or
//! restrict themselves.
//!
//! Calls that only read go to the kernel: such opens get originals. Changes are noted, as those by
//! the functions of libc.
//!
//! Decision: no frame, and a jump to libc for all other calls. So a call that returns twice, such
//! as `clone`, returns to the program as it does without this library. The price is a few lines for
//! each processor, and they exist for x86-64 only.

use core::arch::naked_asm;
use core::ffi::{c_char, c_int, c_long, c_void};
use core::sync::atomic::{AtomicPtr, Ordering};

use crate::decision::{self, Rename};
use crate::layout::OpenPurpose;
use crate::{identity, next, rights, system};

/// The function of libc.
static NEXT: AtomicPtr<c_void> = AtomicPtr::new(core::ptr::null_mut());

/// Notes the function of libc, after all were found.
pub(crate) fn find() {
    NEXT.store(next::SYSCALL.address(), Ordering::Release);
}

/// `syscall`. Takes up to six arguments, in the registers of a function.
///
/// # Safety
/// As the system call.
#[unsafe(naked)]
#[unsafe(no_mangle)]
unsafe extern "C" fn syscall() {
    // The arguments of `statx` are one register further.
    naked_asm!(
        "cmp rdi, {number}",
        "je 2f",
        "cmp rdi, {last}",
        "ja 4f",
        "lea rax, [rip + {noted}]",
        "bt qword ptr [rax], rdi",
        "jc 5f",
        "4:",
        "mov rax, qword ptr [rip + {next}]",
        "test rax, rax",
        "je 3f",
        "jmp rax",
        "2:",
        "mov rdi, rsi",
        "mov rsi, rdx",
        "mov rdx, rcx",
        "mov rcx, r8",
        "mov r8, r9",
        "jmp {statx}",
        "3:",
        "jmp {call}",
        "5:",
        "jmp {note}",
        number = const system::STATX,
        next = sym NEXT,
        statx = sym statx_call,
        call = sym plain_call,
        note = sym noted_call,
        noted = sym NOTED,
        last = const LAST,
    )
}

/// The highest number that is looked up.
const LAST: usize = 8 * 64 - 1;

/// The calls that are noted, a bit each.
static NOTED: [u64; 8] = {
    let mut bits = [0_u64; 8];
    let mut at = 0;
    while at < CALLS.len() {
        bits[CALLS[at] / 64] |= 1 << (CALLS[at] % 64);
        at += 1;
    }
    bits
};

/// The numbers of the calls that are noted.
const CALLS: [usize; 23] = [
    OPEN, OPENAT, OPENAT2, CREAT, TRUNCATE, RENAME, RENAMEAT, RENAMEAT2, UNLINK, UNLINKAT, RMDIR, LINK,
    LINKAT, SYMLINK, SYMLINKAT, CHMOD, FCHMODAT, UTIMENSAT, UNSHARE, SETNS, PIVOT_ROOT, CHROOT, LANDLOCK,
];

const OPEN: usize = 2;
const TRUNCATE: usize = 76;
const RENAME: usize = 82;
const RMDIR: usize = 84;
const CREAT: usize = 85;
const LINK: usize = 86;
const UNLINK: usize = 87;
const SYMLINK: usize = 88;
const CHMOD: usize = 90;
const PIVOT_ROOT: usize = 155;
const CHROOT: usize = 161;
const OPENAT: usize = 257;
const UNLINKAT: usize = 263;
const RENAMEAT: usize = 264;
const LINKAT: usize = 265;
const SYMLINKAT: usize = 266;
const FCHMODAT: usize = 268;
const UNSHARE: usize = 272;
const UTIMENSAT: usize = 280;
const SETNS: usize = 308;
const RENAMEAT2: usize = 316;
const OPENAT2: usize = 437;
const LANDLOCK: usize = 446;

/// A call that may change files, or this process's view of them.
///
/// # Safety
/// As that call.
unsafe extern "C" fn noted_call(number: usize, a: usize, b: usize, c: usize, d: usize, e: usize) -> c_long {
    let call = || {
        // SAFETY: the caller's proof.
        system::returned_long(unsafe { system::call(number, [a, b, c, d, e, 0]) })
    };
    let (here, path) = (system::AT_FDCWD, |at: usize| at as *const c_char);
    let follows = |flags: usize| flags as c_int & system::AT_SYMLINK_NOFOLLOW == 0;
    // SAFETY: the paths are C strings, as the kernel demands.
    unsafe {
        let (names, written) = match number {
            RENAME | RENAMEAT | RENAMEAT2 => {
                let (from, to) = if number == RENAME {
                    ((here, a), (here, b))
                } else {
                    ((a as c_int, b), (c as c_int, d))
                };
                ([Some(from), Some(to)], None)
            }
            UNLINK | RMDIR => ([Some((here, a)), None], None),
            LINK => ([Some((here, a)), Some((here, b))], None),
            SYMLINK => ([Some((here, b)), None], None),
            UNLINKAT => ([Some((a as c_int, b)), None], None),
            LINKAT => ([Some((a as c_int, b)), Some((c as c_int, d))], None),
            SYMLINKAT => ([Some((b as c_int, c)), None], None),
            OPEN if OpenPurpose::of(b as c_int) == OpenPurpose::Write => ([None; 2], Some((here, a, true))),
            OPENAT if OpenPurpose::of(c as c_int) == OpenPurpose::Write => {
                ([None; 2], Some((a as c_int, b, true)))
            }
            OPENAT2 if (c as *const u64).as_ref().is_some_and(|flags| is_write(*flags)) => {
                ([None; 2], Some((a as c_int, b, true)))
            }
            CREAT | TRUNCATE | CHMOD => ([None; 2], Some((here, a, true))),
            FCHMODAT => ([None; 2], Some((a as c_int, b, true))),
            UTIMENSAT => ([None; 2], Some((a as c_int, b, follows(d)))),
            UNSHARE | SETNS | PIVOT_ROOT => {
                rights::namespaces_change();
                return call();
            }
            CHROOT => {
                decision::root_changes();
                return call();
            }
            LANDLOCK => {
                rights::restrict();
                return call();
            }
            _ => return call(),
        };
        if let Some((directory, name, follows)) = written {
            let may_change = name == 0 || decision::may_change(directory, path(name), follows);
            if !may_change {
                return system::returned_long(-(system::EACCES as isize));
            }
            let result = call();
            if matches!(number, OPEN | OPENAT | OPENAT2 | CREAT) {
                decision::changed_descriptor(result as c_int);
            } else if name != 0 {
                decision::has_changed(directory, path(name), follows);
            }
            return result;
        }
        let begun = names.map(|name| name.map(|(directory, name)| Rename::begin(directory, path(name))));
        let result = call();
        begun.into_iter().flatten().for_each(Rename::end);
        result
    }
}

fn is_write(flags: u64) -> bool {
    OpenPurpose::of(flags as c_int) == OpenPurpose::Write
}

/// # Safety
/// As `statx`.
unsafe extern "C" fn statx_call(
    directory: c_int,
    path: *const c_char,
    flags: c_int,
    mask: u32,
    to: *mut c_void,
) -> c_long {
    // SAFETY: the caller's proof.
    c_long::from(unsafe { identity::statx_at(directory, path, flags, mask, to) })
}

/// A call before the function of libc was found.
///
/// # Safety
/// As that call.
unsafe extern "C" fn plain_call(
    number: usize,
    a: usize,
    b: usize,
    c: usize,
    d: usize,
    e: usize,
    f: usize,
) -> c_long {
    // SAFETY: the caller's proof.
    system::returned_long(unsafe { system::call(number, [a, b, c, d, e, f]) })
}
