//! Opening origins by URL.

use std::collections::BTreeMap;
use std::fmt::{self, Debug};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio::runtime::Handle;

use crate::{Buffers, OriginTier, TierError};

/// The resources of an origin, shared by all origins of a run.
#[derive(Clone, Debug)]
pub struct OpenContext {
    /// Allocates memory for samples.
    pub buffers: Arc<dyn Buffers>,
    /// Runs tasks.
    pub runtime: Handle,
    /// Seed of random numbers (jitter).
    pub seed: u64,
}

/// The user's options for an origin beyond its URL.
#[derive(Clone, Default)]
#[non_exhaustive]
pub struct OpenOptions {
    /// Concurrent reads. `None` leaves the choice to the backend.
    pub parallelism: Option<usize>,
    /// How long a silent server of a network file system is waited for. `None` leaves the choice to
    /// the backend. Other storage ignores it.
    pub patience: Option<Duration>,
    /// Backend-specific settings by name. Values may be secrets.
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
        shown
            .field("parallelism", &self.parallelism)
            .field("patience", &self.patience)
            .field("settings", &names)
            .finish_non_exhaustive()
    }
}

/// Opens the origins of some URL schemes.
#[async_trait]
pub trait Backend: Debug + Send + Sync + 'static {
    /// The schemes, lower case, without `://`.
    fn schemes(&self) -> &[&str];

    /// The environment variables that the rights of reads depend on, such as keys, tokens and
    /// profiles, by the beginnings of their names. A job and the agent that reads for it must have
    /// equal values, or the job would read with the agent's rights. Default: none.
    fn credentials(&self) -> &[&str] {
        &[]
    }

    /// Opens the origin at `url`, whose scheme is one of [`schemes`](Self::schemes). The backend of
    /// `file` also gets paths without a scheme.
    ///
    /// # Errors
    /// If the origin does not exist, reading it is denied, or the URL is invalid.
    async fn open(
        &self,
        url: &str,
        options: &OpenOptions,
        context: &OpenContext,
    ) -> Result<Arc<dyn OriginTier>, TierError>;
}
