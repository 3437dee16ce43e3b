//! The library that unchanged programs preload, and its shared state with the process that keeps
//! copies of their files.
//!
//! A program opens a file of a dataset. The library looks the file up in a table that is mapped
//! read-only. If a whole local copy is there, the program gets its descriptor. All later calls are
//! the kernel's own. Otherwise the original is opened, and a record of the open is left for the
//! process that makes copies.
//!
//! # Decisions and price
//!
//! * *The decision is made at `open`, in the program.* A hit needs no other process, and reads cost
//!   nothing. The price is that a file is served whole or not at all.
//! * *Whatever is unclear opens the original:* an odd path, a table that cannot be mapped, a copy
//!   that has gone.
//! * *The library allocates nothing*, takes no lock, keeps no descriptor and starts no thread. So
//!   forks, signals and programs that close all descriptors are no special cases.
//! * *One library for glibc and musl*: it depends on no other, and finds `dlsym` if there is one.
//!
//! [`layout`] is compiled twice: here, and into the library in `interpose/`, which is `no_std`.

pub mod layout;

// Never compiled here. So `cargo fmt` and readers find it.
#[cfg(any())]
#[path = "../interpose/main.rs"]
mod interpose;

/// The library, as a file for `LD_PRELOAD`. Empty on systems other than Linux.
pub static LIBRARY: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/preload.so"));

/// The environment variable that names the [trace](layout::TraceHeader) of a run.
pub const VARIABLE: &str = "FOREREAD_RUN_TRACE";
