//! stub
use std::path::PathBuf;
use foreread_tier::{OpenOptions, TierError};

/// How a directory is read.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LocalConfig {
    /// Reads under way at once, at most.
    pub parallelism: usize,
}
impl Default for LocalConfig {
    fn default() -> Self { Self { parallelism: 32 } }
}
impl LocalConfig {
    /// stub
    pub fn from_options(_options: &OpenOptions) -> Result<Self, TierError> { todo!() }
    /// The same with other parallelism.
    #[must_use]
    pub fn with_parallelism(self, parallelism: usize) -> Self { Self { parallelism } }
}
/// The directory that a plain path or a `file` URL names.
pub fn directory_of(_url: &str) -> Result<PathBuf, TierError> { todo!() }
