//! The settings of a run.

use std::fmt;
use std::num::NonZeroU32;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use foreread_dataset::{Catalog, Format};
use foreread_layers::{DeadlinePolicy, HedgePolicy, RetryPolicy};
use foreread_loader::OnError;
use foreread_open::calibration::Calibration;
use foreread_open::disk::Disk;
use foreread_open::error::{Error, Result};
use foreread_open::origin::OpenDataset;
use foreread_open::origin_policy::OriginSettings;
use foreread_open::size::ByteSize;
use foreread_open::storage::StorageOptions;
use foreread_open::target::TargetSpec;
use foreread_oracle::{Deal, SamplerKind};
use foreread_types::RankOf;

use crate::agent_choice::AgentChoice;
use crate::config_rows::config_rows;
use crate::machine::Machine;

/// The size of the memory tier.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Memory {
    /// All automatic loaders and ranks of the node take half of the free memory, within the
    /// machine's and the container's limits. None if the kernel caches the origin, because a second
    /// copy gains nothing.
    #[default]
    Auto,
    /// This many bytes.
    Bytes(u64),
}

impl FromStr for Memory {
    type Err = foreread_open::size::ParseSizeError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "auto" => Ok(Self::Auto),
            size => ByteSize::of_cache(size).map(|size| Self::Bytes(size.0)),
        }
    }
}

impl fmt::Display for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Bytes(bytes) => ByteSize(*bytes).fmt(f),
        }
    }
}

/// Defines [`Config`] by its rows.
macro_rules! fields {
    ($(
        $(#[$doc:meta])*
        $vis:vis $field:ident: $type:ty = $default:expr $(, |$given:ident: $from:ty| $value:expr)?;
    )*) => {
        /// All settings of a run, for [`Loader::builder_with`](crate::Loader::builder_with).
        ///
        /// [`Default`] has the values that each field documents. The number of epochs has no
        /// default: a run must set it.
        #[derive(Clone, Debug)]
        #[non_exhaustive]
        pub struct Config {
            $($(#[$doc])* $vis $field: $type,)*
        }

        impl Default for Config {
            fn default() -> Self {
                Self { $($field: $default,)* }
            }
        }
    };
}

config_rows!(fields);

impl Config {
    /// The most epochs. A run with this many has no end: its plan, lower bound and forecast are
    /// those of the next hundred epochs at most.
    pub const MAX_EPOCHS: u64 = 1_000_000;

    /// How failed reads from the origin are retried, for as long as the user has set.
    pub(crate) fn retry_policy(&self) -> RetryPolicy {
        match self.patience {
            Some(patience) => self.retry.with_patience(patience).with_attempts(NonZeroU32::MAX),
            None => self.retry,
        }
    }

    /// The settings that origins need.
    pub fn origin_settings(&self) -> OriginSettings {
        OriginSettings {
            first_reads: self.batch_size,
            calibration: self.calibration.clone(),
            parallelism: self.origin_parallelism,
            limit: self.origin_limit,
            retry: self.retry_policy(),
            patience: self.patience,
            deadline: self.deadline,
            hedge: self.hedge,
            seed: self.seed ^ (u64::from(self.rank.rank) << 32),
        }
    }

    /// Checks the settings.
    ///
    /// # Errors
    /// The name of the invalid setting, as in the settings file, and the cause.
    pub fn check(&self) -> Result<(), (&'static str, String)> {
        let least = |name, value: u64| match value {
            0 => Err((name, "must be at least 1".to_owned())),
            _ => Ok(()),
        };
        least("batch-size", self.batch_size)?;
        if self.epochs == 0 {
            return Err(("epochs", "not set: expected the number of epochs, at least 1".to_owned()));
        }
        if self.epochs > Self::MAX_EPOCHS {
            return Err(("epochs", format!("must be at most {}", Self::MAX_EPOCHS)));
        }
        let RankOf { rank, ranks } = self.rank;
        least("world-size", u64::from(ranks))?;
        if rank >= ranks {
            let why = format!("ranks run from 0 to {}, one below the world size", ranks - 1);
            return Err(("rank", why));
        }
        if let Some(RankOf { rank, ranks }) = self.on_node {
            least("on-node", u64::from(ranks))?;
            if rank >= ranks {
                let why = format!("ranks of a node run from 0 to {}, one below their number", ranks - 1);
                return Err(("on-node", why));
            }
        }
        if self.disk.iter().any(|disk| disk.bytes == 0) {
            return Err(("disk", "the size of each directory must be at least 1 byte".to_owned()));
        }
        if self.deadline.is_some_and(|deadline| deadline.floor.is_zero()) {
            return Err(("deadline", "its lower bound must be above 0; use None for no deadline".to_owned()));
        }
        least("origin-limit", self.origin_limit.unwrap_or(1))?;
        least("origin-parallelism", self.origin_parallelism.unwrap_or(1) as u64)
    }

    /// The validation data, if set.
    pub(crate) fn validation(&self) -> Option<TargetSpec> {
        let storage = self.validate_storage_options.clone();
        self.validate.as_ref().map(|target| TargetSpec { storage, ..TargetSpec::by(target) })
    }

    /// The number of ranks on this node, as set or from the launcher. At least 1.
    pub fn ranks_on_node(&self) -> u32 {
        self.rank_on_node().ranks.max(1)
    }

    /// The rank on its node, as set or from the launcher.
    pub(crate) fn rank_on_node(&self) -> RankOf {
        self.on_node.unwrap_or_else(|| self.machine.on_node())
    }

    /// The numbers of the samples that passes over a dataset read. `None` for all.
    pub(crate) fn chosen(&self, dataset: usize) -> Option<&Arc<[u64]>> {
        self.chosen.get(dataset)?.as_ref()
    }

    /// [`check`](Self::check) with the configuration as its result.
    ///
    /// # Errors
    /// If a setting is invalid. The message names it.
    pub fn validated(self) -> Result<Self> {
        match self.check() {
            Ok(()) => Ok(self),
            Err((name, why)) => Err(Error::usage(format!("{name}: {why}"))),
        }
    }
}

/// Separates the orders of these datasets from their bytes: catalogs become whole ones, whose
/// numbers caches use, and the settings get the samples of parts. Returns the catalogs as they
/// were.
pub fn widen(opened: &mut [OpenDataset], config: &mut Config) -> Vec<Catalog> {
    let named: Vec<Catalog> = opened.iter().map(|dataset| dataset.catalog.clone()).collect();
    config.chosen = named.iter().map(|catalog| catalog.numbers().cloned()).collect();
    opened.iter_mut().for_each(|dataset| dataset.catalog = dataset.catalog.with_gone());
    named
}
