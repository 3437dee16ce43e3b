//! The driver's side of blocks: makes uses wait, reads blocks while their budget has room, and
//! stores samples without a waiting use in their caches.

use std::collections::HashSet;
use std::sync::Arc;

use foreread_tier::{CacheTier, Charge, Lookup, ReadBlock, Sample, TierError};
use foreread_types::{SampleId, SampleKey, Tick};

use crate::blocks::BlockId;
use crate::core::CoreEvent;
use crate::driver::{Driver, Turn, count_skip, spawn_store, store_sample};
use crate::read_results::{PendingRead, ReadResult};

impl Driver {
    /// Reads a sample from the origin, with its block or alone.
    pub(crate) fn read(&mut self, tick: Tick, key: SampleKey, turn: &mut Turn) {
        let pending = self.pending(tick, key, self.staging.charge(self.bytes(key)));
        if let Err(pending) = self.blocks.wait(pending) {
            turn.origins[key.dataset.0 as usize].push(PendingRead { is_last_try: false, ..pending });
        }
    }

    /// The read of a sample. Its bytes are checked where the catalog has a checksum.
    pub(crate) fn pending(&self, due: Tick, key: SampleKey, charge: Charge) -> PendingRead {
        let catalog = &self.datasets[key.dataset.0 as usize].catalog;
        let read = PendingRead::new(due, key, self.bytes(key), charge);
        read.checked(catalog.crc32c(key.id)).with_server(catalog.server(key.id))
    }

    /// Reads the next blocks while their budget has room. One block is always read. One block that
    /// the next batch needs may exceed the budget. A second may not, because a batch of 256 samples
    /// may need as many blocks.
    pub(crate) fn begin_blocks(&mut self, turn: &mut Turn) {
        let needed = self.core.needed_until();
        while let Some((id, extent, due)) = self.blocks.next() {
            let bytes = extent.bytes.end - extent.bytes.start;
            let (used, limit) = (self.block_budget.used(), self.block_budget.limit());
            let is_needed = needed.is_some_and(|last| due <= last);
            let charge = match self.block_budget.try_charge(bytes) {
                Some(charge) => charge,
                None if used == 0 || is_needed && used < limit => self.block_budget.charge(bytes),
                None => return,
            };
            let (extent, waiting) = (extent.clone(), self.blocks.take_next());
            let waited: HashSet<SampleKey> = waiting.iter().map(|waiting| waiting.key).collect();
            let samples = extent.samples.clone().map(|sample| SampleKey::new(id.0, SampleId(sample)));
            let is_wanted = |key: &SampleKey| waited.contains(key) || self.is_absent(*key);
            let samples: Vec<SampleKey> = samples.filter(is_wanted).collect();
            // Samples from an earlier run need not be read again.
            let given_back = if 2 * (samples.len() as u64) < extent.samples.end - extent.samples.start {
                waiting
            } else {
                let block = Arc::new(ReadBlock { bytes: extent.bytes, reads: samples.len() });
                let read = |key: &SampleKey| self.pending_of_block(due, *key, (id, Arc::clone(&block)));
                turn.blocks.push(samples.iter().map(read).collect());
                self.blocks.begin(id, &samples, waiting, charge)
            };
            if !given_back.is_empty() {
                self.retry_single.extend(given_back);
                self.handover.wake_driver();
            }
        }
    }

    /// The read of a sample with its block.
    fn pending_of_block(&self, due: Tick, key: SampleKey, block: (BlockId, Arc<ReadBlock>)) -> PendingRead {
        // Until it arrives, it is charged with the block.
        let pending = self.pending(due, key, self.store_budget.charge(0));
        PendingRead { block: Some(block), is_last_try: false, ..pending }
    }

    /// Whether a sample has bytes, and a cache that does not hold them.
    fn is_absent(&self, key: SampleKey) -> bool {
        let cache = self.cache_of(key).filter(|_| self.bytes(key) > 0);
        cache.is_some_and(|cache| matches!(cache.lookup(key), Lookup::Absent))
    }

    /// The cache that the plan assigns to a sample.
    fn cache_of(&self, key: SampleKey) -> Option<&Arc<dyn CacheTier>> {
        self.caches.get(usize::from(self.plan.level(key)?.0))
    }

    /// Handles one sample of a block. A waiting use gets the sample, or is read alone.
    pub(crate) fn on_block_result(
        &mut self,
        id: BlockId,
        key: SampleKey,
        result: Result<Sample, TierError>,
        events: &mut Vec<CoreEvent>,
    ) {
        match (self.blocks.sample_done(id, key), result) {
            (Some(PendingRead { tick, key, charge, .. }), Ok(sample)) => {
                sample.recharge(charge);
                self.on_result(
                    ReadResult { tick, key, block: None, result: Ok(sample), retry_charge: None },
                    events,
                );
            }
            (Some(waiting), Err(error)) => {
                tracing::debug!(%key, %error, "a sample did not arrive with its block, reading it alone");
                self.retry_single.push(waiting);
            }
            (None, Ok(sample)) => self.store_unrequested(id, key, sample),
            // Its first use reads it.
            (None, Err(error)) => tracing::debug!(%key, %error, "a sample did not arrive with its block"),
        }
    }

    /// Stores a sample that no use waits for. If the cache cannot accept it at once (a busy disk),
    /// or too many samples are in flight, it is dropped. Its first use reads it.
    fn store_unrequested(&self, id: BlockId, key: SampleKey, sample: Sample) {
        let absent = self.cache_of(key).filter(|_| self.is_absent(key));
        let (Some(cache), Some(extent)) = (absent.cloned(), self.blocks.extent(id)) else { return };
        let bytes = sample.len() as u64;
        let most = self.store_budget.limit().max(extent.bytes.end - extent.bytes.start);
        let has_room = self.store_budget.used().saturating_add(bytes) <= most;
        let room = if has_room { cache.reserve(cache.footprint().of(bytes)) } else { None };
        let Some(room) = room else { return count_skip(&*cache, key) };
        sample.recharge(self.store_budget.charge(bytes));
        spawn_store(async move { store_sample(&*cache, room, key, sample).await });
    }
}
