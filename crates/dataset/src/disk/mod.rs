//! Files of this machine: locks, journals, files that are replaced, files in memory.
//!
//! Nothing here knows catalogs.

pub(crate) mod journal;
pub(crate) mod lock_file;
pub(crate) mod replace;
pub(crate) mod shared_file;
pub(crate) mod sparse;
