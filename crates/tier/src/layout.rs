//! The servers of a file system that hold an object's bytes.
//!
//! A parallel file system spreads files over servers, and one slow server delays the samples that
//! it holds. Layouts tell which samples these are, for reports, warnings and bounds. They are
//! hints: files migrate, so no read depends on them.

use std::fmt;
use std::ops::Range;
use std::str::FromStr;

use futures::future::BoxFuture;

/// A server of a file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum StorageServer {
    /// A data server, by its index: Lustre's object storage target (OST).
    Data(u32),
    /// A metadata server (Lustre's MDT), which holds the bytes of small files itself.
    Metadata,
}

impl fmt::Display for StorageServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Data(index) => write!(f, "OST {index}"),
            Self::Metadata => f.write_str("MDT"),
        }
    }
}

impl FromStr for StorageServer {
    type Err = UnknownServer;

    /// Parses the text that `Display` writes.
    ///
    /// ```
    /// use foreread_tier::StorageServer;
    /// assert_eq!("OST 7".parse(), Ok(StorageServer::Data(7)));
    /// assert!("disk 7".parse::<StorageServer>().is_err());
    /// ```
    fn from_str(name: &str) -> Result<Self, UnknownServer> {
        match name {
            "MDT" => Ok(Self::Metadata),
            _ => {
                let index = name.strip_prefix("OST ").and_then(|index| index.parse().ok());
                index.map(Self::Data).ok_or(UnknownServer)
            }
        }
    }
}

/// A text that names no storage server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnknownServer;

impl fmt::Display for UnknownServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("expected MDT, or OST and its index, for example OST 7")
    }
}

impl std::error::Error for UnknownServer {}

/// The servers of one object's bytes.
pub trait ObjectLayout: fmt::Debug + Send + Sync {
    /// The server of the byte at `offset`. `None` if it is unknown.
    fn server(&self, offset: u64) -> Option<StorageServer>;

    /// The bytes around `offset` that one server holds contiguously. `None` if they are unknown.
    /// The range may end after the object.
    fn run(&self, offset: u64) -> Option<Range<u64>>;

    /// Whether the bytes were moved to an archive. Their first read waits until they are restored.
    fn is_released(&self) -> bool;
}

/// Layouts in the order of the requested paths. `None` for an object without a readable layout.
pub type LayoutsFuture = BoxFuture<'static, Vec<Option<Box<dyn ObjectLayout>>>>;
