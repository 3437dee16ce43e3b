//! The samples that one cache keeps for several jobs: those with the nearest next use.
//!
//! Each job has its own order. A sample that one job has just used may be the next one of another
//! job. So "never evict", the best rule for one job, is wrong from two jobs on. With four jobs and
//! a cache for a fifth of their dataset, it reads 80 % of each epoch. This rule reads 49 %, and no
//! rule reads less (`several-jobs` scenarios of the simulator).
//!
//! # The decision, and its price
//!
//! After each use the time of the sample's next use by *any* job is predicted from the jobs' orders
//! and paces. The sample stays if there is room, or if a resident with a higher cost exists. That
//! resident is evicted. The cost of a hit is
//!
//! ```text
//! bytes x seconds to the next use / (weight x origin seconds that the hit saves)
//! ```
//!
//! The prediction is made once, at the use. It is made again if its time passes without a use.
//! Residents are in calendar queues, so a use takes constant time: .4 us with one job over 1.28 M
//! samples, 1 us with eight. The price is 8 bytes per sample and job for the orders, and 12 bytes
//! per sample for the residents. [`AnnouncedUses`] needs one byte per sample, for datasets that are
//! too large for that. When jobs come or go, or the range of next uses changes by more than half,
//! all residents get new predictions in one call. That takes 150 ms for 256,000 residents of eight
//! jobs.
//!
//! Residents win ties. The next uses of a single dataset with one job are all an epoch away,
//! because its job uses each sample once per epoch. So all of them tie, and one job alone has a
//! cache that never evicts and never rewrites. With a second dataset, samples compete by their own
//! next uses, or one of the datasets would have all of the room. A dataset without jobs has no next
//! uses. Its samples are the first victims, also for samples of a job that has not announced its
//! next order yet.
//!
//! All results are functions of the calls. There is no clock. The caller passes the time.

mod announced_uses;
mod cache_use;
mod calendar;
mod dataset_residents;
mod epoch_uses;
mod job_uses;
mod node_owners;
mod other_copies;
mod pace;
mod room;
mod sample_set;

use std::num::NonZeroU32;

use foreread_types::{DatasetId, SampleId, SampleKey, Sizes};

pub use self::announced_uses::AnnouncedUses;
pub use self::cache_use::CacheUse;
use self::calendar::{Calendar, NextUseTime};
use self::dataset_residents::DatasetResidents;
pub use self::dataset_residents::{CacheBounds, DatasetCosts};
pub use self::epoch_uses::EpochUses;
use self::epoch_uses::OrderFault;
use self::job_uses::JobUses;
pub use self::node_owners::{NodeOwner, NodeOwners};
use self::pace::Pace;
use self::room::RoomFor;
use crate::error::{PlanError, PlanReason};

/// The number of a job in a [`NextUseCache`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CacheJob(usize);

/// How a job starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JobStart {
    /// The present, in nanoseconds from any origin of time that all calls share.
    pub now_ns: u64,
    /// The position in the first epoch at which the job begins.
    pub position: u32,
    /// An estimate of the job's pace in nanoseconds per sample. Measurements replace it.
    pub ns_per_sample: u64,
}

/// The rule, with its residents.
///
/// Invariant: the residents' bytes are at most the capacity.
///
/// ```
/// use foreread_planner::{CacheUse, DatasetCosts, JobStart, NextUseCache};
/// use foreread_types::{SampleId, SampleKey, Sizes};
///
/// # fn main() -> Result<(), foreread_planner::PlanError> {
/// // Room for one of three samples of 10 bytes.
/// let mut cache = NextUseCache::new(10);
/// let dataset = cache.add_dataset(DatasetCosts::new(Sizes::uniform(3, 10)))?;
/// let start = JobStart { now_ns: 0, position: 0, ns_per_sample: 1000 };
/// let order = |ids: [u64; 3]| ids.map(SampleId);
/// let first = cache.add_job(dataset, start, order([0, 1, 2]), Some(order([2, 1, 0])))?;
/// let second = cache.add_job(dataset, start, order([2, 1, 0]), Some(order([0, 1, 2])))?;
///
/// let mut evicted = Vec::new();
/// let kept = cache.used(first, 0, SampleId(0), 1000, &mut evicted);
/// assert_eq!(kept, CacheUse { hit: false, kept: true });
/// // The first job needs sample 2 before any job needs sample 0.
/// let kept = cache.used(second, 0, SampleId(2), 1000, &mut evicted);
/// assert_eq!(kept, CacheUse { hit: false, kept: true });
/// assert_eq!(evicted, [SampleKey::new(dataset, SampleId(0))]);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct NextUseCache {
    capacity: u64,
    /// Bytes of all residents.
    held: u64,
    datasets: Vec<DatasetResidents>,
    jobs: Vec<Option<JobUses>>,
    /// The latest time of any call.
    now: u64,
    /// Uses since the calendars were compared with the jobs' paces.
    unchecked: u32,
    /// Space for residents that change their place.
    moved: Vec<u32>,
    /// Whether at most one dataset has jobs.
    is_single: bool,
}

/// After so many uses, calendars are compared with the jobs' paces.
const CHECK_USES: u32 = 512;

impl NextUseCache {
    /// An empty cache of `capacity` bytes.
    pub fn new(capacity: u64) -> Self {
        let (datasets, jobs, moved) = Default::default();
        Self { capacity, held: 0, datasets, jobs, now: 0, unchecked: 0, moved, is_single: true }
    }

    /// Adds a dataset. Datasets are numbered from 0.
    ///
    /// # Errors
    /// If the table of residents does not fit in memory.
    pub fn add_dataset(&mut self, costs: DatasetCosts) -> Result<DatasetId, PlanError> {
        let (dataset, samples) = (DatasetId(self.datasets.len() as u32), costs.sizes.len());
        let small = samples < u64::from(u32::MAX);
        let cached = small.then(|| DatasetResidents::new(costs)).flatten();
        self.datasets.push(cached.ok_or(PlanReason::Memory { dataset, samples })?);
        Ok(dataset)
    }

    /// Drops the tables of a dataset that has neither jobs nor residents. It has no samples from
    /// now on, and its number stays taken. `false` if it has some, and nothing changes.
    pub fn clear_dataset(&mut self, dataset: DatasetId) -> bool {
        let Some(there) = self.datasets.get_mut(dataset.0 as usize) else { return false };
        if there.residents > 0 || !there.jobs.is_empty() {
            return false;
        }
        if let Some(empty) = DatasetResidents::new(DatasetCosts::new(Sizes::table(&[]))) {
            *there = empty;
        }
        true
    }

    /// Adds a job with the order of its first epoch, and of the epoch after it unless there is
    /// none.
    ///
    /// A job of several ranks is one job here. Its positions count in its global order.
    ///
    /// # Errors
    /// An unknown dataset, an order with an unknown sample, or tables that do not fit in memory.
    pub fn add_job(
        &mut self,
        dataset: DatasetId,
        start: JobStart,
        current: impl IntoIterator<Item = SampleId>,
        following: Option<impl IntoIterator<Item = SampleId>>,
    ) -> Result<CacheJob, PlanError> {
        let current = self.uses(dataset, current)?;
        let following = following.map(|order| self.uses(dataset, order)).transpose()?;
        self.add_ordered_job(dataset, start, current, following)
    }

    /// The table of an order over a dataset of `samples` samples, for
    /// [`add_ordered_job`](Self::add_ordered_job). The order has `per_position` samples or
    /// [holes](EpochUses::HOLE) for each position. A large one takes some time, so it can be made
    /// on another thread.
    ///
    /// # Errors
    /// An order with an unknown sample, or a table that does not fit in memory.
    pub fn order(
        dataset: DatasetId,
        samples: u64,
        per_position: NonZeroU32,
        order: impl IntoIterator<Item = SampleId>,
    ) -> Result<EpochUses, PlanError> {
        let uses = EpochUses::new(samples, per_position, order).map_err(|fault| match fault {
            OrderFault::Unknown(sample) => PlanReason::OrderSample { dataset, sample, samples },
            OrderFault::TooLarge => PlanReason::Memory { dataset, samples },
        });
        Ok(uses?)
    }

    /// [`add_job`](Self::add_job) with orders that were made before.
    ///
    /// # Errors
    /// An unknown dataset, or an order over another number of samples.
    pub fn add_ordered_job(
        &mut self,
        dataset: DatasetId,
        start: JobStart,
        current: EpochUses,
        following: Option<EpochUses>,
    ) -> Result<CacheJob, PlanError> {
        for order in [Some(&current), following.as_ref()].into_iter().flatten() {
            self.check(dataset, order)?;
        }
        self.now = self.now.max(start.now_ns);
        let pace = Pace::new(start.ns_per_sample, u64::from(current.length()), self.now);
        let index = dataset.0 as usize;
        self.jobs.push(Some(JobUses::new(index, current, following, start.position, pace)));
        let job = self.jobs.len() - 1;
        self.datasets[index].jobs.push(job);
        self.jobs_have_changed(index);
        Ok(CacheJob(job))
    }

    /// Begins the next epoch of a job. `following` is the epoch after that one, unless there is
    /// none.
    ///
    /// # Errors
    /// As [`add_job`](Self::add_job). A job that has ended changes nothing.
    pub fn begin_epoch(
        &mut self,
        job: CacheJob,
        following: Option<impl IntoIterator<Item = SampleId>>,
    ) -> Result<(), PlanError> {
        let Some(dataset) = self.dataset_of(job) else { return Ok(()) };
        let following = following.map(|order| self.uses(DatasetId(dataset as u32), order)).transpose()?;
        self.begin_ordered_epoch(job, following)
    }

    /// [`begin_epoch`](Self::begin_epoch) with an order that was made before.
    ///
    /// # Errors
    /// An order over another number of samples.
    pub fn begin_ordered_epoch(
        &mut self,
        job: CacheJob,
        following: Option<EpochUses>,
    ) -> Result<(), PlanError> {
        let Some(dataset) = self.dataset_of(job) else { return Ok(()) };
        if let Some(order) = &following {
            self.check(DatasetId(dataset as u32), order)?;
        }
        let Some(job) = self.jobs[job.0].as_mut() else { return Ok(()) };
        let own = self.datasets[dataset].own_samples();
        let were_permutations = job.uses_permutations(own);
        job.begin_epoch(following);
        if job.uses_permutations(own) != were_permutations {
            self.predict_again(dataset);
        }
        Ok(())
    }

    /// Sets the order of the epoch after a job's present one, which was unknown.
    ///
    /// # Errors
    /// An order over another number of samples. A job that has ended changes nothing.
    pub fn follow(&mut self, job: CacheJob, following: EpochUses) -> Result<(), PlanError> {
        let Some(dataset) = self.dataset_of(job) else { return Ok(()) };
        self.check(DatasetId(dataset as u32), &following)?;
        if let Some(job) = self.jobs[job.0].as_mut() {
            job.follow(following);
        }
        self.predict_again(dataset);
        Ok(())
    }

    /// Ends a job. Samples that only this job would have used are the next victims.
    pub fn end_job(&mut self, job: CacheJob) {
        let Some(ended) = self.jobs.get_mut(job.0).and_then(Option::take) else { return };
        self.datasets[ended.dataset].jobs.retain(|&other| other != job.0);
        self.jobs_have_changed(ended.dataset);
    }

    /// Counts a use of a sample by a job, and decides whether the sample stays. Adds the residents
    /// that leave for it to `evicted`.
    ///
    /// `position` is that of the use in the job's epoch. `now_ns` is the time of the use. Times and
    /// positions may be out of order. Then predictions are slightly late.
    ///
    /// # Panics
    /// If the dataset has no such sample.
    pub fn used(
        &mut self,
        job: CacheJob,
        position: u32,
        sample: SampleId,
        now_ns: u64,
        evicted: &mut Vec<SampleKey>,
    ) -> CacheUse {
        self.advance(now_ns);
        let Some(job) = self.jobs.get_mut(job.0).and_then(Option::as_mut) else {
            return CacheUse { hit: false, kept: false };
        };
        let (dataset, id) = (job.dataset, sample.0 as u32);
        job.used(position, id, self.now);
        self.datasets[dataset].latest = self.now;
        self.unchecked += 1;
        if self.unchecked >= CHECK_USES {
            self.unchecked = 0;
            self.narrow_calendars();
        }
        let hit = self.datasets[dataset].is_resident(id);
        if hit {
            self.remove(dataset, id);
        }
        CacheUse { hit, kept: self.keep(dataset, id, evicted) }
    }

    /// Counts a use of a sample that no order has announced. A sample that is not resident stays if
    /// there is room, or a resident that is used later.
    ///
    /// # Panics
    /// If there is no such sample.
    pub fn used_unannounced(
        &mut self,
        key: SampleKey,
        now_ns: u64,
        evicted: &mut Vec<SampleKey>,
    ) -> CacheUse {
        self.advance(now_ns);
        let (dataset, id) = (key.dataset.0 as usize, key.id.0 as u32);
        self.datasets[dataset].latest = self.now;
        let hit = self.datasets[dataset].is_resident(id);
        CacheUse { hit, kept: hit || self.keep(dataset, id, evicted) }
    }

    /// Keeps a sample that jobs are expected to use, although none has announced it. It gets free
    /// room, or that of other datasets without uses to come that were not used `since` that time.
    ///
    /// # Panics
    /// If there is no such sample.
    pub fn fill(
        &mut self,
        key: SampleKey,
        now_ns: u64,
        since: u64,
        evicted: &mut Vec<SampleKey>,
    ) -> CacheUse {
        self.advance(now_ns);
        let (dataset, id) = (key.dataset.0 as usize, key.id.0 as u32);
        let hit = self.datasets[dataset].is_resident(id);
        let kept = hit || self.keep_with(dataset, id, Some(since), evicted);
        self.datasets[dataset].latest = self.now;
        CacheUse { hit, kept }
    }

    /// Whether the known orders of a job have uses of a sample to come.
    ///
    /// # Panics
    /// If the job's dataset has no such sample.
    pub fn will_use(&self, job: CacheJob, sample: SampleId) -> bool {
        let job = self.jobs.get(job.0).and_then(Option::as_ref);
        job.is_some_and(|job| job.has_use(sample.0 as u32))
    }

    /// Removes a sample, if it is resident: its bytes could not be read.
    pub fn forget(&mut self, key: SampleKey) {
        if self.contains(key) {
            self.remove(key.dataset.0 as usize, key.id.0 as u32);
        }
    }

    /// Whether a sample is resident.
    pub fn contains(&self, key: SampleKey) -> bool {
        let known = |dataset: &&DatasetResidents| key.id.0 < dataset.samples();
        let dataset = self.datasets.get(key.dataset.0 as usize).filter(known);
        dataset.is_some_and(|dataset| dataset.is_resident(key.id.0 as u32))
    }

    /// Whether a sample that is kept in free room stays until its next use: all samples of the
    /// dataset that this node keeps fit without the eviction of others, or its one job never
    /// evicts.
    pub fn keeps_unused(&self, dataset: DatasetId) -> bool {
        self.datasets.get(dataset.0 as usize).is_some_and(|there| {
            let all = self.own_bytes(dataset);
            let fits = all <= there.bounds.cap && self.held - there.held + all <= self.capacity;
            fits || self.only_job(there).is_some()
        })
    }

    /// The bytes that a dataset may take without the eviction of any resident.
    pub fn free_bytes(&self, dataset: DatasetId) -> u64 {
        let free = self.capacity.saturating_sub(self.held);
        let own = |there: &DatasetResidents| there.bounds.cap.saturating_sub(there.held);
        self.datasets.get(dataset.0 as usize).map_or(0, own).min(free)
    }

    /// The bytes of all residents.
    pub fn held_bytes(&self) -> u64 {
        self.held
    }

    /// Changes the capacity in bytes. Adds the residents that leave to `evicted`.
    pub fn set_capacity(&mut self, bytes: u64, evicted: &mut Vec<SampleKey>) {
        self.capacity = bytes;
        if !self.make_room(0, f64::NEG_INFINITY, RoomFor::default(), evicted) {
            // Floors hold among datasets. The capacity always holds.
            let room = RoomFor { ignores_floors: true, ..RoomFor::default() };
            self.make_room(0, f64::NEG_INFINITY, room, evicted);
        }
    }

    /// Changes how much room a dataset has in any case, and at most. Adds the residents that leave
    /// to `evicted`. An unknown dataset changes nothing.
    pub fn set_bounds(&mut self, dataset: DatasetId, bounds: CacheBounds, evicted: &mut Vec<SampleKey>) {
        let dataset = dataset.0 as usize;
        if let Some(there) = self.datasets.get_mut(dataset) {
            there.bounds = bounds;
            self.make_room_within(dataset, 0, f64::NEG_INFINITY, evicted);
        }
    }

    /// Changes the savings by a hit of a dataset's samples. Predicts the next uses of its residents
    /// again, as when a job comes. The sizes stay. An unknown dataset changes nothing.
    pub fn set_costs(
        &mut self,
        dataset: DatasetId,
        weight: NonZeroU32,
        origin_latency_ns: u64,
        origin_bytes_per_second: u64,
    ) {
        let index = dataset.0 as usize;
        let Some(there) = self.datasets.get_mut(index) else { return };
        let sizes = there.costs().sizes.clone();
        let costs = DatasetCosts { sizes, weight, origin_latency_ns, origin_bytes_per_second };
        if *there.costs() == costs {
            return;
        }
        let span = self.span(index);
        for id in self.datasets[index].set_costs(costs) {
            let class = self.datasets[index].class(id, span, self.now);
            self.reinsert(index, class, &[id]);
        }
    }

    /// The number and the bytes of a dataset's residents.
    pub fn residents(&self, dataset: DatasetId) -> (u64, u64) {
        self.datasets.get(dataset.0 as usize).map_or((0, 0), |dataset| (dataset.residents, dataset.held))
    }

    /// The pace of a job in samples per second. `None` if it has ended.
    pub fn samples_per_second(&self, job: CacheJob) -> Option<f64> {
        let job = self.jobs.get(job.0)?.as_ref()?;
        Some(1e9 / job.ns_per_sample(self.now).max(1.0))
    }

    /// Moves the present. Residents whose predicted use did not come get new predictions.
    fn advance(&mut self, now: u64) {
        let now = self.now.max(now);
        self.now = now;
        for dataset in 0..self.datasets.len() {
            self.predict_those(dataset, |calendar, moved| calendar.advance(now, moved));
        }
    }

    /// Narrows the calendars of datasets whose jobs are much faster than they seemed at first.
    fn narrow_calendars(&mut self) {
        let now = self.now;
        for dataset in 0..self.datasets.len() {
            let span = self.span(dataset);
            self.predict_those(dataset, |calendar, moved| calendar.narrow(span, now, moved));
        }
    }

    /// Predicts the next uses again after the jobs of a dataset have changed: of its residents, and
    /// of all if another dataset is now the only one with jobs, or is that no longer.
    fn jobs_have_changed(&mut self, dataset: usize) {
        let is_single = self.used_datasets() <= 1;
        let was_single = std::mem::replace(&mut self.is_single, is_single);
        for other in 0..self.datasets.len() {
            if other == dataset || was_single != is_single {
                self.predict_again(other);
            }
        }
    }

    fn used_datasets(&self) -> usize {
        self.datasets.iter().filter(|dataset| !dataset.jobs.is_empty()).count()
    }

    /// Predicts the next uses of all residents of a dataset, whose jobs have changed.
    fn predict_again(&mut self, dataset: usize) {
        self.predict_those(dataset, Calendar::drain);
    }

    /// Predicts the next uses of the residents that `take` takes out of a dataset's calendars.
    fn predict_those(&mut self, dataset: usize, take: impl Fn(&mut Calendar, &mut Vec<u32>)) {
        let mut moved = std::mem::take(&mut self.moved);
        for class in 0..self.datasets[dataset].classes.len() {
            take(&mut self.datasets[dataset].classes[class].calendar, &mut moved);
            self.reinsert(dataset, class as u16, &moved);
            moved.clear();
        }
        self.moved = moved;
    }

    fn reinsert(&mut self, dataset: usize, class: u16, ids: &[u32]) {
        for &id in ids {
            let time = self.next_use(&self.datasets[dataset], id);
            let cached = &mut self.datasets[dataset];
            let list = cached.classes[usize::from(class)].calendar.list(time);
            cached.insert(id, class, list);
        }
    }

    /// The predicted next use of a sample by any job.
    fn next_use(&self, dataset: &DatasetResidents, id: u32) -> NextUseTime {
        if dataset.has_other_copy(id) {
            return NextUseTime::Spare;
        }
        if let Some(job) = self.only_job(dataset) {
            return if job.has_use(id) { NextUseTime::Epoch } else { NextUseTime::Never };
        }
        let jobs = dataset.jobs.iter().filter_map(|&job| self.jobs[job].as_ref());
        let times = jobs.filter_map(|job| job.next_use(id, self.now));
        times.min().map_or(NextUseTime::Never, NextUseTime::At)
    }

    /// The job of a dataset, if it is the only one and uses each sample once per epoch.
    fn only_job(&self, dataset: &DatasetResidents) -> Option<&JobUses> {
        let [only] = dataset.jobs[..] else { return None };
        let own = dataset.own_samples();
        self.jobs[only].as_ref().filter(|job| self.is_single && job.uses_permutations(own))
    }

    /// Nanoseconds of an epoch of the slowest job of a dataset.
    fn epoch_ns(&self, dataset: usize) -> f64 {
        let jobs = self.datasets[dataset].jobs.iter().filter_map(|&job| self.jobs[job].as_ref());
        jobs.map(|job| job.epoch_ns(self.now)).fold(0.0, f64::max)
    }

    /// Nanoseconds within which a dataset's samples are used again.
    fn span(&self, dataset: usize) -> u64 {
        (2.0 * self.epoch_ns(dataset)) as u64
    }

    /// The dataset of a job that has not ended.
    fn dataset_of(&self, job: CacheJob) -> Option<usize> {
        self.jobs.get(job.0).and_then(|job| Some(job.as_ref()?.dataset))
    }

    fn uses(
        &self,
        dataset: DatasetId,
        order: impl IntoIterator<Item = SampleId>,
    ) -> Result<EpochUses, PlanError> {
        Self::order(dataset, self.samples(dataset)?, NonZeroU32::MIN, order)
    }

    /// The number of samples of a dataset.
    ///
    /// # Errors
    /// If there is no such dataset.
    pub fn samples(&self, dataset: DatasetId) -> Result<u64, PlanError> {
        let known = self.datasets.get(dataset.0 as usize);
        let found = self.datasets.len();
        Ok(known.ok_or(PlanReason::NoSizes { dataset, found })?.samples())
    }

    /// Whether an order is over this dataset.
    fn check(&self, dataset: DatasetId, order: &EpochUses) -> Result<(), PlanError> {
        let samples = self.samples(dataset)?;
        if order.samples() != samples {
            let sample = SampleId(order.samples());
            return Err(PlanReason::OrderSample { dataset, sample, samples }.into());
        }
        Ok(())
    }
}
