//! The reports of an index while it runs.

/// The progress of an index.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct IndexProgress {
    /// Objects found so far.
    pub objects: u64,
    /// Their total length in bytes.
    pub bytes: u64,
    /// Samples found so far. While files are listed these are the objects, then the samples found
    /// in shards.
    pub samples: u64,
    /// Members of shards that are not samples: directories, links, names that WebDataset leaves
    /// out. Of a table the rows whose file does not exist.
    pub skipped: u64,
    /// Reads of shards so far.
    pub requests: u64,
    /// Bytes that these reads have returned.
    pub bytes_read: u64,
    /// Objects that an interrupted earlier listing had found.
    pub resumed: u64,
    /// Shards that an interrupted earlier index had completed.
    pub resumed_shards: u64,
}
