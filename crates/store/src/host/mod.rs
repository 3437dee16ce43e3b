//! One cache for all jobs of a node: what any of them needs soonest.
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

mod job_orders;

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use foreread_planner::{CacheUse, DatasetCosts, EpochUses, NextUseCache, PlanError};
use foreread_tier::{ErrorKind, ReadFuture, TierError};
use foreread_types::{DatasetId, KeyMap, SampleId, SampleKey, Sizes, Tick};
use tokio::runtime::Handle;
use tokio::task::AbortHandle;

use self::job_orders::JobOrders;

/// The bytes that a sample takes in addition to its own: its places in the tables, its handle, and
/// what the arena loses.
const OVERHEAD: u64 = 192;

/// Samples begin at a cache line.
const ALIGN: u64 = 64;

/// How long requests of a job wait for its first order.
const ORDER_TIMEOUT: Duration = Duration::from_secs(5);

/// Where a store reads the samples of a dataset.
pub trait SampleReader: fmt::Debug + Send + Sync + 'static {
    /// Starts to read a sample. `due` orders the reads of one job.
    fn read(&self, id: SampleId, due: Tick) -> ReadFuture;

    /// Ends a burst of reads.
    fn submit(&self);
}

/// The number of a job, unique in a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StoreJob(u64);

/// Gets the result of a request.
pub type Answer = Box<dyn FnOnce(Result<Bytes, TierError>) + Send>;

/// A request of a job for a sample.
pub struct StoreRequest {
    /// The sample.
    pub key: SampleKey,
    /// The job's position at which it uses the sample.
    pub due: Tick,
    /// Called once, on any thread.
    pub answer: Answer,
}

impl fmt::Debug for StoreRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoreRequest").field("key", &self.key).field("due", &self.due).finish_non_exhaustive()
    }
}

/// Samples and bytes since a store was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoreCounts {
    /// Requests that were answered from memory.
    pub hits: u64,
    /// Requests that joined the read of another request.
    pub joined: u64,
    /// Samples that were read.
    pub reads: u64,
    /// Their bytes.
    pub read_bytes: u64,
    /// Reads that failed.
    pub failures: u64,
}

/// The state of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoreStatus {
    /// The bytes that samples may take.
    pub capacity: u64,
    /// The bytes that samples take, with all overhead.
    pub held_bytes: u64,
    /// The number of samples in memory.
    pub samples: u64,
    /// Connected jobs.
    pub jobs: u64,
    /// Samples that are being read.
    pub reading: u64,
    /// What has happened so far.
    pub counts: StoreCounts,
}

/// One cache for all jobs of a node. Clones are the same store.
#[derive(Clone)]
pub struct NodeStore(Arc<StoreInner>);

struct StoreInner {
    state: Mutex<StoreState>,
    runtime: Handle,
    /// The rule's time in nanoseconds.
    clock: Box<dyn Fn() -> u64 + Send + Sync>,
    next_job: AtomicU64,
}

struct StoreState {
    capacity: u64,
    cache: NextUseCache,
    datasets: Vec<Arc<dyn SampleReader>>,
    /// Residents that were read. Those that are being read are in `flights`.
    samples: KeyMap<Bytes>,
    flights: KeyMap<SampleFlight>,
    jobs: HashMap<StoreJob, JobOrders>,
    counts: StoreCounts,
    /// Space for residents that leave.
    evicted: Vec<SampleKey>,
}

/// A sample that is being read.
#[derive(Default)]
struct SampleFlight {
    waiting: Vec<(StoreJob, Answer)>,
    /// Ends the read. `None` until it has begun.
    abort: Option<AbortHandle>,
}

/// What follows a look at the tables, without the lock.
#[derive(Default)]
struct Actions {
    ready: Vec<(Answer, Bytes)>,
    reads: Vec<(SampleKey, Tick)>,
    /// Residents that left. Dropping them may unmap memory.
    dropped: Vec<Bytes>,
}

impl fmt::Debug for NodeStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NodeStore").field("status", &self.status()).finish_non_exhaustive()
    }
}

impl NodeStore {
    /// An empty store whose samples take at most `capacity` bytes. It reads on `runtime`.
    pub fn new(capacity: u64, runtime: Handle) -> Self {
        let begun = Instant::now();
        Self::with_clock(capacity, runtime, move || begun.elapsed().as_nanos() as u64)
    }

    fn with_clock(capacity: u64, runtime: Handle, clock: impl Fn() -> u64 + Send + Sync + 'static) -> Self {
        let state = StoreState {
            capacity,
            cache: NextUseCache::new(capacity),
            datasets: Vec::new(),
            samples: KeyMap::default(),
            flights: KeyMap::default(),
            jobs: HashMap::new(),
            counts: StoreCounts::default(),
            evicted: Vec::new(),
        };
        let (clock, next_job) = (Box::new(clock), AtomicU64::new(0));
        Self(Arc::new(StoreInner { state: Mutex::new(state), runtime, clock, next_job }))
    }

    /// Adds a dataset with the lengths of its samples.
    ///
    /// # Errors
    /// If its tables do not fit in memory.
    pub fn add_dataset(&self, sizes: &Sizes, reader: Arc<dyn SampleReader>) -> Result<DatasetId, PlanError> {
        let costs = DatasetCosts::new(footprints(sizes));
        let mut state = self.0.lock();
        let dataset = state.cache.add_dataset(costs)?;
        state.datasets.push(reader);
        Ok(dataset)
    }

    /// Adds a job. With `is_ordered` its requests wait for its first [order](Self::announce).
    pub fn add_job(&self, is_ordered: bool) -> StoreJob {
        let job = StoreJob(self.0.next_job.fetch_add(1, Ordering::Relaxed));
        self.0.lock().jobs.insert(job, JobOrders::new(is_ordered));
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

    /// Announces the next epoch of a job: its samples in the order of their uses, the first of
    /// which is at `first`. Epochs are announced in their order, at best two ahead of the requests.
    /// Blocks the thread while it makes a table, some milliseconds for a million samples.
    ///
    /// # Errors
    /// A sample that the dataset does not have, or tables that do not fit in memory.
    pub fn announce(
        &self,
        job: StoreJob,
        dataset: DatasetId,
        first: Tick,
        order: impl IntoIterator<Item = SampleId>,
    ) -> Result<(), PlanError> {
        let samples = self.0.lock().cache.samples(dataset)?;
        let uses = NextUseCache::order(dataset, samples, order)?;
        self.0.announce(job, dataset, first, uses)
    }

    /// Forgets the announced orders of a job, which will announce others.
    pub fn restart(&self, job: StoreJob) {
        let mut state = self.0.lock();
        let StoreState { jobs, cache, .. } = &mut *state;
        if let Some(orders) = jobs.get_mut(&job) {
            orders.end(cache);
        }
    }

    /// Ends a job. Its samples stay until others need their room.
    pub fn end_job(&self, job: StoreJob) {
        let mut state = self.0.lock();
        let ended = state.jobs.remove(&job);
        let Some(mut ended) = ended else { return };
        ended.end(&mut state.cache);
        let (mut unwanted, mut aborts) = (Vec::new(), Vec::new());
        for flight in state.flights.values_mut() {
            unwanted.extend(flight.waiting.extract_if(.., |(of, _)| *of == job));
            // Reads for no job would delay those of other jobs.
            if flight.waiting.is_empty() {
                aborts.extend(flight.abort.take());
            }
        }
        drop(state);
        aborts.iter().for_each(AbortHandle::abort);
        // Its open requests are dropped without the lock.
        drop((ended, unwanted));
    }

    /// Requests samples. Each is answered once: from memory before this returns, or after a read.
    pub fn request(&self, job: StoreJob, requests: Vec<StoreRequest>) {
        self.0.request(job, requests);
    }

    /// The present state.
    pub fn status(&self) -> StoreStatus {
        let state = self.0.lock();
        StoreStatus {
            capacity: state.capacity,
            held_bytes: state.cache.held_bytes(),
            samples: state.samples.len() as u64,
            jobs: state.jobs.len() as u64,
            reading: state.flights.len() as u64,
            counts: state.counts,
        }
    }

    /// Changes the capacity in bytes. Samples that do not fit leave at once.
    pub fn set_capacity(&self, capacity: u64) {
        let mut state = self.0.lock();
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
    let bytes = |length: u64| length.next_multiple_of(ALIGN).saturating_add(OVERHEAD);
    if sizes.is_uniform() {
        return Sizes::uniform(sizes.len(), bytes(sizes.bytes(SampleId(0))));
    }
    let lengths: Vec<u64> = (0..sizes.len()).map(|id| bytes(sizes.bytes(SampleId(id)))).collect();
    Sizes::table(&lengths)
}

impl StoreInner {
    /// Every change is complete before the lock is released, even after a panic.
    fn lock(&self) -> MutexGuard<'_, StoreState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn announce(
        self: &Arc<Self>,
        job: StoreJob,
        dataset: DatasetId,
        first: Tick,
        uses: EpochUses,
    ) -> Result<(), PlanError> {
        let mut state = self.lock();
        let StoreState { jobs, cache, .. } = &mut *state;
        let Some(orders) = jobs.get_mut(&job) else { return Ok(()) };
        orders.announce(cache, dataset, first, uses, (self.clock)())?;
        drop(state);
        self.begin_waiting(job);
        Ok(())
    }

    /// Carries out the requests that have waited for an order.
    fn begin_waiting(self: &Arc<Self>, job: StoreJob) {
        let waiting = self.lock().jobs.get_mut(&job).map(JobOrders::stop_waiting).unwrap_or_default();
        self.request(job, waiting);
    }

    fn request(self: &Arc<Self>, job: StoreJob, requests: Vec<StoreRequest>) {
        let mut actions = Actions::default();
        let now = (self.clock)();
        let mut state = self.lock();
        for request in requests {
            let Some(orders) = state.jobs.get_mut(&job) else { continue };
            let Some(request) = orders.wait(request) else { continue };
            state.use_sample(job, request, now, &mut actions);
        }
        drop(state);
        self.carry_out(actions);
    }

    fn carry_out(self: &Arc<Self>, actions: Actions) {
        let Actions { ready, reads, dropped } = actions;
        for (answer, bytes) in ready {
            answer(Ok(bytes));
        }
        drop(dropped);
        if reads.is_empty() {
            return;
        }
        let readers = self.lock().datasets.clone();
        for (key, due) in reads {
            let read = readers[key.dataset.0 as usize].read(key.id, due);
            let flight = Flight { inner: Arc::clone(self), key, is_open: true };
            let reading = self.runtime.spawn(async move { flight.complete(read.await) });
            if let Some(flight) = self.lock().flights.get_mut(&key) {
                flight.abort = Some(reading.abort_handle());
            }
        }
        readers.iter().for_each(|reader| reader.submit());
    }
}

impl StoreState {
    /// Decides what happens for one request.
    fn use_sample(&mut self, job: StoreJob, request: StoreRequest, now: u64, actions: &mut Actions) {
        let StoreRequest { key, due, answer } = request;
        let known = self.datasets.len() > key.dataset.0 as usize
            && self.cache.samples(key.dataset).is_ok_and(|samples| key.id.0 < samples);
        if !known {
            // Answered without the lock: it is dropped there, and its request fails.
            actions.ready.push((Box::new(move |_| answer(Err(unknown(key)))), Bytes::new()));
            return;
        }
        let Self { cache, jobs, evicted, .. } = self;
        let announced = jobs.get_mut(&job).and_then(|orders| orders.position(cache, key, due));
        let CacheUse { .. } = match announced {
            Some((cache_job, position)) => cache.used(cache_job, position, key.id, now, evicted),
            None => cache.used_unannounced(key, now, evicted),
        };
        // The sample itself may leave with this use, and is still the answer.
        let resident = self.samples.get(&key).cloned();
        self.drop_evicted(actions);
        if !self.cache.contains(key)
            && let Some(bytes) = self.samples.remove(&key)
        {
            actions.dropped.push(bytes);
        }
        if let Some(bytes) = resident {
            self.counts.hits += 1;
            actions.ready.push((answer, bytes));
            return;
        }
        match self.flights.get_mut(&key) {
            Some(flight) => {
                self.counts.joined += 1;
                flight.waiting.push((job, answer));
            }
            None => {
                self.flights.insert(key, SampleFlight { waiting: vec![(job, answer)], abort: None });
                actions.reads.push((key, due));
            }
        }
    }

    /// Takes the evicted residents out of memory.
    fn drop_evicted(&mut self, actions: &mut Actions) {
        for key in self.evicted.drain(..) {
            actions.dropped.extend(self.samples.remove(&key));
        }
    }
}

fn unknown(key: SampleKey) -> TierError {
    TierError::new(ErrorKind::Invalid, "store").with_detail(format!("there is no sample {key}"))
}

/// A sample that is being read. If the read ends without a result, its requests fail.
struct Flight {
    inner: Arc<StoreInner>,
    key: SampleKey,
    is_open: bool,
}

impl Flight {
    fn complete(mut self, received: Result<Bytes, TierError>) {
        self.end(received);
    }

    fn end(&mut self, received: Result<Bytes, TierError>) {
        self.is_open = false;
        let mut state = self.inner.lock();
        let SampleFlight { waiting, .. } = state.flights.remove(&self.key).unwrap_or_default();
        match &received {
            Ok(bytes) => {
                state.counts.reads += 1;
                state.counts.read_bytes += bytes.len() as u64;
                // It may have been evicted meanwhile.
                if state.cache.contains(self.key) {
                    state.samples.insert(self.key, bytes.clone());
                }
            }
            Err(_) => {
                state.counts.failures += 1;
                state.cache.forget(self.key);
            }
        }
        drop(state);
        for (_, answer) in waiting {
            answer(received.clone());
        }
    }
}

impl Drop for Flight {
    fn drop(&mut self) {
        if self.is_open {
            let detail = "the read has ended without a result";
            self.end(Err(TierError::new(ErrorKind::Transient, "store").with_detail(detail)));
        }
    }
}

#[cfg(test)]
mod tests;
