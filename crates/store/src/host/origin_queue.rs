//! The queue of one origin: its limits, the reads that wait for it, and the time that it takes for
//! them.
//!
//! The time of a read is its part of the time in which the origin was busy: each moment is divided
//! among the reads under way. So the times of all reads add up to the origin's time, whatever the
//! parallelism. The expected time of a read is its bytes, times the slowness of its dataset
//! relative to all of the origin. Where a limit in bytes holds, a read takes its bytes.

use std::collections::{HashMap, VecDeque};
use std::num::{NonZeroU32, NonZeroU64, NonZeroUsize};

use foreread_types::{DatasetId, KeyMap, SampleKey, Tick};

use super::fair_queue::FairQueue;
use super::store_job::{StoreJob, own_convoy};

/// The bytes of a limit that may be under way: the bytes of this time, in nanoseconds, and of the
/// origin's latency. Reads under way can no longer be reordered.
const LIMIT_WINDOW: u64 = 50_000_000;

/// The latency of an origin is the lowest one since the last two such times, in nanoseconds.
const LATENCY_PERIOD: u64 = 10_000_000_000;

/// The cost of a request in addition to its bytes, in bytes.
const REQUEST_BYTES: u64 = 4096;

/// Nanoseconds per byte until they are measured: 100 MB/s.
const FIRST_NS_PER_BYTE: f64 = 10.0;

/// The greatest factor by which a dataset counts as slower or faster than its origin.
const MOST_SLOWER: f64 = 100.0;

/// Reads over which the time of a byte is averaged.
const AVERAGED: f64 = 64.0;

/// A change of the time of a byte by this factor is reported.
const CHANGED: f64 = 1.5;

/// The most bytes of blocks that are read at once: about as many as an origin answers at its
/// bandwidth. They are in memory twice for a moment.
const MOST_BLOCK_BYTES: u64 = 64 << 20;

/// The part of the store's memory that they may take.
const BLOCKS_PART: u64 = 8;

/// Reads before the time of a byte is reported for the first time.
const ENOUGH: u64 = 32;

/// How the reads of a store are limited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OriginLimits {
    /// Bytes per second. The readers enforce it. Here it says how many reads may be under way.
    pub bytes_per_second: Option<NonZeroU64>,
    /// The most reads at once.
    pub parallelism: Option<NonZeroUsize>,
}

/// A store, and the reads that wait for it.
#[derive(Debug)]
pub(super) struct OriginQueue {
    pub(super) name: String,
    pub(super) limits: OriginLimits,
    pub(super) queue: FairQueue,
    reading: KeyMap<ReadUnderWay>,
    reading_bytes: u64,
    /// Samples that are read with another sample.
    block_bytes: u64,
    /// Samples whose blocks wait for others.
    parked: VecDeque<SampleKey>,
    /// The time of one read that would have been under way all the time, in nanoseconds.
    busy: u64,
    changed: u64,
    /// The number of reads so far, which orders those under way.
    begun: u64,
    speeds: HashMap<DatasetId, ReadSpeed>,
    /// Of all datasets.
    speed: ReadSpeed,
    latency: LowestLatency,
    /// The jobs, each with the convoy whose turns it takes.
    members: HashMap<StoreJob, (QueueMember, u64)>,
    /// The bytes that were read for each of them.
    read_bytes: HashMap<StoreJob, u64>,
    /// The furthest request of a convoy, and the mean length of its reads.
    convoys: HashMap<u64, ConvoyFront>,
}

/// A job of an origin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct QueueMember {
    /// The convoy of its order.
    pub(super) convoy: u64,
    pub(super) weight: NonZeroU32,
}

/// When a block may be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BlockTurn {
    Now,
    /// When another one has ended.
    Later,
    /// Its samples are read one by one.
    Never,
}

/// A read that has begun.
#[derive(Clone, Copy, Debug)]
struct ReadUnderWay {
    /// The value of `busy` and the time of its beginning.
    busy: u64,
    begun: u64,
    bytes: u64,
    /// The bytes of the samples that are read with it.
    block_bytes: u64,
}

/// How fast reads are.
#[derive(Clone, Copy, Debug, Default)]
struct ReadSpeed {
    ns_per_byte: f64,
    reads: u64,
    /// As it was reported.
    reported: f64,
}

impl ReadSpeed {
    fn add(&mut self, ns_per_byte: f64) {
        self.reads += 1;
        self.ns_per_byte += (ns_per_byte - self.ns_per_byte) / AVERAGED.min(self.reads as f64);
    }

    fn is_known(&self) -> bool {
        self.reads >= ENOUGH && self.ns_per_byte > 0.0
    }
}

/// The lowest time of a read, lately. It is that of a read that did not wait.
#[derive(Clone, Copy, Debug, Default)]
struct LowestLatency {
    /// The lowest of this period and of the one before.
    lowest: [Option<u64>; 2],
    begun: u64,
}

impl LowestLatency {
    fn add(&mut self, now: u64, latency: u64) {
        if now.saturating_sub(self.begun) > LATENCY_PERIOD {
            (self.lowest, self.begun) = ([None, self.lowest[0]], now);
        }
        let lowest = &mut self.lowest[0];
        *lowest = Some(lowest.map_or(latency, |lowest| lowest.min(latency)));
    }

    fn ns(&self) -> u64 {
        self.lowest.iter().flatten().min().copied().unwrap_or(0)
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct ConvoyFront {
    furthest: Tick,
    bytes: u64,
}

/// The time that an origin takes for bytes of a dataset, in the time that it takes for a byte on
/// average.
fn cost(bytes: u64, of_dataset: Option<&ReadSpeed>, all: ReadSpeed) -> u64 {
    let known = of_dataset.filter(|speed| speed.is_known());
    let slower = known.map_or(1.0, |speed| speed.ns_per_byte / all.ns_per_byte);
    (bytes as f64 * slower.clamp(1.0 / MOST_SLOWER, MOST_SLOWER)) as u64
}

impl OriginQueue {
    pub(super) fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            limits: OriginLimits::default(),
            queue: FairQueue::default(),
            reading: KeyMap::default(),
            reading_bytes: 0,
            block_bytes: 0,
            parked: VecDeque::new(),
            busy: 0,
            changed: 0,
            begun: 0,
            speeds: HashMap::new(),
            speed: ReadSpeed::default(),
            latency: LowestLatency::default(),
            members: HashMap::new(),
            read_bytes: HashMap::new(),
            convoys: HashMap::new(),
        }
    }

    /// Makes a job a member of the queue, or changes its weight. The jobs of one order have one
    /// `convoy`. A job that is too far behind takes turns by itself: at its request at `due`, a
    /// cache of `capacity` bytes has lost the samples that the first job has read.
    pub(super) fn enter(&mut self, job: StoreJob, member: QueueMember, due: Tick, capacity: u64) {
        let front = self.convoys.entry(member.convoy).or_default();
        front.furthest = front.furthest.max(due);
        let is_near = (front.furthest.0 - due.0).saturating_mul(front.bytes) <= capacity;
        let turns = if is_near { member.convoy } else { own_convoy(job) };
        if self.members.insert(job, (member, turns)) != Some((member, turns)) {
            self.queue.set_member(job, turns, member.weight);
        }
    }

    /// Changes the weight or the order of a job, if it is a member.
    pub(super) fn change(&mut self, job: StoreJob, member: QueueMember) {
        if let Some(known) = self.members.get_mut(&job) {
            // Until its next request shows whether it is near.
            *known = (member, own_convoy(job));
            self.queue.set_member(job, own_convoy(job), member.weight);
        }
    }

    /// Removes a job and its reads that wait.
    pub(super) fn remove(&mut self, job: StoreJob) {
        self.queue.remove(job);
        self.members.remove(&job);
        self.read_bytes.remove(&job);
        let members = &self.members;
        self.convoys.retain(|convoy, _| members.values().any(|(member, _)| member.convoy == *convoy));
    }

    pub(super) fn has_waiting(&self) -> bool {
        self.queue.len() > 0
    }

    /// Whether one more read may begin, where `window` are of use at once.
    pub(super) fn has_room(&self, window: usize) -> bool {
        let most = self.limits.parallelism.map_or(window, |most| most.get());
        let most_bytes = self.most_bytes();
        self.reading.is_empty()
            || self.reading.len() < most && most_bytes.is_none_or(|most| self.reading_bytes < most)
    }

    /// The bytes that may be under way, if the origin has a limit.
    fn most_bytes(&self) -> Option<u64> {
        let window_ns = u128::from(LIMIT_WINDOW + 2 * self.latency.ns());
        let bytes = |rate: NonZeroU64| (u128::from(rate.get()) * window_ns / 1_000_000_000) as u64;
        self.limits.bytes_per_second.map(bytes)
    }

    /// Whether a block of `bytes` bytes may be read now, for a cache of `capacity` bytes.
    pub(super) fn block_turn(&self, bytes: u64, capacity: u64) -> BlockTurn {
        let most = MOST_BLOCK_BYTES.min(capacity / BLOCKS_PART);
        if self.most_bytes().is_some_and(|most| bytes > most) {
            // The bytes under way at once would exceed the limit's share of a moment.
            BlockTurn::Never
        } else if self.block_bytes == 0 || self.block_bytes.saturating_add(bytes) <= most {
            BlockTurn::Now
        } else {
            BlockTurn::Later
        }
    }

    /// Takes back a read that has just begun: it waits until a block has ended.
    pub(super) fn park(&mut self, key: SampleKey) {
        if let Some(read) = self.reading.remove(&key) {
            self.reading_bytes -= read.bytes;
        }
        self.parked.push_back(key);
    }

    /// The first read that waits for a block, if there is room for one again.
    pub(super) fn take_parked(&mut self, capacity: u64) -> Option<SampleKey> {
        if self.block_turn(0, capacity) == BlockTurn::Later {
            return None;
        }
        self.parked.pop_front()
    }

    /// Takes the next read out of the queue and begins it, for the job that it returns. `bytes` is
    /// its length, and `None` if it is not needed any more: then there is nothing to read.
    pub(super) fn next_read(
        &mut self,
        now: u64,
        bytes: impl Fn(SampleKey) -> Option<u64>,
    ) -> Option<(SampleKey, Tick, StoreJob)> {
        let (speeds, all, limits) = (&self.speeds, self.speed, self.limits);
        let of_key = |key: SampleKey| {
            let bytes = bytes(key).map_or(0, |bytes| bytes + REQUEST_BYTES);
            let known = speeds.get(&key.dataset).filter(|_| limits.bytes_per_second.is_none());
            cost(bytes, known, all)
        };
        let (key, job) = self.queue.pop(of_key)?;
        let bytes = bytes(key)?;
        if let Some((member, _)) = self.members.get(&job) {
            let front = self.convoys.entry(member.convoy).or_default();
            // An average over about eight reads.
            front.bytes = if front.bytes == 0 { bytes } else { (front.bytes * 7 + bytes) / 8 };
        }
        self.advance(now);
        self.reading.insert(key, ReadUnderWay { busy: self.busy, begun: now, bytes, block_bytes: 0 });
        self.reading_bytes += bytes;
        *self.read_bytes.entry(job).or_default() += bytes;
        self.begun += 1;
        Some((key, Tick(self.begun), job))
    }

    /// Adds other samples to a read that has just begun for a job. They have so many bytes.
    pub(super) fn add_block(&mut self, key: SampleKey, job: StoreJob, bytes: u64) {
        let Some(read) = self.reading.get_mut(&key) else { return };
        read.bytes += bytes;
        read.block_bytes = bytes;
        self.reading_bytes += bytes;
        self.block_bytes += bytes;
        *self.read_bytes.entry(job).or_default() += bytes;
        let known = self.speeds.get(&key.dataset).filter(|_| self.limits.bytes_per_second.is_none());
        self.queue.charge(job, cost(bytes, known, self.speed));
    }

    /// Ends a read. Returns whether reads of its dataset have become much faster or slower.
    pub(super) fn end_read(&mut self, key: SampleKey, now: u64) -> bool {
        self.advance(now);
        let Some(read) = self.reading.remove(&key) else { return false };
        self.latency.add(now, now.saturating_sub(read.begun));
        self.reading_bytes -= read.bytes;
        self.block_bytes -= read.block_bytes;
        let ns_per_byte = (self.busy - read.busy) as f64 / (read.bytes + REQUEST_BYTES) as f64;
        self.speed.add(ns_per_byte);
        let speed = self.speeds.entry(key.dataset).or_default();
        speed.add(ns_per_byte);
        let factor = speed.ns_per_byte / speed.reported;
        let has_changed = speed.is_known() && !(1.0 / CHANGED..CHANGED).contains(&factor);
        if has_changed {
            speed.reported = speed.ns_per_byte;
        }
        has_changed
    }

    fn advance(&mut self, now: u64) {
        let passed = now.saturating_sub(self.changed);
        self.changed = self.changed.max(now);
        self.busy += passed.checked_div(self.reading.len() as u64).unwrap_or(0);
    }

    /// The savings by a hit of a dataset's samples: nanoseconds for the request, and bytes per
    /// second.
    pub(super) fn costs(&self, dataset: DatasetId) -> (u64, u64) {
        let known = self.speeds.get(&dataset).filter(|speed| speed.is_known());
        let ns_per_byte = known.map_or(FIRST_NS_PER_BYTE, |speed| speed.ns_per_byte);
        ((REQUEST_BYTES as f64 * ns_per_byte) as u64, (1e9 / ns_per_byte) as u64)
    }

    /// The jobs that have read or wait: each with its reads that wait, and the bytes that were read
    /// for it.
    pub(super) fn uses(&self) -> HashMap<StoreJob, (u64, u64)> {
        let read = self.read_bytes.iter().map(|(job, bytes)| (*job, (0, *bytes)));
        let mut uses: HashMap<StoreJob, (u64, u64)> = read.collect();
        for job in self.queue.waiting_jobs() {
            uses.entry(job).or_default().0 += 1;
        }
        uses
    }

    /// Whether nothing waits or is being read, for no job.
    #[cfg(test)]
    pub(super) fn is_idle(&self) -> bool {
        let is_read = !self.reading.is_empty() || self.reading_bytes + self.block_bytes > 0;
        let is_read = is_read || self.queue.len() > 0;
        !is_read && self.members.is_empty() && self.convoys.is_empty()
    }

    /// Reads under way.
    pub(super) fn reading(&self) -> usize {
        self.reading.len()
    }
}

#[cfg(test)]
mod tests {
    use foreread_types::SampleId;

    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn key(dataset: u32, id: u64) -> SampleKey {
        SampleKey::new(DatasetId(dataset), SampleId(id))
    }

    #[test]
    fn time_is_divided_among_reads_under_way() {
        let mut origin = OriginQueue::new("s3://bucket");
        enter(&mut origin, 0, 0, 0);
        let bytes = |key: SampleKey| Some(if key.dataset == DatasetId(0) { 1000 } else { 9000 });
        for id in 0..100 {
            origin.queue.push(StoreJob(0), Tick(id), key(0, id));
            origin.queue.push(StoreJob(0), Tick(id), key(1, id));
        }
        // Two at a time: a short read takes one second, a long one two.
        let mut now = 0;
        for _ in 0..100 {
            let (short, ..) = origin.next_read(now, bytes).unwrap();
            let (long, ..) = origin.next_read(now, bytes).unwrap();
            origin.end_read(short, now + SECOND);
            origin.end_read(long, now + 2 * SECOND);
            now += 2 * SECOND;
        }
        let (latency, rate) = origin.costs(DatasetId(0));
        let short = latency as f64 + 1000.0 * 1e9 / rate as f64;
        assert!((short / SECOND as f64 - 0.5).abs() < 0.01, "{short}");
        let (latency, rate) = origin.costs(DatasetId(1));
        let long = latency as f64 + 9000.0 * 1e9 / rate as f64;
        assert!((long / SECOND as f64 - 1.5).abs() < 0.01, "{long}");
    }

    #[test]
    fn only_a_part_of_a_second_of_a_limit_is_under_way() {
        let mut origin = OriginQueue::new("s3://bucket");
        enter(&mut origin, 0, 0, 0);
        origin.limits.bytes_per_second = NonZeroU64::new(20_000_000);
        (0..100).for_each(|id| origin.queue.push(StoreJob(0), Tick(id), key(0, id)));
        let mut begun = 0;
        while origin.has_room(1000) {
            origin.next_read(0, |_| Some(100_000)).unwrap();
            begun += 1;
        }
        assert_eq!(begun, 10);
        // One read is always allowed.
        origin.limits.bytes_per_second = NonZeroU64::new(1);
        for id in 0..10 {
            origin.end_read(key(0, id), SECOND);
        }
        assert!(origin.has_room(0));
    }

    #[test]
    fn job_far_behind_leaves_its_convoy() {
        let mut origin = OriginQueue::new("s3://bucket");
        let turns = |origin: &OriginQueue, job| origin.members[&StoreJob(job)].1;
        enter(&mut origin, 0, 7, 100);
        origin.queue.push(StoreJob(0), Tick(100), key(0, 0));
        origin.next_read(0, |_| Some(100)).unwrap();
        enter(&mut origin, 1, 7, 90);
        assert_eq!((turns(&origin, 0), turns(&origin, 1)), (7, 7));
        enter(&mut origin, 1, 7, 89);
        assert_eq!((turns(&origin, 0), turns(&origin, 1)), (7, own_convoy(StoreJob(1))));
        origin.remove(StoreJob(0));
        assert_eq!(origin.convoys.len(), 1);
        origin.remove(StoreJob(1));
        assert!(origin.convoys.is_empty() && origin.members.is_empty());
    }

    /// A job in a convoy, with a cache for ten reads of 100 bytes.
    fn enter(origin: &mut OriginQueue, job: u64, convoy: u64, due: u64) {
        let member = QueueMember { convoy, weight: NonZeroU32::MIN };
        origin.enter(StoreJob(job), member, Tick(due), 1000);
    }
}
