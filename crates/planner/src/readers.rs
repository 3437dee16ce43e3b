//! The first reader of each sample, over all ranks' streams, by the store of each rank.
//!
//! # The decision, and its price
//!
//! Reads per rank are not counted. Counting would cost every order of the run, and so limit the
//! length of runs. The first reader costs one order, whatever the run's length. The price is the
//! gain of the most frequent reader. With 90 shuffled epochs and space for one copy of each sample,
//! it is 5 of 100 uses on 4 ranks and 4 on 16.

use foreread_oracle::{AccessStream, Pass, Run};
use foreread_types::{DatasetId, Rank, SampleId};

use crate::demand::table;
use crate::error::{PlanError, PlanReason};
use crate::owners::{PackedOwner, unpack};

/// No store.
pub(crate) const NO_STORE: u16 = u16::MAX;

/// All ranks' reads of a pass are processed in chunks of this many places.
const CHUNK: usize = 2048;

/// The number of positions that are read to estimate how often owners read their own samples again.
const REPEAT_BUDGET: u64 = 1 << 22;

/// The cost of a position of a computed order, in positions of a shuffled one.
const COMPUTED_COST: u64 = 16;

/// By sample, the store of the rank that reads it first, or [`NO_STORE`].
pub(crate) fn first(
    run: &Run,
    dataset: DatasetId,
    samples: u64,
    stores: &[u16],
) -> Result<Vec<u16>, PlanError> {
    let mut first: Vec<u16> = table(samples).ok_or(PlanReason::Memory { dataset, samples })?;
    first.fill(NO_STORE);
    let mut left = samples;
    for pass in run.passes().filter(|pass| pass.dataset == dataset) {
        if left == 0 {
            break;
        }
        let list = list(run, &pass)?;
        if left == samples && is_complete(&list) {
            // Every sample is new. Only padding repeats samples, and it comes last.
            walk(&list, 0..list.order().len().min(list.list_len()), |rank, id| {
                first[id.0 as usize] = stores[rank.0 as usize];
            });
            break;
        }
        walk(&list, 0..list.list_len(), |rank, id| {
            let first = &mut first[id.0 as usize];
            if *first == NO_STORE {
                *first = stores[rank.0 as usize];
                left -= 1;
            }
        });
    }
    Ok(first)
}

/// Counted uses in passes over a dataset after the first.
#[derive(Debug, Default)]
pub(crate) struct RepeatUses {
    /// Uses of samples with an owner.
    pub(crate) owned: u64,
    /// Those of them by the owner's ranks, by store.
    pub(crate) near: Vec<u64>,
}

/// Counts uses in some passes over a dataset after the first. Later passes are taken to be equal: a
/// shuffle repeats a reader by chance, a sequential order always. `count` is the number of stores.
pub(crate) fn repeated(
    run: &Run,
    dataset: DatasetId,
    stores: &[u16],
    owners: &[PackedOwner],
    count: usize,
) -> Result<RepeatUses, PlanError> {
    let mut repeated = RepeatUses { owned: 0, near: vec![0; count] };
    let mut budget = REPEAT_BUDGET;
    for pass in run.passes().filter(|pass| pass.dataset == dataset).skip(1) {
        if budget == 0 {
            break;
        }
        let list = list(run, &pass)?;
        let places = used(&list).min(budget);
        budget = budget.saturating_sub(cost(run, &pass));
        walk(&list, 0..places, |rank, id| {
            if let Some((store, _)) = unpack(owners[id.0 as usize]) {
                repeated.owned += 1;
                repeated.near[store] += u64::from(usize::from(stores[rank.0 as usize]) == store);
            }
        });
    }
    Ok(repeated)
}

/// The cost of reading a pass, in positions of a shuffled order. At least 1.
pub(crate) fn cost(run: &Run, pass: &Pass) -> u64 {
    let sampler = &run.schedule().phases[pass.phase as usize].sampler;
    sampler.len().saturating_mul(if sampler.is_computed() { COMPUTED_COST } else { 1 }).max(1)
}

/// The reads of all ranks in a pass. Not cached, because every order is needed once.
pub(crate) fn list(run: &Run, pass: &Pass) -> Result<AccessStream, PlanError> {
    let phase = &run.schedule().phases[pass.phase as usize];
    let consumed = if pass.index == 0 { run.start().consumed } else { 0 };
    Ok(AccessStream::new(phase.order(pass.epoch)?, run.dealing(pass), Rank(0), consumed)?)
}

/// Whether every sample is read, and only padding reads one twice.
fn is_complete(list: &AccessStream) -> bool {
    let order = list.order();
    let whole = order.is_distinct() && order.len() == order.population() && list.consumed() == 0;
    whole && list.list_len() >= order.len()
}

/// The places of a pass that count as uses. The padding of a pass that reads every sample anyway is
/// left out, as in [`Demand`](crate::Demand).
pub(crate) fn used(list: &AccessStream) -> u64 {
    if is_complete(list) { list.order().len() } else { list.list_len() }
}

/// Calls `each` with the ranks and samples at some places of a list.
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use foreread_oracle::{Deal, Phase, PhaseKind, Sampler, Schedule, Sequential, Shuffle, Weighted};

    use super::*;
    use crate::level::LevelIndex;
    use crate::owners::pack;

    fn run(sampler: Arc<dyn Sampler>, drop_last: bool) -> Run {
        let (kind, dataset) = (PhaseKind::Train, DatasetId(0));
        let phase = Phase { kind, dataset, sampler, batch_size: Some(3), drop_last };
        Run::new(Arc::new(Schedule::new(7, vec![phase]).unwrap()), Deal::Blocks, 5, Rank(0)).unwrap()
    }

    /// The first store of every sample, from the ranks' own streams.
    fn by_hand(run: &Run, samples: usize, stores: &[u16]) -> Vec<u16> {
        let mut first = vec![NO_STORE; samples];
        for pass in run.passes() {
            let stream = run.stream(&pass).unwrap();
            let mut order: Vec<(u64, u32, usize)> = Vec::new();
            for rank in (0..run.world_size()).map(Rank) {
                let stream = stream.of_rank(rank).unwrap();
                order.extend((0..stream.len()).map(|at| (at / 3, rank.0, stream.at(at).0 as usize)));
            }
            order.sort_by_key(|&(step, rank, _)| (step, rank));
            for (_, rank, id) in order.into_iter().filter(|&(_, _, id)| id < samples) {
                if first[id] == NO_STORE {
                    first[id] = stores[rank as usize];
                }
            }
        }
        first
    }

    #[test]
    fn first_readers_equal_those_of_the_streams() {
        let (samples, stores) = (101u64, [0, 0, 1, 2, 2]);
        let shuffle = Arc::new(Shuffle::new(samples, 1).unwrap());
        let weighted = Arc::new(Weighted::new(&vec![1.0; samples as usize], samples, 1).unwrap());
        for run in [run(shuffle.clone(), false), run(shuffle, true), run(weighted, false)] {
            let found = first(&run, DatasetId(0), samples, &stores).unwrap();
            assert_eq!(found, by_hand(&run, samples as usize, &stores));
        }
    }

    #[test]
    fn repeats_of_a_sequential_order_are_local() {
        let (samples, stores) = (90u64, [0, 0, 1, 2, 2]);
        let count = |sampler: Arc<dyn Sampler>| {
            let run = run(sampler, false);
            let first = first(&run, DatasetId(0), samples, &stores).unwrap();
            let owners: Vec<_> = first.iter().map(|&store| pack(usize::from(store), LevelIndex(0))).collect();
            repeated(&run, DatasetId(0), &stores, &owners, 3).unwrap()
        };
        let sequential = count(Arc::new(Sequential::new(samples).unwrap()));
        assert_eq!((sequential.owned, sequential.near), (6 * 90, vec![6 * 36, 6 * 18, 6 * 36]));
        let shuffled = count(Arc::new(Shuffle::new(samples, 1).unwrap()));
        assert_eq!(shuffled.owned, 6 * 90);
        assert!((150..240).contains(&shuffled.near.iter().sum::<u64>()), "{shuffled:?}");
    }
}
