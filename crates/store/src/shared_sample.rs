//! A sample held by a client.

use std::fmt;
use std::sync::Arc;

use crate::worker_connection::{SampleBytes, WorkerConnection};

/// A sample's bytes, until it is dropped. They are in the server's memory, or in the client's own:
/// short samples, and those for which there was no room.
///
/// A sample belongs to the process that got it. In a forked child, dropping it does nothing.
/// Reading it there ends the child, because the memory changes once the parent releases it.
pub struct SharedBytes {
    connection: Arc<WorkerConnection>,
    place: SampleBytes,
}

impl SharedBytes {
    pub(crate) fn new(connection: Arc<WorkerConnection>, place: SampleBytes) -> Self {
        Self { connection, place }
    }

    /// Whether the bytes are in the shared memory.
    pub fn is_shared(&self) -> bool {
        matches!(self.place, SampleBytes::Shared { .. })
    }
}

impl AsRef<[u8]> for SharedBytes {
    fn as_ref(&self) -> &[u8] {
        match &self.place {
            SampleBytes::Shared { region, offset, length, .. } => region.read(*offset, *length),
            SampleBytes::Own(bytes) => bytes,
        }
    }
}

impl Drop for SharedBytes {
    fn drop(&mut self) {
        if let SampleBytes::Shared { slot, length, .. } = self.place {
            self.connection.release(slot, length);
        }
    }
}

impl fmt::Debug for SharedBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = match &self.place {
            SampleBytes::Shared { length, .. } => *length,
            SampleBytes::Own(bytes) => bytes.len(),
        };
        f.debug_struct("Held").field("bytes", &bytes).field("shared", &self.is_shared()).finish()
    }
}
