//! How the system's allocator is set up.
//!
//! glibc gives threads arenas of their own, up to eight a core. Samples are read by many threads, are kept by the memory
//! tier or let go by the trainer, and each arena holds on to the holes that are left in it: what is resident grows from
//! epoch to epoch to twice what is in use (24 GiB of samples through 1 GiB of memory: 1.8 GiB and rising). With one arena
//! it stays flat. The price is one lock for all threads; samples are allocated some ten thousand times a second, which
//! no measurement shows.
//!
//! It is the command that does so, because the allocator is the whole program's: a program that uses the library has
//! the same with `MALLOC_ARENA_MAX=1` in its environment, or with another allocator.

/// Sets it up, before there are other threads. A limit in the environment (`MALLOC_ARENA_MAX`) counts more.
pub(crate) fn set_up() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    if std::env::var_os("MALLOC_ARENA_MAX").is_none() {
        // SAFETY: the call takes two numbers, touches the allocator's own settings under its own lock, and says by its
        // result whether it knew them. If it did not, all is as it was.
        unsafe { libc::mallopt(libc::M_ARENA_MAX, 1) };
    }
}
