//! The result of a use of a sample.

/// The result of a use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheUse {
    /// Whether the sample was resident.
    pub hit: bool,
    /// Whether the sample is resident after the use.
    pub kept: bool,
}
