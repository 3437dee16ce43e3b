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
use foreread_oracle::Deal;
use foreread_types::RankOf;
use serde::{Deserialize, Serialize};

use crate::agent_choice::AgentChoice;
use crate::builder::Builder;
use crate::machine::Machine;

/// How an epoch's order is determined.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum SamplerKind {
    /// A new uniform permutation in every epoch.
    #[default]
    Shuffle,
    /// PyTorch's `DistributedSampler`, bit for bit.
    Torch,
    /// A keyed permutation without a table, for any number of samples.
    Feistel,
    /// The catalog's order.
    Sequential,
}

impl SamplerKind {
    /// All samplers, by the name that settings use.
    pub const ALL: [(&str, Self); 4] = [
        ("shuffle", Self::Shuffle),
        ("torch", Self::Torch),
        ("feistel", Self::Feistel),
        ("sequential", Self::Sequential),
    ];
}

impl FromStr for SamplerKind {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let found = Self::ALL.into_iter().find(|(name, _)| *name == text);
        found.map(|(_, kind)| kind).ok_or("expected shuffle, torch, feistel or sequential")
    }
}

impl fmt::Display for SamplerKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(Self::ALL.iter().find(|(_, kind)| kind == self).map_or("", |(name, _)| *name))
    }
}

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

/// Defines [`Config`], one row per field, with its default. `|argument: type| value` adds the method
/// of [`Builder`] that sets the field to this value. It has the name and the text of the field.
macro_rules! config {
    (@method $(#[$doc:meta])* $field:ident) => {};
    (@method $(#[$doc:meta])* $field:ident, |$given:ident: $from:ty| $value:expr) => {
        $(#[$doc])*
        #[must_use]
        pub fn $field(mut self, $given: $from) -> Self {
            self.config.$field = $value;
            self
        }
    };
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

        /// Settings that are one field of [`Config`].
        impl Builder {
            $(config! { @method $(#[$doc])* $field $(, |$given: $from| $value)? })*
        }
    };
}

config! {
    /// Samples per batch, on this rank. At least 1. Default: 64.
    pub batch_size: u64 = 64, |samples: u64| samples;
    /// The number of passes over the dataset, 1 to 1,000,000. No default: a run with 0, which means
    /// unset, is refused. [`Builder::source`] needs none.
    pub epochs: u64 = 0, |epochs: u64| epochs;
    /// The seed of the order. Default: 0.
    pub seed: u64 = 0, |seed: u64| seed;
    /// The sampler of the order.
    pub sampler: SamplerKind = SamplerKind::default(), |sampler: SamplerKind| sampler;
    /// Drop samples that do not divide evenly among ranks and batches, instead of padding.
    pub drop_last: bool = false, |drop_last: bool| drop_last;
    /// How ranks share an epoch.
    pub deal: Deal = Deal::Torch, |deal: Deal| deal;
    /// Whether each sample of a global batch goes to the rank that caches it, as far as equal
    /// shares allow. Only groups of ranks use it. Steps and positions stay as with `deal`. Default:
    /// false.
    pub locality: bool = false, |locality: bool| locality;
    /// The size of the memory tier.
    pub memory: Memory = Memory::Auto, |memory: Memory| memory;
    /// The disk tier: none, one or several directories.
    pub disk: Vec<Disk> = Vec::new();
    /// How many bytes are prefetched. Never more than an epoch. Default: 256 MiB.
    pub look_ahead: u64 = 256 << 20, |bytes: u64| bytes;
    /// This process's rank among all of the run. Default: the only rank.
    pub rank: RankOf = RankOf::ALONE, |rank: RankOf| rank;
    /// This process's rank among the processes of its node, in a group or not. [`Memory::Auto`] is
    /// half of the node's free memory for all of them, and each has a part of the disk tier's
    /// directories. `None`: from the launcher's environment.
    pub on_node: Option<RankOf> = None, |rank: RankOf| Some(rank);
    /// The most bytes per second from the origin. Default: no limit.
    pub origin_limit: Option<u64> = None, |bytes_per_second: u64| Some(bytes_per_second);
    /// The most parallel reads from the origin, hedges included. Default: adapted during the run.
    pub origin_parallelism: Option<usize> = None, |reads: usize| Some(reads);
    /// How failed reads from the origin are retried. Default: at most 8 attempts within 120 s of
    /// the first failure, with waits from 100 ms to 10 s.
    pub retry: RetryPolicy = RetryPolicy::default(), |policy: RetryPolicy| policy;
    /// Retries a failed read from the origin until this time after its first failure, with any
    /// number of attempts. Set it above the longest outage that the run must survive. Replaces the
    /// patience and the number of attempts of [`retry`](Self::retry), and keeps its waits. A silent
    /// server of a network file system is waited for this long, too, instead of 20 minutes.
    pub patience: Option<Duration> = None, |patience: Duration| Some(patience);
    /// Whether files that the storage has moved to an archive are restored, in the background and in
    /// the order of their first use. Without it their first reads wait for it.
    pub recall: bool = false, |recall: bool| recall;
    /// The timeout of reads from the origin, after which they are retried. `None`: none.
    /// Directories in the page cache have no timeout. Default: 30 s plus eight times the transfer
    /// time of its bytes at the recent throughput.
    pub deadline: Option<DeadlinePolicy> = Some(DeadlinePolicy::default()),
        |policy: impl Into<Option<DeadlinePolicy>>| policy.into();
    /// When a slow read from the origin is hedged. `None`: never. Directories in the page cache are
    /// not hedged. Default: after three times the 95th percentile of reads of its size, and at
    /// least 10 ms. At most 3 of 100 reads are hedged.
    pub hedge: Option<HedgePolicy> = Some(HedgePolicy::default()),
        |policy: impl Into<Option<HedgePolicy>>| policy.into();
    /// The storage backend's settings for the training data.
    pub storage_options: StorageOptions = StorageOptions::default();
    /// The storage backend's settings for the validation data.
    pub validate_storage_options: StorageOptions = StorageOptions::default();
    /// The measured speeds of origin and disks: for predicted times, and for the first number of
    /// parallel reads. Default: none.
    pub calibration: Option<Arc<Calibration>> = None, |calibration: Calibration| Some(Arc::new(calibration));
    /// The reaction to a sample that cannot be read. Default: [`OnError::Fail`].
    pub on_error: OnError = OnError::Fail, |on_error: OnError| on_error;
    /// A second dataset, read in order after every epoch.
    pub validate: Option<String> = None, |target: impl Into<String>| Some(target.into());
    /// The format of the datasets' objects, regardless of their names. `None`: detected from names,
    /// or known from a catalog.
    pub format: Option<Format> = None, |format: Format| Some(format);
    /// The trainer's computation time per batch, for predicted times only. Zero: unknown.
    pub(crate) compute: Duration = Duration::ZERO;
    /// The numbers of the samples that passes read, by dataset, where the targets are parts of
    /// catalogs.
    pub(crate) chosen: Vec<Option<Arc<[u64]>>> = Vec::new();
    /// The agent of the node, whose cache replaces this run's memory and disks. Without the feature
    /// `share` there is none.
    pub agent: AgentChoice = AgentChoice::default(), |agent: AgentChoice| agent;
    /// Bytes of memory for samples while the agent, or the rank that hosts the memory of this node,
    /// is gone. 0 by default: what was given to the agent is free for others then.
    pub memory_alone: u64 = 0, |bytes: u64| bytes;
    /// What the agent of the node calls this job, in its status and in its policy. `None`: the name
    /// of the Slurm job, or the program's.
    pub job_name: Option<String> = None, |name: impl Into<String>| Some(name.into());
    /// Whether samples are requested by id, and the settings have no order.
    pub(crate) is_by_id: bool = false;
    /// Plans only: directories of the disk tier are neither created nor changed. A run that starts
    /// all the same has no disk tier. Default: false.
    pub plan_only: bool = false, |plan_only: bool| plan_only;
    /// The node.
    pub(crate) machine: Machine = Machine::default();
}

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
