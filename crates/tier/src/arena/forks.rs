//! Detection of forked children.
//!
//! A child of a fork has the memory of its parent and only one of its threads. Locks that other
//! threads held stay locked there for ever. A counter that the child increments costs one load per
//! check, where the number of the process would cost a system call.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

static FORKS: AtomicU32 = AtomicU32::new(0);
static IS_COUNTED: AtomicBool = AtomicBool::new(false);

/// The number of forks between the first process that called this and the current one.
pub(super) fn count() -> u32 {
    FORKS.load(Ordering::Relaxed)
}

extern "C" fn on_fork() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}

/// Counts forks from now on. `false` if that is not possible.
pub(super) fn begin_counting() -> bool {
    if IS_COUNTED.load(Ordering::Relaxed) {
        return true;
    }
    // No lock: a fork in between would leave it locked. Two registrations count each fork twice.
    // SAFETY: the handler only increments an atomic number, which is allowed after a fork. It lives
    // as long as this library. The C library forgets handlers of unloaded libraries.
    let is_counted = unsafe { libc::pthread_atfork(None, None, Some(on_fork)) } == 0;
    IS_COUNTED.store(is_counted, Ordering::Relaxed);
    is_counted
}
