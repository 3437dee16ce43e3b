//! Runs of a shard's samples that the first epoch reads in one request.
//!
//! A use of a sample of a block that is not in its cache has all samples of the block read that are absent, in one burst:
//! the layers join them to one request. Whoever waits for a sample gets it, and the others go into the caches that the plan
//! has for them, where their first use finds them. So the core knows nothing of blocks: to it, a sample that nobody has
//! read yet and a cache holds is a hit like any other.
//!
//! # The decision, and its price
//!
//! Only blocks whose every sample has a place are read whole, once; after that, or when a read fails, each sample that is
//! still asked for is read by its extent. A sample that is kept keeps its own bytes alone (and what lies between samples is
//! thrown away: at most a fifth of a block): it is copied, which costs a tenth of what reading it does, and for as long as
//! that takes there are two of it. Blocks under way have a budget of their own beside the look-ahead: a block waits its turn,
//! in the order of need, while that is full. Samples that are on their way into caches have another, so that a disk that is
//! slow or hangs holds up no block: what it does not take at once is not kept, and read by its extent at its first use.
//! Whether blocks pay at all is the planner's question (`foreread_planner::block_bytes`).

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::ops::Range;

use foreread_dataset::{Catalog, DatasetError};
use foreread_planner::Plan;
use foreread_tier::{Charge, Span};
use foreread_types::{DatasetId, SampleId, SampleKey, Tick};

use crate::read_results::PendingRead;

/// Of a block, at most this part lies between samples, and is read for nothing.
const MAX_WASTE_PART: u64 = 5;

/// Which samples of a dataset are read together.
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
    /// Whether it grows by a sample of these bytes, when `own` of its own are samples': to `most` at most, and with no more
    /// between samples than a part of them.
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
    /// The blocks of `dataset`, of at most `bytes` bytes each (a longer sample is none): neighbours in one object, all with
    /// a place in the plan. Looks at every entry: some tenths of a second for a million samples.
    ///
    /// # Errors
    /// An entry that is damaged.
    pub fn of(catalog: &Catalog, dataset: DatasetId, plan: &Plan, bytes: u64) -> Result<Self, DatasetError> {
        let mut blocks: Vec<BlockExtent> = Vec::new();
        let mut object = None;
        // What lies between the samples of a block; one of a single sample has none.
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
        // One sample is read by its extent anyway.
        blocks.retain(|block| block.samples.end - block.samples.start > 1);
        Ok(Self { blocks, waste })
    }

    /// How many blocks there are.
    pub fn len(&self) -> usize {
        self.blocks.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }

    /// How many samples they have together.
    pub fn samples(&self) -> u64 {
        self.blocks.iter().map(|block| block.samples.end - block.samples.start).sum()
    }

    /// Bytes that they bring and no sample has.
    pub fn waste(&self) -> u64 {
        self.waste
    }

    fn find(&self, id: SampleId) -> Option<usize> {
        let at = self.blocks.partition_point(|block| block.samples.end <= id.0);
        self.blocks.get(at).filter(|block| block.samples.contains(&id.0)).map(|_| at)
    }
}

/// A dataset and a block of it.
pub(crate) type BlockId = (DatasetId, usize);

#[derive(Debug)]
enum BlockState {
    /// It waits its turn, as do these uses.
    Queued(Vec<PendingRead>),
    Reading {
        /// The samples that are still to come, and the use that waits for each.
        samples: HashMap<SampleKey, Option<PendingRead>>,
        _charge: Charge,
    },
    Done,
}

/// The blocks of all datasets while a run goes on.
#[derive(Debug, Default)]
pub(crate) struct Blocks {
    tables: Vec<BlockTable>,
    /// Blocks that have been asked for.
    states: HashMap<BlockId, BlockState>,
    /// Those that wait to be read, in order of need.
    queue: VecDeque<BlockId>,
}

impl Blocks {
    pub(crate) fn new(tables: Vec<BlockTable>) -> Self {
        Self { tables, ..Self::default() }
    }

    /// Takes a use on whose sample's block it is to wait for, or gives it back: its sample is in none, or has been read.
    pub(crate) fn wait(&mut self, waiting: PendingRead) -> Result<(), PendingRead> {
        let dataset = waiting.key.dataset;
        let table = self.tables.get(dataset.0 as usize);
        let Some(at) = table.and_then(|table| table.find(waiting.key.id)) else { return Err(waiting) };
        match self.states.get_mut(&(dataset, at)) {
            None => {
                self.states.insert((dataset, at), BlockState::Queued(vec![waiting]));
                self.queue.push_back((dataset, at));
            }
            Some(BlockState::Queued(others)) => others.push(waiting),
            Some(BlockState::Reading { samples, .. }) => match samples.get_mut(&waiting.key) {
                Some(free @ None) => *free = Some(waiting),
                _ => return Err(waiting),
            },
            Some(BlockState::Done) => return Err(waiting),
        }
        Ok(())
    }

    /// The block that is to be read next, with the use that needs it first; it stays where it is.
    pub(crate) fn next(&self) -> Option<(BlockId, &BlockExtent, Tick)> {
        let &id = self.queue.front()?;
        let Some(BlockState::Queued(waiting)) = self.states.get(&id) else { return None };
        let due = waiting.iter().map(|waiting| waiting.tick).min()?;
        Some((id, self.extent(id)?, due))
    }

    /// Takes the next block out of the queue, with who waits for it. It has ended, unless it is [begun](Self::begin).
    pub(crate) fn take_next(&mut self) -> Vec<PendingRead> {
        let state = self.queue.pop_front().and_then(|id| self.states.insert(id, BlockState::Done));
        match state {
            Some(BlockState::Queued(waiting)) => waiting,
            _ => Vec::new(),
        }
    }

    /// These samples of a block are being read, and `charge` is what they take. Uses that nobody reads for are given back.
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

    /// A sample of a block has come, or will not: who waits for it. The last one ends the block.
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
    fn use_waits_for_its_own_sample_and_no_other() {
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
