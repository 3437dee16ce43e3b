//! Whole runs through the library, over stores that exist only in these tests: resumed anywhere,
//! and on origins that fail.

#![expect(clippy::unwrap_used, clippy::expect_used, reason = "helpers of tests fail by panicking, too")]

mod executors;
mod faults;
mod jump;
mod resume;
mod rig;
mod settings;
#[cfg(target_os = "linux")]
mod shared;
mod small;
mod source;
