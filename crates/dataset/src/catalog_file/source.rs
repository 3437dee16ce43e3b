//! The storage of a catalog's bytes: memory, or a file.
//!
//! A file is read by `pread` and not mapped. A file that was truncated is then an error, and not a
//! signal.

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use bytes::Bytes;

use crate::DatasetErrorKind;
use crate::catalog_file::fault::{CatalogFault, changed, corrupt};

/// The storage of a catalog's bytes.
#[derive(Clone, Debug)]
pub(crate) enum CatalogBytes {
    /// In memory: just built, or received.
    Memory(Bytes),
    /// In a file of this length.
    File(Arc<File>, u64),
}

impl CatalogBytes {
    pub(crate) fn length(&self) -> u64 {
        match self {
            Self::Memory(bytes) => bytes.len() as u64,
            Self::File(_, length) => *length,
        }
    }

    /// The bytes in `range`. Bytes of a file are read into `room`.
    pub(crate) fn read<'a>(
        &'a self,
        range: Range<u64>,
        room: &'a mut Vec<u8>,
    ) -> Result<&'a [u8], CatalogFault> {
        let beyond = || corrupt("it names a place outside the file");
        let length = usize::try_from(range.end.saturating_sub(range.start)).map_err(|_| beyond())?;
        if range.end > self.length() {
            return Err(beyond());
        }
        match self {
            Self::Memory(bytes) => {
                bytes.get(range.start as usize..).and_then(|rest| rest.get(..length)).ok_or_else(beyond)
            }
            Self::File(file, _) => {
                // The range of a file may be larger than memory.
                room.try_reserve_exact(length.saturating_sub(room.len())).map_err(|_| no_memory(length))?;
                room.resize(length, 0);
                file.read_exact_at(room, range.start).map_err(|error| unreadable(&error))?;
                Ok(room)
            }
        }
    }
}

fn no_memory(length: usize) -> CatalogFault {
    CatalogFault { kind: DatasetErrorKind::Io, why: format!("there is no memory for {length} bytes of it") }
}

/// The fault of a file that cannot be read, or is shorter than it was.
pub(super) fn unreadable(error: &std::io::Error) -> CatalogFault {
    if error.kind() == std::io::ErrorKind::UnexpectedEof {
        return changed("the file is shorter than it was");
    }
    CatalogFault::io(error)
}
