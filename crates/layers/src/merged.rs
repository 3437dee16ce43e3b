//! Ranges of one object that lie close together, read in one request.
//!
//! A request costs the store's latency and a place of the limit, whatever it asks for. Where samples lie in one object
//! (packed shards), reading two neighbours and what lies between them in one request may be quicker than asking twice:
//! it is when the bytes between take less time than a request does. Both times are measured, on the store's own side
//! of all queues, or given ([`MergePolicy`]). A range joins the one before it only where that saves a good part
//! of what reading it takes, so ranges that are bound by bandwidth stay apart and keep their parallelism.
//!
//! * Only ranges of one object in one state, within one batch, are merged; whole objects never.
//! * A merged read is as urgent as its most urgent part, and no longer than [`MergePolicy::most`] bytes.
//! * The bytes between are paid for and thrown away. They are at most a tenth of what was asked for
//!   ([`MergePolicy::waste`]): a store's bytes cost money, and the plan counts them.
//! * Every answer is copied out into memory of its own, of its exact length, so that a sample that is kept keeps no
//!   neighbours. That copy is the price, about 10 us for 100 KB.
//! * A merged read that fails is as many failures, each with the same error, by which the layer outside of this one sees that
//!   they belong together: it repeats them in one batch, and they are merged again.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use foreread_tier::{
    Buffers, Completion, Completions, ErrorKind, HeapBuffers, ReadRequest, Span, Tier, TierError,
    TierProfile, Version,
};
use futures::{Stream, StreamExt};
use metrics::Counter;

use crate::speed::{Cost, Speed};

/// What joining a range to the one before it has to save, as a part of the time that reading it takes.
const WORTH: f64 = 0.1;

/// Which ranges are read together.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct MergePolicy {
    /// The longest merged read, in bytes.
    pub most: u64,
    /// Bytes that nobody asked for, at most so large a part (0 to 1) of those that were.
    pub waste: f64,
    /// What a request takes and how many bytes a second one read gets, where they are known; measured otherwise, and
    /// nothing is merged before enough reads were seen.
    pub given: Option<(Duration, u64)>,
}

impl Default for MergePolicy {
    /// 8 MiB, a tenth, measured.
    fn default() -> Self {
        Self { most: 8 << 20, waste: 0.1, given: None }
    }
}

impl MergePolicy {
    /// The same for a store that takes `latency` for a request and sends one read's bytes at `bytes_per_second`.
    #[must_use]
    pub const fn with_given(self, latency: Duration, bytes_per_second: u64) -> Self {
        Self { given: Some((latency, bytes_per_second)), ..self }
    }

    /// The same with another longest read and another bound on bytes that nobody asked for.
    #[must_use]
    pub const fn with_bounds(self, most: u64, waste: f64) -> Self {
        Self { most, waste, ..self }
    }

    fn cost(&self, speed: &Speed) -> Option<Cost> {
        match self.given {
            Some((latency, rate)) => {
                Some(Cost { request: latency.as_secs_f64(), byte: 1.0 / rate.max(1) as f64 })
            }
            None => speed.cost(),
        }
    }
}

/// A tier whose reads of neighbouring ranges are merged.
///
/// Reads that were answered from a merged one are counted as `foreread_tier_reads_merged_total` with the label `tier`.
pub struct Merged<T: ?Sized> {
    policy: MergePolicy,
    speed: Speed,
    buffers: Arc<dyn Buffers>,
    merged: Counter,
    inner: Arc<T>,
}

impl<T: Tier + ?Sized> Merged<T> {
    /// `inner`, merged as `policy` says, with answers in memory from the program's allocator. Without
    /// [`MergePolicy::given`] this layer measures nothing by itself and merges nothing: a
    /// [`Stack`](crate::Stack) connects it to the layer that does.
    pub fn new(inner: Arc<T>, policy: MergePolicy) -> Self {
        let merged = metrics::counter!("foreread_tier_reads_merged_total", "tier" => inner.name().to_owned());
        Self { policy, speed: Speed::default(), buffers: Arc::new(HeapBuffers), merged, inner }
    }
}

impl<T: ?Sized> Merged<T> {
    /// The same with answers in memory from `buffers`.
    #[must_use]
    pub fn with_buffers(self, buffers: Arc<dyn Buffers>) -> Self {
        Self { buffers, ..self }
    }

    /// The same with costs as `speed` measures them.
    pub(crate) fn with_speed(self, speed: Speed) -> Self {
        Self { speed, ..self }
    }
}

impl<T: fmt::Debug + ?Sized> fmt::Debug for Merged<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Merged").field("policy", &self.policy).field("inner", &&*self.inner).finish()
    }
}

impl<T: Tier + ?Sized> Tier for Merged<T> {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn profile(&self) -> &TierProfile {
        self.inner.profile()
    }

    fn read(&self, batch: Vec<ReadRequest>) -> Completions {
        let ranges = batch.iter().filter(|request| matches!(request.span, Span::Range(_))).count();
        let cost = if ranges < 2 { None } else { self.policy.cost(&self.speed) };
        let Some(cost) = cost else { return self.inner.read(batch) };
        let (batch, parts) = merge(batch, &self.policy, cost);
        if parts.is_empty() {
            return self.inner.read(batch);
        }
        self.merged.increment(parts.values().map(|parts| parts.len() as u64).sum());
        let (buffers, answers) = (Arc::clone(&self.buffers), self.inner.read(batch));
        Split { tier: self.name().to_owned(), buffers, parts, answers, open: None }.boxed()
    }
}

pass_through!(Merged);

/// One of the reads that a merged one answers.
#[derive(Debug)]
struct Part {
    request: ReadRequest,
    /// Where in the merged read its bytes are.
    range: Range<usize>,
}

/// Ranges that are read together.
struct Run {
    range: Range<u64>,
    asked: u64,
    members: Vec<usize>,
}

/// The batch with neighbours merged, and what the merged reads answer, by tag.
fn merge(
    batch: Vec<ReadRequest>,
    policy: &MergePolicy,
    cost: Cost,
) -> (Vec<ReadRequest>, BTreeMap<u32, Vec<Part>>) {
    let mut runs: Vec<Run> = Vec::new();
    for ranges in by_object(&batch) {
        let mut run: Option<Run> = None;
        for (range, at) in ranges {
            match &mut run {
                Some(run) if joins(run, &range, policy, cost) => {
                    run.asked += range.end.saturating_sub(range.start.max(run.range.end));
                    run.range.end = run.range.end.max(range.end);
                    run.members.push(at);
                }
                _ => {
                    let asked = range.end - range.start;
                    runs.extend(run.replace(Run { range, asked, members: vec![at] }));
                }
            }
        }
        runs.extend(run);
    }
    runs.retain(|run| run.members.len() > 1);
    take_out(batch, runs)
}

/// A range, and the place in the batch of the request for it.
type Placed = (Range<u64>, usize);

/// The ranges of every object of which there are several, from its beginning on.
fn by_object(batch: &[ReadRequest]) -> impl Iterator<Item = Vec<Placed>> {
    let mut objects: BTreeMap<(&str, &Option<Version>, u64), Vec<Placed>> = BTreeMap::new();
    for (at, request) in batch.iter().enumerate() {
        if let Span::Range(range) = &request.span
            && range.start < range.end
        {
            let object = &request.object;
            objects
                .entry((&object.path, &object.version, object.size))
                .or_default()
                .push((range.clone(), at));
        }
    }
    objects.into_values().filter(|ranges| ranges.len() > 1).map(|mut ranges| {
        ranges.sort_by_key(|(range, at)| (range.start, range.end, *at));
        ranges
    })
}

/// Whether reading `range` together with the run is quicker than by itself, by enough, and within the bounds.
fn joins(run: &Run, range: &Range<u64>, policy: &MergePolicy, cost: Cost) -> bool {
    let end = run.range.end.max(range.end);
    let between = range.start.saturating_sub(run.range.end);
    let new = end - run.range.end.max(range.start).min(end);
    let (wasted, asked) = (end - run.range.start - run.asked - new, run.asked + new);
    let saved = cost.request - between as f64 * cost.byte;
    let alone = cost.request + (range.end - range.start) as f64 * cost.byte;
    end - run.range.start <= policy.most
        && wasted as f64 <= policy.waste * asked as f64
        && saved > WORTH * alone
}

/// Puts one read for each run in the place of its members.
fn take_out(batch: Vec<ReadRequest>, runs: Vec<Run>) -> (Vec<ReadRequest>, BTreeMap<u32, Vec<Part>>) {
    let mut batch: Vec<Option<ReadRequest>> = batch.into_iter().map(Some).collect();
    let mut parts = BTreeMap::new();
    for Run { range, members, .. } in runs {
        let mut own: Vec<Part> = members
            .iter()
            .filter_map(|&at| batch[at].take())
            .map(|request| {
                let (start, end) = match &request.span {
                    Span::Range(part) => (part.start - range.start, part.end - range.start),
                    Span::Whole => (0, 0), // ranges alone are members
                };
                Part { range: start as usize..end as usize, request }
            })
            .collect();
        // The most urgent is answered first: from the end.
        own.sort_by_key(|part| Reverse((part.request.due, part.request.tag)));
        let (Some(first), Some(&place)) = (own.last(), members.iter().min()) else { continue };
        let merged = ReadRequest { span: Span::Range(range), ..first.request.clone() };
        parts.insert(merged.tag, own);
        batch[place] = Some(merged);
    }
    let mut batch: Vec<ReadRequest> = batch.into_iter().flatten().collect();
    if !parts.is_empty() && !batch.is_sorted_by_key(|request| request.due) {
        batch.sort_by_key(|request| request.due);
    }
    (batch, parts)
}

/// Answers of a batch, those of merged reads one by one.
struct Split {
    tier: String,
    buffers: Arc<dyn Buffers>,
    parts: BTreeMap<u32, Vec<Part>>,
    answers: Completions,
    /// A merged answer, and whom it still has to be handed to.
    open: Option<(Result<Bytes, TierError>, Vec<Part>)>,
}

impl Split {
    /// The next who gets a part of the merged answer at hand.
    fn hand_out(&mut self) -> Option<Completion> {
        let (answer, parts) = self.open.as_mut()?;
        let Some(Part { request, range }) = parts.pop() else {
            self.open = None;
            return None;
        };
        let result = match answer {
            Ok(bytes) => copy(&*self.buffers, bytes.get(range)).map_err(|(kind, detail)| {
                TierError::new(kind, &*self.tier).with_object(&*request.object.path).with_detail(detail)
            }),
            Err(error) => Err(error.clone()),
        };
        Some(Completion { tag: request.tag, result })
    }
}

/// `bytes` in memory of their own.
fn copy(buffers: &dyn Buffers, bytes: Option<&[u8]>) -> Result<Bytes, (ErrorKind, String)> {
    let Some(bytes) = bytes else {
        return Err((ErrorKind::Transient, "a merged read ended too early".to_owned()));
    };
    match buffers.allocate(bytes.len(), 1) {
        Some(mut buffer) => {
            buffer.extend(bytes);
            Ok(buffer.freeze())
        }
        None => Err((ErrorKind::Full, format!("no memory for its {} bytes", bytes.len()))),
    }
}

impl Stream for Split {
    type Item = Completion;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Completion>> {
        loop {
            if let Some(completion) = self.hand_out() {
                return Poll::Ready(Some(completion));
            }
            let Some(completion) = std::task::ready!(self.answers.poll_next_unpin(cx)) else {
                return Poll::Ready(None);
            };
            match self.parts.remove(&completion.tag) {
                Some(parts) => self.open = Some((completion.result, parts)),
                None => return Poll::Ready(Some(completion)),
            }
        }
    }
}
