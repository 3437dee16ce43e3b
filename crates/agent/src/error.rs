//! Why an agent cannot start.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

use foreread_host::error::HostError;
use foreread_host::policy::PolicyError;
use foreread_store::StoreError;
use foreread_tier::ReplaceableThrough;

/// Why an agent cannot start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AgentError {
    /// Another agent or control process uses the directory.
    #[error(
        "one runs already in {directory}: {by}; use it, stop it by `foreread agent stop` or `foreread \
         control stop`, or name another socket"
    )]
    InUse {
        /// The directory of the socket.
        directory: PathBuf,
        /// The process.
        by: String,
    },
    /// Other users could use the socket.
    #[error(
        "{directory} belongs to another user or can be searched by others: an agent's directory must be its \
         user's alone (chmod 700), or name another socket"
    )]
    NotPrivate {
        /// The directory of the socket.
        directory: PathBuf,
    },
    /// Other users could put another directory in its place.
    #[error(
        "other users can replace {directory}, the directory of the agent's socket: {through}; or name \
         another socket"
    )]
    Replaceable {
        /// The directory of the socket.
        directory: PathBuf,
        /// How they can.
        through: ReplaceableThrough,
    },
    /// Other machines could reach the page.
    #[error(
        "{address} is not a loopback address: expected 127.0.0.1 or [::1] and a port, such as 127.0.0.1:0"
    )]
    NotLoopback {
        /// The requested address.
        address: SocketAddr,
    },
    /// The system failed.
    #[error("{what}: {error}")]
    System {
        /// The action that failed.
        what: String,
        /// The system's error.
        error: io::Error,
    },
    /// A directory is given for two disks.
    #[error("--disk {directory} is given twice")]
    DiskTwice {
        /// The directory.
        directory: PathBuf,
    },
    /// A disk cannot be used.
    #[error("--disk: {0}")]
    Disk(foreread::Error),
    /// The file with the tokens of a cluster cannot be used.
    #[error("the tokens in {path}: {why}")]
    Token {
        /// The file.
        path: PathBuf,
        /// The fault.
        why: String,
    },
    /// The address of a control process is none.
    #[error("{address}: expected HOST:PORT, such as login1:7400 or [::]:7400")]
    Address {
        /// As it was given.
        address: String,
    },
    /// A variable of the environment has a mistake.
    #[error("{0}")]
    Setting(String),
    /// The store cannot be hosted.
    #[error(transparent)]
    Host(#[from] HostError),
}

impl AgentError {
    /// An error of the system while it did `what`.
    pub(crate) fn system(what: impl Into<String>, error: impl Into<io::Error>) -> Self {
        Self::System { what: what.into(), error: error.into() }
    }
}

impl From<PolicyError> for AgentError {
    fn from(error: PolicyError) -> Self {
        Self::Host(error.into())
    }
}

impl From<StoreError> for AgentError {
    fn from(error: StoreError) -> Self {
        Self::Host(error.into())
    }
}
