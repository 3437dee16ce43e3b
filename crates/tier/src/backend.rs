//! Opening origins by URL.

use std::collections::BTreeMap;
use std::fmt::{self, Debug};
use std::sync::Arc;

use async_trait::async_trait;
use tokio::runtime::Handle;

use crate::{Buffers, OriginTier, TierError};

/// What a backend works with; shared by all that one run opens.
#[derive(Clone, Debug)]
pub struct Context {
    /// Where memory for samples comes from.
    pub buffers: Arc<dyn Buffers>,
    /// Where tasks run.
    pub runtime: Handle,
    /// Where randomness (jitter) comes from.
    pub seed: u64,
}

/// What the user asked of an origin beyond its URL.
#[derive(Clone, Default)]
#[non_exhaustive]
pub struct OpenOptions {
    /// Reads under way at once; the backend's own choice where it is `None`.
    pub parallelism: Option<usize>,
    /// The backend's own settings, by name. Values may be secrets.
    pub settings: BTreeMap<String, String>,
}

impl OpenOptions {
    /// The largest valid [`parallelism`](Self::parallelism): each read is a connection or a thread.
    pub const MAX_PARALLELISM: usize = 4096;

    /// The parallelism, if it is set.
    ///
    /// # Errors
    /// If it is 0 or above [`MAX_PARALLELISM`](Self::MAX_PARALLELISM).
    pub fn checked_parallelism(&self, tier: &str) -> Result<Option<usize>, TierError> {
        match self.parallelism {
            Some(other) if !(1..=Self::MAX_PARALLELISM).contains(&other) => {
                let why = format!("{other} is not between 1 and {}", Self::MAX_PARALLELISM);
                Err(TierError::invalid(tier, "parallelism", why))
            }
            parallelism => Ok(parallelism),
        }
    }
}

impl Debug for OpenOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = self.settings.keys().collect();
        let mut shown = f.debug_struct("OpenOptions");
        shown.field("parallelism", &self.parallelism).field("settings", &names).finish_non_exhaustive()
    }
}

/// A kind of store: opens the origins of some URL schemes.
#[async_trait]
pub trait Backend: Debug + Send + Sync + 'static {
    /// The schemes, lower case, without `://`.
    fn schemes(&self) -> &[&str];

    /// Opens the origin at `url`, whose scheme is one of [`schemes`](Self::schemes); a path without a scheme comes
    /// as it is to the backend of `file`.
    ///
    /// # Errors
    /// If there is nothing there, it may not be read, or the URL makes no sense.
    async fn open(
        &self,
        url: &str,
        options: &OpenOptions,
        context: &Context,
    ) -> Result<Arc<dyn OriginTier>, TierError>;
}
