//! The counts of the stand-in.

use serde::Serialize;

/// Requests since the mount or the last [reset](crate::StandIn::reset_counts).
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct Counts {
    /// Path lookups, which cost nothing.
    pub lookups: u64,
    /// Opens of files.
    pub opens: u64,
    /// Closes of files.
    pub flushes: u64,
    /// Full `stat` calls.
    pub getattrs: u64,
    /// Reads of `lustre.lov`.
    pub getxattrs: u64,
    /// Opens of directories.
    pub opendirs: u64,
    /// Directories whose entries were read.
    pub readdirs: u64,
    /// Reads of files, at most 1 MiB each. Reads at the end of a file do not count.
    pub reads: u64,
    /// Bytes of these reads.
    pub bytes: u64,
    /// Requests to the MDT, of all kinds.
    pub mdt_requests: u64,
    /// First reads of objects.
    pub locks: u64,
    /// Requests that were answered by the error of an eviction.
    pub evicted: u64,
    /// Restores of released files.
    pub recalls: u64,
    /// Requests to each OST.
    pub by_ost: Vec<OstCounts>,
    /// The last requests, if they are logged.
    pub log: Vec<LoggedRequest>,
}

/// Requests to one OST.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct OstCounts {
    /// Requests.
    pub requests: u64,
    /// Bytes requested.
    pub bytes: u64,
    /// Requests that occupy a slot now.
    pub in_flight: usize,
    /// The most at a time.
    pub max_in_flight: usize,
    /// Requests without an answer now, in flight or waiting for a slot.
    pub unanswered: usize,
    /// The most at a time.
    pub max_unanswered: usize,
}

/// One request in the log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct LoggedRequest {
    /// Its kind.
    pub kind: RequestKind,
    /// The path below the root.
    pub path: String,
    /// The thread that waits for it.
    pub thread: u32,
    /// The first byte and the number of bytes, for reads.
    pub range: Option<(u64, u64)>,
}

/// The kind of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum RequestKind {
    /// A path lookup.
    Lookup,
    /// An open of a file.
    Open,
    /// A close of a file.
    Flush,
    /// A full `stat`.
    Getattr,
    /// A read of `lustre.lov`.
    Getxattr,
    /// An open of a directory.
    Opendir,
    /// The entries of a directory.
    Readdir,
    /// A read of a file.
    Read,
}

impl Counts {
    pub(crate) fn of_kind(&mut self, kind: RequestKind) -> &mut u64 {
        match kind {
            RequestKind::Lookup => &mut self.lookups,
            RequestKind::Open => &mut self.opens,
            RequestKind::Flush => &mut self.flushes,
            RequestKind::Getattr => &mut self.getattrs,
            RequestKind::Getxattr => &mut self.getxattrs,
            RequestKind::Opendir => &mut self.opendirs,
            RequestKind::Readdir => &mut self.readdirs,
            RequestKind::Read => &mut self.reads,
        }
    }
}
