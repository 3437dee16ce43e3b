//! Configures the system's allocator in a Python process.
//!
//! glibc gives threads separate arenas, and each keeps its holes. Samples are read by many threads,
//! kept for long and freed by others. So resident memory grows from epoch to epoch to twice the
//! memory in use. With one arena it stays flat. The price is one lock for all threads. The lock is
//! hardly noticeable: arrays of PyTorch and NumPy are large enough to be mapped individually, and
//! Python's objects come from Python's own pools. The first loader configures it, not the import,
//! so that programs without a loader keep their settings.

use std::sync::Once;

/// Limits glibc to one arena, once per process. `MALLOC_ARENA_MAX` in the environment takes
/// precedence.
pub(crate) fn set_up() {
    static DONE: Once = Once::new();
    DONE.call_once(|| {
        #[cfg(all(target_os = "linux", target_env = "gnu"))]
        if std::env::var_os("MALLOC_ARENA_MAX").is_none() {
            // SAFETY: the call takes two numbers and changes the allocator's settings under its own
            // lock. Its result reports unknown settings, which change nothing.
            unsafe { libc::mallopt(libc::M_ARENA_MAX, 1) };
        }
    });
}
