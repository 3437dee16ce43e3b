//! A backend for `fake://` URLs, and the numbers that tests draw.

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use foreread::Registry;
use foreread_tier::{Backend, ErrorKind, OpenContext, OpenOptions, OriginTier, TierError};

/// Opens the stores that a test made, by URL.
#[derive(Debug, Default)]
pub struct Fakes(BTreeMap<String, Arc<dyn OriginTier>>);

impl Fakes {
    /// The same with one store more.
    pub fn with(mut self, url: &str, origin: Arc<dyn OriginTier>) -> Self {
        self.0.insert(url.to_owned(), origin);
        self
    }

    pub fn registry(self) -> Registry {
        Registry::empty().register(self)
    }
}

#[async_trait]
impl Backend for Fakes {
    fn schemes(&self) -> &[&str] {
        &["fake"]
    }

    async fn open(
        &self,
        url: &str,
        _options: &OpenOptions,
        _context: &OpenContext,
    ) -> Result<Arc<dyn OriginTier>, TierError> {
        let missing = || TierError::new(ErrorKind::NotFound, "fake").with_object(url);
        self.0.get(url).cloned().ok_or_else(missing)
    }
}
