//! How the system's allocator is set up in a process of Python.
//!
//! glibc gives threads arenas of their own, and each holds on to the holes that are left in it: where samples are read by many
//! threads, kept for long and let go by others, what is resident grows from epoch to epoch to twice what is in use. With one
//! arena it stays flat; its price is one lock for all threads. PyTorch's and numpy's arrays are large enough to be mapped
//! one by one, and Python's own objects come from its own pools, so that the lock is hardly felt. It is done with the
//! first loader, not at import: who does not load keeps what he has.

use std::sync::Once;

/// Sets it up, once. A limit in the environment (`MALLOC_ARENA_MAX`) counts more.
pub(crate) fn set_up() {
    static DONE: Once = Once::new();
    DONE.call_once(|| {
        #[cfg(all(target_os = "linux", target_env = "gnu"))]
        if std::env::var_os("MALLOC_ARENA_MAX").is_none() {
            // SAFETY: the call takes two numbers, touches the allocator's own settings under its own lock, and says by
            // its result whether it knew them. If it did not, all is as it was.
            unsafe { libc::mallopt(libc::M_ARENA_MAX, 1) };
        }
    });
}
