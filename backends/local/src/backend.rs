//! Opens directories by URL.

use std::sync::Arc;

use async_trait::async_trait;
use foreread_tier::{Backend, ErrorKind, OpenContext, OpenOptions, OriginTier, TierError};

use crate::error::NAME;
use crate::{LocalConfig, LocalOrigin, directory_of};

/// Opens the directories that plain paths and `file` URLs name.
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct LocalBackend;

impl LocalBackend {
    /// The backend. It has no settings.
    pub const fn new() -> Self {
        Self
    }
}

#[async_trait]
impl Backend for LocalBackend {
    fn schemes(&self) -> &[&str] {
        &["file"]
    }

    /// See [`directory_of`] for the forms of `url` and [`LocalConfig::from_options`] for the
    /// options.
    ///
    /// # Cancel safety
    /// A dropped future leaves no thread or file once the directory has been opened or refused.
    async fn open(
        &self,
        url: &str,
        options: &OpenOptions,
        context: &OpenContext,
    ) -> Result<Arc<dyn OriginTier>, TierError> {
        let directory = directory_of(url)?;
        let config = LocalConfig::from_options(options)?;
        let buffers = Arc::clone(&context.buffers);
        // A dead file server may not answer for minutes, which must not block a runtime thread.
        let opening = context.runtime.spawn_blocking(move || LocalOrigin::open(directory, config, buffers));
        match opening.await {
            Ok(origin) => Ok(Arc::new(origin?)),
            Err(error) => Err(TierError::new(ErrorKind::Closed, NAME)
                .with_object(url)
                .with_detail("the runtime ended while the directory was opened")
                .with_source(error)),
        }
    }
}
