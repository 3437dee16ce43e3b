//! The policies, one per file: the decisions of each before a run.
//!
//! Nine are those of Böhringer's thesis, two are Monarch and PRISMA, two are foreread's. Each
//! returns one or several plans, of which the fastest counts, or a one-line reason why it refuses a
//! scenario.

mod deepio_ordered;
mod foreread;
mod foreread_locality;
mod lbann_dynamic;
mod lbann_preload;
mod locality_aware;
mod lower_bound;
mod monarch;
mod naive;
mod nopfs;
mod parallel_staging;
mod prisma;
mod staging_buffer;

use std::fmt;
use std::str::FromStr;

use serde::{Serialize, Serializer};

use crate::error::{Reason, SimulateError};
use crate::plan::{Plan, Setting};
use crate::threads::Threads;
use crate::workload::MB;

/// A cache policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Policy {
    /// No I/O at all, only computing and the barriers.
    LowerBound,
    /// Every sample is read from the file system on demand.
    Naive,
    /// Samples are staged ahead from the file system.
    StagingBuffer,
    /// Each worker caches the samples that it reads most often (Dryden et al., SC21).
    Nopfs,
    /// The dataset is spread over the workers' memories before the run (DeepIO, MASCOTS 2018, in the training's order).
    DeepioOrdered,
    /// Each worker loads its disk before the run and trains on the samples that it holds (Kurth et
    /// al., SC18).
    ParallelStaging,
    /// LBANN's data store, filled during the first epoch.
    LbannDynamic,
    /// LBANN's data store, filled before the run.
    LbannPreload,
    /// Shards on the workers' disks, loaded before the run (Yang and Cong, HiPC 2019).
    LocalityAware,
    /// First-touch copies of whole files to each node's own tiers (Monarch, CCGrid 2022).
    Monarch,
    /// Parallel prefetching without a cache (PRISMA, 2021).
    Prisma,
    /// foreread: one copy in the cluster, read once by its owner.
    Foreread,
    /// foreread, with the samples of each global batch dealt to the workers that hold them.
    ForereadLocality,
}

impl Policy {
    /// All policies, in the order of reports.
    pub const ALL: [Self; 13] = [
        Self::LowerBound,
        Self::Naive,
        Self::StagingBuffer,
        Self::Nopfs,
        Self::DeepioOrdered,
        Self::ParallelStaging,
        Self::LbannDynamic,
        Self::LbannPreload,
        Self::LocalityAware,
        Self::Monarch,
        Self::Prisma,
        Self::Foreread,
        Self::ForereadLocality,
    ];

    /// The policy's name in the command line and in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::LowerBound => "lower-bound",
            Self::Naive => "naive",
            Self::StagingBuffer => "staging-buffer",
            Self::Nopfs => "nopfs",
            Self::DeepioOrdered => "deepio-ordered",
            Self::ParallelStaging => "parallel-staging",
            Self::LbannDynamic => "lbann-dynamic",
            Self::LbannPreload => "lbann-preload",
            Self::LocalityAware => "locality-aware",
            Self::Monarch => "monarch",
            Self::Prisma => "prisma",
            Self::Foreread => "foreread",
            Self::ForereadLocality => "foreread-locality",
        }
    }

    /// Whether the policy keeps samples in the classes after the staging buffer.
    pub const fn has_cache(self) -> bool {
        !matches!(self, Self::LowerBound | Self::Naive | Self::StagingBuffer | Self::Prisma)
    }

    /// The policy's plans for a run. The fastest counts.
    pub(crate) fn plans(self, setting: &Setting<'_>) -> Result<Vec<Plan>, Refusal> {
        let one = |plan| Ok(vec![plan]);
        match self {
            Self::LowerBound => one(lower_bound::plan(setting)),
            Self::Naive => one(naive::plan(setting)),
            Self::StagingBuffer => one(staging_buffer::plan(setting)),
            Self::Nopfs => one(nopfs::plan(setting)),
            Self::DeepioOrdered => deepio_ordered::plan(setting).and_then(one),
            Self::ParallelStaging => parallel_staging::plan(setting).and_then(one),
            Self::LbannDynamic => lbann_dynamic::plan(setting).and_then(one),
            Self::LbannPreload => lbann_preload::plan(setting).and_then(one),
            Self::LocalityAware => locality_aware::plan(setting).and_then(one),
            Self::Monarch => one(monarch::plan(setting)),
            Self::Prisma => one(prisma::plan(setting)),
            Self::Foreread => foreread::plans(setting),
            Self::ForereadLocality => foreread_locality::plan(setting).and_then(one),
        }
    }

    /// The number of plans that [`plans`](Self::plans) returns, without making them.
    pub(crate) fn tries(self, setting: &Setting<'_>) -> u64 {
        if self == Self::Foreread { foreread::tries(setting) } else { 1 }
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl Serialize for Policy {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

impl FromStr for Policy {
    type Err = SimulateError;

    /// ```
    /// use foreread_simulator::Policy;
    /// assert_eq!("nopfs".parse(), Ok(Policy::Nopfs));
    /// assert!("lru".parse::<Policy>().unwrap_err().to_string().starts_with("unknown policy `lru`: expected one of "));
    /// ```
    fn from_str(name: &str) -> Result<Self, Self::Err> {
        let known = || Self::ALL.map(Self::name).join(" ");
        let found = Self::ALL.into_iter().find(|policy| policy.name() == name);
        found.ok_or_else(|| Reason::Policy { name: name.to_owned(), known: known() }.into())
    }
}

/// The reason why a policy refuses a scenario.
pub(crate) type Refusal = String;

/// The class that the thesis calls 1, the workers' memory, as an index into the scenario's classes.
fn memory(setting: &Setting<'_>) -> Result<usize, Refusal> {
    if setting.scenario.storage.len() > 1 {
        Ok(1)
    } else {
        Err("the scenario has no class after the staging buffer".into())
    }
}

/// The class that the thesis calls 2, the workers' disk. The memory if there is no other.
fn disk(setting: &Setting<'_>) -> Result<usize, Refusal> {
    memory(setting).map(|memory| (memory + 1).min(setting.scenario.storage.len() - 1))
}

/// Whether the whole dataset fits into a class of all workers together.
fn fits(setting: &Setting<'_>, class: usize) -> bool {
    let all = setting.scenario.storage[class].capacity * setting.workers() as f64;
    setting.workload.total() as f64 / MB <= all
}

/// LBANN's refusal: its data store holds the whole dataset or does not run.
fn refuse_unless_it_fits(setting: &Setting<'_>, class: usize) -> Result<(), Refusal> {
    if fits(setting, class) {
        return Ok(());
    }
    let total = setting.workload.total() as f64 / MB;
    let all = setting.scenario.storage[class].capacity * setting.workers() as f64;
    Err(format!("the dataset's {total:.0} MB do not fit in the workers' memories of {all:.0} MB together"))
}

/// Loads each worker's part of the dataset into a class before the run, until a sample does not
/// fit. The longest thread of the slowest worker gives the initial stall.
fn preload(setting: &Setting<'_>, plan: &mut Plan, class: usize, shards: Shards) {
    let mut stall: f64 = 0.0;
    let mut next = 0;
    for worker in 0..setting.workers() {
        let mut threads = Threads::new(setting.scenario.storage[class].threads, 0.0);
        let part = match shards {
            Shards::Contiguous => setting.shard(worker),
            Shards::AsMuchAsFits => next..setting.scenario.samples,
        };
        for sample in part {
            if !plan.rooms.take(worker, class, setting.size(sample)) {
                break;
            }
            threads.work(0.0, setting.prefetch_seconds(sample));
            plan.load(setting, sample, worker, class, 0.0);
            next = sample + 1;
        }
        stall = stall.max(threads.done());
    }
    plan.initial_stall = stall;
    plan.copies.all_from(stall);
}

/// The part of the dataset that each worker loads before a run.
#[derive(Clone, Copy)]
enum Shards {
    /// Its own contiguous N-th of the dataset.
    Contiguous,
    /// The samples that earlier workers left, as many as fit.
    AsMuchAsFits,
}
