//! The library that unchanged programs preload. See `foreread_preload` for the decisions.
//!
//! It runs in any program, at any time: in signal handlers, between fork and exec, in programs
//! without free descriptors. So it allocates nothing, has no locks and no thread-local memory,
//! keeps no descriptor, and leaves `errno` as it is unless a call fails. It needs less than a
//! kilobyte and a half of stack, and six kilobytes where a program is started.
#![no_std]

#[path = "../src/layout.rs"]
#[allow(dead_code, reason = "the process that makes copies uses the rest of the layout")]
mod layout;

mod attributes;
mod changes;
mod decision;
mod environment;
mod exec;
mod identity;
mod mapped;
mod next;
mod opens;
mod paths;
#[cfg(target_arch = "x86_64")]
mod raw_calls;
mod rights;
mod streams;
mod system;
mod waiting;

/// The paths of this library cannot panic. After a panic, the program must not continue.
#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    system::abort()
}

/// Precompiled `core` names it. Nothing unwinds here.
#[unsafe(no_mangle)]
extern "C" fn rust_eh_personality() {}
