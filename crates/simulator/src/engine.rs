//! One run of one plan: batches in order, with a barrier after each.
//!
//! Within a batch, worker 0 processes its whole share, then worker 1, and so on. Each has its own
//! clock that starts at the barrier. Time advances from one request to the next. The staging buffer
//! serves a request at time T if the access is staged by T. Otherwise the request takes the earlier
//! of that staged arrival and a read on demand that begins at T. Then the worker trains on the
//! sample.
//!
//! # Interpretation of the rules
//!
//! The thesis's rules are ambiguous in five places. With these interpretations all its tables are
//! reproduced:
//!
//! * A read that shares the file system sees `g = 1 + n`, with `n` other workers whose latest
//!   recorded read *begins* no earlier than this one. Staging and demand reads are recorded. Reads
//!   of the class prefetchers are not: they always count every worker.
//! * Before every request, the staging threads fill the buffer as far as it has space. They begin
//!   at the worker's last request or when they are free, whichever is later. So they record reads
//!   far ahead of the clock.
//! * The prefetchers of all classes work in parallel from the start.
//! * If several copies can be read at once, the fastest is read. If none can and the file system
//!   may not be used, the copy that becomes readable first is read.
//! * With the thesis's accounting, a sample that was ever in the buffer enters it without taking
//!   space.
//!
//! # The decision, and its price
//!
//! Seconds are floating-point, as in the model. No result depends on a parallel sum or a clock, so
//! equal scenarios give equal results. At equal times the worker's own copy is preferred, then
//! another worker's, then the file system. Workers follow one another within a batch, so those with
//! higher numbers see more readers. That is a property of the model, and its tables show it.

use crate::outcome::Figures;
use crate::plan::{OriginAccess, PolicyPlan, ReadCaching, Setup, Sources, Staging};
use crate::staging::{ReadSource, Staged, StagingAdmission, StagingBuffer};
use crate::threads::Threads;
use crate::workload::{MB, Streams};

/// A candidate for a read.
#[derive(Clone, Copy, Debug)]
struct Candidate {
    begins: f64,
    fetch: f64,
    source: ReadSource,
}

impl Candidate {
    fn is_better_than(&self, other: &Self) -> bool {
        let order = self.begins.total_cmp(&other.begins).then(self.fetch.total_cmp(&other.fetch));
        order.then(self.source.cmp(&other.source)).is_lt()
    }
}

struct EngineRun<'a> {
    setup: &'a Setup<'a>,
    plan: PolicyPlan,
    streams: &'a Streams,
    /// By worker: the begin of its latest recorded read from the file system.
    last_pfs_read: Vec<f64>,
    buffers: Vec<StagingBuffer>,
    background: BackgroundCopies,
    figures: Figures,
    pfs_bytes: u64,
    steady_pfs: u64,
    /// By worker: the position at which the last epoch begins.
    last_epoch: Vec<usize>,
}

/// The threads that copy samples that were read on demand.
struct BackgroundCopies {
    /// By worker, then class.
    threads: Vec<Vec<Threads>>,
    /// By worker: whether a sample did not fit.
    stopped: Vec<bool>,
}

/// Runs a plan to its end. Calls `step` after every batch.
pub(crate) fn run(setup: &Setup<'_>, mut plan: PolicyPlan, step: &mut dyn FnMut()) -> Figures {
    let own = plan.streams.take();
    let streams = own.as_ref().unwrap_or(&setup.workload.streams);
    let workers = setup.workers();
    let epochs = setup.scenario.epochs as usize;
    let floor = streams.floor(&setup.workload.sizes, plan.space.cluster());
    let start = plan.initial_stall;
    let bound = plan.bound;
    let first = &setup.scenario.storage[0];
    let buffers = plan.staging.map_or_else(Vec::new, |staging| {
        let threads = if staging.growing { 1 } else { first.threads };
        let (capacity, samples) = (plan.space.capacity(0), setup.workload.sizes.len());
        (0..workers)
            .map(|_| StagingBuffer::new(staging.accounting, capacity, threads, samples, start))
            .collect()
    });
    let mut run = EngineRun {
        setup,
        streams,
        last_pfs_read: vec![f64::NEG_INFINITY; workers],
        buffers,
        background: BackgroundCopies::new(setup, &plan.caching),
        figures: Figures { init_stall_seconds: start, ..Figures::default() },
        pfs_bytes: plan.loaded.pfs_bytes,
        steady_pfs: 0,
        last_epoch: streams.ids.iter().map(|ids| ids.len() / epochs * (epochs - 1)).collect(),
        plan,
    };
    run.figures.seconds = run.batches(start, step);
    run.finish(floor, bound)
}

impl EngineRun<'_> {
    fn batches(&mut self, start: f64, step: &mut dyn FnMut()) -> f64 {
        let streams = self.streams;
        let mut at = vec![0; streams.ids.len()];
        let mut barrier = start;
        for batch in 0..streams.shape.batches() {
            let mut end = barrier;
            for (worker, at) in at.iter_mut().enumerate() {
                let until = *at + streams.shape.share(worker, batch).len();
                let (clock, stalled) = self.share(worker, *at..until, barrier);
                end = end.max(clock);
                *at = until;
                if stalled && self.plan.staging.is_some_and(|staging| staging.growing) {
                    let buffer = &mut self.buffers[worker];
                    buffer.threads.grow(self.setup.scenario.storage[0].threads, buffer.last_request);
                }
            }
            barrier = end;
            step();
        }
        barrier
    }

    /// One worker's share of a batch. Returns the end time and whether the worker ever waited.
    fn share(&mut self, worker: usize, positions: std::ops::Range<usize>, barrier: f64) -> (f64, bool) {
        let streams = self.streams;
        let mut clock = barrier;
        let mut stalled = false;
        for position in positions {
            let sample = streams.ids[worker][position];
            let mb = self.setup.mb(sample);
            let ready = if self.plan.bound { clock } else { self.request(worker, position, sample, clock) };
            stalled |= ready > clock;
            clock = ready + self.setup.model.compute(mb);
        }
        (clock, stalled)
    }

    /// The time at which the access at `position`, requested at `now`, is available.
    fn request(&mut self, worker: usize, position: usize, sample: u32, now: f64) -> f64 {
        let mut staged = None;
        if let Some(staging) = self.plan.staging {
            self.fill(worker, &staging);
            let bytes = self.setup.size(sample);
            let buffer = &mut self.buffers[worker];
            buffer.last_request = now;
            staged = buffer.consume(position, sample, bytes);
        }
        if let Some(entry) = staged.filter(|entry| entry.arrival <= now) {
            self.served_staged(&entry);
            return now;
        }
        let read = self.best(self.plan.demand, worker, sample, now);
        let read = read.unwrap_or_else(|| self.pfs(worker, sample, now));
        let ready = read.begins + read.fetch + self.setup.model.write(self.setup.mb(sample));
        match staged {
            Some(entry) if entry.arrival <= ready || self.is_under_way(&entry, &read, now) => {
                self.served_staged(&entry);
                entry.arrival
            }
            _ => {
                if self.is_single_flight() && staged.is_some_and(|entry| entry.pfs_begins.is_some()) {
                    self.cancel(worker, position, sample);
                }
                match read.source {
                    ReadSource::Local => self.figures.reads_local += 1.0,
                    ReadSource::Remote => self.figures.reads_remote += 1.0,
                    ReadSource::Pfs => self.figures.reads_pfs += 1.0,
                }
                self.served(read.source);
                self.made(worker, position, sample, read, ready);
                if read.source == ReadSource::Pfs && matches!(self.plan.caching, ReadCaching::FirstTouch) {
                    self.copy_in_background(worker, sample, now);
                }
                ready
            }
        }
    }

    fn served_staged(&mut self, entry: &Staged) {
        self.figures.reads_staging += 1.0;
        self.served(entry.source);
    }

    fn served(&mut self, source: ReadSource) {
        match source {
            ReadSource::Local => self.figures.served_local += 1.0,
            ReadSource::Remote => self.figures.served_remote += 1.0,
            ReadSource::Pfs => self.figures.served_pfs += 1.0,
        }
    }

    fn is_single_flight(&self) -> bool {
        self.plan.staging.is_some_and(|staging| staging.single_flight)
    }

    /// Whether a request waits for the staged read instead of making this read.
    fn is_under_way(&self, entry: &Staged, read: &Candidate, now: f64) -> bool {
        let begun = entry.pfs_begins.is_none_or(|begins| begins <= now);
        self.is_single_flight() && read.source == ReadSource::Pfs && begun
    }

    /// Cancels a staged read from the file system that has not begun. Its thread stays idle for
    /// that time.
    fn cancel(&mut self, worker: usize, position: usize, sample: u32) {
        let bytes = self.setup.size(sample);
        self.figures.prefetch_pfs -= 1.0;
        self.pfs_bytes -= bytes;
        if position >= self.last_epoch[worker] {
            self.steady_pfs -= bytes;
        }
    }

    /// Stages a worker's next accesses as long as there is space.
    fn fill(&mut self, worker: usize, staging: &Staging) {
        let streams = self.streams;
        loop {
            let position = self.buffers[worker].next();
            let Some(&sample) = streams.ids[worker].get(position) else { return };
            let bytes = self.setup.size(sample);
            match self.buffers[worker].room(sample, bytes) {
                StagingAdmission::Full => return,
                StagingAdmission::TooSmall => {
                    self.buffers[worker].skip();
                    continue;
                }
                StagingAdmission::Free => {}
            }
            if let Some(entry) = self.shared(worker, sample, staging) {
                self.buffers[worker].stage(sample, bytes, entry);
                continue;
            }
            let begins = self.buffers[worker].threads.begin(self.buffers[worker].last_request);
            let Some(read) = self.best(staging.sources, worker, sample, begins) else {
                self.buffers[worker].skip();
                continue;
            };
            let arrival = read.begins + read.fetch + self.setup.model.write(self.setup.mb(sample));
            self.buffers[worker].threads.occupy(arrival);
            let pfs_begins = (read.source == ReadSource::Pfs).then_some(read.begins);
            let entry = Staged { arrival, source: read.source, pfs_begins };
            self.buffers[worker].stage(sample, bytes, entry);
            match read.source {
                ReadSource::Local => self.figures.prefetch_local += 1.0,
                ReadSource::Remote => self.figures.prefetch_remote += 1.0,
                ReadSource::Pfs => self.figures.prefetch_pfs += 1.0,
            }
            self.made(worker, position, sample, read, arrival);
        }
    }

    /// An entry for a sample that another read brings into the staging buffer. That read is for an
    /// earlier access, or is this worker's own prefetch that is pending.
    fn shared(&self, worker: usize, sample: u32, staging: &Staging) -> Option<Staged> {
        if !staging.single_flight {
            return None;
        }
        let buffer = &self.buffers[worker];
        if let Some(arrival) = buffer.has(sample) {
            return Some(Staged { arrival, source: ReadSource::Local, pfs_begins: None });
        }
        let arrival = self.plan.copies.held_by(sample, worker)?.from;
        let own = Staged { arrival, source: ReadSource::Pfs, pfs_begins: None };
        (arrival >= buffer.last_request).then_some(own)
    }

    /// Records a read and keeps the sample if the plan does.
    fn made(&mut self, worker: usize, position: usize, sample: u32, read: Candidate, done: f64) {
        match read.source {
            ReadSource::Pfs => {
                let bytes = self.setup.size(sample);
                self.last_pfs_read[worker] = self.last_pfs_read[worker].max(read.begins);
                self.pfs_bytes += bytes;
                if position >= self.last_epoch[worker] {
                    self.steady_pfs += bytes;
                }
            }
            ReadSource::Remote => {
                let ReadCaching::Second(second) = &self.plan.caching else { return };
                let Ok(at) = second[worker].binary_search_by_key(&sample, |&(sample, _)| sample) else {
                    return;
                };
                if self.plan.copies.held_by(sample, worker).is_none() {
                    self.plan.copies.add(sample, worker, usize::from(second[worker][at].1), done);
                }
            }
            ReadSource::Local => {}
        }
    }

    /// The read of a sample that begins first, and the fastest of those.
    fn best(&self, sources: Sources, worker: usize, sample: u32, at: f64) -> Option<Candidate> {
        let mb = self.setup.mb(sample);
        let mut best: Option<Candidate> = None;
        let mut consider = |read: Candidate| {
            if best.is_none_or(|best| read.is_better_than(&best)) {
                best = Some(read);
            }
        };
        for copy in self.plan.copies.of(sample) {
            let (begins, class) = (copy.from.max(at), usize::from(copy.class));
            let model = self.setup.model;
            if copy.worker as usize == worker {
                if sources.local {
                    consider(Candidate { begins, fetch: model.local(mb, class), source: ReadSource::Local });
                }
            } else if sources.remote {
                consider(Candidate { begins, fetch: model.remote(mb, class), source: ReadSource::Remote });
            }
        }
        let allowed = match sources.origin {
            OriginAccess::Always => true,
            OriginAccess::Never => false,
            OriginAccess::Unheld => !self.plan.copies.is_held(sample),
        };
        if allowed {
            consider(self.pfs(worker, sample, at));
        }
        best
    }

    /// A read from the file system that begins at `at`.
    fn pfs(&self, worker: usize, sample: u32, at: f64) -> Candidate {
        let readers = self.last_pfs_read.iter().filter(|&&last| last >= at).count();
        let others = readers - usize::from(self.last_pfs_read[worker] >= at);
        let fetch = self.setup.model.pfs(self.setup.pfs_mb(sample), 1 + others);
        Candidate { begins: at, fetch, source: ReadSource::Pfs }
    }

    /// Copies a sample that a worker has just read into its first class with space. The copy is
    /// another read.
    fn copy_in_background(&mut self, worker: usize, sample: u32, now: f64) {
        if self.background.stopped[worker] || self.plan.copies.held_by(sample, worker).is_some() {
            return;
        }
        let bytes = self.setup.size(sample);
        let Some(class) = self.plan.space.take_any(worker, bytes, |_| true) else {
            self.background.stopped[worker] = true;
            return;
        };
        let seconds = self.setup.prefetch_seconds(sample);
        let done = self.background.threads[worker][class].work(now, seconds);
        self.plan.load(self.setup, sample, worker, class, done);
        self.pfs_bytes += bytes;
    }

    fn finish(mut self, floor: u64, bound: bool) -> Figures {
        let accesses: usize = self.streams.ids.iter().map(Vec::len).sum();
        if bound {
            // No read is late, and none could have been saved by a cache.
            self.figures.reads_staging = accesses as f64;
            self.pfs_bytes = floor;
        }
        let steady = self.streams.ids.iter().zip(&self.last_epoch).flat_map(|(ids, &from)| &ids[from..]);
        let capacity = self.plan.space.capacity(0) as f64;
        let staged = self.buffers.iter().map(StagingBuffer::most_held).max().unwrap_or(0);
        Figures {
            prefetch_pfs: self.figures.prefetch_pfs + self.plan.loaded.pfs as f64,
            prefetch_remote: self.figures.prefetch_remote + self.plan.loaded.remote as f64,
            pfs_mb: self.pfs_bytes as f64 / MB,
            floor_pfs_mb: floor as f64 / MB,
            cache_fill: self.plan.space.fullest(),
            staging_fill: if staged == 0 { 0.0 } else { staged as f64 / capacity },
            steady_pfs_mb: self.steady_pfs as f64 / MB,
            steady_mb: steady.map(|&sample| self.setup.size(sample)).sum::<u64>() as f64 / MB,
            ..self.figures
        }
    }
}

impl BackgroundCopies {
    fn new(setup: &Setup<'_>, caching: &ReadCaching) -> Self {
        let workers = if matches!(caching, ReadCaching::FirstTouch) { setup.workers() } else { 0 };
        let classes =
            || setup.scenario.storage.iter().map(|class| Threads::new(class.threads, 0.0)).collect();
        Self { threads: (0..workers).map(|_| classes()).collect(), stopped: vec![false; workers] }
    }
}
