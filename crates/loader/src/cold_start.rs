//! What the driver does about blocks: it lets uses wait for them, reads them while their budget has room, and has what
//! comes [shared out](crate::cutting).

use std::sync::Arc;

use foreread_tier::{CacheTier, Lookup, Sample, TierError};
use foreread_types::{SampleId, SampleKey, Tick};
use futures::StreamExt;

use crate::answers::Pending;
use crate::blocks::{BlockId, Extent, Waiting};
use crate::cutting::Cutting;
use crate::driver::{Driver, Turn};
use crate::reading::{CHUNK, Reading};

impl Driver {
    /// Reads a sample from the origin: with its block, or by itself.
    pub(crate) fn read(&mut self, tick: Tick, key: SampleKey, turn: &mut Turn) {
        let waiting = Waiting { tick, key, charge: self.staging.charge(self.bytes(key)) };
        if let Err(waiting) = self.blocks.wait(waiting) {
            self.read_at(waiting, false, turn);
        }
    }

    /// `last`: what was read before was wrong, or did not come; if this is, too, it is an error.
    fn read_at(&self, waiting: Waiting, last: bool, turn: &mut Turn) {
        let Waiting { tick, key, charge } = waiting;
        let dataset = key.dataset.0 as usize;
        let crc32c = self.datasets[dataset].catalog.crc32c(key.id);
        let pending = Pending { last, ..Pending::new(tick, key, self.bytes(key), charge).checked(crc32c) };
        turn.origins[dataset].pending.push(pending);
    }

    /// Reads what a block did not bring, or what was not what was written.
    pub(crate) fn read_singly(&mut self, waiting: Waiting, turn: &mut Turn) {
        self.read_at(waiting, true, turn);
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
            let (range, pays) = (extent.bytes.clone(), self.pays(extent, id));
            self.blocks.began();
            if pays {
                let block = Some((id, range));
                let pending = Pending { block, ..Pending::new(due, first, bytes, charge) };
                turn.origins[dataset.0 as usize].pending.push(pending);
            } else {
                self.singly.extend(self.blocks.end(id));
                self.handover.nudge();
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

    /// Has a block shared out, or its samples read by themselves.
    pub(crate) fn block_answered(&mut self, id: BlockId, result: Result<Sample, TierError>) {
        let block = match result {
            Ok(block) => block,
            Err(error) => {
                let waiting = self.blocks.end(id);
                tracing::debug!(%error, samples = waiting.len(), "a block could not be read; its samples are, one by one");
                return self.singly.extend(waiting);
            }
        };
        match self.blocks.came(id, &block) {
            Some(waiting) => self.share_out(id, block, waiting, true),
            // It comes back from those who share it out.
            None => self.blocks.shared_out(id),
        }
    }

    /// Has blocks that are here shared out to the uses that came late.
    pub(crate) fn share_out_late(&mut self) {
        for (id, block, waiting) in self.blocks.late() {
            self.share_out(id, block, waiting, false);
        }
    }

    /// Begins a round: those who wait get their samples, and with `is_new` the others their caches.
    fn share_out(&mut self, id: BlockId, block: Sample, waiting: Vec<Waiting>, is_new: bool) {
        let Some(extent) = self.blocks.extent(id).cloned() else { return };
        let cutting = Cutting {
            id,
            extent,
            dataset: self.datasets[id.0.0 as usize].clone(),
            plan: self.plan.clone(),
            caches: self.caches.clone(),
            copies: self.copy_budget.clone(),
        };
        let reading = Reading::aside(|answers| cutting.share_out(block, waiting, is_new, answers));
        self.reads.push(reading.ready_chunks(CHUNK));
    }
}
