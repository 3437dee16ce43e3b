//! stub

/// Which objects of an origin become samples.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct IndexOptions {
    /// Globs.
    pub include: Vec<String>,
    /// Globs.
    pub exclude: Vec<String>,
}

/// How far an index has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Progress {
    /// Samples found.
    pub objects: u64,
    /// Their bytes.
    pub bytes: u64,
}
