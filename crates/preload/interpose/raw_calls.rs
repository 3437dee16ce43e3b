//! `syscall` of libc, by which some programs (Node.js) look at descriptors.
//!
//! Decision: no frame, and a jump to libc for all other calls. So a call that returns twice, such
//! as `clone`, returns to the program as it does without this library. The price is a few lines for
//! each processor, and they exist for x86-64 only.

use core::arch::naked_asm;
use core::ffi::{c_char, c_int, c_long, c_void};
use core::sync::atomic::{AtomicPtr, Ordering};

use crate::{identity, next, system};

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
        number = const system::STATX,
        next = sym NEXT,
        statx = sym statx_call,
        call = sym plain_call,
    )
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
