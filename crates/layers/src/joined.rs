//! Neighbouring ranges of one object, joined into one request.
//!
//! A request costs the origin's latency and a slot of the limit, whatever its length. For samples
//! in one object (packed shards), reading two neighbours and the gap between them in one request
//! may be faster than two requests. That holds if the gap takes less time than a request. Both
//! times are measured at the origin, below all queues, or given ([`MergePolicy`]). A range joins
//! the one before it only if that saves a good part of its separate reading time. So ranges that
//! are bound by bandwidth stay separate and keep their parallelism.
//!
//! * Only ranges of one state of one object within one burst of reads are joined. Whole objects
//!   never. The caller ends a burst ([`Tier::submit`](foreread_tier::Tier::submit)).
//! * A joined read is as urgent as its most urgent part, and at most [`MergePolicy::most`] bytes
//!   long.
//! * The gaps are paid for and discarded. They are at most a tenth of the requested bytes
//!   ([`MergePolicy::waste`]): an origin's bytes cost money, and the plan counts them.
//! * Reads of one [`ReadBlock`] are always joined, because their caller has decided so. They begin
//!   once the block is complete.
//! * Every answer is copied into memory of its exact length, so that a stored sample keeps no
//!   neighbours in memory. That copy is the price, about 10 us for 100 KB.
//! * A joined read is one future that its [parts](crate::parts) share. It is retried as one, and
//!   dropped with its last part. If it keeps failing, it is read part by part, and its failures
//!   count for each part.
//! * All callers of an origin share a burst, and any of them may end it for all. The price is that
//!   the reads of one task may be joined in two pieces if another task ends the burst in between.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use bytes::Bytes;
use foreread_tier::{
    Buffers, ErrorKind, Lifetime, Object, ReadBlock, ReadFuture, ReadRequest, Span, TierError, Version, lock,
};
use metrics::Counter;

use crate::parts::{ReadPart, parts};
use crate::retry::Failures;
use crate::speed::{ReadCost, Speed};
use crate::stack::Layers;

/// Joining a range must save at least this fraction of its separate reading time.
const WORTH: f64 = 0.1;

/// Which ranges are joined.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct MergePolicy {
    /// The longest joined read, in bytes.
    pub most: u64,
    /// Gap bytes, at most as a fraction (0 to 1) of the requested bytes.
    pub waste: f64,
    /// The latency of a request and the bytes per second of a single read, if known. Otherwise both
    /// are measured, and nothing is joined before enough reads.
    pub given: Option<(Duration, u64)>,
}

impl Default for MergePolicy {
    /// 8 MiB, a tenth, measured.
    fn default() -> Self {
        Self { most: 8 << 20, waste: 0.1, given: None }
    }
}

impl MergePolicy {
    /// The same for an origin with a known `latency` per request and `bytes_per_second` of a single
    /// read.
    #[must_use]
    pub const fn with_given(self, latency: Duration, bytes_per_second: u64) -> Self {
        Self { given: Some((latency, bytes_per_second)), ..self }
    }
}

setters! { MergePolicy:
    /// The same with another longest read and another bound on gaps.
    with_bounds(most: u64, waste: f64);
}

/// The result of a joined read, or its failures if its parts are to be read separately.
pub(crate) type JoinedRead = Result<Result<Bytes, TierError>, Failures>;

/// How a range is read.
enum RangePlan {
    /// As a separate read.
    Alone(ReadFuture),
    /// As this part of a joined read.
    Part(ReadPart<JoinedRead>, Range<usize>),
}

/// A requested range, and how it is read once that is decided.
struct PendingRange {
    request: Arc<ReadRequest>,
    plan: Mutex<Option<RangePlan>>,
}

impl PendingRange {}

/// Reads that have not begun, including dropped ones.
#[derive(Default)]
struct PendingBurst {
    ranges: Vec<Weak<PendingRange>>,
    /// Incomplete blocks.
    blocks: Vec<OpenBlock>,
}

struct OpenBlock {
    object: Object,
    block: Arc<ReadBlock>,
    reads: Vec<Weak<PendingRange>>,
}

impl PendingBurst {
    /// Adds a read. Returns the reads of its block if the read completes it.
    fn add(&mut self, waiting: &Arc<PendingRange>) -> Option<Vec<Weak<PendingRange>>> {
        let (read, request) = (Arc::downgrade(waiting), &waiting.request);
        let Some(block) = &request.block else {
            self.ranges.push(read);
            return None;
        };
        let at = self.find(request, block).unwrap_or_else(|| {
            // Blocks whose reads were all dropped.
            self.blocks.retain(|open| open.reads.iter().any(|read| read.strong_count() > 0));
            let (object, block) = (request.object.clone(), Arc::clone(block));
            self.blocks.push(OpenBlock { object, block, reads: Vec::new() });
            self.blocks.len() - 1
        });
        let reads = &mut self.blocks[at].reads;
        reads.push(read);
        (reads.len() >= block.reads).then(|| self.blocks.swap_remove(at).reads)
    }

    fn find(&self, request: &ReadRequest, block: &ReadBlock) -> Option<usize> {
        self.blocks.iter().position(|open| *open.block == *block && open.object == request.object)
    }

    /// Removes the block of a read, complete or not.
    fn take_block(&mut self, request: &ReadRequest) -> Option<Vec<Weak<PendingRange>>> {
        let at = self.find(request, request.block.as_ref()?)?;
        Some(self.blocks.swap_remove(at).reads)
    }
}

/// Joins the reads of neighbouring ranges of one origin.
///
/// Reads that are answered from a joined one are counted as `foreread_tier_reads_merged_total` with
/// the label `tier`.
pub(crate) struct JoinLayer {
    layers: Arc<Layers>,
    policy: MergePolicy,
    speed: Option<Speed>,
    buffers: Arc<dyn Buffers>,
    joined: Counter,
    burst: Mutex<PendingBurst>,
}

impl JoinLayer {
    /// Joins the reads of `layers` by `policy`, with memory from `buffers`. Costs come from the
    /// policy or are measured by `speed`. Without `speed`, only blocks are joined.
    pub(crate) fn new(
        layers: Arc<Layers>,
        policy: MergePolicy,
        speed: Option<Speed>,
        buffers: Arc<dyn Buffers>,
    ) -> Self {
        let tier = layers.tier().to_owned();
        let joined = metrics::counter!("foreread_tier_reads_merged_total", "tier" => tier);
        Self { layers, policy, speed, buffers, joined, burst: Mutex::default() }
    }

    /// Whether a read may be joined with others.
    pub(crate) fn takes(&self, request: &ReadRequest) -> bool {
        matches!(request.span, Span::Range(_)) && (self.speed.is_some() || request.block.is_some())
    }

    /// Reads a range, joined with its neighbours in the burst.
    pub(crate) fn read(self: &Arc<Self>, request: Arc<ReadRequest>) -> ReadFuture {
        let waiting = Arc::new(PendingRange { request, plan: Mutex::default() });
        {
            let mut burst = lock(&self.burst);
            if let Some(reads) = burst.add(&waiting) {
                self.begin_block(&reads);
            }
        }
        let joins = Arc::clone(self);
        Box::pin(async move {
            let mut plan = lock(&waiting.plan).take();
            if plan.is_none() {
                {
                    let mut burst = lock(&joins.burst);
                    if let Some(reads) = burst.take_block(&waiting.request) {
                        joins.begin_block(&reads);
                    }
                }
                joins.submit();
                plan = lock(&waiting.plan).take();
            }
            let request = || Arc::clone(&waiting.request);
            match plan {
                Some(RangePlan::Alone(read)) => read.await,
                Some(RangePlan::Part(whole, part)) => match whole.await {
                    Ok(whole) => joins.copy(&waiting.request, whole?.get(part)),
                    Err(failures) => joins.layers.read_after(request(), failures).await,
                },
                // The range is invalid.
                None => joins.layers.read(request()).await,
            }
        })
    }

    /// Begins the reads of the burst, the most urgent first.
    pub(crate) fn submit(&self) {
        // Locked until all reads have plans: a read without one would start a second time, and its
        // first read would never be polled.
        let mut open = lock(&self.burst);
        if open.ranges.is_empty() {
            drop(open);
            return self.layers.submit();
        }
        let burst: Vec<Arc<PendingRange>> = open.ranges.drain(..).filter_map(|read| read.upgrade()).collect();
        let cost = if burst.len() < 2 { None } else { self.cost() };
        let mut reads = join_ranges(&burst, &self.policy, cost);
        reads.sort_by_key(|run| run.members.iter().map(|&at| burst[at].request.due).min());
        for run in reads {
            self.begin(&burst, run);
        }
        drop(open);
        self.layers.submit();
    }

    /// Begins the reads of a block as one. The burst is locked.
    fn begin_block(&self, reads: &[Weak<PendingRange>]) {
        let reads: Vec<Arc<PendingRange>> = reads.iter().filter_map(Weak::upgrade).collect();
        let ranges = || {
            reads.iter().filter_map(|read| match &read.request.span {
                Span::Range(range) => Some(range),
                Span::Whole | Span::Made(_) => None,
            })
        };
        let (Some(start), Some(end)) =
            (ranges().map(|range| range.start).min(), ranges().map(|range| range.end).max())
        else {
            return;
        };
        self.begin(
            &reads,
            JoinedRange { range: start..end, requested: end - start, members: (0..reads.len()).collect() },
        );
    }

    fn cost(&self) -> Option<ReadCost> {
        match self.policy.given {
            Some((latency, rate)) => {
                Some(ReadCost { request: latency.as_secs_f64(), byte: 1.0 / rate.max(1) as f64 })
            }
            None => self.speed.as_ref()?.cost(),
        }
    }

    fn begin(&self, burst: &[Arc<PendingRange>], run: JoinedRange) {
        let JoinedRange { range, mut members, .. } = run;
        members.sort_by_key(|&at| (burst[at].request.due, at));
        let [first, others @ ..] = &members[..] else { return };
        let first = &burst[*first];
        if others.is_empty() {
            let read = self.layers.read(Arc::clone(&first.request));
            *lock(&first.plan) = Some(RangePlan::Alone(read));
            return;
        }
        self.joined.increment(members.len() as u64);
        let whole = ReadRequest {
            span: Span::Range(range.clone()),
            block: None,
            lifetime: Lifetime::Block,
            ..(*first.request).clone()
        };
        let layers = Arc::clone(&self.layers);
        let panicked = move |text: &str| {
            let detail = format!("the tier panicked: {text}");
            Ok(Err(TierError::new(ErrorKind::Closed, layers.tier()).with_detail(detail)))
        };
        let mut parts = parts(self.layers.read_joined(Arc::new(whole)), members.len(), panicked);
        for &at in &members {
            if let Span::Range(part) = &burst[at].request.span {
                let part = (part.start - range.start) as usize..(part.end - range.start) as usize;
                *lock(&burst[at].plan) = parts.next().map(|whole| RangePlan::Part(whole, part));
            }
        }
    }

    /// Copies a part of a joined read into its own memory.
    fn copy(&self, request: &ReadRequest, bytes: Option<&[u8]>) -> Result<Bytes, TierError> {
        let error = |kind, detail: String| {
            TierError::new(kind, self.layers.tier()).with_object(&*request.object.path).with_detail(detail)
        };
        let bytes =
            bytes.ok_or_else(|| error(ErrorKind::Transient, "a joined read ended too early".to_owned()))?;
        let no_memory = || error(ErrorKind::Full, format!("no memory for its {} bytes", bytes.len()));
        let buffer = self.buffers.allocate_for(request.lifetime, bytes.len(), 1);
        let mut buffer = buffer.ok_or_else(no_memory)?;
        buffer.extend(bytes);
        Ok(buffer.freeze())
    }
}

/// Ranges that form one read.
struct JoinedRange {
    range: Range<u64>,
    requested: u64,
    members: Vec<usize>,
}

impl JoinedRange {
    fn new(range: Range<u64>, at: usize) -> Self {
        let requested = range.end.saturating_sub(range.start);
        Self { range, requested, members: vec![at] }
    }
}

/// One state of an object: its path, version and size.
type ObjectState<'a> = (&'a str, &'a Option<Version>, u64);

/// Joins the ranges of a burst.
fn join_ranges(
    burst: &[Arc<PendingRange>],
    policy: &MergePolicy,
    cost: Option<ReadCost>,
) -> Vec<JoinedRange> {
    let mut objects: BTreeMap<ObjectState<'_>, Vec<(Range<u64>, usize)>> = BTreeMap::new();
    let mut runs: Vec<JoinedRange> = Vec::new();
    for (at, waiting) in burst.iter().enumerate() {
        let object = &waiting.request.object;
        match &waiting.request.span {
            Span::Range(range) if range.start < range.end => {
                let ranges = objects.entry((&object.path, &object.version, object.size)).or_default();
                ranges.push((range.clone(), at));
            }
            _ => runs.push(JoinedRange::new(0..0, at)),
        }
    }
    for mut ranges in objects.into_values() {
        ranges.sort_by_key(|(range, at)| (range.start, range.end, *at));
        let mut run: Option<JoinedRange> = None;
        for (range, at) in ranges {
            match &mut run {
                Some(run) if cost.is_some_and(|cost| joins(run, &range, policy, cost)) => {
                    run.requested += range.end.saturating_sub(range.start.max(run.range.end));
                    run.range.end = run.range.end.max(range.end);
                    run.members.push(at);
                }
                _ => runs.extend(run.replace(JoinedRange::new(range, at))),
            }
        }
        runs.extend(run);
    }
    runs
}

/// Whether joining `range` to `run` saves enough time, within the bounds.
fn joins(run: &JoinedRange, range: &Range<u64>, policy: &MergePolicy, cost: ReadCost) -> bool {
    let end = run.range.end.max(range.end);
    let between = range.start.saturating_sub(run.range.end);
    let new = end - run.range.end.max(range.start).min(end);
    let (wasted, requested) = (end - run.range.start - run.requested - new, run.requested + new);
    let saved = cost.request - between as f64 * cost.byte;
    let alone = cost.request + (range.end - range.start) as f64 * cost.byte;
    end - run.range.start <= policy.most
        && wasted as f64 <= policy.waste * requested as f64
        && saved > WORTH * alone
}
