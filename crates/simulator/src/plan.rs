//! What a policy decides before a run, in the form that the engine carries out.

use crate::copies::{Copies, Rooms};
use crate::model::Model;
use crate::scenario::Scenario;
use crate::workload::{Streams, Workload};

/// Everything that a policy decides from.
#[derive(Debug)]
pub(crate) struct Setting<'a> {
    pub scenario: &'a Scenario,
    pub model: &'a Model,
    pub workload: &'a Workload,
}

impl Setting<'_> {
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

    /// Seconds in which a prefetch thread reads a sample from the file system, which all workers are reading from, and
    /// writes it to a class.
    pub(crate) fn prefetch_seconds(&self, sample: u32) -> f64 {
        let mb = self.mb(sample);
        self.model.pfs_busy(mb) + self.model.write(mb)
    }

    /// The contiguous part of the dataset that is a worker's shard.
    pub(crate) fn shard(&self, worker: usize) -> std::ops::Range<u32> {
        let bound =
            |worker: usize| (worker as u64 * u64::from(self.scenario.samples) / self.workers() as u64) as u32;
        bound(worker)..bound(worker + 1)
    }
}

/// What a run does. The default is a run that reads each sample from the file system when it is asked for.
#[derive(Debug)]
pub(crate) struct Plan {
    /// Where they are not the workload's own.
    pub streams: Option<Streams>,
    pub copies: Copies,
    pub rooms: Rooms,
    /// Seconds before the first batch.
    pub initial_stall: f64,
    /// None: nothing is staged ahead.
    pub staging: Option<Staging>,
    /// Where a request that is not staged in time is served from.
    pub demand: Sources,
    /// Whether there is no I/O at all.
    pub bound: bool,
    /// What is kept of what is read during the run.
    pub keeping: Keeping,
    /// What the class prefetchers and the initial load read.
    pub loaded: Loaded,
}

/// Samples and file-system bytes read into cache classes.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Loaded {
    pub pfs: u64,
    pub remote: u64,
    pub pfs_bytes: u64,
}

impl Plan {
    /// Reads from the file system on demand, with all caches empty.
    pub(crate) fn on_demand(setting: &Setting<'_>) -> Self {
        Self {
            streams: None,
            copies: Copies::new(setting.workload.sizes.len()),
            rooms: Rooms::new(setting.scenario),
            initial_stall: 0.0,
            staging: None,
            demand: Sources { origin: Origin::Always, local: true, remote: true },
            bound: false,
            keeping: Keeping::Nothing,
            loaded: Loaded::default(),
        }
    }

    /// Stages ahead with all threads of the staging buffer, counted as the scenario says.
    pub(crate) fn stage(&mut self, setting: &Setting<'_>, sources: Sources) {
        let accounting = setting.scenario.staging;
        self.staging = Some(Staging { sources, accounting, growing: false, single_flight: false });
    }

    /// Notes that a worker's class prefetchers read a sample from the file system, which is readable `from` then on.
    /// Room for it has been taken.
    pub(crate) fn load(
        &mut self,
        setting: &Setting<'_>,
        sample: u32,
        worker: usize,
        class: usize,
        from: f64,
    ) {
        self.copies.add(sample, worker, class, from);
        self.loaded.pfs += 1;
        self.loaded.pfs_bytes += setting.size(sample);
    }
}

/// How the staging buffer is filled.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Staging {
    pub sources: Sources,
    pub accounting: crate::scenario::Accounting,
    /// Whether threads start at one and are added where a batch had to wait.
    pub growing: bool,
    /// Whether no sample is read twice where once does: a worker's own prefetch fills its staging buffer as well, a sample
    /// that is staged for one access serves the next one too, and a request waits for a read that has begun and replaces
    /// one that has not.
    pub single_flight: bool,
}

/// Where samples may be read from.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sources {
    pub origin: Origin,
    pub local: bool,
    pub remote: bool,
}

/// Which samples may be read from the file system. Where it may not be used, a copy is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    Always,
    Never,
    /// Those that nobody holds or will hold.
    Unheld,
}

/// What is kept of what is read during the run.
#[derive(Clone, Debug)]
pub(crate) enum Keeping {
    Nothing,
    /// Each worker copies what it reads from the file system in the background, until the first sample that does not
    /// fit; a copy is one more read.
    FirstTouch,
    /// Each worker keeps these samples, sorted, with the class for which room was taken, when it first has them from
    /// another worker.
    Second(Vec<Vec<(u32, u8)>>),
}
