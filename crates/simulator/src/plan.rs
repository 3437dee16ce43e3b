//! The decisions of a policy before a run, in the form that the engine executes.

use crate::copies::{ClassSpace, CopyTable};
use crate::model::Model;
use crate::scenario::Scenario;
use crate::workload::{Streams, Workload};

/// The input of a policy.
#[derive(Debug)]
pub(crate) struct Setup<'a> {
    pub scenario: &'a Scenario,
    pub model: &'a Model,
    pub workload: &'a Workload,
}

impl Setup<'_> {
    pub(crate) fn workers(&self) -> usize {
        self.scenario.workers
    }

    pub(crate) fn size(&self, sample: u32) -> u64 {
        self.workload.sizes[sample as usize]
    }

    /// A sample's size in MB.
    pub(crate) fn mb(&self, sample: u32) -> f64 {
        self.size(sample) as f64 / crate::workload::MB
    }

    /// The size in MB that takes as long to fetch from a server of full speed as the sample does
    /// from its server.
    pub(crate) fn pfs_mb(&self, sample: u32) -> f64 {
        self.mb(sample) * self.model.slowness(sample)
    }

    /// Seconds for a prefetch thread to read a sample from the file system while all workers read,
    /// and to write it to a class.
    pub(crate) fn prefetch_seconds(&self, sample: u32) -> f64 {
        self.model.pfs_busy(self.pfs_mb(sample)) + self.model.write(self.mb(sample))
    }

    /// The contiguous part of the dataset that is a worker's shard.
    pub(crate) fn shard(&self, worker: usize) -> std::ops::Range<u32> {
        let bound =
            |worker: usize| (worker as u64 * u64::from(self.scenario.samples) / self.workers() as u64) as u32;
        bound(worker)..bound(worker + 1)
    }
}

/// The plan of a run. The default reads each sample from the file system on demand.
#[derive(Debug)]
pub(crate) struct PolicyPlan {
    /// The streams, if they are not the workload's own.
    pub streams: Option<Streams>,
    pub copies: CopyTable,
    pub space: ClassSpace,
    /// Seconds before the first batch.
    pub initial_stall: f64,
    /// `None` stages nothing ahead.
    pub staging: Option<Staging>,
    /// The sources for a request that is not staged in time.
    pub demand: Sources,
    /// Whether there is no I/O at all.
    pub bound: bool,
    /// The samples that are kept when they are read during the run.
    pub caching: ReadCaching,
    /// The reads of the class prefetchers and of the initial load.
    pub loaded: LoadCounts,
}

/// Samples and file-system bytes read into cache classes.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LoadCounts {
    pub pfs: u64,
    pub remote: u64,
    pub pfs_bytes: u64,
}

impl PolicyPlan {
    /// Reads from the file system on demand, with empty caches.
    pub(crate) fn on_demand(setup: &Setup<'_>) -> Self {
        Self {
            streams: None,
            copies: CopyTable::new(setup.workload.sizes.len()),
            space: ClassSpace::new(setup.scenario),
            initial_stall: 0.0,
            staging: None,
            demand: Sources { origin: OriginAccess::Always, local: true, remote: true },
            bound: false,
            caching: ReadCaching::Nothing,
            loaded: LoadCounts::default(),
        }
    }

    /// Stages ahead with all threads of the staging buffer, with the scenario's accounting.
    pub(crate) fn stage(&mut self, setup: &Setup<'_>, sources: Sources) {
        let accounting = setup.scenario.staging;
        self.staging = Some(Staging { sources, accounting, growing: false, single_flight: false });
    }

    /// Records that a worker's class prefetchers read a sample from the file system. It is readable
    /// from time `from` on. Its space must have been taken.
    pub(crate) fn load(&mut self, setup: &Setup<'_>, sample: u32, worker: usize, class: usize, from: f64) {
        self.copies.add(sample, worker, class, from);
        self.loaded.pfs += 1;
        self.loaded.pfs_bytes += setup.size(sample);
    }
}

/// The filling of the staging buffer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Staging {
    pub sources: Sources,
    pub accounting: crate::scenario::Accounting,
    /// Whether threads start at one and are added after batches that had to wait.
    pub growing: bool,
    /// Whether reads are single-flight. A worker's own prefetch also fills its staging buffer, and
    /// a sample staged for one access serves the next one. A request waits for a read that has
    /// begun, and replaces a read that has not.
    pub single_flight: bool,
}

/// The permitted sources of reads.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sources {
    pub origin: OriginAccess,
    pub local: bool,
    pub remote: bool,
}

/// The samples that may be read from the file system. If it may not be used, a copy is awaited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OriginAccess {
    Always,
    Never,
    /// Samples that no worker holds or will hold.
    Unheld,
}

/// The samples that are kept when they are read during the run.
#[derive(Clone, Debug)]
pub(crate) enum ReadCaching {
    Nothing,
    /// Each worker copies the samples that it reads from the file system in the background, until
    /// the first sample that does not fit. A copy is another read.
    FirstTouch,
    /// Each worker keeps these samples when it first receives them from another worker. Sorted,
    /// with the class in which space was taken.
    Second(Vec<Vec<(u32, u8)>>),
}
