//! stub
use std::sync::Arc;
use async_trait::async_trait;
use foreread_tier::{Backend, Context, OpenOptions, OriginTier, TierError};

/// Opens directories.
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct LocalBackend;
impl LocalBackend {
    /// The backend.
    pub const fn new() -> Self { Self }
}

#[async_trait]
impl Backend for LocalBackend {
    fn schemes(&self) -> &[&str] { &["file"] }
    async fn open(&self, _url: &str, _options: &OpenOptions, _context: &Context) -> Result<Arc<dyn OriginTier>, TierError> { todo!() }
}
