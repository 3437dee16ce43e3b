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
//! Blocks in flight have their own budget in addition to the look-ahead. While it is full, further
//! blocks wait in order of need. Samples on their way into caches have a third budget, so that a
//! slow or hanging disk delays no block. Samples that the disk does not accept at once are read by
//! their extents at their first use. Whether blocks pay at all is decided by the planner
//! (`foreread_planner::block_bytes`).

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::ops::Range;

use foreread_dataset::{Catalog, DatasetError};
use foreread_planner::Plan;
use foreread_tier::{Charge, Span};
use foreread_types::{DatasetId, SampleId, SampleKey, Tick};

use crate::read_results::PendingRead;

/// At most this fraction of a block lies between samples.
const MAX_WASTE_PART: u64 = 5;

/// The samples of a dataset that are read together.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct BlockTable {
    blocks: Vec<BlockExtent>,
    waste: u64,
}

/// One block: consecutive samples, and their bytes in one object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct BlockExtent {
    pub(crate) samples: Range<u64>,
    pub(crate) bytes: Range<u64>,
}

impl BlockExtent {
    /// Whether the sample at `range` may join. The block must stay within `most` bytes and within
    /// the allowed waste. `own` counts the bytes of its samples so far.
    fn takes(&self, range: &Range<u64>, own: u64, most: u64) -> bool {
        let length = range.end.saturating_sub(self.bytes.start);
        range.start >= self.bytes.end
            && length <= most
            && length - length.min(own + (range.end - range.start)) <= length / MAX_WASTE_PART
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
        let mut blocks: Vec<BlockExtent> = Vec::new();
        let mut object = None;
        // The bytes between the samples of blocks.
        let mut waste = 0;
        let (mut open, mut own) = (false, 0);
        for id in 0..catalog.len() {
            let entry = catalog.entry(SampleId(id))?;
            let placed = plan.placement().level(SampleKey::new(dataset, SampleId(id))).is_some();
            let Span::Range(range) = entry.span else {
                open = false;
                continue;
            };
            let joins = open && placed && object.as_ref() == Some(&entry.object.path);
            match blocks.last_mut().filter(|_| joins) {
                Some(block) if block.takes(&range, own, bytes) => {
                    own += range.end - range.start;
                    waste += range.start - block.bytes.end;
                    block.samples.end = id + 1;
                    block.bytes.end = range.end;
                }
                _ => {
                    open = placed && range.end - range.start <= bytes;
                    if open {
                        own = range.end - range.start;
                        blocks.push(BlockExtent { samples: id..id + 1, bytes: range });
                        object = Some(entry.object.path);
                    }
                }
            }
        }
        // A single sample is read by its extent anyway.
        blocks.retain(|block| block.samples.end - block.samples.start > 1);
        Ok(Self { blocks, waste })
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
        self.waste
    }

    fn find(&self, id: SampleId) -> Option<usize> {
        let at = self.blocks.partition_point(|block| block.samples.end <= id.0);
        self.blocks.get(at).filter(|block| block.samples.contains(&id.0)).map(|_| at)
    }
}

/// A dataset and the index of a block in it.
pub(crate) type BlockId = (DatasetId, usize);

#[derive(Debug)]
enum BlockState {
    /// Waits for the budget, with these uses.
    Queued(Vec<PendingRead>),
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
    queue: VecDeque<BlockId>,
}

impl Blocks {
    pub(crate) fn new(tables: Vec<BlockTable>) -> Self {
        Self { tables, ..Self::default() }
    }

    /// Makes a use wait for its sample's block. Returns it if its sample is in no block or was read
    /// already.
    pub(crate) fn wait(&mut self, waiting: PendingRead) -> Result<(), PendingRead> {
        let dataset = waiting.key.dataset;
        let table = self.tables.get(dataset.0 as usize);
        let Some(at) = table.and_then(|table| table.find(waiting.key.id)) else { return Err(waiting) };
        match self.states.get_mut(&(dataset, at)) {
            None => {
                self.states.insert((dataset, at), BlockState::Queued(vec![waiting]));
                self.queue.push_back((dataset, at));
            }
            Some(BlockState::Queued(uses)) => uses.push(waiting),
            Some(BlockState::Reading { samples, .. }) => match samples.get_mut(&waiting.key) {
                Some(free @ None) => *free = Some(waiting),
                _ => return Err(waiting),
            },
            Some(BlockState::Done) => return Err(waiting),
        }
        Ok(())
    }

    /// The next block to read, and the first use that needs it. The block stays in the queue.
    pub(crate) fn next(&self) -> Option<(BlockId, &BlockExtent, Tick)> {
        let &id = self.queue.front()?;
        let Some(BlockState::Queued(waiting)) = self.states.get(&id) else { return None };
        let due = waiting.iter().map(|waiting| waiting.tick).min()?;
        Some((id, self.extent(id)?, due))
    }

    /// Removes the next block from the queue and returns its waiting uses. The block is done unless
    /// it is [begun](Self::begin).
    pub(crate) fn take_next(&mut self) -> Vec<PendingRead> {
        let state = self.queue.pop_front().and_then(|id| self.states.insert(id, BlockState::Done));
        match state {
            Some(BlockState::Queued(waiting)) => waiting,
            _ => Vec::new(),
        }
    }

    /// Marks `samples` of a block as being read, under `charge`. Returns the uses whose samples are
    /// not among them.
    pub(crate) fn begin(
        &mut self,
        id: BlockId,
        samples: &[SampleKey],
        waiting: Vec<PendingRead>,
        charge: Charge,
    ) -> Vec<PendingRead> {
        let samples = samples.iter().map(|key| (*key, None)).collect();
        self.states.insert(id, BlockState::Reading { samples, _charge: charge });
        waiting.into_iter().filter_map(|waiting| self.wait(waiting).err()).collect()
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

    #[test]
    // semantics: CACHE-14
    fn use_waits_only_for_its_own_sample() {
        let id = (DatasetId(0), 0);
        let budget = Budget::new(1000);
        let table = BlockTable { blocks: vec![BlockExtent { samples: 0..4, bytes: 0..400 }], waste: 0 };
        let mut blocks = Blocks::new(vec![table]);
        let key = |sample| SampleKey::new(DatasetId(0), SampleId(sample));
        let waiting = |sample| PendingRead::new(Tick(sample), key(sample), 100, budget.charge(0));
        let ticks = |waiting: &[PendingRead]| waiting.iter().map(|one| one.tick.0).collect::<Vec<_>>();
        for sample in [2, 1] {
            blocks.wait(waiting(sample)).unwrap();
        }
        assert_eq!(blocks.next().map(|(id, _, due)| (id, due)), Some((id, Tick(1))));
        let waits = blocks.take_next();
        assert_eq!(ticks(&waits), [2, 1]);
        // Sample 2 is not read with its block.
        let given_back = blocks.begin(id, &[key(0), key(1), key(3)], waits, budget.charge(400));
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
}
