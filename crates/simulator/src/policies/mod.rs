//! The policies, one per file: the decisions of each before a run.
//!
//! Nine are those of Böhringer's thesis, two are Monarch and PRISMA, three are foreread's. Each
//! returns one or several plans, of which the fastest counts, or a one-line reason why it refuses a
//! scenario.

mod deepio_ordered;
mod foreread;
mod foreread_by_server;
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

use crate::named::named;
use crate::plan::{PolicyPlan, Setup};
use crate::threads::Threads;
use crate::workload::MB;

named! {
    /// A cache policy.
    ///
    /// ```
    /// use foreread_simulator::Policy;
    /// assert_eq!("nopfs".parse(), Ok(Policy::Nopfs));
    /// let error = "lru".parse::<Policy>().unwrap_err().to_string();
    /// assert!(error.starts_with("unknown policy `lru`: expected one of "));
    /// ```
    pub enum Policy is a "policy" {
        /// No I/O at all, only computing and the barriers.
        LowerBound "lower-bound",
        /// Every sample is read from the file system on demand.
        Naive "naive",
        /// Samples are staged ahead from the file system.
        StagingBuffer "staging-buffer",
        /// Each worker caches the samples that it reads most often (Dryden et al., SC21).
        Nopfs "nopfs",
        /// The dataset is spread over the workers' memories before the run (DeepIO, MASCOTS 2018,
        /// in the training's order).
        DeepioOrdered "deepio-ordered",
        /// Each worker loads its disk before the run and trains on the samples that it holds (Kurth
        /// et al., SC18).
        ParallelStaging "parallel-staging",
        /// LBANN's data store, filled during the first epoch.
        LbannDynamic "lbann-dynamic",
        /// LBANN's data store, filled before the run.
        LbannPreload "lbann-preload",
        /// Shards on the workers' disks, loaded before the run (Yang and Cong, HiPC 2019).
        LocalityAware "locality-aware",
        /// First-touch copies of whole files to each node's own tiers (Monarch, CCGrid 2022).
        Monarch "monarch",
        /// Parallel prefetching without a cache (PRISMA, 2021).
        Prisma "prisma",
        /// foreread: one copy in the cluster, read once by its owner.
        Foreread "foreread",
        /// foreread, with the samples of each global batch dealt to the workers that hold them.
        ForereadLocality "foreread-locality",
        /// foreread, with kept samples that even the time of the file system's servers.
        ForereadByServer "foreread-by-server",
    }
}

impl Policy {
    /// Whether the policy keeps samples in the classes after the staging buffer.
    pub(crate) fn has_cache(self) -> bool {
        !matches!(self, Self::LowerBound | Self::Naive | Self::StagingBuffer | Self::Prisma)
    }

    /// The policy's plans for a run. The fastest counts.
    pub(crate) fn plans(self, setup: &Setup<'_>) -> Result<Vec<PolicyPlan>, String> {
        let one = |plan| Ok(vec![plan]);
        match self {
            Self::LowerBound => one(lower_bound::plan(setup)),
            Self::Naive => one(naive::plan(setup)),
            Self::StagingBuffer => one(staging_buffer::plan(setup)),
            Self::Nopfs => one(nopfs::plan(setup)),
            Self::DeepioOrdered => deepio_ordered::plan(setup).and_then(one),
            Self::ParallelStaging => parallel_staging::plan(setup).and_then(one),
            Self::LbannDynamic => lbann_dynamic::plan(setup).and_then(one),
            Self::LbannPreload => lbann_preload::plan(setup).and_then(one),
            Self::LocalityAware => locality_aware::plan(setup).and_then(one),
            Self::Monarch => one(monarch::plan(setup)),
            Self::Prisma => one(prisma::plan(setup)),
            Self::Foreread => foreread::plans(setup),
            Self::ForereadLocality => foreread_locality::plan(setup).and_then(one),
            Self::ForereadByServer => foreread_by_server::plan(setup).and_then(one),
        }
    }

    /// The number of plans that [`plans`](Self::plans) returns, without making them.
    pub(crate) fn tries(self, setup: &Setup<'_>) -> u64 {
        if self == Self::Foreread { foreread::tries(setup) } else { 1 }
    }
}

/// The class that the thesis calls 1, the workers' memory, as an index into the scenario's classes.
fn memory(setup: &Setup<'_>) -> Result<usize, String> {
    if setup.scenario.storage.len() > 1 {
        Ok(1)
    } else {
        Err("the scenario has no class after the staging buffer".into())
    }
}

/// The class that the thesis calls 2, the workers' disk. The memory if there is no other.
fn disk(setup: &Setup<'_>) -> Result<usize, String> {
    memory(setup).map(|memory| (memory + 1).min(setup.scenario.storage.len() - 1))
}

/// Whether the whole dataset fits into a class of all workers together.
fn fits(setup: &Setup<'_>, class: usize) -> bool {
    let all = setup.scenario.storage[class].capacity * setup.workers() as f64;
    setup.workload.total() as f64 / MB <= all
}

/// LBANN's refusal: its data store holds the whole dataset or does not run.
fn refuse_unless_it_fits(setup: &Setup<'_>, class: usize) -> Result<(), String> {
    if fits(setup, class) {
        return Ok(());
    }
    let total = setup.workload.total() as f64 / MB;
    let all = setup.scenario.storage[class].capacity * setup.workers() as f64;
    Err(format!("the dataset's {total:.0} MB do not fit in the workers' memories of {all:.0} MB together"))
}

/// Loads each worker's part of the dataset into a class before the run, until a sample does not
/// fit. The longest thread of the slowest worker gives the initial stall.
fn preload(setup: &Setup<'_>, plan: &mut PolicyPlan, class: usize, shards: Shards) {
    let mut stall: f64 = 0.0;
    let mut next = 0;
    for worker in 0..setup.workers() {
        let mut threads = Threads::new(setup.scenario.storage[class].threads, 0.0);
        let part = match shards {
            Shards::Contiguous => setup.shard(worker),
            Shards::AsMuchAsFits => next..setup.scenario.samples,
        };
        for sample in part {
            if !plan.space.take(worker, class, setup.size(sample)) {
                break;
            }
            threads.work(0.0, setup.prefetch_seconds(sample));
            plan.load(setup, sample, worker, class, 0.0);
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
