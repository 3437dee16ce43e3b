//! Who reads which sample, and how often: counted over all ranks' streams, by the store that each rank uses.
//!
//! # The decision, and its price
//!
//! The *first* reader of every sample costs one order. The *most frequent* readers cost all orders of the run, and the
//! counts of every store for every sample would not fit in memory where stores are many. So counts are kept in
//! whichever of two forms is smaller, and exact in both:
//!
//! * a *tally*: one counter for each store of each sample;
//! * a *journal*: for each pass, which store read the sample, one byte where 256 stores do. Only for passes that repeat
//!   no sample.
//!
//! Of each sample the stores that read it most remain, a few of them ([`Readers::candidates`]): two where memory is
//! scarce, all where it is not. Where even the smaller form exceeds [`MEMORY`], ids are counted a part at a time and
//! orders are computed once for each part. Both forms are written in order of the pass and so at random ids; what was
//! measured decided that a journal lies in blocks of ids, row by row, so that a pass writes to little memory and a
//! sample is read from memory that is near.

use foreread_oracle::{AccessStream, Dealing, Pass, Run};
use foreread_types::{DatasetId, Rank, SampleId};

use crate::demand::table;
use crate::error::{PlanError, Reason};

/// No store.
pub(crate) const NONE: u16 = u16::MAX;

/// Bytes that a journal or tally may take.
const MEMORY: u64 = 1_290_000_000;

/// Bytes that the candidates of a dataset may take, but for [`LEAST`] a sample.
const CANDIDATES: u64 = 1 << 26;
const LEAST: u64 = 2;
const MOST: u64 = 64;

/// What all ranks read of a pass is looked at in parts of this many places.
const CHUNK: usize = 2048;

/// Who reads the samples of a dataset.
pub(crate) struct Readers {
    /// By sample: the store of the rank that reads it first, or [`NONE`].
    pub(crate) first: Vec<u16>,
    /// How many candidates each sample has; 0 where none were counted.
    width: usize,
    /// For each sample `width` entries, `store << 16 | uses`, the most uses first; 0 uses where there is no more.
    candidates: Vec<u32>,
}

impl Readers {
    /// The stores that read a sample most, and how often; the first of them is the one that reads it most.
    pub(crate) fn candidates(&self, id: usize) -> impl Iterator<Item = (usize, u64)> + '_ {
        let from = id * self.width;
        self.candidates[from..from + self.width]
            .iter()
            .map(|&packed| ((packed >> 16) as usize, u64::from(packed & 0xffff)))
            .take_while(|&(_, uses)| uses > 0)
    }

    /// The `nth` of them.
    #[inline]
    pub(crate) fn candidate(&self, id: usize, nth: usize) -> Option<(usize, u64)> {
        let packed = if nth < self.width { self.candidates[id * self.width + nth] } else { 0 };
        (packed & 0xffff > 0).then_some(((packed >> 16) as usize, u64::from(packed & 0xffff)))
    }

    /// The store that reads a sample first, and how often it does: at least, where that was not counted.
    #[inline]
    pub(crate) fn first_of(&self, id: usize) -> Option<(usize, u64)> {
        let store = usize::from(self.first[id]);
        (self.first[id] != NONE).then(|| (store, self.uses_at(id, store)))
    }

    /// How often a store reads a sample: at least, where that was not counted.
    #[inline]
    pub(crate) fn uses_at(&self, id: usize, store: usize) -> u64 {
        let counted = self.candidates(id).find(|&(candidate, _)| candidate == store);
        counted.map_or(u64::from(usize::from(self.first[id]) == store), |(_, uses)| uses)
    }

    /// Whether more than the first reader was counted.
    pub(crate) fn is_counted(&self) -> bool {
        self.width > 0
    }

    /// Whether every store that reads a sample is among its candidates.
    pub(crate) fn is_full(&self, stores: usize) -> bool {
        self.width >= stores
    }

    /// Finds the first readers alone.
    pub(crate) fn first(
        run: &Run,
        dataset: DatasetId,
        samples: u64,
        stores: &[u16],
    ) -> Result<Self, PlanError> {
        let memory = || Reason::Memory { dataset, samples };
        let mut first: Vec<u16> = table(samples).ok_or_else(memory)?;
        first.fill(NONE);
        let mut left = samples;
        for pass in run.passes().filter(|pass| pass.dataset == dataset) {
            if left == 0 {
                break;
            }
            let list = list(run, &pass)?;
            if left == samples && is_complete(&list) {
                // Every sample is new; only padding comes twice, and comes last.
                walk(&list, 0..list.order().len().min(list.list_len()), |rank, id| {
                    first[id.0 as usize] = stores[rank.0 as usize];
                });
                break;
            }
            walk(&list, 0..list.list_len(), |rank, id| {
                let first = &mut first[id.0 as usize];
                if *first == NONE {
                    *first = stores[rank.0 as usize];
                    left -= 1;
                }
            });
        }
        Ok(Self { first, width: 0, candidates: Vec::new() })
    }

    /// Counts the most frequent readers too. `count` is how many stores there are.
    pub(crate) fn count(
        mut self,
        run: &Run,
        dataset: DatasetId,
        stores: &[u16],
        count: usize,
    ) -> Result<Self, PlanError> {
        let samples = self.first.len() as u64;
        let passes: Vec<Pass> = run.passes().filter(|pass| pass.dataset == dataset).collect();
        if samples == 0 || passes.is_empty() {
            return Ok(self);
        }
        self.width = (CANDIDATES / samples / 4).clamp(LEAST, MOST).min(count as u64) as usize;
        let memory = || Reason::Memory { dataset, samples };
        self.candidates = table(samples * self.width as u64).ok_or_else(memory)?;
        let distinct =
            passes.iter().all(|pass| run.schedule().phases[pass.phase as usize].sampler.is_distinct());
        // A pass that leaves samples out needs a mark for them.
        let complete = distinct && passes.iter().all(|pass| is_complete_pass(run, pass));
        let byte = count <= usize::from(u8::MAX) + usize::from(complete);
        let journal = passes.len() as u64 * if byte { 1 } else { 2 };
        let tally = count as u64 * 2;
        let counting = Counting { run, passes: &passes, stores, count };
        if distinct && journal < tally {
            let ids = MEMORY / journal;
            match byte {
                true => counting.journals::<u8>(&mut self, ids, complete)?,
                false => counting.journals::<u16>(&mut self, ids, complete)?,
            }
        } else {
            counting.tallies(&mut self, (MEMORY / tally).max(1))?;
        }
        Ok(self)
    }
}

/// What all ranks together read in a pass; not cached, as every order is needed once.
pub(crate) fn list(run: &Run, pass: &Pass) -> Result<AccessStream, PlanError> {
    let phase = &run.schedule().phases[pass.phase as usize];
    let dealing = dealing(run, pass)?;
    let consumed = if pass.index == 0 { run.start().consumed } else { 0 };
    Ok(AccessStream::new(phase.sampler.order(pass.epoch)?, dealing, Rank(0), consumed)?)
}

pub(crate) fn dealing(run: &Run, pass: &Pass) -> Result<Dealing, PlanError> {
    let phase = &run.schedule().phases[pass.phase as usize];
    Ok(Dealing::new(run.deal(), run.world_size(), phase.batch_size, phase.drop_last)?)
}

/// Whether every sample is read, and none but for padding twice.
fn is_complete(list: &AccessStream) -> bool {
    let order = list.order();
    let whole = order.is_distinct() && order.len() == order.population() && list.consumed() == 0;
    whole && list.list_len() >= order.len()
}

/// The places of a pass that count as uses: all, but for the padding of a pass that reads every sample anyway, which
/// [`Demand`](crate::Demand) leaves out too.
fn counted(list: &AccessStream) -> u64 {
    if is_complete(list) { list.order().len() } else { list.list_len() }
}

fn is_complete_pass(run: &Run, pass: &Pass) -> bool {
    let sampler = &run.schedule().phases[pass.phase as usize].sampler;
    let read = pass.samples.saturating_mul(run.world_size().into());
    let consumed = if pass.index == 0 { run.start().consumed } else { 0 };
    sampler.is_distinct() && sampler.len() == sampler.population() && consumed == 0 && read >= sampler.len()
}

/// Hands the readers and samples at some places of a list to `each`.
pub(crate) fn walk(list: &AccessStream, places: std::ops::Range<u64>, mut each: impl FnMut(Rank, SampleId)) {
    let (mut ids, mut ranks) = (vec![SampleId(0); CHUNK], vec![Rank(0); CHUNK]);
    let (dealing, len, consumed) = (list.dealing(), list.order().len(), list.consumed());
    let mut at = places.start;
    while at < places.end {
        let some = (places.end - at).min(CHUNK as u64) as usize;
        list.fill_list(at, &mut ids[..some]);
        dealing.fill_ranks(len, consumed, at, &mut ranks[..some]);
        ids[..some].iter().zip(&ranks).for_each(|(&id, &rank)| each(rank, id));
        at += some as u64;
    }
}

/// A store in a journal.
trait Cell: Copy {
    const UNREAD: Self;
    fn new(store: u16) -> Self;
    fn get(self) -> usize;
}

impl Cell for u8 {
    const UNREAD: Self = Self::MAX;
    fn new(store: u16) -> Self {
        store as Self
    }
    fn get(self) -> usize {
        usize::from(self)
    }
}

impl Cell for u16 {
    const UNREAD: Self = Self::MAX;
    fn new(store: u16) -> Self {
        store
    }
    fn get(self) -> usize {
        usize::from(self)
    }
}

/// Ids of a block of a journal. Large, so that the rows that a pass writes to lie on few pages; and an odd number of
/// lines, so that the rows that a sample is read from do not compete for the same places in a cache.
const BLOCK: usize = 1025 * 64;

struct Counting<'a> {
    run: &'a Run,
    passes: &'a [Pass],
    stores: &'a [u16],
    count: usize,
}

impl Counting<'_> {
    fn journals<T: Cell>(&self, readers: &mut Readers, ids: u64, complete: bool) -> Result<(), PlanError> {
        let (samples, rows) = (readers.first.len(), self.passes.len());
        let part = (ids.min(samples as u64) as usize).next_multiple_of(BLOCK);
        let mut journal: Vec<T> = Vec::new();
        let cells = part * rows;
        let memory = Reason::Memory { dataset: self.passes[0].dataset, samples: samples as u64 };
        journal.try_reserve_exact(cells).map_err(|_| memory)?;
        let mut top = Top::new(self.count, readers.width);
        let mut padding: Vec<(usize, u16)> = Vec::new();
        for start in (0..samples).step_by(part) {
            let end = (start + part).min(samples);
            journal.clear();
            journal.resize(cells, T::UNREAD);
            for (row, pass) in self.passes.iter().enumerate() {
                let list = list(self.run, pass)?;
                let own = (list.order().len() - list.consumed()).min(list.list_len());
                walk(&list, 0..own, |rank, id| {
                    let at = (id.0 as usize).wrapping_sub(start);
                    if at < end - start {
                        let cell = at / BLOCK * (BLOCK * rows) + row * BLOCK + at % BLOCK;
                        journal[cell] = T::new(self.stores[rank.0 as usize]);
                    }
                });
                // Of a pass that was started before, padding reads some samples twice.
                walk(&list, own..counted(&list).max(own), |rank, id| {
                    let at = (id.0 as usize).wrapping_sub(start);
                    if at < end - start {
                        padding.push((at, self.stores[rank.0 as usize]));
                    }
                });
            }
            padding.sort_unstable();
            let mut padded = padding.drain(..).peekable();
            for at in 0..end - start {
                let from = at / BLOCK * (BLOCK * rows) + at % BLOCK;
                for row in 0..rows {
                    let store = journal[from + row * BLOCK].get();
                    if complete || store != T::UNREAD.get() {
                        top.add(store, 1);
                    }
                }
                while let Some((_, store)) = padded.next_if(|&(padded, _)| padded == at) {
                    top.add(usize::from(store), 1);
                }
                top.finish(readers, start + at);
            }
        }
        Ok(())
    }

    fn tallies(&self, readers: &mut Readers, ids: u64) -> Result<(), PlanError> {
        let samples = readers.first.len();
        let part = ids.min(samples as u64) as usize;
        let memory = Reason::Memory { dataset: self.passes[0].dataset, samples: samples as u64 };
        let mut tally: Vec<u16> = table((part * self.count) as u64).ok_or(memory)?;
        let mut top = Top::new(self.count, readers.width);
        for start in (0..samples).step_by(part) {
            let end = (start + part).min(samples);
            tally.fill(0);
            for pass in self.passes {
                let list = list(self.run, pass)?;
                walk(&list, 0..counted(&list), |rank, id| {
                    let at = (id.0 as usize).wrapping_sub(start);
                    if at < end - start {
                        let uses = &mut tally[at * self.count + usize::from(self.stores[rank.0 as usize])];
                        *uses = uses.saturating_add(1);
                    }
                });
            }
            for at in 0..end - start {
                let uses = &tally[at * self.count..(at + 1) * self.count];
                uses.iter().enumerate().for_each(|(store, &uses)| top.add(store, uses));
                top.finish(readers, start + at);
            }
        }
        Ok(())
    }
}

/// Finds the stores that read one sample most. Of stores that read it equally often, the one that reads it first comes
/// first and the others follow in an order that differs from sample to sample, so that none is preferred.
struct Top {
    uses: Vec<u16>,
    touched: Vec<u16>,
    /// Sorted, the best first.
    best: Vec<u64>,
    width: usize,
}

impl Top {
    fn new(stores: usize, width: usize) -> Self {
        Self { uses: vec![0; stores], touched: Vec::new(), best: Vec::new(), width }
    }

    fn add(&mut self, store: usize, uses: u16) {
        let before = self.uses[store];
        if before == 0 && uses > 0 {
            self.touched.push(store as u16);
        }
        self.uses[store] = before.saturating_add(uses);
    }

    fn finish(&mut self, readers: &mut Readers, id: usize) {
        let (stores, turn) = (self.uses.len(), id % self.uses.len());
        // Most stores of most samples are far from the best.
        let mut enough = 0;
        for store in self.touched.drain(..) {
            let uses = std::mem::take(&mut self.uses[usize::from(store)]);
            if uses < enough {
                continue;
            }
            let turned = usize::from(store) + if usize::from(store) < turn { stores } else { 0 } - turn;
            let first = u64::from(store == readers.first[id]);
            let rank =
                u64::from(uses) << 48 | first << 47 | (0xffff - turned as u64) << 16 | u64::from(store);
            if self.best.len() == self.width {
                if self.best.last().is_some_and(|&last| last > rank) {
                    continue;
                }
                self.best.pop();
            }
            let at = self.best.partition_point(|&other| other > rank);
            self.best.insert(at, rank);
            if self.best.len() == self.width {
                enough = self.best.last().map_or(0, |&last| (last >> 48) as u16);
            }
        }
        let slots = &mut readers.candidates[id * self.width..(id + 1) * self.width];
        for (slot, rank) in slots.iter_mut().zip(self.best.drain(..)) {
            *slot = ((rank & 0xffff) << 16 | rank >> 48) as u32;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use foreread_oracle::{Deal, Phase, PhaseKind, Schedule, Shuffle, Weighted};

    use super::*;

    fn run(distinct: bool, samples: u64, drop_last: bool) -> Run {
        let sampler: Arc<dyn foreread_oracle::Sampler> = if distinct {
            Arc::new(Shuffle::new(samples, 1).unwrap())
        } else {
            Arc::new(Weighted::new(&vec![1.0; samples as usize], samples, 1).unwrap())
        };
        let (kind, dataset) = (PhaseKind::Train, DatasetId(0));
        let phase = Phase { kind, dataset, sampler, batch_size: Some(3), drop_last };
        Run::new(Arc::new(Schedule::new(7, vec![phase]).unwrap()), Deal::Blocks, 5, Rank(0)).unwrap()
    }

    /// All uses, first uses and candidates, sample by sample, from the ranks' own streams.
    fn by_hand(run: &Run, samples: usize, stores: &[u16], count: usize) -> (Vec<Vec<u64>>, Vec<u16>) {
        let (mut uses, mut first) = (vec![vec![0; count]; samples], vec![NONE; samples]);
        for pass in run.passes() {
            let stream = run.stream(&pass).unwrap();
            let mut order: Vec<(u64, u32, usize)> = Vec::new();
            let (dealing, len) = (stream.dealing(), stream.order().len());
            for rank in (0..run.world_size()).map(Rank) {
                let stream = stream.of_rank(rank).unwrap();
                for index in 0..stream.len() {
                    let id = stream.at(index).0 as usize;
                    let position = dealing.position(len, 0, rank, index);
                    let padded = || {
                        stream.order().is_distinct()
                            && dealing.locate(len, 0, position) != Some((rank, index))
                    };
                    if !padded() {
                        order.push((index / 3, rank.0, id));
                    }
                }
            }
            order.sort_by_key(|&(step, rank, _)| (step, rank));
            for (_, rank, id) in order {
                uses[id][usize::from(stores[rank as usize])] += 1;
                if first[id] == NONE {
                    first[id] = stores[rank as usize];
                }
            }
        }
        (uses, first)
    }

    #[test]
    fn journals_and_tallies_are_what_the_streams_say() {
        let (samples, stores, count) = (101usize, [0, 0, 1, 2, 2], 3);
        for (distinct, drop_last) in [(true, false), (true, true), (false, false)] {
            let run = run(distinct, samples as u64, drop_last);
            let (uses, first) = by_hand(&run, samples, &stores, count);
            let passes: Vec<Pass> = run.passes().collect();
            let counting = Counting { run: &run, passes: &passes, stores: &stores, count };
            let fresh = || {
                let mut readers = Readers::first(&run, DatasetId(0), samples as u64, &stores).unwrap();
                readers.width = count;
                readers.candidates = vec![0; samples * count];
                readers
            };
            let mut forms = vec![fresh(), fresh()];
            counting.tallies(&mut forms[0], 1000).unwrap();
            counting.tallies(&mut forms[1], 30).unwrap();
            if distinct {
                forms.extend([fresh(), fresh()]);
                counting.journals::<u8>(&mut forms[2], 1000, false).unwrap();
                counting.journals::<u16>(&mut forms[3], 1000, false).unwrap();
            }
            for readers in &forms {
                assert_eq!(readers.first, first);
                for id in 0..samples {
                    let found: Vec<_> = readers.candidates(id).collect();
                    assert!(found.windows(2).all(|pair| pair[0].1 >= pair[1].1));
                    for &(store, times) in &found {
                        assert_eq!(times, uses[id][store], "{id}: {found:?}");
                    }
                    let ties: Vec<_> = found.iter().filter(|other| other.1 == found[0].1).collect();
                    if ties.iter().any(|tie| tie.0 == usize::from(first[id])) {
                        assert_eq!(found[0].0, usize::from(first[id]));
                    }
                }
            }
        }
    }

    #[test]
    fn a_few_candidates_are_the_best_of_all() {
        let (samples, stores) = (200, [0, 1, 2, 3, 4]);
        let run = run(true, samples, false);
        let passes: Vec<Pass> = run.passes().collect();
        let counting = Counting { run: &run, passes: &passes, stores: &stores, count: 5 };
        let of = |width: usize| {
            let mut readers = Readers::first(&run, DatasetId(0), samples, &stores).unwrap();
            readers.width = width;
            readers.candidates = vec![0; samples as usize * width];
            counting.journals::<u8>(&mut readers, 1000, true).unwrap();
            readers
        };
        let (two, all) = (of(2), of(5));
        for id in 0..samples as usize {
            assert_eq!(
                two.candidates(id).collect::<Vec<_>>(),
                all.candidates(id).take(2).collect::<Vec<_>>()
            );
        }
    }
}
