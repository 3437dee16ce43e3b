//! One cache for all jobs of a node: it keeps the samples that any of them needs soonest.
//!
//! A [`NodeStore`] holds samples in memory, reads absent ones, and decides after each use which
//! samples stay ([`NextUseCache`]). A sample that several jobs request is read once.
//!
//! # Decisions and price
//!
//! * *Jobs announce their orders*, one epoch after another, as lists of samples. So every order can
//!   be announced: those of any sampler, of a resumed run, of a part of the ranks. The price is 4
//!   bytes per sample and epoch through the socket, and 8 bytes per sample and job here.
//! * *A use is a request.* Jobs request a look-ahead before they use a sample, all of them alike.
//! * *The capacity counts samples that stay.* A sample that was evicted lives as long as a job
//!   holds it, and counts in that job's look-ahead. So all memory is at most the capacity and the
//!   look-aheads of the connected jobs.
//! * *One lock* protects the tables. It is held for about a microsecond per request. Tables of
//!   orders are made without it.
//! * *A request waits for its job's first order*, but not for long: a sample that is read before
//!   its job is known would not stay.
//! * *Reads of an origin wait here*, in a fair order over its jobs ([`FairQueue`](fair_queue)).
//!   Only as many as it answers at once, and half a second of its limit, are under way.

mod counts;
mod fair_queue;
mod flight;
mod job_orders;
mod origin_pace;
mod origin_queue;
mod removal;
mod sample_reader;
mod state;
mod status;
mod store_job;

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::num::NonZeroU32;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use foreread_planner::{
    CacheBounds, DatasetCosts, EpochUses, NextUseCache, NodeOwner, NodeOwners, PlanError,
};
use foreread_tier::lock;
use foreread_types::{DatasetId, Footprint, KeyMap, SampleId, SampleKey, Sizes, Tick};
use tokio::runtime::Handle;
use tokio::task::AbortHandle;
use tokio::time::Instant;

pub use self::counts::{DatasetState, JobState, OriginState, OriginUse, StoreCounts, StoreStatus};
use self::job_orders::JobOrders;
use self::origin_pace::OriginPace;
pub use self::origin_queue::OriginLimits;
pub use self::sample_reader::{SampleBlock, SampleReader};
use self::state::{Actions, MAX_ORDER_KEYS, OrderKey, StoreDataset, StoreMember, StoreState};
pub use self::store_job::{Answer, StoreJob, StoreRequest};
use self::store_job::{order_convoy, own_convoy};

/// How long requests of a job wait for its first order.
const ORDER_TIMEOUT: Duration = Duration::from_secs(5);

/// One cache for all jobs of a node. Clones are the same store.
#[derive(Clone)]
pub struct NodeStore(Arc<StoreInner>);

struct StoreInner {
    state: Mutex<StoreState>,
    /// Whether the runtime has ended: reads that begin end at once.
    has_ended: AtomicBool,
    runtime: Handle,
    /// The rule's time in nanoseconds.
    clock: Box<dyn Fn() -> u64 + Send + Sync>,
    next_job: AtomicU64,
}

impl fmt::Debug for NodeStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NodeStore").field("status", &self.status()).finish_non_exhaustive()
    }
}

impl NodeStore {
    /// The memory of a sample. Samples begin at a cache line. The rest is its places in the tables,
    /// its handle, and the arena's loss.
    pub const FOOTPRINT: Footprint = Footprint::new(0, 64).with_fixed(192);

    /// An empty store whose samples take at most `capacity` bytes. It reads on `runtime`.
    pub fn new(capacity: u64, runtime: Handle) -> Self {
        let begun = Instant::now();
        Self::with_clock(capacity, runtime, move || begun.elapsed().as_nanos() as u64)
    }

    /// [`new`](Self::new) with another clock for the rule: nanoseconds from any origin of time.
    pub fn with_clock(
        capacity: u64,
        runtime: Handle,
        clock: impl Fn() -> u64 + Send + Sync + 'static,
    ) -> Self {
        let state = StoreState {
            capacity,
            cache: NextUseCache::new(capacity),
            datasets: Vec::new(),
            origins: Vec::new(),
            samples: KeyMap::default(),
            flights: KeyMap::default(),
            written_behind: KeyMap::default(),
            jobs: HashMap::new(),
            convoys: HashMap::new(),
            pace: OriginPace::default(),
            counts: StoreCounts::default(),
            evicted: Vec::new(),
            failed_blocks: HashSet::new(),
        };
        let (clock, next_job) = (Box::new(clock), AtomicU64::new(0));
        let (state, has_ended) = (Mutex::new(state), AtomicBool::new(false));
        Self(Arc::new(StoreInner { state, has_ended, runtime, clock, next_job }))
    }

    /// Adds a dataset with the lengths of its samples. Datasets with the same `origin` share its
    /// limits, and their jobs its time.
    ///
    /// # Errors
    /// If its tables do not fit in memory.
    pub fn add_dataset(
        &self,
        sizes: &Sizes,
        reader: Arc<dyn SampleReader>,
        origin: &str,
    ) -> Result<DatasetId, PlanError> {
        let footprints = footprints(sizes);
        let costs = DatasetCosts::new(footprints.clone());
        let mut state = lock(&self.0.state);
        let dataset = state.cache.add_dataset(costs)?;
        let origin = state.origin(origin);
        let (weight, counts) = (NonZeroU32::MIN, StoreCounts::default());
        state.datasets.push(StoreDataset { reader, origin, footprints, weight, counts });
        Ok(dataset)
    }

    /// Limits the reads of an origin, from now on.
    pub fn set_origin(&self, origin: &str, limits: OriginLimits) {
        let mut actions = Actions::default();
        let mut state = lock(&self.0.state);
        let origin = state.origin(origin);
        state.origins[origin].limits = limits;
        state.begin_reads(origin, (self.0.clock)(), &mut actions);
        drop(state);
        self.0.carry_out(actions);
    }

    /// Changes the weight of a dataset relative to others, and its room in memory. Samples above
    /// its cap leave at once. An unknown dataset changes nothing.
    pub fn set_dataset(&self, dataset: DatasetId, weight: NonZeroU32, bounds: CacheBounds) {
        let mut actions = Actions::default();
        let mut state = lock(&self.0.state);
        let StoreState { cache, evicted, .. } = &mut *state;
        cache.set_bounds(dataset, bounds, evicted);
        state.drop_evicted(&mut actions);
        if let Some(there) = state.datasets.get_mut(dataset.0 as usize) {
            there.weight = weight;
            state.set_costs(dataset);
        }
    }

    /// Adds a job. With `is_ordered` its requests wait for its first [order](Self::announce).
    pub fn add_job(&self, is_ordered: bool) -> StoreJob {
        self.add_member(is_ordered, false, None)
    }

    /// Adds a job of another node of the cluster. Its samples are never read from a third node, and
    /// none that this node is reading from another one is for it: two nodes would wait for each
    /// other.
    pub fn add_remote_job(&self, is_ordered: bool) -> StoreJob {
        self.add_member(is_ordered, true, None)
    }

    /// Adds a job that only fills the memory. Its samples stay if there is free room, or a dataset
    /// that no job uses.
    pub fn add_filling_job(&self) -> StoreJob {
        self.add_member(false, false, Some((self.0.clock)()))
    }

    fn add_member(&self, is_ordered: bool, is_remote: bool, fills_since: Option<u64>) -> StoreJob {
        let job = StoreJob(self.0.next_job.fetch_add(1, Ordering::Relaxed));
        let member = StoreMember {
            fills_since,
            is_remote,
            orders: JobOrders::new(is_ordered),
            weight: NonZeroU32::MIN,
            counts: StoreCounts::default(),
            waiting: 0,
            convoy: own_convoy(job),
        };
        lock(&self.0.state).jobs.insert(job, member);
        if is_ordered {
            let inner = Arc::downgrade(&self.0);
            self.0.runtime.spawn(async move {
                tokio::time::sleep(ORDER_TIMEOUT).await;
                if let Some(inner) = inner.upgrade() {
                    inner.begin_waiting(job);
                }
            });
        }
        job
    }

    /// Changes a job's share of the time of the origins that it reads, relative to other jobs.
    pub fn set_weight(&self, job: StoreJob, weight: NonZeroU32) {
        let mut state = lock(&self.0.state);
        if let Some(member) = state.jobs.get_mut(&job) {
            member.weight = weight;
            state.join_convoy(job);
        }
    }

    /// Announces the next epoch of a job: its samples in the order of their uses, the first of
    /// which is at `first`, and `per_position` of them or [holes](EpochUses::HOLE) at each. Epochs
    /// are announced in their order, at best two ahead of the requests. Blocks the thread while it
    /// makes a table, some milliseconds for a million samples.
    ///
    /// # Errors
    /// A sample that the dataset does not have, or tables that do not fit in memory.
    pub fn announce(
        &self,
        job: StoreJob,
        dataset: DatasetId,
        first: Tick,
        per_position: NonZeroU32,
        order: impl IntoIterator<Item = SampleId>,
    ) -> Result<(), PlanError> {
        self.announce_all(job, first, per_position, [(dataset, order)])
    }

    /// [`announce`](Self::announce) for several datasets, with holes for the samples of the others.
    ///
    /// # Errors
    /// Those of `announce`.
    pub fn announce_all(
        &self,
        job: StoreJob,
        first: Tick,
        per_position: NonZeroU32,
        orders: impl IntoIterator<Item = (DatasetId, impl IntoIterator<Item = SampleId>)>,
    ) -> Result<(), PlanError> {
        for (dataset, order) in orders {
            let samples = lock(&self.0.state).cache.samples(dataset)?;
            let mut hash = 0_u64;
            let hashed = order.into_iter().inspect(|sample| {
                hash = (hash.rotate_left(5) ^ sample.0).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            });
            let uses = NextUseCache::order(dataset, samples, per_position, hashed)?;
            let key = (dataset, first, uses.positions(), hash);
            self.0.add_order(job, key, uses)?;
        }
        self.0.begin_waiting(job);
        Ok(())
    }

    /// Forgets the announced orders of a job, which will announce others.
    pub fn restart(&self, job: StoreJob) {
        let mut state = lock(&self.0.state);
        let StoreState { jobs, cache, .. } = &mut *state;
        if let Some(member) = jobs.get_mut(&job) {
            member.orders.end(cache);
        }
    }

    /// The counts of a job so far. Zero if it has ended.
    pub fn job_counts(&self, job: StoreJob) -> StoreCounts {
        lock(&self.0.state).jobs.get(&job).map(|member| member.counts).unwrap_or_default()
    }

    /// Ends a job. Its samples stay until others need their room.
    pub fn end_job(&self, job: StoreJob) {
        let mut actions = Actions::default();
        let mut state = lock(&self.0.state);
        let Some(mut ended) = state.jobs.remove(&job) else { return };
        ended.orders.end(&mut state.cache);
        let StoreState { jobs, convoys, .. } = &mut *state;
        let used: HashSet<u64> = jobs.values().map(|member| member.convoy).collect();
        convoys.retain(|_, convoy| used.contains(convoy));
        for origin in &mut state.origins {
            origin.remove(job);
        }
        let (mut unwanted, mut aborts) = (Vec::new(), Vec::new());
        let StoreState { flights, cache, .. } = &mut *state;
        flights.retain(|key, flight| {
            unwanted.extend(flight.waiting.extract_if(.., |request| request.job == job));
            if !flight.waiting.is_empty() {
                return true;
            }
            if flight.is_in_block {
                // Others may wait for its block, and it will be in memory.
                return true;
            }
            // Reads for no job would delay those of other jobs.
            aborts.extend(flight.abort.take());
            if !flight.has_begun {
                cache.forget(*key);
            }
            flight.has_begun
        });
        let now = (self.0.clock)();
        (0..state.origins.len()).for_each(|origin| state.begin_reads(origin, now, &mut actions));
        drop(state);
        aborts.iter().for_each(AbortHandle::abort);
        self.0.carry_out(actions);
        // Its open requests are dropped without the lock.
        drop((ended, unwanted));
    }

    /// Requests samples. Each is answered once: from memory before this returns, or after a read.
    pub fn request(&self, job: StoreJob, requests: Vec<StoreRequest>) {
        self.0.request(job, requests);
    }

    /// Notes which samples of a dataset a disk of this node has, or has no longer. They are read
    /// from there, and memory keeps others.
    pub fn set_on_disk(&self, dataset: DatasetId, ids: &[SampleId], is_on_disk: bool) {
        // A large dataset must not delay requests.
        for ids in ids.chunks(4096) {
            let mut state = lock(&self.0.state);
            for id in ids {
                state.cache.set_on_disk(SampleKey::new(dataset, *id), is_on_disk);
            }
        }
    }

    /// The same for all samples of a dataset: a disk has those with these ascending ids, and no
    /// others.
    pub fn replace_on_disk(&self, dataset: DatasetId, ids: &[SampleId]) {
        let Ok(samples) = lock(&self.0.state).cache.samples(dataset) else { return };
        let mut left = ids.iter().peekable();
        for first in (0..samples).step_by(4096) {
            let mut state = lock(&self.0.state);
            for id in (first..samples.min(first + 4096)).map(SampleId) {
                let is_on_disk = left.next_if(|next| **next == id).is_some();
                state.cache.set_on_disk(SampleKey::new(dataset, id), is_on_disk);
            }
        }
    }

    /// Sets the owners of a dataset's samples. `None`: this node owns all. Samples of other owners
    /// are read from there. Samples that this node does not own stay only in room that no other
    /// sample needs. It visits the samples that are here, and no others.
    pub fn set_owners(&self, dataset: DatasetId, owners: Option<Arc<dyn NodeOwners>>) {
        lock(&self.0.state).cache.set_owners(dataset, owners);
    }

    /// How long reads of storage take, with their wait for a turn: lately, or those under way so
    /// far if that is longer. `None` if there are none. Looks at all samples that are being read.
    pub fn origin_wait(&self) -> Option<Duration> {
        let now = (self.0.clock)();
        let state = lock(&self.0.state);
        let of_origin = state.flights.values().filter(|flight| !flight.is_on_disk && !flight.is_of_node);
        let under_way = of_origin.map(|flight| now.saturating_sub(flight.requested)).max();
        state.pace.wait(now).max(under_way).map(Duration::from_nanos)
    }

    /// The bytes per second that reads of storage have brought lately. `None` if there were none.
    pub fn origin_rate(&self) -> Option<u64> {
        lock(&self.0.state).pace.rate((self.0.clock)())
    }

    /// Whether this node owns a sample.
    pub fn owns(&self, key: SampleKey) -> bool {
        lock(&self.0.state).cache.owner(key) == NodeOwner::This
    }

    /// Whether a sample is in memory, or is being read to stay there.
    pub fn contains(&self, key: SampleKey) -> bool {
        lock(&self.0.state).cache.contains(key)
    }

    /// Whether a sample is in memory, or on a disk of this node.
    pub fn has(&self, key: SampleKey) -> bool {
        let state = lock(&self.0.state);
        state.cache.contains(key) || state.cache.is_on_disk(key)
    }

    /// The present state without the expected hit shares, which take longer.
    pub fn totals(&self) -> StoreStatus {
        lock(&self.0.state).status()
    }

    /// The use of each origin by each job.
    pub fn origin_uses(&self) -> Vec<OriginUse> {
        lock(&self.0.state).origin_uses()
    }

    /// The present state.
    pub fn status(&self) -> StoreStatus {
        let (mut status, orders) = {
            let state = lock(&self.0.state);
            (state.status(), state.order_paces())
        };
        orders.expect(&mut status);
        status
    }

    /// Changes the capacity in bytes. Samples that do not fit leave at once.
    pub fn set_capacity(&self, capacity: u64) {
        let mut state = lock(&self.0.state);
        state.capacity = capacity;
        let StoreState { cache, evicted, .. } = &mut *state;
        cache.set_capacity(capacity, evicted);
        let mut actions = Actions::default();
        state.drop_evicted(&mut actions);
        drop(state);
    }
}

/// The bytes that samples take in a store.
fn footprints(sizes: &Sizes) -> Sizes {
    let bytes = |id: u64| NodeStore::FOOTPRINT.of(sizes.bytes(SampleId(id)));
    if sizes.is_uniform() {
        return Sizes::uniform(sizes.len(), bytes(0));
    }
    let lengths: Vec<u64> = (0..sizes.len()).map(bytes).collect();
    Sizes::table(&lengths)
}

impl StoreInner {
    fn add_order(&self, job: StoreJob, key: OrderKey, uses: EpochUses) -> Result<(), PlanError> {
        let mut state = lock(&self.state);
        let StoreState { jobs, cache, convoys, .. } = &mut *state;
        let Some(member) = jobs.get_mut(&job) else { return Ok(()) };
        let (dataset, first, ..) = key;
        member.orders.announce(cache, dataset, first, uses, (self.clock)())?;
        if let Some(convoy) = convoys.get(&key) {
            member.convoy = *convoy;
        } else if convoys.len() < MAX_ORDER_KEYS {
            if member.convoy == own_convoy(job) {
                member.convoy = order_convoy(job);
            }
            convoys.insert(key, member.convoy);
        }
        state.join_convoy(job);
        Ok(())
    }

    /// Carries out the requests that have waited for an order.
    fn begin_waiting(self: &Arc<Self>, job: StoreJob) {
        let stop_waiting = |member: &mut StoreMember| member.orders.stop_waiting();
        let waiting = lock(&self.state).jobs.get_mut(&job).map(stop_waiting).unwrap_or_default();
        self.request(job, waiting);
    }

    fn request(self: &Arc<Self>, job: StoreJob, requests: Vec<StoreRequest>) {
        let mut actions = Actions::default();
        let now = (self.clock)();
        let mut state = lock(&self.state);
        for request in requests {
            let Some(member) = state.jobs.get_mut(&job) else { continue };
            let Some(request) = member.orders.wait(request) else { continue };
            state.use_sample(job, request, now, &mut actions);
        }
        for origin in std::mem::take(&mut actions.origins) {
            state.begin_reads(origin, now, &mut actions);
        }
        drop(state);
        self.carry_out(actions);
    }

    fn carry_out(self: &Arc<Self>, actions: Actions) {
        let Actions { ready, reads, dropped, .. } = actions;
        for (answer, bytes) in ready {
            answer(Ok(bytes));
        }
        drop(dropped);
        flight::begin(self, reads);
    }
}

#[cfg(test)]
mod cluster_tests;
#[cfg(test)]
mod convoy_tests;
#[cfg(test)]
mod disk_tests;
#[cfg(test)]
mod node_tests;
#[cfg(test)]
mod stress;
#[cfg(test)]
mod test_rig;
#[cfg(test)]
mod tests;
