//! The driver's side of blocks: makes uses wait, reads blocks while their budget has room, and
//! stores samples without a waiting use in their caches.

use std::collections::HashSet;
use std::sync::Arc;

use bytes::Bytes;
use foreread_tier::{Budget, CacheTier, Charge, ErrorKind, Lifetime, Lookup, ReadBlock, Sample, TierError};
use foreread_types::{SampleId, SampleKey, Tick};

use crate::blocks::Blocks;
use crate::cache_stores::{count_skip, lifetime_in, spawn_store, store_sample};
use crate::core::CoreEvent;
use crate::driver::{Driver, Turn};
use crate::read_results::{BlockId, PendingRead, ReadResult};

/// Memory of a sample that waits for a disk, beyond its bytes: a task and a table's row.
const WAITING: u64 = 1 << 10;

/// The blocks of a run, and their budgets.
#[derive(Debug)]
pub(crate) struct BlockReads {
    pub(crate) blocks: Blocks,
    /// The budget of blocks in flight.
    pub(crate) budget: Budget,
    /// The budget of their samples on the way into caches.
    pub(crate) stores: Budget,
}

impl Driver {
    /// Reads a sample from the origin, with its block or alone.
    pub(crate) fn read(&mut self, tick: Tick, key: SampleKey, turn: &mut Turn) {
        let pending = self.pending(tick, key, self.staging.charge(self.bytes(key)));
        if let Err(pending) = self.block_reads.blocks.wait(pending) {
            turn.origins[key.dataset.0 as usize].push(PendingRead { is_last_try: false, ..pending });
        }
    }

    /// The read of a sample. Its bytes are checked where the catalog has a checksum.
    pub(crate) fn pending(&self, due: Tick, key: SampleKey, charge: Charge) -> PendingRead {
        let catalog = &self.datasets[key.dataset.0 as usize].catalog;
        let read = PendingRead::new(due, key, self.bytes(key), charge);
        let read = read.checked(catalog.checksum(key.id)).with_server(catalog.server(key.id));
        read.with_lifetime(self.lifetime(key))
    }

    /// Reads the next blocks while their budget has room. One block is always read. A block that
    /// the next batch needs may exceed the budget. A second may not, because a batch of 256 samples
    /// may need as many blocks.
    pub(crate) fn begin_blocks(&mut self, turn: &mut Turn) {
        let needed = self.core.needed_until();
        let budget = self.block_reads.budget.clone();
        while let Some((id, extent, due)) = self.block_reads.blocks.next() {
            let bytes = extent.cost();
            let (used, limit) = (budget.used(), budget.limit());
            let is_needed = needed.is_some_and(|last| due <= last);
            // Dropped samples of a unit would each cost another read of all of it.
            let (stored, room) = (self.block_reads.stores.used(), self.block_reads.stores.limit());
            let is_full = stored > 0 && stored.saturating_add(bytes) > room;
            if extent.is_unit() && !is_needed && is_full && !self.copies.is_stuck() {
                break;
            }
            let charge = match budget.try_charge(bytes) {
                Some(charge) => charge,
                None if used == 0 || is_needed && used < limit => budget.charge(bytes),
                None => break,
            };
            self.begin_block(id, charge, turn);
        }
    }

    /// Reads the next block.
    fn begin_block(&mut self, id: BlockId, charge: Charge, turn: &mut Turn) {
        let blocks = &mut self.block_reads.blocks;
        let (Some(extent), Some(queued)) = (blocks.extent(id).cloned(), blocks.take_next()) else {
            return;
        };
        let waited: HashSet<SampleKey> = queued.uses.iter().map(|waiting| waiting.key).collect();
        let samples = extent.samples.clone().map(|sample| SampleKey::new(id.0, SampleId(sample)));
        let is_wanted = |key: &SampleKey| waited.contains(key) || self.is_absent(*key);
        let samples: Vec<SampleKey> = samples.filter(is_wanted).collect();
        // Samples from an earlier run need not be read again.
        let few = 2 * (samples.len() as u64) < extent.samples.end - extent.samples.start;
        let given_back = if few && !extent.is_unit() {
            queued.uses
        } else {
            let block = Arc::new(ReadBlock { bytes: extent.bytes, reads: samples.len() });
            let read = |key: &SampleKey| self.pending_of_block(queued.due, *key, (id, Arc::clone(&block)));
            turn.blocks.push(samples.iter().map(read).collect());
            self.block_reads.blocks.begin(id, &samples, queued, charge)
        };
        if !given_back.is_empty() {
            self.retry_single.extend(given_back);
            self.handover.wake_driver();
        }
    }

    /// The read of a sample with its block.
    fn pending_of_block(&self, due: Tick, key: SampleKey, block: (BlockId, Arc<ReadBlock>)) -> PendingRead {
        // Until it arrives, it is charged with the block.
        let pending = self.pending(due, key, self.block_reads.stores.charge(0));
        PendingRead { block: Some(block), is_last_try: false, ..pending }
    }

    /// Whether the disk that the plan assigns to this sample must get it, however long its queue
    /// is: each sample of a unit that is missing costs a read of all of it.
    pub(crate) fn waits_for_disk(&self, key: SampleKey) -> bool {
        self.block_reads.blocks.is_in_unit(key)
            && self.cache_of(key).is_some_and(|cache| !cache.keeps_memory())
    }

    /// Whether a sample of `bytes` bytes may wait for a disk, next to `most` bytes in all.
    pub(crate) fn has_place_for_disk(&self, bytes: u64, most: u64) -> bool {
        let used = self.block_reads.stores.used();
        !self.copies.is_stuck() && used.saturating_add(bytes).saturating_add(WAITING) <= most
    }

    /// Stores a sample of a unit on the disk that the plan assigns to it. `lost` gets the bytes if
    /// the disk does not take them.
    pub(crate) fn store_of_unit(
        &self,
        key: SampleKey,
        bytes: Bytes,
        lost: impl FnOnce(Bytes) + Send + 'static,
    ) {
        let Some(level) = self.plan.level(key).map(|level| usize::from(level.0)) else { return };
        let Some(cache) = self.caches.get(level) else { return };
        let charge = self.block_reads.stores.charge((bytes.len() as u64).saturating_add(WAITING));
        self.copies.begin_of_unit((level, Arc::clone(cache)), key, Sample::new(bytes, charge), lost);
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

    /// How long a sample will be in memory, once it is read.
    pub(crate) fn lifetime(&self, key: SampleKey) -> Lifetime {
        lifetime_in(self.cache_of(key))
    }

    /// Handles one sample of a block. A waiting use gets the sample, or is read alone.
    pub(crate) fn on_block_result(
        &mut self,
        id: BlockId,
        (tick, key): (Tick, SampleKey),
        result: Result<Sample, TierError>,
        events: &mut Vec<CoreEvent>,
    ) {
        match (self.block_reads.blocks.sample_done(id, key), result) {
            (Some(PendingRead { tick, key, charge, .. }), Ok(sample)) => {
                sample.recharge(charge);
                self.on_result(
                    ReadResult { tick, key, block: None, result: Ok(sample), retry_charge: None },
                    events,
                );
            }
            // Alone it would wait for the same server.
            (Some(PendingRead { tick, key, .. }), Err(error)) if error.kind() == ErrorKind::Silent => {
                self.failed(tick, key, error, events);
            }
            (Some(waiting), Err(error)) => {
                tracing::debug!(%key, %error, "a sample did not arrive with its block, reading it alone");
                self.retry_single.push(waiting);
            }
            (None, Ok(sample)) => self.store_unrequested(id, key, sample, tick),
            // Its first use reads it.
            (None, Err(error)) => tracing::debug!(%key, %error, "a sample did not arrive with its block"),
        }
    }

    /// Stores a sample that no use waits for. `due` is that of its block. If the cache cannot
    /// accept it at once (a busy disk), or too many samples are in flight, it is dropped. Its first
    /// use reads it. A sample of a unit waits for the disk, or is kept for that use where too many
    /// are in flight, if there is memory.
    fn store_unrequested(&self, id: BlockId, key: SampleKey, sample: Sample, due: Tick) {
        let absent = self.cache_of(key).filter(|_| self.is_absent(key));
        let (Some(cache), Some(extent)) = (absent.cloned(), self.block_reads.blocks.extent(id)) else {
            return;
        };
        let (bytes, stores) = (sample.len() as u64, &self.block_reads.stores);
        let most = stores.limit().max(extent.cost());
        let units = self.datasets.get(key.dataset.0 as usize).and_then(|of| of.units.clone());
        if extent.is_unit() && !cache.keeps_memory() {
            let offer = move |bytes| {
                if let Some(units) = units {
                    units.offer(key, bytes, due);
                }
            };
            if !self.has_place_for_disk(bytes, most) {
                count_skip(&*cache, key);
                return offer(sample.bytes());
            }
            return self.store_of_unit(key, sample.bytes(), offer);
        }
        let has_room = stores.used().saturating_add(bytes) <= most;
        let room = if has_room { cache.reserve(cache.footprint().of(bytes)) } else { None };
        if let Some(units) = units {
            units.offer(key, sample.bytes(), due);
        }
        let Some(room) = room else { return count_skip(&*cache, key) };
        sample.recharge(stores.charge(bytes));
        spawn_store(async move { store_sample(&*cache, room, key, sample).await });
    }
}
