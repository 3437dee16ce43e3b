//! Runs of a shard's samples that the first epoch reads in one request.
//!
//! A sample of a block that is not in its cache has the whole block read: whoever waits for a sample of it gets that, and
//! the others go into the caches that the plan has for them, where their first use finds them. So the core knows nothing
//! of blocks: to it, a sample that nobody has read yet and a cache holds is a hit like any other.
//!
//! # The decision, and its price
//!
//! Only blocks whose every sample has a place are read whole, once; after that, or when the read fails, each sample that is
//! still asked for is read by its extent. What is read is copied out sample by sample, so that a kept sample keeps its own
//! bytes alone (and what lies between samples is thrown away: at most a fifth of a block); that costs a tenth of what
//! reading it does. Blocks under way have a budget of their own beside the look-ahead: a block waits its turn, in the
//! order of need, while that is full. Copies that are on their way into caches have another, so that a disk that is slow
//! or hangs holds up no block: what it does not take at once is not kept, and read by its extent at its first use.
//! Whether blocks pay at all is the planner's question (`foreread_planner::block_bytes`).

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::ops::Range;

use foreread_dataset::{Catalog, DatasetError};
use foreread_planner::Plan;
use foreread_tier::{Charge, Sample, Span};
use foreread_types::{DatasetId, SampleId, SampleKey, Tick};

/// Of a block, at most this part lies between samples, and is read for nothing.
const WASTE: u64 = 5;

/// Which samples of a dataset are read together.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct BlockTable {
    blocks: Vec<Extent>,
    waste: u64,
}

/// One block: consecutive samples, and their bytes in one object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Extent {
    pub(crate) samples: Range<u64>,
    pub(crate) bytes: Range<u64>,
}

impl Extent {
    /// Whether it grows by a sample of these bytes, when `own` of its own are samples': to `most` at most, and with no more
    /// between samples than a part of them.
    fn takes(&self, range: &Range<u64>, own: u64, most: u64) -> bool {
        let length = range.end.saturating_sub(self.bytes.start);
        range.start >= self.bytes.end
            && length <= most
            && length - length.min(own + (range.end - range.start)) <= length / WASTE
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
        let mut blocks: Vec<Extent> = Vec::new();
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
                        blocks.push(Extent { samples: id..id + 1, bytes: range });
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

/// A use that waits for its sample's block.
#[derive(Debug)]
pub(crate) struct Waiting {
    pub(crate) tick: Tick,
    pub(crate) key: SampleKey,
    /// What it holds of the look-ahead.
    pub(crate) charge: Charge,
}

/// A dataset and a block of it.
pub(crate) type BlockId = (DatasetId, usize);

#[derive(Debug)]
enum State {
    /// Queued or under way; or here, and being shared out.
    Reading {
        waiting: Vec<Waiting>,
        here: Option<Here>,
    },
    Done,
}

/// A block that has come.
#[derive(Debug)]
struct Here {
    block: Sample,
    /// How many tasks share it out now.
    rounds: usize,
}

/// The blocks of all datasets while a run goes on.
#[derive(Debug, Default)]
pub(crate) struct Blocks {
    tables: Vec<BlockTable>,
    /// Blocks that have been asked for.
    states: HashMap<BlockId, State>,
    /// Those that wait to be read, in order of need.
    queue: VecDeque<BlockId>,
    /// Those that are here and waited for again.
    late: Vec<BlockId>,
}

impl Blocks {
    pub(crate) fn new(tables: Vec<BlockTable>) -> Self {
        Self { tables, ..Self::default() }
    }

    /// Takes a use on whose sample's block it is to wait for, or gives it back: its sample is in none, or that has been read.
    pub(crate) fn wait(&mut self, waiting: Waiting) -> Result<(), Waiting> {
        let dataset = waiting.key.dataset;
        let table = self.tables.get(dataset.0 as usize);
        let Some(at) = table.and_then(|table| table.find(waiting.key.id)) else { return Err(waiting) };
        match self.states.get_mut(&(dataset, at)) {
            None => {
                let state = State::Reading { waiting: vec![waiting], here: None };
                self.states.insert((dataset, at), state);
                self.queue.push_back((dataset, at));
                Ok(())
            }
            Some(State::Reading { waiting: others, here }) => {
                if here.is_some() && others.is_empty() {
                    self.late.push((dataset, at));
                }
                others.push(waiting);
                Ok(())
            }
            Some(State::Done) => Err(waiting),
        }
    }

    /// The block that is to be read next, with the use that needs it first; it stays where it is.
    pub(crate) fn next(&self) -> Option<(BlockId, &Extent, Tick)> {
        let &id = self.queue.front()?;
        let Some(State::Reading { waiting, .. }) = self.states.get(&id) else { return None };
        let due = waiting.iter().map(|waiting| waiting.tick).min()?;
        Some((id, self.extent(id)?, due))
    }

    /// Notes that the next block is under way.
    pub(crate) fn began(&mut self) {
        self.queue.pop_front();
    }

    pub(crate) fn extent(&self, (dataset, at): BlockId) -> Option<&Extent> {
        self.tables.get(dataset.0 as usize)?.blocks.get(at)
    }

    /// Keeps a block that was read for as long as it is shared out, and returns who waits for it. `None` if it is here
    /// already, or has ended.
    pub(crate) fn came(&mut self, id: BlockId, block: &Sample) -> Option<Vec<Waiting>> {
        let State::Reading { waiting, here: here @ None } = self.states.get_mut(&id)? else { return None };
        *here = Some(Here { block: block.clone(), rounds: 1 });
        Some(std::mem::take(waiting))
    }

    /// Blocks that are here, for uses that came while they are shared out. Each has another round.
    pub(crate) fn late(&mut self) -> Vec<(BlockId, Sample, Vec<Waiting>)> {
        let mut rounds = Vec::new();
        for id in std::mem::take(&mut self.late) {
            if let Some(State::Reading { waiting, here: Some(here) }) = self.states.get_mut(&id) {
                here.rounds += 1;
                rounds.push((id, here.block.clone(), std::mem::take(waiting)));
            }
        }
        rounds
    }

    /// A round has ended; the last one ends the block, unless a use waits for it.
    pub(crate) fn shared_out(&mut self, id: BlockId) {
        let Some(State::Reading { waiting, here: Some(here) }) = self.states.get_mut(&id) else { return };
        here.rounds -= 1;
        if here.rounds == 0 && waiting.is_empty() {
            self.end(id);
        }
    }

    /// Ends a block, read or not: who waited for it.
    pub(crate) fn end(&mut self, id: BlockId) -> Vec<Waiting> {
        match self.states.insert(id, State::Done) {
            Some(State::Reading { waiting, .. }) => waiting,
            _ => Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use foreread_tier::Budget;

    use super::*;

    /// It waited until the others' samples had been copied into their caches.
    #[test]
    fn late_use_of_a_block_waits_for_no_round_of_others() {
        let id = (DatasetId(0), 0);
        let budget = Budget::new(1000);
        let table = BlockTable { blocks: vec![Extent { samples: 0..4, bytes: 0..400 }], waste: 0 };
        let mut blocks = Blocks::new(vec![table]);
        let waiting = |sample| Waiting {
            tick: Tick(sample),
            key: SampleKey::new(DatasetId(0), SampleId(sample)),
            charge: budget.charge(0),
        };
        let ticks = |waiting: &[Waiting]| waiting.iter().map(|one| one.tick.0).collect::<Vec<_>>();
        blocks.wait(waiting(0)).unwrap();
        blocks.wait(waiting(1)).unwrap();
        assert!(blocks.late().is_empty(), "it is not here");
        let block = Sample::new(Bytes::from(vec![0; 400]), budget.charge(400));
        assert_eq!(ticks(&blocks.came(id, &block).unwrap()), [0, 1]);
        drop(block);
        for sample in [2, 3] {
            blocks.wait(waiting(sample)).unwrap();
        }
        let late = blocks.late();
        assert_eq!(
            late.iter().map(|(id, _, waiting)| (*id, ticks(waiting))).collect::<Vec<_>>(),
            [(id, vec![2, 3])]
        );
        drop(late);
        assert!(blocks.late().is_empty());
        blocks.shared_out(id);
        assert_eq!(budget.used(), 400, "the first round goes on");
        // The last round ends while a use waits again: it has its own.
        blocks.wait(waiting(1)).unwrap();
        blocks.shared_out(id);
        assert_eq!(ticks(&blocks.late()[0].2), [1]);
        blocks.shared_out(id);
        assert_eq!(budget.used(), 0);
        assert!(blocks.wait(waiting(2)).is_err(), "it has ended");
    }
}
