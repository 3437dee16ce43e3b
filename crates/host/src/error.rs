//! Why the store of a node cannot be hosted.

use std::io;

use foreread_store::StoreError;

use crate::policy::PolicyError;

/// Why the store of a node cannot be hosted.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HostError {
    /// The system has no memory that processes can share.
    #[error("this system has no memory that processes can share (memfd, /proc)")]
    Memory,
    /// The system failed.
    #[error("{what}: {error}")]
    System {
        /// The operation that failed.
        what: String,
        /// The system's error.
        error: io::Error,
    },
    /// The policy has a mistake.
    #[error(transparent)]
    Policy(#[from] PolicyError),
    /// The server could not start.
    #[error(transparent)]
    Server(#[from] StoreError),
}

impl HostError {
    /// An error of the system during an operation.
    pub fn system(what: impl Into<String>, error: impl Into<io::Error>) -> Self {
        Self::System { what: what.into(), error: error.into() }
    }
}
