//! Tests of dealing against a literal transcription of `DistributedSampler`, and of streams against
//! lists.

use foreread_oracle::{AccessStream, Deal, Dealing, Explicit, Order, Sampler, Shuffle, Torch};
use foreread_types::{Rank, SampleId};
use proptest::prelude::*;

use crate::{ids, read};

/// `DistributedSampler.__iter__` over `list`, padded from `beginning`, then
/// `BatchSampler(drop_last)`.
fn reference(list: &[u64], beginning: &[u64], dealing: Dealing, rank: usize) -> Vec<u64> {
    let world_size = dealing.world_size() as usize;
    let share = match dealing.drop_last() {
        true => list.len() / world_size,
        false => list.len().div_ceil(world_size),
    };
    let mut indices = list.to_vec();
    while indices.len() < share * world_size {
        indices.extend_from_slice(beginning);
    }
    indices.truncate(share * world_size);
    let batch = dealing.batch_size().map_or(share.max(1), |batch| batch as usize);
    let mut own: Vec<u64> = match dealing.deal() {
        Deal::Torch => indices[rank.min(indices.len())..].iter().step_by(world_size).copied().collect(),
        Deal::Blocks => indices
            .chunks(batch * world_size)
            .flat_map(|step| step.chunks(step.len() / world_size).nth(rank).unwrap().to_vec())
            .collect(),
    };
    if dealing.drop_last() && dealing.batch_size().is_some() {
        own.truncate(own.len() / batch * batch);
    }
    own
}

fn dealings() -> impl Strategy<Value = Dealing> {
    let deal = prop_oneof![Just(Deal::Torch), Just(Deal::Blocks)];
    (deal, 1u32..40, prop::option::of(1u64..12), any::<bool>()).prop_map(
        |(deal, world_size, batch, drop_last)| Dealing::new(deal, world_size, batch, drop_last).unwrap(),
    )
}

/// Orders of up to some hundred positions: permutations, and tables with repeats.
fn orders() -> impl Strategy<Value = Order> {
    let table = (1u64..60).prop_flat_map(|population| {
        prop::collection::vec(0..population, 0..200)
            .prop_map(move |ids| Explicit::new(population, vec![ids]).unwrap().order(0).unwrap())
    });
    prop_oneof![
        (0u64..300, any::<u64>()).prop_map(|(n, seed)| Shuffle::new(n, seed).unwrap().order(0).unwrap()),
        (0u64..300, any::<u64>()).prop_map(|(n, seed)| Torch::new(n, seed).unwrap().order(3).unwrap()),
        table,
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    // semantics: ORDER-4
    fn ranks_read_the_samples_of_the_reference(
        order in orders(),
        dealing in dealings(),
        consumed in any::<prop::sample::Index>(),
        resumed in any::<bool>(),
        chunk in 1usize..20,
    ) {
        let all = ids(&order);
        let consumed = if resumed { consumed.index(all.len() + 1) } else { 0 };
        let len = all.len() as u64;
        for rank in 0..dealing.world_size() {
            let stream = AccessStream::new(order.clone(), dealing, Rank(rank), consumed as u64).unwrap();
            let expected = reference(&all[consumed..], &all, dealing, rank as usize);
            prop_assert_eq!(stream.len(), expected.len() as u64);
            prop_assert_eq!(&read(&stream, chunk), &expected);
            for (index, &id) in expected.iter().enumerate() {
                prop_assert_eq!(stream.at(index as u64), SampleId(id));
                let position = dealing.position(len, consumed as u64, Rank(rank), index as u64);
                prop_assert_eq!(all[position as usize], id);
            }
            let batch = dealing.batch_size().unwrap_or(stream.len().max(1));
            prop_assert_eq!(dealing.batches(len, consumed as u64), stream.len().div_ceil(batch));
        }
    }

    #[test]
    fn padded_list_and_its_ranks_are_the_streams(
        order in orders(),
        dealing in dealings(),
        consumed in any::<prop::sample::Index>(),
        chunk in 1usize..20,
    ) {
        let (len, consumed) = (order.len(), consumed.index(order.len() as usize + 1) as u64);
        let stream = AccessStream::new(order, dealing, Rank(0), consumed).unwrap();
        let mut dealt = vec![Vec::new(); dealing.world_size() as usize];
        let mut from = 0;
        while from < stream.list_len() {
            let some = chunk.min((stream.list_len() - from) as usize);
            let (mut ids, mut ranks) = (vec![SampleId(0); some], vec![Rank(0); some]);
            stream.fill_list(from, &mut ids);
            dealing.fill_ranks(len, consumed, from, &mut ranks);
            for (id, rank) in ids.iter().zip(&ranks) {
                dealt[rank.0 as usize].push(id.0);
            }
            from += some as u64;
        }
        for (rank, dealt) in dealt.iter().enumerate() {
            prop_assert_eq!(dealt, &read(&stream.of_rank(Rank(rank as u32)).unwrap(), 100));
        }
    }

    #[test]
    fn next_use_equals_a_linear_search(
        order in orders(),
        dealing in dealings(),
        consumed in any::<prop::sample::Index>(),
        rank in any::<prop::sample::Index>(),
        step in 1u64..9,
    ) {
        let consumed = consumed.index(order.len() as usize + 1) as u64;
        let rank = Rank(rank.index(dealing.world_size() as usize) as u32);
        let stream = AccessStream::new(order.clone(), dealing, rank, consumed).unwrap();
        let own = read(&stream, 1000);
        for id in (0..order.population() + 2).step_by(step as usize) {
            for from in (0..stream.len() + 2).step_by(step as usize) {
                let found = own.iter().skip(from as usize).position(|&other| other == id);
                let expected = found.map(|nth| nth as u64 + from);
                prop_assert_eq!(stream.next_use(SampleId(id), from), expected, "id {} from {}", id, from);
            }
        }
    }

    #[test]
    fn locate_is_the_inverse_of_position(
        len in 0u64..300,
        dealing in dealings(),
        consumed in any::<prop::sample::Index>(),
    ) {
        let consumed = consumed.index(len as usize + 1) as u64;
        let share = dealing.share(len, consumed);
        let ranks = || (0..dealing.world_size()).map(Rank);
        for position in 0..len + 3 {
            let mut readers = ranks().flat_map(|rank| (0..share).map(move |index| (rank, index)));
            let located = dealing.locate(len, consumed, position);
            match located {
                Some((rank, index)) => {
                    prop_assert_eq!(dealing.position(len, consumed, rank, index), position);
                }
                None => prop_assert!(
                    readers.all(|(rank, index)| dealing.position(len, consumed, rank, index) != position)
                ),
            }
        }
    }

    /// The first t batches of all ranks are the first t * W * B positions, whatever the deal. So
    /// `consumed` suffices.
    #[test]
    fn steps_consume_the_order_from_its_front(
        len in 1u64..400,
        world_size in 1u32..9,
        batch in 1u64..9,
        blocks in any::<bool>(),
    ) {
        let deal = if blocks { Deal::Blocks } else { Deal::Torch };
        let dealing = Dealing::new(deal, world_size, Some(batch), true).unwrap();
        let mut read = Vec::new();
        for step in 0..dealing.batches(len, 0) {
            for rank in 0..world_size {
                let indices = step * batch..(step + 1) * batch;
                read.extend(indices.map(|index| dealing.position(len, 0, Rank(rank), index)));
            }
            read.sort_unstable();
            prop_assert!(read.iter().copied().eq(0..(step + 1) * batch * u64::from(world_size)));
        }
    }
}

#[test]
fn single_sample_is_read_by_every_rank() {
    for deal in [Deal::Torch, Deal::Blocks] {
        let order = Torch::new(1, 0).unwrap().order(0).unwrap();
        let dealing = Dealing::new(deal, 1000, Some(4), false).unwrap();
        let stream = AccessStream::new(order, dealing, Rank(999), 0).unwrap();
        assert_eq!(read(&stream, 1), [0]);
        assert_eq!(stream.next_use(SampleId(0), 0), Some(0));
        assert_eq!(stream.of_rank(Rank(3)).unwrap().rank(), Rank(3));
    }
}

#[test]
fn largest_orders_do_not_overflow() {
    let len = 1u64 << 63;
    for deal in [Deal::Torch, Deal::Blocks] {
        for batch in [None, Some(1), Some(1 << 20), Some(u64::MAX)] {
            let dealing = Dealing::new(deal, u32::MAX, batch, false).unwrap();
            let share = dealing.share(len, 0);
            for index in [0, 1, share / 2, share - 1] {
                let rank = Rank(u32::MAX / 2);
                let position = dealing.position(len, 0, rank, index);
                assert_eq!(dealing.locate(len, 0, position), Some((rank, index)));
            }
        }
    }
}
