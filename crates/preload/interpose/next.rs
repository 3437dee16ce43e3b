//! The functions that would have been called without this library: those of the next library that
//! has them, such as libc, a profiler or a sanitizer.
//!
//! They are looked up once, before the program begins, because the lookup may allocate. A program
//! whose libc has no `dlsym` gets system calls.

use core::arch::asm;
use core::ffi::{c_char, c_void};
use core::sync::atomic::{AtomicPtr, Ordering};

/// A function by its name.
pub(crate) struct Next {
    name: &'static core::ffi::CStr,
    found: AtomicPtr<c_void>,
}

impl Next {
    pub(crate) const fn new(name: &'static core::ffi::CStr) -> Self {
        Self { name, found: AtomicPtr::new(core::ptr::null_mut()) }
    }

    /// Looks the function up.
    pub(crate) fn find(&self) {
        let Some(dlsym) = dlsym() else { return };
        /// The library after this one.
        const NEXT: *mut c_void = -1_isize as *mut c_void;
        // SAFETY: `dlsym` of libc, with a C string.
        let found = unsafe { dlsym(NEXT, self.name.as_ptr()) };
        self.found.store(found, Ordering::Relaxed);
    }

    /// Its address. Null if there is none.
    pub(crate) fn address(&self) -> *mut c_void {
        self.found.load(Ordering::Relaxed)
    }

    /// The function, as a type that the caller knows it to have. `None` if there is none.
    ///
    /// # Safety
    /// `F` is a function pointer of the function's type.
    pub(crate) unsafe fn get<F: Copy>(&self) -> Option<F> {
        const { assert!(size_of::<F>() == size_of::<*mut c_void>()) };
        let found = self.found.load(Ordering::Relaxed);
        // SAFETY: a function pointer has the size of an address, and the type is the caller's
        // proof.
        (!found.is_null()).then(|| unsafe { core::mem::transmute_copy(&found) })
    }
}

type Dlsym = unsafe extern "C" fn(*mut c_void, *const c_char) -> *mut c_void;

/// `dlsym`, if the program's libc has it. The symbol is weak, which stable Rust has no word for.
fn dlsym() -> Option<Dlsym> {
    let address: *const c_void;
    #[cfg(target_arch = "x86_64")]
    // SAFETY: reads the place that the dynamic linker has filled.
    unsafe {
        asm!(
            ".weak dlsym",
            "mov {address}, qword ptr [rip + dlsym@GOTPCREL]",
            address = out(reg) address,
            options(nostack, pure, readonly),
        );
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: reads the place that the dynamic linker has filled.
    unsafe {
        asm!(
            ".weak dlsym",
            "adrp {address}, :got:dlsym",
            "ldr {address}, [{address}, #:got_lo12:dlsym]",
            address = out(reg) address,
            options(nostack, pure, readonly),
        );
    }
    // SAFETY: the symbol has this type in every libc.
    (!address.is_null()).then(|| unsafe { core::mem::transmute::<*const c_void, Dlsym>(address) })
}

/// Declares the next functions, and a function that finds all of them.
macro_rules! next_functions {
    ($($name:ident = $text:literal;)*) => {
        $(pub(crate) static $name: Next = Next::new($text);)*

        /// Looks all of them up.
        pub(crate) fn find_all() {
            $($name.find();)*
        }
    };
}

next_functions! {
    OPEN = c"open";
    OPEN64 = c"open64";
    OPENAT = c"openat";
    OPENAT64 = c"openat64";
    OPEN_2 = c"__open_2";
    OPEN64_2 = c"__open64_2";
    OPENAT_2 = c"__openat_2";
    OPENAT64_2 = c"__openat64_2";
    CREAT = c"creat";
    CREAT64 = c"creat64";
    FOPEN = c"fopen";
    FOPEN64 = c"fopen64";
    FREOPEN = c"freopen";
    FREOPEN64 = c"freopen64";
    RENAME = c"rename";
    RENAMEAT = c"renameat";
    RENAMEAT2 = c"renameat2";
    UNLINK = c"unlink";
    UNLINKAT = c"unlinkat";
    REMOVE = c"remove";
    TRUNCATE = c"truncate";
    TRUNCATE64 = c"truncate64";
    LINK = c"link";
    LINKAT = c"linkat";
    SYMLINK = c"symlink";
    SYMLINKAT = c"symlinkat";
    EXECVE = c"execve";
    EXECVPE = c"execvpe";
    POSIX_SPAWN = c"posix_spawn";
    POSIX_SPAWNP = c"posix_spawnp";
    UNSHARE = c"unshare";
    SETNS = c"setns";
    FUTIMES = c"futimes";
    LUTIMES = c"lutimes";
    IOCTL = c"ioctl";
    CHDIR = c"chdir";
    FCHDIR = c"fchdir";
    CHROOT = c"chroot";
    CHMOD = c"chmod";
    FCHMODAT = c"fchmodat";
    CHOWN = c"chown";
    LCHOWN = c"lchown";
    FCHOWNAT = c"fchownat";
    UTIME = c"utime";
    UTIMES = c"utimes";
    FUTIMESAT = c"futimesat";
    UTIMENSAT = c"utimensat";
    SETXATTR = c"setxattr";
    LSETXATTR = c"lsetxattr";
    SYSCALL = c"syscall";
    FCHMOD = c"fchmod";
    FCHOWN = c"fchown";
    FUTIMENS = c"futimens";
    FSETXATTR = c"fsetxattr";
}
