//! Shares a block out, in a task of its own: it computes the checksum of each sample and copies it.
//!
//! Whoever waits gets its sample first; the others go into their caches after that. A use may come meanwhile that finds its
//! sample neither kept nor on its way: such uses have a round of their own at once, in another task. The price is that a
//! block's budget is held for as long as this takes, a few milliseconds.
//!
//! However the task ends, whoever waits is answered.

use std::collections::{HashSet, VecDeque};
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use foreread_planner::LocalPlan;
use foreread_tier::{Budget, CacheTier, ErrorKind, Lookup, Sample, Span, TierError};
use foreread_types::{SampleId, SampleKey, Tick};
use futures::stream::FuturesUnordered;
use futures::{FutureExt, StreamExt};
use tokio::sync::mpsc::UnboundedSender;

use crate::answers::{Answer, Check};
use crate::blocks::{BlockId, Extent, Waiting};
use crate::dataset::Dataset;
use crate::driver::{keep, own_copy, skipped};
use crate::reading::Worked;

/// What there is to know of a block.
pub(crate) struct Cutting {
    pub(crate) id: BlockId,
    pub(crate) extent: Extent,
    pub(crate) dataset: Dataset,
    pub(crate) plan: LocalPlan,
    pub(crate) caches: Vec<Arc<dyn CacheTier>>,
    /// What copies hold that are on their way into caches.
    pub(crate) copies: Budget,
}

impl Cutting {
    /// Answers those who wait, gives the other samples to their caches if nobody has done so, and the block back.
    pub(crate) async fn share_out(
        self,
        block: Sample,
        waiting: Vec<Waiting>,
        is_new: bool,
        answers: UnboundedSender<Answer>,
    ) {
        let waited: HashSet<SampleKey> = waiting.iter().map(|waiting| waiting.key).collect();
        let mut round = Round { id: self.id, waiting: waiting.into(), answers, is_done: false };
        let mut worked = Worked::default();
        while let Some(next) = round.waiting.front() {
            let cut = self.part(next.key).and_then(|part| part.cut(&block, self.dataset.origin.name()));
            let bytes = cut.as_ref().map_or(0, |bytes| bytes.len() as u64);
            round.answer(cut);
            worked.on(bytes).await;
        }
        if is_new {
            self.keep_others(&block, &waited, &mut worked).await;
        }
        round.end(block);
    }

    /// Gives the samples that nobody waits for to their caches, one after another. Nobody waits for a cache: what it cannot
    /// take at once (a disk has too much to write), and what finds too many copies on their way, is not kept, and its first
    /// use reads it.
    async fn keep_others(&self, block: &Sample, waited: &HashSet<SampleKey>, worked: &mut Worked) {
        let most = self.copies.limit().max(block.len() as u64);
        let writing = FuturesUnordered::new();
        for sample in self.extent.samples.clone() {
            let key = SampleKey::new(self.id.0, SampleId(sample));
            let cache = self.plan.level(key).and_then(|level| self.caches.get(usize::from(level.0)));
            let Some(cache) = cache.filter(|_| !waited.contains(&key)) else { continue };
            let (Lookup::Absent, Ok(part)) = (cache.lookup(key), self.part(key)) else { continue };
            let bytes = part.range.len() as u64;
            let has_room = self.copies.used().saturating_add(bytes) <= most;
            let room = if has_room { cache.reserve(cache.footprint().of(bytes)) } else { None };
            let Some(room) = room else {
                skipped(&**cache);
                continue;
            };
            // What came is not what was written: its first use reads it.
            let Ok(copy) = part.cut(&block, cache.name()) else { continue };
            let (cache, sample) = (Arc::clone(cache), Sample::new(copy, self.copies.charge(bytes)));
            let mut store = Box::pin(async move { keep(&*cache, room, key, sample).await });
            if store.as_mut().now_or_never().is_none() {
                writing.push(store);
            }
            worked.on(bytes).await;
        }
        if !writing.is_empty() {
            // What a disk has taken over is written, whatever becomes of the run.
            tokio::spawn(writing.collect::<()>());
        }
    }

    /// Which part of the block a sample is.
    fn part(&self, key: SampleKey) -> Result<Part, TierError> {
        let (_, span) = self.dataset.locator.locate(key.id)?;
        let Span::Range(range) = span else { return Err(outside()) };
        let check = self.dataset.catalog.crc32c(key.id);
        let check = check.map(|crc32c| Check { crc32c, at: range.start });
        let begin = self.extent.bytes.start;
        let within = range.start.checked_sub(begin).zip(range.end.checked_sub(begin));
        within.map(|(from, to)| Part { range: from as usize..to as usize, check }).ok_or_else(outside)
    }
}

/// Those who wait while a block is shared out.
struct Round {
    id: BlockId,
    waiting: VecDeque<Waiting>,
    answers: UnboundedSender<Answer>,
    is_done: bool,
}

impl Round {
    /// Answers the next one. What came for it may be not what was written, or not all of it: its own read decides.
    fn answer(&mut self, cut: Result<Bytes, TierError>) {
        let Some(Waiting { tick, key, charge }) = self.waiting.pop_front() else { return };
        let (result, again) = match cut {
            Ok(bytes) => (Ok(Sample::new(bytes, charge)), None),
            Err(error) => (Err(error), Some(charge)),
        };
        // A run that has ended wants nothing.
        let _ = self.answers.send(Answer { tick, key, block: None, result, again });
    }

    /// Gives the block back.
    fn end(mut self, block: Sample) {
        self.is_done = true;
        self.send_block(Ok(block));
    }

    fn send_block(&self, result: Result<Sample, TierError>) {
        let key = SampleKey::new(self.id.0, SampleId::default());
        let _ = self.answers.send(Answer { tick: Tick(0), key, block: Some(self.id), result, again: None });
    }
}

impl Drop for Round {
    fn drop(&mut self) {
        if self.is_done {
            return;
        }
        let ended = || TierError::new(ErrorKind::Other, "engine").with_detail("its block was not shared out");
        while !self.waiting.is_empty() {
            self.answer(Err(ended()));
        }
        self.send_block(Err(ended()));
    }
}

/// A sample's part of its block.
struct Part {
    range: Range<usize>,
    /// What its bytes add up to, where its shard says so.
    check: Option<Check>,
}

impl Part {
    /// The sample's own copy of its bytes, checked.
    fn cut(self, block: &[u8], tier: &str) -> Result<Bytes, TierError> {
        let Self { range, check } = self;
        let bytes = block.get(range).ok_or_else(outside)?;
        if let Some(check) = check {
            check.passed(tier, bytes)?;
        }
        own_copy(bytes).ok_or_else(|| {
            let detail = format!("there is no memory for its {} bytes", bytes.len());
            TierError::new(ErrorKind::Full, tier).with_detail(detail)
        })
    }
}

fn outside() -> TierError {
    TierError::new(ErrorKind::Invalid, "engine").with_detail("its extent is not within its block")
}
