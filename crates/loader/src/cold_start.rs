//! What the driver does about blocks: it lets uses wait for them, reads them while their budget has room, and shares out
//! what comes.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use foreread_tier::{Budget, CacheTier, ErrorKind, Lookup, Object, Sample, Span, TierError};
use foreread_types::{SampleId, SampleKey, Tick};
use futures::stream::FuturesUnordered;
use futures::{FutureExt, StreamExt};

use crate::answers::Check;
use crate::blocks::{BlockId, Extent, Waiting};
use crate::core::Event;
use crate::driver::{Driver, Turn, Wanted, in_passing, not_kept, own_copy, skipped};

impl Driver {
    /// Reads a sample from the origin: with its block, or by itself.
    pub(crate) fn read(&mut self, place: (Object, Span), tick: Tick, key: SampleKey, turn: &mut Turn) {
        let bytes = self.datasets[key.dataset.0 as usize].catalog.sizes().bytes(key.id);
        let waiting = Waiting { tick, key, charge: self.staging.charge(bytes) };
        if let Err(waiting) = self.blocks.wait(waiting) {
            self.read_at(place, waiting, false, turn);
        }
    }

    /// `last`: what was read before was wrong, or did not come; if this is, too, it is an error.
    fn read_at(&self, place: (Object, Span), waiting: Waiting, last: bool, turn: &mut Turn) {
        let Waiting { tick, key, charge } = waiting;
        let dataset = key.dataset.0 as usize;
        let crc32c = self.datasets[dataset].catalog.crc32c(key.id);
        turn.origins[dataset].push(place, Wanted { tick, key, block: None, crc32c, last }, |_| charge);
    }

    /// Reads what a block did not bring, or what was not what was written.
    pub(crate) fn read_singly(&mut self, waiting: Waiting, turn: &mut Turn, events: &mut Vec<Event>) {
        match self.locate(waiting.key) {
            Ok(place) => self.read_at(place, waiting, true, turn),
            Err(error) => {
                let Waiting { tick, key, charge } = waiting;
                drop(charge);
                self.failed(tick, key, error, events);
            }
        }
    }

    /// Reads the next blocks, as long as their budget has room; one is always read. One that the batch needs which the
    /// trainer takes next may go beyond the budget, and no second one: a batch of 256 samples may need as many blocks.
    pub(crate) fn begin_blocks(&mut self, turn: &mut Turn) {
        let needed = self.core.needed();
        while let Some((id, extent, due)) = self.blocks.next() {
            let dataset = id.0;
            let bytes = extent.bytes.end - extent.bytes.start;
            let first = SampleKey::new(dataset, SampleId(extent.samples.start));
            let (used, limit) = (self.block_budget.used(), self.block_budget.limit());
            let is_needed = needed.is_some_and(|last| due <= last);
            let charge = match self.block_budget.try_charge(bytes) {
                Some(charge) => charge,
                None if used == 0 || is_needed && used < limit => self.block_budget.charge(bytes),
                None => return,
            };
            let (span, pays) = (Span::Range(extent.bytes.clone()), self.pays(extent, id));
            self.blocks.began();
            match self.locate(first) {
                Ok((object, _)) if pays => {
                    let wanted = Wanted { tick: due, key: first, block: Some(id), crc32c: None, last: true };
                    turn.origins[dataset.0 as usize].push((object, span), wanted, |_| charge);
                }
                // Its samples' own reads will say what is wrong.
                _ => {
                    self.singly.extend(self.blocks.end(id));
                    self.handover.nudge();
                }
            }
        }
    }

    /// Whether at least half of a block is not in its caches: what an earlier run left there need not be read again.
    fn pays(&self, extent: &Extent, (dataset, _): BlockId) -> bool {
        let is_absent = |id: &u64| {
            let key = SampleKey::new(dataset, SampleId(*id));
            self.cache_of(key).is_some_and(|cache| matches!(cache.lookup(key), Lookup::Absent))
        };
        let absent = extent.samples.clone().filter(is_absent).count() as u64;
        2 * absent >= extent.samples.end - extent.samples.start
    }

    /// The cache that the plan has for a sample.
    fn cache_of(&self, key: SampleKey) -> Option<&Arc<dyn CacheTier>> {
        self.caches.get(usize::from(self.plan.level(key)?.0))
    }

    /// Shares a block out, or has its samples read by themselves.
    pub(crate) fn block_answered(
        &mut self,
        id: BlockId,
        result: Result<Sample, TierError>,
        events: &mut Vec<Event>,
    ) {
        let waiting = self.blocks.end(id);
        let block = match result {
            Ok(block) => block,
            Err(error) => {
                tracing::debug!(%error, samples = waiting.len(), "a block could not be read; its samples are, one by one");
                self.singly.extend(waiting);
                return;
            }
        };
        let Some(extent) = self.blocks.extent(id).cloned() else { return };
        let tier = &self.datasets[id.0.0 as usize].origin;
        let mut waited: Vec<SampleKey> = Vec::with_capacity(waiting.len());
        for Waiting { tick, key, charge } in waiting {
            let cut = self.part(&extent, key).and_then(|part| part.cut(block.data(), tier.name()));
            match cut {
                Ok(bytes) => {
                    self.held.put(tick, key.id, Sample::new(bytes, charge));
                    events.push(Event::Arrived(tick));
                }
                // What came is not what was written, or not all of it: its own read decides.
                Err(error) => {
                    tracing::debug!(%key, %error, "a sample of a block is read by itself");
                    self.singly.push(Waiting { tick, key, charge });
                }
            }
            waited.push(key);
        }
        waited.sort_unstable();
        let mut others = Vec::new();
        for sample in extent.samples.clone() {
            let key = SampleKey::new(id.0, SampleId(sample));
            let Some(cache) = self.cache_of(key).filter(|_| waited.binary_search(&key).is_err()) else {
                continue;
            };
            if let (Lookup::Absent, Ok(part)) = (cache.lookup(key), self.part(&extent, key)) {
                others.push((key, Arc::clone(cache), part));
            }
        }
        in_passing(keep(block, others, self.copy_budget.clone()));
    }

    /// Which part of its block a sample is.
    fn part(&self, extent: &Extent, key: SampleKey) -> Result<Part, TierError> {
        let (_, span) = self.locate(key)?;
        let Span::Range(range) = span else { return Err(outside()) };
        let check = self.datasets[key.dataset.0 as usize].catalog.crc32c(key.id);
        let check = check.map(|crc32c| Check { crc32c, at: range.start });
        let within =
            range.start.checked_sub(extent.bytes.start).zip(range.end.checked_sub(extent.bytes.start));
        within.map(|(from, to)| Part { range: from as usize..to as usize, check }).ok_or_else(outside)
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
    fn cut(self, block: &Bytes, tier: &str) -> Result<Bytes, TierError> {
        let Self { range, check } = self;
        if range.start > range.end || range.end > block.len() {
            return Err(outside());
        }
        let mut bytes = block.slice(range);
        if let Some(check) = check {
            bytes = check.passed(tier, bytes)?;
        }
        own_copy(&bytes).ok_or_else(|| {
            let detail = format!("there is no memory for its {} bytes", bytes.len());
            TierError::new(ErrorKind::Full, tier).with_detail(detail)
        })
    }
}

fn outside() -> TierError {
    TierError::new(ErrorKind::Invalid, "engine").with_detail("its extent is not within its block")
}

/// Gives the samples of a block that nobody waits for to their caches, one after another. Nobody waits for a cache: what
/// it cannot take at once (a disk has too much to write), and what finds too many copies on their way, is not kept, and
/// its first use reads it.
async fn keep(block: Sample, others: Vec<(SampleKey, Arc<dyn CacheTier>, Part)>, copies: Budget) {
    let most = copies.limit().max(block.len() as u64);
    let mut writing = FuturesUnordered::new();
    for (key, cache, part) in others {
        let bytes = part.range.len() as u64;
        let room = match copies.used().saturating_add(bytes) <= most {
            true => cache.reserve(cache.footprint().of(bytes)),
            false => None,
        };
        let Some(room) = room else {
            skipped(&*cache);
            continue;
        };
        // What came is not what was written: its first use reads it.
        let Ok(bytes) = part.cut(block.data(), cache.name()) else { continue };
        let charge = copies.charge(bytes.len() as u64);
        let sample = Sample::new(bytes, charge);
        let mut store = Box::pin(async move {
            match cache.store(room, key, sample).await {
                Ok(()) => {}
                Err(error) if error.kind() == ErrorKind::Full => skipped(&*cache),
                Err(error) => not_kept(&*cache, key, &error),
            }
        });
        if store.as_mut().now_or_never().is_none() {
            writing.push(store);
        }
    }
    drop(block);
    while writing.next().await.is_some() {}
}
