//! Runs of a shard's samples that the first epoch reads in one request.
//!
//! The first use that misses its cache reads all absent samples of its block in one burst. The
//! layers join them to one request. Waiting uses get their samples. The others go into the caches
//! that the plan assigns them, where their first use finds them. So the core knows nothing of
//! blocks: such a sample is an ordinary cache hit.
//!
//! # Decision and price
//!
//! A block is read whole once, and only if the plan places all its samples. After that, or if a
//! read fails, each missing sample is read by its own extent.
//!
//! A cached sample keeps only its own bytes, so it is copied out of the block. The copy costs a
//! tenth of the read and doubles the sample's memory while it lasts. The bytes between samples are
//! discarded, at most a fifth of a block.
//!
//! Stored units that are decoded as a whole are a block, too: one unit, or all units that the same
//! samples share. The reads of its samples meet in the layer that decodes it, so it is read and
//! decoded once.
//!
//! Blocks in flight have their own budget in addition to the look-ahead. While it is full, further
//! blocks wait in order of need. Samples on their way into caches have a further budget, so that a
//! slow or hanging disk delays no block. Samples that the disk does not accept at once are read by
//! their extents at their first use. Whether blocks pay at all is decided by the planner
//! (`foreread_planner::block_bytes`, `cluster_block_bytes`).

use std::collections::hash_map::Entry;
use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use foreread_dataset::{Catalog, DatasetError};
use foreread_planner::{Amount, ClusterPlan, Plan};
use foreread_tier::{Charge, Span, StorageServer, StoredPart};
use foreread_types::{DatasetId, SampleId, SampleKey, Tick};

use crate::read_results::{BlockId, PendingRead};

/// At most this fraction of a block lies between samples, and as much in two samples: windows of
/// tokens share their ends.
const MAX_WASTE_PART: u64 = 5;

/// The most samples of a block that is a stored unit. The samples of a longer unit are several
/// blocks, and it may be read for each.
const MOST_OF_UNIT: u64 = 1 << 16;

/// Memory of a sample in flight with its block, beyond its bytes: requests and futures.
const IN_FLIGHT: u64 = 2 << 10;

/// The samples of a dataset that are read together.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct BlockTable {
    blocks: Vec<BlockExtent>,
}

/// One block: consecutive samples, and their bytes in one object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct BlockExtent {
    pub(crate) samples: Range<u64>,
    pub(crate) bytes: Range<u64>,
    /// The bytes between its samples.
    waste: u64,
    /// The bytes that samples have beyond those of the block, because neighbours share some.
    overlap: u64,
    /// The bytes of its samples, if they are those of units that are decoded.
    decoded: Option<u64>,
}

impl BlockExtent {
    /// The memory that it takes in flight: as it is stored, and its samples if they are decoded.
    pub(crate) fn cost(&self) -> u64 {
        let samples = (self.samples.end - self.samples.start).saturating_mul(IN_FLIGHT);
        let decoded = self.decoded.map_or(0, |decoded| decoded.saturating_add(samples));
        (self.bytes.end - self.bytes.start).saturating_add(self.overlap).saturating_add(decoded)
    }

    /// Whether it is of units that are decoded as a whole, however few of its samples are read.
    pub(crate) fn is_unit(&self) -> bool {
        self.decoded.is_some()
    }

    /// Adds the sample at `range`. The block must stay within `most` bytes and within the allowed
    /// waste. Returns whether it does.
    fn take(&mut self, range: &Range<u64>, most: u64) -> bool {
        let (gap, shared) =
            (range.start.saturating_sub(self.bytes.end), self.bytes.end.saturating_sub(range.start));
        let length = range.end.saturating_sub(self.bytes.start);
        let follows = range.start >= self.bytes.start && range.end >= self.bytes.end;
        let fits = follows
            && length <= most
            && self.waste + gap <= length / MAX_WASTE_PART
            && self.overlap.saturating_add(shared) <= length / MAX_WASTE_PART;
        if fits {
            self.samples.end += 1;
            self.bytes.end = range.end;
            self.waste += gap;
            self.overlap += shared;
        }
        fits
    }
}

impl fmt::Debug for BlockTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BlockTable").field("blocks", &self.blocks.len()).finish()
    }
}

impl BlockTable {
    /// The blocks of `dataset`, of at most `bytes` bytes each. A block has neighbours in one object
    /// that all have a place in the plan. Reads every entry, which takes some tenths of a second
    /// for a million samples.
    ///
    /// # Errors
    /// A damaged entry.
    pub fn of(catalog: &Catalog, dataset: DatasetId, plan: &Plan, bytes: u64) -> Result<Self, DatasetError> {
        let is_placed = |id| plan.placement().level(SampleKey::new(dataset, id)).is_some();
        Self::cut(catalog, bytes, is_placed, |id| catalog.server(id))
    }

    /// The blocks of all samples, whatever a plan does with them. Nodes that share their caches
    /// choose the owners of these blocks, and each then reads [its own](Self::owned).
    ///
    /// # Errors
    /// A damaged entry.
    pub fn of_all(catalog: &Catalog, bytes: u64) -> Result<Self, DatasetError> {
        // Ranks may have catalogs that name other servers, and their blocks must be equal.
        Self::cut(catalog, bytes, |_| true, |_| None)
    }

    /// The same for one reader, whose blocks have the samples of one storage server each.
    ///
    /// # Errors
    /// A damaged entry.
    pub fn of_servers(catalog: &Catalog, bytes: u64) -> Result<Self, DatasetError> {
        Self::cut(catalog, bytes, |_| true, |id| catalog.server(id))
    }

    /// A block has only samples of one storage server, where `server` names it: a stripe, or a part
    /// of one.
    fn cut(
        catalog: &Catalog,
        bytes: u64,
        is_placed: impl Fn(SampleId) -> bool,
        server: impl Fn(SampleId) -> Option<StorageServer>,
    ) -> Result<Self, DatasetError> {
        let mut blocks: Vec<BlockExtent> = Vec::new();
        // The object and the server of the last block, if samples may still join it.
        let mut open: Option<(Arc<str>, Option<StorageServer>)> = None;
        for id in (0..catalog.len()).map(SampleId) {
            let entry = catalog.entry(id)?;
            let range = match entry.span {
                Span::Range(range) if is_placed(id) => range,
                _ => {
                    open = None;
                    continue;
                }
            };
            let path = &entry.object.path;
            let server = server(id);
            let joins = open.as_ref().is_some_and(|(of, on)| of == path && *on == server);
            if joins && blocks.last_mut().is_some_and(|block| block.take(&range, bytes)) {
                continue;
            }
            open = None;
            if range.end - range.start <= bytes {
                open = Some((Arc::clone(path), server));
                let samples = id.0..id.0 + 1;
                blocks.push(BlockExtent { samples, bytes: range, waste: 0, overlap: 0, decoded: None });
            }
        }
        // A single sample is read by its extent anyway.
        blocks.retain(|block| block.samples.end - block.samples.start > 1);
        Ok(Self { blocks })
    }

    /// The stored units that are decoded as a whole, as blocks: the samples of a unit, or of the
    /// same units if samples have parts of several. Whatever a plan does with them. Reads every
    /// entry.
    ///
    /// # Errors
    /// A damaged entry.
    pub fn of_units(catalog: &Catalog) -> Result<Self, DatasetError> {
        let (mut blocks, sizes): (Vec<BlockExtent>, _) = (Vec::new(), catalog.sizes());
        let mut open: Option<(Arc<str>, Arc<[StoredPart]>)> = None;
        for id in (0..catalog.len()).map(SampleId) {
            let entry = catalog.entry(id)?;
            let length = sizes.bytes(id);
            let path = entry.object.path;
            let parts = match entry.span {
                Span::Made(parts) if parts.iter().any(StoredPart::is_shared) => parts,
                // An empty sample needs no unit, and lies between others.
                _ if length == 0 => continue,
                _ => {
                    open = None;
                    continue;
                }
            };
            let joins = open.as_ref().is_some_and(|(of, units)| *of == path && are_same_units(units, &parts));
            let is_short = |last: &&mut BlockExtent| id.0 - last.samples.start < MOST_OF_UNIT;
            match blocks.last_mut().filter(|_| joins).filter(is_short) {
                Some(last) => {
                    last.samples.end = id.0 + 1;
                    last.decoded = last.decoded.map(|decoded| decoded.saturating_add(length));
                }
                None => {
                    let samples = id.0..id.0 + 1;
                    blocks.push(BlockExtent {
                        samples,
                        bytes: stored(&parts),
                        waste: 0,
                        overlap: 0,
                        decoded: Some(length),
                    });
                    open = Some((path, parts));
                }
            }
        }
        blocks.retain(|block| block.samples.end - block.samples.start > 1);
        Ok(Self { blocks })
    }

    /// The blocks of `dataset` with several samples that have a place in the plan. The others cost
    /// nothing.
    #[must_use]
    pub fn placed(mut self, dataset: DatasetId, plan: &Plan) -> Self {
        let is_placed = |id: &u64| plan.placement().level(SampleKey::new(dataset, SampleId(*id))).is_some();
        self.blocks.retain(|block| block.samples.clone().filter(is_placed).nth(1).is_some());
        self
    }

    /// The samples of each block.
    pub fn ranges(&self) -> Vec<Range<u64>> {
        self.blocks.iter().map(|block| block.samples.clone()).collect()
    }

    /// The blocks of `dataset` that the store at position `store` owns. Other stores own none of
    /// their samples.
    #[must_use]
    pub fn owned(&self, dataset: DatasetId, plan: &ClusterPlan, store: usize) -> Self {
        let is_owned = |block: &&BlockExtent| {
            let keys = block.samples.clone().map(|id| SampleKey::new(dataset, SampleId(id)));
            let mut owners = keys.filter_map(|key| plan.owner(key)).map(|owner| owner.store).peekable();
            owners.peek().is_some() && owners.all(|owner| owner == store)
        };
        Self { blocks: self.blocks.iter().filter(is_owned).cloned().collect() }
    }

    /// The requests of an epoch that reads these blocks. `samples` are its requests if it reads
    /// every sample by its extent.
    pub fn requests(&self, samples: Amount) -> Amount {
        Amount {
            samples: samples.samples.saturating_sub(self.samples()) + self.len() as u64,
            bytes: samples.bytes.saturating_add(self.waste()),
        }
    }

    /// The length of the longest block. `None` without blocks.
    pub fn longest(&self) -> Option<u64> {
        self.blocks.iter().map(|block| block.bytes.end - block.bytes.start).max()
    }

    /// How many blocks there are.
    pub fn len(&self) -> usize {
        self.blocks.len()
    }

    /// Whether it is empty.
    pub fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }

    /// The number of samples in all blocks.
    pub fn samples(&self) -> u64 {
        self.blocks.iter().map(|block| block.samples.end - block.samples.start).sum()
    }

    /// The bytes in blocks that belong to no sample.
    pub fn waste(&self) -> u64 {
        self.blocks.iter().map(|block| block.waste).sum()
    }

    fn find(&self, id: SampleId) -> Option<usize> {
        let at = self.blocks.partition_point(|block| block.samples.end <= id.0);
        self.blocks.get(at).filter(|block| block.samples.contains(&id.0)).map(|_| at)
    }

    /// The samples of the block of a sample, and the bytes of the block in its object. `None` if it
    /// is in no block.
    pub fn block(&self, id: SampleId) -> Option<(Range<u64>, Range<u64>)> {
        let block = &self.blocks[self.find(id)?];
        Some((block.samples.clone(), block.bytes.clone()))
    }
}

/// Whether the shared parts of two samples are those of the same units.
fn are_same_units(one: &[StoredPart], other: &[StoredPart]) -> bool {
    let are_in = |one: &[StoredPart], other: &[StoredPart]| {
        let mut shared = one.iter().filter(|part| part.is_shared());
        shared.all(|part| other.iter().any(|of| of.is_shared() && of.is_same_unit(part)))
    };
    are_in(one, other) && are_in(other, one)
}

/// As many bytes as the shared units of a sample have in their object, from the first one on.
fn stored(parts: &[StoredPart]) -> Range<u64> {
    let mut ranges: Vec<&Range<u64>> =
        parts.iter().filter(|part| part.is_shared()).map(|part| &part.stored).collect();
    ranges.sort_unstable_by_key(|range| (range.start, range.end));
    ranges.dedup();
    let start = ranges.first().map_or(0, |range| range.start);
    let bytes = ranges.iter().map(|range| range.end - range.start).fold(0, u64::saturating_add);
    start..start.saturating_add(bytes)
}

/// A block that waits for its budget.
#[derive(Debug)]
pub(crate) struct QueuedBlock {
    /// The uses that wait for it.
    pub(crate) uses: Vec<PendingRead>,
    /// The first of them.
    pub(crate) due: Tick,
}

#[derive(Debug)]
enum BlockState {
    Queued(QueuedBlock),
    Reading {
        /// The samples that are missing, each with the use that waits for it.
        samples: HashMap<SampleKey, Option<PendingRead>>,
        _charge: Charge,
    },
    Done,
}

/// The blocks of all datasets during a run.
#[derive(Debug, Default)]
pub(crate) struct Blocks {
    tables: Vec<BlockTable>,
    /// The blocks that a use has needed.
    states: HashMap<BlockId, BlockState>,
    /// The blocks that are to be read, in order of need.
    queue: BTreeSet<(Tick, BlockId)>,
}

impl Blocks {
    pub(crate) fn new(tables: Vec<BlockTable>) -> Self {
        Self { tables, ..Self::default() }
    }

    fn find(&self, key: SampleKey) -> Option<BlockId> {
        let table = self.tables.get(key.dataset.0 as usize)?;
        Some((key.dataset, table.find(key.id)?))
    }

    /// Whether a sample is in a unit that is decoded as a whole.
    pub(crate) fn is_in_unit(&self, key: SampleKey) -> bool {
        self.find(key).and_then(|id| self.extent(id)).is_some_and(BlockExtent::is_unit)
    }

    /// Makes a use wait for its sample's block. Returns it if its sample is in no block or was read
    /// already.
    pub(crate) fn wait(&mut self, waiting: PendingRead) -> Result<(), PendingRead> {
        let Some(id) = self.find(waiting.key) else { return Err(waiting) };
        if let Some(queued) = self.queue(id, waiting.tick) {
            queued.uses.push(waiting);
            return Ok(());
        }
        match self.states.get_mut(&id) {
            Some(BlockState::Reading { samples, .. }) => match samples.get_mut(&waiting.key) {
                Some(free @ None) => {
                    *free = Some(waiting);
                    Ok(())
                }
                _ => Err(waiting),
            },
            _ => Err(waiting),
        }
    }

    /// Queues a block, or moves it forward in the queue. `None` if its reads have begun.
    fn queue(&mut self, id: BlockId, due: Tick) -> Option<&mut QueuedBlock> {
        let state = match self.states.entry(id) {
            Entry::Vacant(vacant) => {
                self.queue.insert((due, id));
                vacant.insert(BlockState::Queued(QueuedBlock { uses: Vec::new(), due }))
            }
            Entry::Occupied(occupied) => occupied.into_mut(),
        };
        let BlockState::Queued(queued) = state else { return None };
        if due < queued.due {
            self.queue.remove(&(queued.due, id));
            self.queue.insert((due, id));
            queued.due = due;
        }
        Some(queued)
    }

    /// The next block to read, and the first use that needs it. The block stays in the queue.
    pub(crate) fn next(&self) -> Option<(BlockId, &BlockExtent, Tick)> {
        let &(due, id) = self.queue.first()?;
        Some((id, self.extent(id)?, due))
    }

    /// Removes the next block from the queue. The block is done unless it is [begun](Self::begin).
    pub(crate) fn take_next(&mut self) -> Option<QueuedBlock> {
        let (_, id) = self.queue.pop_first()?;
        match self.states.insert(id, BlockState::Done) {
            Some(BlockState::Queued(queued)) => Some(queued),
            _ => None,
        }
    }

    /// Marks `samples` of a block as being read, under `charge`. Returns the uses whose samples are
    /// not among them.
    pub(crate) fn begin(
        &mut self,
        id: BlockId,
        samples: &[SampleKey],
        queued: QueuedBlock,
        charge: Charge,
    ) -> Vec<PendingRead> {
        let samples = samples.iter().map(|key| (*key, None)).collect();
        self.states.insert(id, BlockState::Reading { samples, _charge: charge });
        queued.uses.into_iter().filter_map(|waiting| self.wait(waiting).err()).collect()
    }

    pub(crate) fn extent(&self, (dataset, at): BlockId) -> Option<&BlockExtent> {
        self.tables.get(dataset.0 as usize)?.blocks.get(at)
    }

    /// Ends the read of one sample and returns the use that waits for it. The last sample ends the
    /// block.
    pub(crate) fn sample_done(&mut self, id: BlockId, key: SampleKey) -> Option<PendingRead> {
        let Some(BlockState::Reading { samples, .. }) = self.states.get_mut(&id) else { return None };
        let waiting = samples.remove(&key).flatten();
        if samples.is_empty() {
            self.states.insert(id, BlockState::Done);
        }
        waiting
    }
}

#[cfg(test)]
mod tests {
    use foreread_tier::Budget;

    use super::*;

    /// Blocks of four samples of 100 bytes each.
    fn blocks(count: u64) -> Blocks {
        let block = |at| BlockExtent {
            samples: at * 4..(at + 1) * 4,
            bytes: at * 400..(at + 1) * 400,
            waste: 0,
            overlap: 0,
            decoded: None,
        };
        Blocks::new(vec![BlockTable { blocks: (0..count).map(block).collect() }])
    }

    /// Windows of tokens share their ends, and were read one by one.
    #[test]
    fn windows_that_share_little_are_one_block() {
        let taken = |length: u64, stride: u64| {
            let mut block =
                BlockExtent { samples: 0..1, bytes: 0..length, waste: 0, overlap: 0, decoded: None };
            let mut windows = (1..1000).map(|at| at * stride..at * stride + length);
            let _ = windows.find(|range| !block.take(range, 100 * length));
            block
        };
        let block = taken(4098, 4096);
        assert_eq!(
            (block.samples.clone(), block.bytes.clone(), block.waste),
            (0..100, 0..99 * 4096 + 4098, 0)
        );
        assert_eq!(block.cost(), 100 * 4098);
        // Memory would have the shared bytes many times.
        assert!(taken(4098, 2048).samples.end < 3);
        assert_eq!(taken(4098, 1).samples, 0..1);
        // With gaps as before.
        assert_eq!(taken(4000, 4096).samples.end, 97);
    }

    fn key(sample: u64) -> SampleKey {
        SampleKey::new(DatasetId(0), SampleId(sample))
    }

    #[test]
    // semantics: CACHE-14
    fn use_waits_only_for_its_own_sample() {
        let id = (DatasetId(0), 0);
        let budget = Budget::new(1000);
        let mut blocks = blocks(1);
        let waiting = |sample| PendingRead::new(Tick(sample), key(sample), 100, budget.charge(0));
        let ticks = |waiting: &[PendingRead]| waiting.iter().map(|one| one.tick.0).collect::<Vec<_>>();
        for sample in [2, 1] {
            blocks.wait(waiting(sample)).unwrap();
        }
        assert_eq!(blocks.next().map(|(id, _, due)| (id, due)), Some((id, Tick(1))));
        let queued = blocks.take_next().unwrap();
        assert_eq!(ticks(&queued.uses), [2, 1]);
        // Sample 2 is not read with its block.
        let given_back = blocks.begin(id, &[key(0), key(1), key(3)], queued, budget.charge(400));
        assert_eq!((ticks(&given_back), blocks.next().is_none()), (vec![2], true));
        blocks.wait(waiting(3)).unwrap();
        assert!(blocks.wait(waiting(3)).is_err(), "one waits for it already");
        assert_eq!(blocks.sample_done(id, key(1)).unwrap().tick, Tick(1));
        assert!(blocks.sample_done(id, key(0)).is_none());
        assert!(blocks.wait(waiting(0)).is_err(), "it has come");
        assert_eq!(budget.used(), 400);
        assert_eq!(blocks.sample_done(id, key(3)).unwrap().tick, Tick(3));
        assert_eq!(budget.used(), 0);
        assert!(blocks.sample_done(id, key(3)).is_none() && blocks.wait(waiting(2)).is_err(), "it has ended");
    }

    #[test]
    fn soonest_needed_block_is_next() {
        let budget = Budget::new(0);
        let mut blocks = blocks(4);
        let wait = |blocks: &mut Blocks, sample, due| {
            blocks.wait(PendingRead::new(Tick(due), key(sample), 100, budget.charge(0))).is_ok()
        };
        let next = |blocks: &Blocks| blocks.next().map(|((_, at), _, due)| (at, due.0));
        assert_eq!(next(&blocks), None);
        for (sample, due) in [(0, 70), (4, 60), (9, 80)] {
            assert!(wait(&mut blocks, sample, due));
        }
        assert_eq!(next(&blocks), Some((1, 60)));
        // A later use moves no block back.
        assert!(wait(&mut blocks, 5, 90));
        assert_eq!(next(&blocks), Some((1, 60)));
        assert!(wait(&mut blocks, 11, 50));
        assert_eq!(next(&blocks), Some((2, 50)));
        let taken = blocks.take_next().unwrap();
        assert_eq!((taken.due, taken.uses.len()), (Tick(50), 2));
        assert!(!wait(&mut blocks, 8, 1), "it was read");
        assert!(!wait(&mut blocks, 16, 1), "it is in no block");
        assert_eq!(next(&blocks), Some((1, 60)));
        assert!(blocks.take_next().is_some());
        assert_eq!(next(&blocks), Some((0, 70)));
        assert!(blocks.take_next().is_some());
        assert_eq!(next(&blocks), None);
    }
}
