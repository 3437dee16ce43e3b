//! Layouts as Lustre writes them, and as it never would.
#![allow(clippy::unwrap_used, reason = "a test that cannot set itself up fails by panicking")]

mod hostile;
mod vectors;
