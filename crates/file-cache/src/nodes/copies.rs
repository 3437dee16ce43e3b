//! The copies of this host for others, and those of others for this host.
//!
//! A path in a request is only hashed, and never opened. What is given is a published copy whose
//! original has the requested identity. The file must still be the one that the host made.

use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;

use super::messages::CopyRequest;
use crate::copying::{change_time, copy_path};
use crate::host::HostShared;
use crate::host_state::CopyJob;
use crate::original::Original;
use crate::table::id_of;

/// A copy that is given to another node.
#[derive(Debug)]
pub(crate) struct FoundCopy {
    pub(crate) file: File,
    pub(crate) size: u64,
    pub(crate) crc32c: u32,
}

/// What other nodes get copies from.
pub(crate) trait CopySource: Send + Sync + 'static {
    /// The copy of a file, if programs of this node have it now.
    fn copy_of(&self, request: &CopyRequest) -> Option<FoundCopy>;

    /// A copy was given.
    fn given(&self);

    /// Whether no copies are given any more.
    fn has_ended(&self) -> bool;
}

impl CopySource for HostShared {
    fn copy_of(&self, request: &CopyRequest) -> Option<FoundCopy> {
        let (path, copy) = {
            let state = self.lock();
            let hash = request.hash(state.table.key())?;
            let copy = state.published(hash).filter(|copy| request.is_for(&copy.identity))?;
            (copy_path(state.copies_path(), hash, copy.generation), copy)
        };
        let file = File::open(path).ok()?;
        let found = file.metadata().ok()?;
        let is_its =
            found.ino() == copy.inode && found.len() == request.size && change_time(&found) == copy.changed;
        is_its.then_some(FoundCopy { file, size: request.size, crc32c: copy.crc32c })
    }

    fn given(&self) {
        self.lock().counts.given += 1;
    }

    fn has_ended(&self) -> bool {
        Self::has_ended(self)
    }
}

impl HostShared {
    /// Fills a new copy with the bytes of another node's, and returns their checksum. `None` if no
    /// other node has it, or this file is not copied ahead: then its pages are in memory.
    pub(crate) fn fetch(&self, job: &CopyJob, original: &Original, to: &File) -> Option<u32> {
        let nodes = self.nodes.get().filter(|_| job.copy.is_ahead)?;
        let crc32c = nodes.fetch(self.request_of(job, original)?, to)?;
        let counts = &mut self.lock().counts;
        counts.fetched += 1;
        counts.fetched_bytes += original.identity.size;
        Some(crc32c)
    }

    /// The request for a file. Datasets may be below each other, so the hash selects its own.
    fn request_of(&self, job: &CopyJob, original: &Original) -> Option<CopyRequest> {
        let (datasets, key) = {
            let state = self.lock();
            (state.table.datasets(), state.table.key())
        };
        datasets.iter().find_map(|dataset| {
            let below = job.path.strip_prefix(dataset).ok()?;
            let request = CopyRequest::new(id_of(dataset), below.as_os_str().as_bytes(), &original.identity)?;
            (request.hash(key) == Some(job.hash)).then_some(request)
        })
    }
}
