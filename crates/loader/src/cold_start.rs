//! What the driver does about blocks: it lets uses wait for them, reads them while their budget has room, and shares out
//! what comes.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use foreread_tier::{CacheTier, Charge, ErrorKind, Lookup, Object, Sample, Span, TierError};
use foreread_types::{SampleId, SampleKey, Tick};

use crate::answers::Check;
use crate::blocks::{BlockId, Extent, Waiting};
use crate::core::Event;
use crate::driver::{Driver, Turn, Wanted, in_passing, not_kept, skipped};

/// How long a sample waits for a cache that has too much on its way, and how often it asks: 4 s in all. It holds back the next blocks
/// meanwhile.
const PATIENCE: (Duration, u32) = (Duration::from_millis(20), 200);

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

    /// Reads the next blocks, as long as their budget has room; one is always read.
    pub(crate) fn begin_blocks(&mut self, turn: &mut Turn) {
        while let Some((id, extent, due)) = self.blocks.next() {
            let dataset = id.0;
            let bytes = extent.bytes.end - extent.bytes.start;
            let first = SampleKey::new(dataset, SampleId(extent.samples.start));
            let charge = match self.block_budget.try_charge(bytes) {
                Some(charge) => charge,
                None if self.block_budget.used() == 0 => self.block_budget.charge(bytes),
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
        let mut waited: Vec<SampleKey> = Vec::with_capacity(waiting.len());
        for Waiting { tick, key, charge } in waiting {
            match self.cut(&block, &extent, key) {
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
        for sample in extent.samples.clone() {
            let key = SampleKey::new(id.0, SampleId(sample));
            if waited.binary_search(&key).is_ok() {
                continue;
            }
            let Some(cache) = self.cache_of(key) else { continue };
            if let Ok(bytes) = self.cut(&block, &extent, key) {
                let charge = self.block_budget.charge(bytes.len() as u64);
                keep(Arc::clone(cache), key, bytes, charge);
            }
        }
    }

    /// A sample's own copy of its bytes, checked where its shard says what they add up to.
    fn cut(&self, block: &[u8], extent: &Extent, key: SampleKey) -> Result<Bytes, TierError> {
        let (_, span) = self.locate(key)?;
        let of_dataset = &self.datasets[key.dataset.0 as usize];
        let Span::Range(range) = span else { return Err(outside()) };
        let within =
            range.start.checked_sub(extent.bytes.start).zip(range.end.checked_sub(extent.bytes.start));
        let bytes =
            within.and_then(|(from, to)| block.get(from as usize..to as usize)).ok_or_else(outside)?;
        let bytes = Bytes::copy_from_slice(bytes);
        match of_dataset.catalog.crc32c(key.id) {
            Some(crc32c) => Check { crc32c, at: range.start }.passed(of_dataset.origin.name(), bytes),
            None => Ok(bytes),
        }
    }
}

fn outside() -> TierError {
    TierError::new(ErrorKind::Invalid, "engine").with_detail("its extent is not within its block")
}

/// Gives a sample that nobody waits for to its cache.
fn keep(cache: Arc<dyn CacheTier>, key: SampleKey, bytes: Bytes, charge: Charge) {
    let sample = Sample::new(bytes, charge);
    in_passing(async move {
        let (nap, tries) = PATIENCE;
        for _ in 0..tries {
            let Some(room) = cache.reserve(cache.footprint().of(sample.len() as u64)) else { break };
            match cache.store(room, key, sample.clone()).await {
                Ok(()) => return,
                Err(error) if error.kind() == ErrorKind::Full => tokio::time::sleep(nap).await,
                Err(error) => return not_kept(&*cache, key, &error),
            }
        }
        skipped(&*cache);
    });
}
