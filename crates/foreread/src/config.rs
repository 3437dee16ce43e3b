//! What a run is asked to do, with types.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use foreread_dataset::Format;
use foreread_layers::{DeadlinePolicy, HedgePolicy, RetryPolicy};
use foreread_loader::OnError;
use foreread_oracle::Deal;
use serde::{Deserialize, Serialize};

use crate::calibration::Calibration;
use crate::error::{Error, Result};
use crate::machine::Machine;
use crate::on_node::OnNode;
use crate::size::ByteSize;
use crate::storage::StorageOptions;
use crate::target::Named;

/// How an epoch's order is drawn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum SamplerKind {
    /// A fresh uniform permutation every epoch.
    #[default]
    Shuffle,
    /// PyTorch's `DistributedSampler`, bit for bit.
    Torch,
    /// A keyed permutation that needs no memory, for any number of samples.
    Feistel,
    /// In the catalog's order.
    Sequential,
}

impl FromStr for SamplerKind {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "shuffle" => Ok(Self::Shuffle),
            "torch" => Ok(Self::Torch),
            "feistel" => Ok(Self::Feistel),
            "sequential" => Ok(Self::Sequential),
            _ => Err("expected shuffle, torch, feistel or sequential".to_owned()),
        }
    }
}

/// How much memory the memory tier gets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Memory {
    /// As much as is safe within the machine's and the container's limits, where all automatic loaders and ranks of the
    /// node together take half of what is free; none where the kernel caches the origin already, because a second copy
    /// gains nothing.
    #[default]
    Auto,
    /// This many bytes.
    Bytes(u64),
}

impl FromStr for Memory {
    type Err = crate::size::ParseSizeError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "auto" => Ok(Self::Auto),
            size => size.parse::<ByteSize>().map(|size| Self::Bytes(size.0)),
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

/// One directory of the disk tier, with the bytes that it may take there; written `DIR=SIZE`, or `DIR=SIZE,shared`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Disk {
    /// The directory. It is made if its parent is there.
    pub directory: PathBuf,
    /// The most bytes that are kept in it.
    pub bytes: u64,
    /// Whether one cache there serves all users, instead of one that is this user's alone. Owners and modes are not
    /// checked then: all who can write there are trusted.
    pub shared: bool,
}

impl FromStr for Disk {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("invalid disk '{text}': expected DIR=SIZE, e.g. /local/cache=500GB");
        let (directory, size) =
            text.rsplit_once('=').filter(|(directory, _)| !directory.is_empty()).ok_or_else(wrong)?;
        let (size, shared) = match size.split_once(',') {
            Some((size, "shared")) => (size, true),
            Some((_, other)) => {
                return Err(format!("'{text}': expected shared after the size, not '{other}'"));
            }
            None => (size, false),
        };
        let bytes = size.parse::<ByteSize>().map_err(|error| error.to_string())?.0;
        Ok(Self { directory: directory.into(), bytes, shared })
    }
}

/// All settings of a run, for [`Loader::builder_with`](crate::Loader::builder_with).
///
/// [`Default`] has the values that are documented at each field. The number of epochs has none: a run must set it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Config {
    /// Samples a batch, on this rank; at least 1.
    pub batch_size: u64,
    /// How often the dataset is read; 1 to 1,000,000. No default: 0 stands for unset, and a run that leaves it so is
    /// refused. [`Builder::source`](crate::Builder::source) needs none.
    pub epochs: u64,
    /// What the order is drawn from.
    pub seed: u64,
    /// How it is drawn.
    pub sampler: SamplerKind,
    /// Drop what does not divide evenly among ranks and batches, instead of padding.
    pub drop_last: bool,
    /// How ranks share an epoch.
    pub deal: Deal,
    /// Which rank computes which sample of a global batch follows from where the samples are kept, as far as equal
    /// shares allow; only where ranks work together. Steps, positions and what `deal` says of them stay.
    pub locality: bool,
    /// The memory tier.
    pub memory: Memory,
    /// The disk tier: none, one or several directories.
    pub disk: Vec<Disk>,
    /// How far reads may run ahead of the trainer, in bytes; never further than an epoch, whatever is said.
    pub look_ahead: u64,
    /// This process among the ranks.
    pub rank: u32,
    /// How many ranks there are.
    pub world_size: u32,
    /// How many processes of this node share its memory, whether they work together or not: [`Memory::Auto`] is half
    /// of it for all. None: what the launcher says in the environment.
    pub node_ranks: Option<u32>,
    /// Which of these this one is, from 0: each has a part of the disk tier's directories. None: what the launcher says.
    pub node_rank: Option<u32>,
    /// The most bytes a second that are read from the origin.
    pub origin_limit: Option<u64>,
    /// The most reads from the origin at once.
    pub origin_parallelism: Option<usize>,
    /// How failed reads from the origin are retried.
    pub retry: RetryPolicy,
    /// When a read from the origin that is not answered counts as failed; `None`: never. Directories whose pages the
    /// kernel caches have no deadline.
    pub deadline: Option<DeadlinePolicy>,
    /// When a late read from the origin is sent a second time; `None`: never. Not for directories whose pages the kernel
    /// caches.
    pub hedge: Option<HedgePolicy>,
    /// The storage backend's settings for the training data.
    pub storage_options: StorageOptions,
    /// The same for the validation data.
    pub validate_storage_options: StorageOptions,
    /// What the origin and the disks can do, as measured: for plans that say how long a run takes, and for a start
    /// with as many reads under way as turned out best.
    pub calibration: Option<Arc<Calibration>>,
    /// How long the trainer computes on each batch (the command's stand-in for a trainer).
    pub compute: Duration,
    /// What to do about a sample that cannot be read.
    pub on_error: OnError,
    /// A second dataset, read in order after every epoch.
    pub validate: Option<String>,
    /// How samples lie in the datasets' objects; told from names where nobody says, and known of a catalog.
    pub format: Option<Format>,
    /// Where the run takes place.
    pub(crate) machine: Machine,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            batch_size: 64,
            epochs: 0,
            seed: 0,
            sampler: SamplerKind::default(),
            drop_last: false,
            deal: Deal::Torch,
            locality: false,
            memory: Memory::Auto,
            disk: Vec::new(),
            look_ahead: 256 << 20,
            rank: 0,
            world_size: 1,
            node_ranks: None,
            node_rank: None,
            origin_limit: None,
            origin_parallelism: None,
            retry: RetryPolicy::default(),
            deadline: Some(DeadlinePolicy::default()),
            hedge: Some(HedgePolicy::default()),
            storage_options: StorageOptions::default(),
            validate_storage_options: StorageOptions::default(),
            calibration: None,
            compute: Duration::ZERO,
            on_error: OnError::Fail,
            validate: None,
            format: None,
            machine: Machine::default(),
        }
    }
}

impl Config {
    /// The most epochs. A run with this many has no end: its plan, lower bound and forecast are those of the next hundred
    /// epochs at most.
    pub const MAX_EPOCHS: u64 = 1_000_000;

    /// Finds out whether a run can do this.
    ///
    /// # Errors
    /// The setting that no run can have, as the settings file calls it, and why not.
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
        least("world-size", u64::from(self.world_size))?;
        if self.rank >= self.world_size {
            let why = format!("ranks run from 0 to {}, one below the world size", self.world_size - 1);
            return Err(("rank", why));
        }
        if let Some(ranks) = self.node_ranks {
            least("node-ranks", u64::from(ranks))?;
        }
        if let (Some(rank), Some(ranks)) = (self.node_rank, self.node_ranks)
            && rank >= ranks
        {
            let why = format!("ranks of a node run from 0 to {}, one below their number", ranks - 1);
            return Err(("node-rank", why));
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

    /// The validation data, where there are any.
    pub(crate) fn validation(&self) -> Option<Named> {
        let storage = self.validate_storage_options.clone();
        self.validate.as_ref().map(|target| Named { storage, ..Named::by(target) })
    }

    /// How many ranks share this node's memory and disks: as set, or else as the launcher says; at least 1.
    pub fn ranks_on_node(&self) -> u32 {
        self.on_node().ranks
    }

    /// Which of its node's ranks this is: as set, or else as the launcher says.
    pub(crate) fn on_node(&self) -> OnNode {
        if let (Some(_), Some(_)) = (self.node_rank, self.node_ranks) {
            return OnNode::of(self.node_rank, self.node_ranks);
        }
        let launched = self.machine.on_node();
        OnNode::of(self.node_rank.or(Some(launched.rank)), self.node_ranks.or(Some(launched.ranks)))
    }

    /// The same check for a configuration that was filled in by hand.
    ///
    /// # Errors
    /// If no run can do this; the message names the setting.
    pub fn validated(self) -> Result<Self> {
        match self.check() {
            Ok(()) => Ok(self),
            Err((name, why)) => Err(Error::usage(format!("{name}: {why}"))),
        }
    }
}
