//! The tables of a store, and their changes at a request and at the end of a read.
//!
//! All of it happens under the store's lock. Work that takes time or calls other code is collected
//! as [`Actions`], which follow without the lock.

use std::collections::{HashMap, HashSet};
use std::num::NonZeroU32;
use std::sync::Arc;

use bytes::Bytes;
use foreread_planner::{NextUseCache, NodeOwner};
use foreread_tier::{ErrorKind, TierError};
use foreread_types::{DatasetId, KeyMap, SampleId, SampleKey, Sizes, Tick};
use tokio::task::AbortHandle;

use super::counts::StoreCounts;
use super::job_orders::JobOrders;
use super::origin_pace::OriginPace;
use super::origin_queue::{BlockTurn, OriginQueue, QueueMember};
use super::sample_reader::{SampleBlock, SampleReader};
use super::store_job::{Answer, StoreJob, StoreRequest};

pub(super) struct StoreState {
    pub(super) capacity: u64,
    pub(super) cache: NextUseCache,
    pub(super) datasets: Vec<StoreDataset>,
    pub(super) origins: Vec<OriginQueue>,
    /// Residents that were read. Samples that are being read are in `flights`.
    pub(super) samples: KeyMap<Bytes>,
    pub(super) flights: KeyMap<SampleFlight>,
    /// Samples on their way to a disk, which requests do not read again.
    pub(super) written_behind: KeyMap<Bytes>,
    pub(super) jobs: HashMap<StoreJob, StoreMember>,
    /// Jobs that have announced the same order, by it.
    pub(super) convoys: HashMap<OrderKey, u64>,
    pub(super) counts: StoreCounts,
    pub(super) pace: OriginPace,
    /// Space for residents that leave.
    pub(super) evicted: Vec<SampleKey>,
    /// The first samples of blocks that could not be read.
    pub(super) failed_blocks: HashSet<SampleKey>,
}

/// A dataset.
pub(super) struct StoreDataset {
    pub(super) reader: Arc<dyn SampleReader>,
    /// The index of its origin.
    pub(super) origin: usize,
    /// The bytes that its samples take.
    pub(super) footprints: Sizes,
    pub(super) weight: NonZeroU32,
    pub(super) counts: StoreCounts,
}

/// A job.
pub(super) struct StoreMember {
    pub(super) orders: JobOrders,
    pub(super) weight: NonZeroU32,
    pub(super) counts: StoreCounts,
    /// Since when it fills the memory, if it does only that.
    pub(super) fills_since: Option<u64>,
    /// Whether it is a job of another node of the cluster.
    pub(super) is_remote: bool,
    /// Requests without an answer.
    pub(super) waiting: u64,
    /// Jobs in the same order have the same one.
    pub(super) convoy: u64,
}

/// An announced epoch: its dataset, its beginning, its length and a hash of its samples.
pub(super) type OrderKey = (DatasetId, Tick, u64, u64);

/// The most epochs that are compared with those of other jobs.
pub(super) const MAX_ORDER_KEYS: usize = 1 << 16;

/// Reads that waited for a block and are queued again at once.
const MOST_UNPARKED: usize = 16;

/// A request that waits for a read.
pub(super) struct WaitingRequest {
    pub(super) job: StoreJob,
    pub(super) due: Tick,
    pub(super) answer: Answer,
}

/// A sample that is being read, or waits for that.
#[derive(Default)]
pub(super) struct SampleFlight {
    pub(super) waiting: Vec<WaitingRequest>,
    /// When it was requested first.
    pub(super) requested: u64,
    /// Whether its read has left the queue.
    pub(super) has_begun: bool,
    /// Whether it is read from a disk of this node.
    pub(super) is_on_disk: bool,
    /// Whether it is read from another node of the cluster.
    pub(super) is_of_node: bool,
    /// Whether a disk may keep it. Some jobs announce only the samples that their node should keep.
    pub(super) is_for_disk: bool,
    /// Whether it is read with another sample of its block, which counts for the origin.
    pub(super) is_in_block: bool,
    /// Whether other samples are read with it.
    pub(super) has_block: bool,
    /// The job whose turn it was.
    pub(super) reader: Option<StoreJob>,
    /// Ends the read. `None` until its task runs.
    pub(super) abort: Option<AbortHandle>,
}

/// A read that begins: of a sample, or of those of a block.
pub(super) struct BegunRead {
    pub(super) keys: Vec<SampleKey>,
    pub(super) place: ReadPlace,
    pub(super) reader: Arc<dyn SampleReader>,
}

/// Where a sample is read.
#[derive(Clone, Copy, Debug)]
pub(super) enum ReadPlace {
    /// At its origin, with this place there.
    Origin(Tick),
    /// On a disk of this node.
    Disk,
    /// On another node of the cluster, for the use of a job.
    Node(StoreJob, Tick),
}

/// The actions after a change of the tables, without the lock.
#[derive(Default)]
pub(super) struct Actions {
    pub(super) ready: Vec<(Answer, Bytes)>,
    /// Origins with new reads in their queues.
    pub(super) origins: Vec<usize>,
    pub(super) reads: Vec<BegunRead>,
    /// Residents that left. Dropping them may unmap memory.
    pub(super) dropped: Vec<Bytes>,
}

impl StoreState {
    /// The index of an origin, which is made if it is new.
    pub(super) fn origin(&mut self, name: &str) -> usize {
        let known = self.origins.iter().position(|origin| origin.name == name);
        known.unwrap_or_else(|| {
            self.origins.push(OriginQueue::new(name));
            self.origins.len() - 1
        })
    }

    /// Decides the action for one request.
    pub(super) fn use_sample(
        &mut self,
        job: StoreJob,
        request: StoreRequest,
        now: u64,
        actions: &mut Actions,
    ) {
        let StoreRequest { key, due, answer } = request;
        let known = self.datasets.len() > key.dataset.0 as usize
            && self.cache.samples(key.dataset).is_ok_and(|samples| key.id.0 < samples);
        if !known {
            // Answered without the lock: it is dropped there, and its request fails.
            actions.ready.push((Box::new(move |_| answer(Err(unknown(key)))), Bytes::new()));
            return;
        }
        let Self { cache, jobs, evicted, .. } = self;
        let announced = jobs.get_mut(&job).and_then(|member| member.orders.position(cache, key, due));
        let orders = jobs.get(&job).map(|member| &member.orders);
        let is_for_disk = orders.and_then(|orders| orders.will_use(cache, key)).unwrap_or(true);
        let fills_since = jobs.get(&job).and_then(|member| member.fills_since);
        match (announced, fills_since) {
            (Some((cache_job, position)), _) => cache.used(cache_job, position, key.id, now, evicted),
            (None, Some(since)) => cache.fill(key, now, since, evicted),
            (None, None) => cache.used_unannounced(key, now, evicted),
        };
        // The sample itself may leave with this use, and is still the answer.
        let resident = self.samples.get(&key).cloned();
        self.drop_evicted(actions);
        if !self.cache.contains(key)
            && let Some(bytes) = self.samples.remove(&key)
        {
            actions.dropped.push(bytes);
        }
        let found = resident.or_else(|| self.written_behind.get(&key).cloned());
        if let Some(bytes) = found {
            if self.cache.contains(key) {
                self.samples.entry(key).or_insert_with(|| bytes.clone());
            }
            self.count(job, key.dataset, |counts| counts.hits += 1);
            actions.ready.push((answer, bytes));
            return;
        }
        let is_remote = self.jobs.get(&job).is_some_and(|member| member.is_remote);
        if is_remote && self.flights.get(&key).is_some_and(|flight| flight.is_of_node) {
            // That node may wait for this one.
            actions.ready.push((Box::new(move |_| answer(Err(on_its_way(key)))), Bytes::new()));
            return;
        }
        if let Some(member) = self.jobs.get_mut(&job) {
            member.waiting += 1;
        }
        let origin = self.datasets[key.dataset.0 as usize].origin;
        let has_begun = match self.flights.get_mut(&key) {
            Some(flight) => {
                flight.waiting.push(WaitingRequest { job, due, answer });
                flight.is_for_disk |= is_for_disk;
                let has_begun = flight.has_begun;
                self.count(job, key.dataset, |counts| counts.joined += 1);
                has_begun
            }
            None => {
                let waiting = vec![WaitingRequest { job, due, answer }];
                let place = self.other_place(key, job, due, is_remote);
                let flight = SampleFlight {
                    waiting,
                    requested: now,
                    has_begun: place.is_some(),
                    is_on_disk: matches!(place, Some(ReadPlace::Disk)),
                    is_of_node: matches!(place, Some(ReadPlace::Node(..))),
                    is_for_disk,
                    ..SampleFlight::default()
                };
                self.flights.insert(key, flight);
                if let Some(place) = place {
                    // These have no queue here, because jobs do not compete for them.
                    let reader = Arc::clone(&self.datasets[key.dataset.0 as usize].reader);
                    actions.reads.push(BegunRead { keys: vec![key], place, reader });
                }
                place.is_some()
            }
        };
        // A job that joins a read that waits may be served earlier than the first one.
        if !has_begun {
            self.enter_queue(job, origin, due);
            self.origins[origin].queue.push(job, due, key);
            if !actions.origins.contains(&origin) {
                actions.origins.push(origin);
            }
        }
    }

    /// The source of a sample that is not in memory, if it is not its origin.
    fn other_place(&self, key: SampleKey, job: StoreJob, due: Tick, is_remote: bool) -> Option<ReadPlace> {
        if self.cache.is_on_disk(key) {
            return Some(ReadPlace::Disk);
        }
        let is_of_node = !is_remote && self.cache.owner(key) == NodeOwner::Other;
        is_of_node.then_some(ReadPlace::Node(job, due))
    }

    /// Queues a sample again, for the requests that wait for it: it was not where it was
    /// looked for, or did not come with its block.
    pub(super) fn queue_again(
        &mut self,
        key: SampleKey,
        waiting: Vec<WaitingRequest>,
        is_for_disk: bool,
        now: u64,
        actions: &mut Actions,
    ) {
        if waiting.is_empty() {
            // Its jobs have ended, and with them the read.
            self.cache.forget(key);
            return;
        }
        let origin = self.datasets[key.dataset.0 as usize].origin;
        for WaitingRequest { job, due, .. } in &waiting {
            self.enter_queue(*job, origin, *due);
            self.origins[origin].queue.push(*job, *due, key);
        }
        self.flights
            .insert(key, SampleFlight { waiting, requested: now, is_for_disk, ..SampleFlight::default() });
        self.begin_reads(origin, now, actions);
    }

    /// Makes a job a member of an origin's queue, in its convoy unless it is too far behind.
    pub(super) fn enter_queue(&mut self, job: StoreJob, origin: usize, due: Tick) {
        let Some(member) = self.jobs.get(&job) else { return };
        let member = QueueMember { convoy: member.convoy, weight: member.weight };
        self.origins[origin].enter(job, member, due, self.capacity);
    }

    /// Tells the queues that a job's weight or convoy has changed.
    pub(super) fn join_convoy(&mut self, job: StoreJob) {
        let Some(member) = self.jobs.get(&job) else { return };
        for queue in &mut self.origins {
            queue.change(job, QueueMember { convoy: member.convoy, weight: member.weight });
        }
    }

    /// Begins the reads of an origin that are next, as many as are of use at once.
    pub(super) fn begin_reads(&mut self, origin: usize, now: u64, actions: &mut Actions) {
        let mut window = None;
        while self.origins[origin].has_waiting() {
            let window = *window.get_or_insert_with(|| {
                let here = self.datasets.iter().filter(|dataset| dataset.origin == origin);
                here.map(|dataset| dataset.reader.parallelism()).max().unwrap_or(1)
            });
            let Self { origins, flights, datasets, .. } = self;
            let queue = &mut origins[origin];
            if !queue.has_room(window) {
                break;
            }
            let bytes = |key: SampleKey| datasets[key.dataset.0 as usize].footprints.bytes(key.id);
            let waits = |key: &SampleKey| flights.get(key).is_some_and(|flight| !flight.has_begun);
            // A sample that other jobs have brought meanwhile costs nothing.
            let Some((key, order, job)) = queue.next_read(now, |key| waits(&key).then(|| bytes(key))) else {
                continue;
            };
            if let Some(flight) = flights.get_mut(&key) {
                (flight.has_begun, flight.reader) = (true, Some(job));
            }
            let Some(mut keys) = self.begin_block(key, job, now, actions) else { continue };
            keys.push(key);
            keys.sort_unstable_by_key(|key| key.id);
            let reader = Arc::clone(&self.datasets[key.dataset.0 as usize].reader);
            actions.reads.push(BegunRead { keys, place: ReadPlace::Origin(order), reader });
        }
    }

    /// Begins to read the other samples of a block, if they will be in memory until their uses.
    /// `None` if the block, and with it this sample, waits for other blocks.
    fn begin_block(
        &mut self,
        key: SampleKey,
        job: StoreJob,
        now: u64,
        actions: &mut Actions,
    ) -> Option<Vec<SampleKey>> {
        let dataset = &self.datasets[key.dataset.0 as usize];
        let alone = Some(Vec::new());
        let Some(SampleBlock { samples, bytes, is_unit }) = dataset.reader.block(key.id) else {
            return alone;
        };
        let has_failed = self.failed_blocks.contains(&SampleKey::new(key.dataset, SampleId(samples.start)));
        // The samples of a large block are looked at only if it may be read.
        let has_room = is_unit || bytes / 2 <= self.cache.free_bytes(key.dataset);
        if has_failed || !has_room || !self.cache.keeps_unused(key.dataset) {
            return alone;
        }
        match self.origins[dataset.origin].block_turn(bytes, self.capacity) {
            BlockTurn::Now => {}
            BlockTurn::Never if is_unit => {}
            BlockTurn::Never => return alone,
            BlockTurn::Later => {
                self.origins[dataset.origin].park(key);
                if let Some(flight) = self.flights.get_mut(&key) {
                    (flight.has_begun, flight.reader) = (false, None);
                }
                return None;
            }
        }
        let length = samples.end - samples.start;
        let is_absent = |other: &SampleKey| match self.flights.get(other) {
            Some(flight) => !flight.has_begun,
            None => {
                let is_known = self.cache.contains(*other) || self.cache.is_on_disk(*other);
                let is_elsewhere = !is_unit && self.cache.owner(*other) != NodeOwner::This;
                !is_known && !is_elsewhere && !self.written_behind.contains_key(other)
            }
        };
        let others = samples.map(|id| SampleKey::new(key.dataset, SampleId(id)));
        let mut others: Vec<SampleKey> = others.filter(|other| *other != key && is_absent(other)).collect();
        let footprint = |key: &SampleKey| dataset.footprints.bytes(key.id);
        // A few are read by their extents, and so are samples that have no room together. A unit is
        // decoded as a whole anyway.
        let are_many = 2 * (others.len() as u64 + 1) >= length;
        let new: u64 = others.iter().filter(|other| !self.cache.contains(**other)).map(footprint).sum();
        if !(is_unit || are_many && new <= self.cache.free_bytes(key.dataset)) {
            return alone;
        }
        let Self { cache, flights, evicted, jobs, .. } = self;
        let orders = jobs.get(&job).map(|member| &member.orders);
        // Into free room: no other dataset gives any for a sample that no request waits for.
        others.retain(|other| flights.contains_key(other) || cache.fill(*other, now, 0, evicted).kept);
        for other in &others {
            let flight = flights.entry(*other).or_default();
            (flight.has_begun, flight.is_in_block, flight.reader) = (true, true, Some(job));
            let is_for_disk = orders.and_then(|orders| orders.will_use(cache, *other));
            flight.is_for_disk |= is_for_disk.unwrap_or(true);
        }
        let all = others.iter().map(footprint).sum();
        self.origins[dataset.origin].add_block(key, job, all);
        if let Some(flight) = self.flights.get_mut(&key).filter(|_| !others.is_empty()) {
            flight.has_block = true;
        }
        self.drop_evicted(actions);
        Some(others)
    }

    /// Notes that a read has ended. With `begins`, others begin.
    pub(super) fn end_read(&mut self, key: SampleKey, now: u64, begins: bool, actions: &mut Actions) {
        let origin = self.datasets[key.dataset.0 as usize].origin;
        if self.origins[origin].end_read(key, now) && self.datasets.len() > 1 {
            self.set_costs(key.dataset);
        }
        if begins {
            self.queue_parked(origin);
            self.begin_reads(origin, now, actions);
        }
    }

    /// Queues reads again that have waited for a block.
    fn queue_parked(&mut self, origin: usize) {
        // Those of one block are read with the first of them, so a few are enough.
        let mut queued = 0;
        while queued < MOST_UNPARKED
            && let Some(key) = self.origins[origin].take_parked(self.capacity)
        {
            let Some(flight) = self.flights.get(&key).filter(|flight| !flight.has_begun) else { continue };
            queued += 1;
            for (job, due) in flight.waiting.iter().map(|waiting| (waiting.job, waiting.due)) {
                self.origins[origin].queue.push(job, due, key);
            }
        }
    }

    /// Notes that a block cannot be read as a whole. Its samples are read one by one from now on.
    pub(super) fn block_failed(&mut self, key: SampleKey) {
        let block = self.datasets[key.dataset.0 as usize].reader.block(key.id);
        if let Some(SampleBlock { samples, .. }) = block {
            self.failed_blocks.insert(SampleKey::new(key.dataset, SampleId(samples.start)));
        }
    }

    /// Applies the savings by a hit of a dataset.
    pub(super) fn set_costs(&mut self, dataset: DatasetId) {
        let Some(there) = self.datasets.get(dataset.0 as usize) else { return };
        let (latency, rate) = self.origins[there.origin].costs(dataset);
        self.cache.set_costs(dataset, there.weight, latency, rate);
    }

    /// Changes the counts of all, of a job and of a dataset.
    pub(super) fn count(&mut self, job: StoreJob, dataset: DatasetId, change: impl Fn(&mut StoreCounts)) {
        change(&mut self.counts);
        if let Some(dataset) = self.datasets.get_mut(dataset.0 as usize) {
            change(&mut dataset.counts);
        }
        if let Some(member) = self.jobs.get_mut(&job) {
            change(&mut member.counts);
        }
    }

    /// Takes the evicted residents out of memory.
    pub(super) fn drop_evicted(&mut self, actions: &mut Actions) {
        for key in self.evicted.drain(..) {
            actions.dropped.extend(self.samples.remove(&key));
        }
    }
}

fn on_its_way(key: SampleKey) -> TierError {
    let detail = format!("{key} is on its way from another node");
    TierError::new(ErrorKind::Absent, "store").with_detail(detail)
}

fn unknown(key: SampleKey) -> TierError {
    TierError::new(ErrorKind::Invalid, "store").with_detail(format!("there is no sample {key}"))
}
