//! Invariants of all orders: ids stay inside the population, `fill` equals `at`, and the inverse
//! finds each use.

use std::sync::Arc;

use foreread_oracle::{
    ComputedOrder, Explicit, Feistel, Order, Sampler, Sequential, Shuffle, Subset, Torch, Weighted,
};
use foreread_types::SampleId;
use proptest::prelude::*;

use crate::ids;

/// Reads every sample twice, forwards and then backwards.
#[derive(Debug)]
struct Palindrome(u64);

impl ComputedOrder for Palindrome {
    fn population(&self) -> u64 {
        self.0
    }

    fn len(&self) -> u64 {
        2 * self.0
    }

    fn is_distinct(&self) -> bool {
        false
    }

    fn fill(&self, from: u64, step: u64, out: &mut [SampleId]) {
        for (slot, nth) in out.iter_mut().zip(0..) {
            let position = from + nth * step;
            *slot = SampleId(position.min(2 * self.0 - 1 - position));
        }
    }

    fn next(&self, id: SampleId, from: u64) -> Option<u64> {
        if id.0 >= self.0 {
            return None;
        }
        let back = 2 * self.0 - 1 - id.0;
        [id.0, back].into_iter().find(|&position| position >= from)
    }
}

fn samplers() -> impl Strategy<Value = Arc<dyn Sampler>> {
    let explicit = (1u64..2000).prop_flat_map(|population| {
        prop::collection::vec(0..population, 0..120)
            .prop_map(move |ids| Arc::new(Explicit::new(population, vec![ids]).unwrap()) as Arc<dyn Sampler>)
    });
    let weighted = (prop::collection::vec(0.01f64..5.0, 1..40), 0u64..150, any::<u64>()).prop_map(
        |(weights, len, seed)| Arc::new(Weighted::new(&weights, len, seed).unwrap()) as Arc<dyn Sampler>,
    );
    let subset = (1u64..2000, any::<u64>()).prop_flat_map(|(population, seed)| {
        prop::collection::vec(0..population, 0..120).prop_map(move |ids| {
            let inner = Arc::new(Shuffle::new(ids.len() as u64, seed).unwrap());
            Arc::new(Subset::new(population, ids.into(), inner).unwrap()) as Arc<dyn Sampler>
        })
    });
    prop_oneof![
        (0u64..200).prop_map(|n| Arc::new(Sequential::new(n).unwrap()) as Arc<dyn Sampler>),
        (0u64..200, any::<u64>())
            .prop_map(|(n, s)| Arc::new(Shuffle::new(n, s).unwrap()) as Arc<dyn Sampler>),
        (0u64..200, any::<u64>()).prop_map(|(n, s)| Arc::new(Torch::new(n, s).unwrap()) as Arc<dyn Sampler>),
        (0u64..200, any::<u64>())
            .prop_map(|(n, s)| Arc::new(Feistel::new(n, s).unwrap()) as Arc<dyn Sampler>),
        weighted,
        explicit,
        subset,
    ]
}

fn assert_consistent(order: &Order) {
    let all = ids(order);
    assert!(all.iter().all(|&id| id < order.population()));
    assert!(all.iter().enumerate().all(|(position, &id)| order.at(position as u64) == SampleId(id)));
    for (from, step) in [(0, 1), (1, 1), (0, 3), (2, 7), (5, 50)] {
        let expected: Vec<SampleId> = all.iter().skip(from).step_by(step).map(|&id| SampleId(id)).collect();
        let mut found = vec![SampleId(u64::MAX); expected.len()];
        order.fill(from as u64, step as u64, &mut found);
        assert_eq!(found, expected);
    }
    let mut sorted = all.clone();
    sorted.sort_unstable();
    sorted.dedup();
    assert!(!order.is_distinct() || sorted.len() == all.len());
    let uses = order.inverse();
    let ends = (0..order.population().min(300)).chain([order.population(), order.population() + 1, u64::MAX]);
    for id in ends.chain(sorted) {
        for from in (0..order.len() + 2).step_by(5) {
            let expected =
                all.iter().skip(from as usize).position(|&other| other == id).map(|nth| nth as u64 + from);
            assert_eq!(uses.next(SampleId(id), from), expected, "{order:?}: sample {id} from {from}");
        }
    }
}

proptest! {
    #[test]
    fn orders_are_consistent(sampler in samplers(), epoch in 0u64..5) {
        let order = sampler.order(if sampler.epochs().is_some() { 0 } else { epoch }).unwrap();
        prop_assert_eq!(order.len(), sampler.len());
        prop_assert_eq!(order.population(), sampler.population());
        prop_assert!(order.is_distinct() || !sampler.is_distinct());
        assert_consistent(&order);
    }
}

#[test]
fn computed_orders_are_consistent() {
    for samples in [0, 1, 2, 40] {
        assert_consistent(&Order::custom(Arc::new(Palindrome(samples))).unwrap());
    }
}

#[test]
fn tables_of_wide_ids_are_consistent() {
    let far = 1u64 << 40;
    assert_consistent(&Order::table(far, vec![far - 1, 3, far / 2, 3, 0]).unwrap());
    assert_consistent(&Order::table(far, vec![]).unwrap());
    assert_consistent(&Order::table(5, vec![3, 1]).unwrap());
    assert!(Order::table(far, vec![far - 1, 3]).unwrap().is_distinct());
    assert!(!Order::table(far, vec![3, 3]).unwrap().is_distinct());
    assert!(!Order::table(2, vec![0, 1, 0]).unwrap().is_distinct());
}

#[test]
fn feistel_is_a_permutation_at_every_size() {
    for samples in 0..300 {
        for seed in [0, 1, u64::MAX] {
            let order = Feistel::new(samples, seed).unwrap().order(seed % 7).unwrap();
            let mut all = ids(&order);
            let uses = order.inverse();
            for (position, &id) in all.iter().enumerate() {
                assert_eq!(
                    uses.next(SampleId(id), 0),
                    Some(position as u64),
                    "{samples} samples, seed {seed}"
                );
            }
            all.sort_unstable();
            assert!(all.into_iter().eq(0..samples), "{samples} samples, seed {seed}");
        }
    }
}

proptest! {
    #[test]
    fn feistel_inverts_at_any_size(bits in 0u32..64, (low, seed, at) in any::<(u64, u64, u64)>()) {
        let samples = ((1u64 << bits) | (low & ((1 << bits) - 1))).min(1 << 63);
        let order = Feistel::new(samples, seed).unwrap().order(1).unwrap();
        let position = at % samples;
        let id = order.at(position);
        prop_assert!(id.0 < samples);
        prop_assert_eq!(order.inverse().next(id, position), Some(position));
        prop_assert_eq!(order.inverse().next(id, position + 1), None);
    }
}

#[test]
fn epochs_and_seeds_give_other_orders() {
    let samplers = |seed| -> [Arc<dyn Sampler>; 4] {
        [
            Arc::new(Shuffle::new(100, seed).unwrap()),
            Arc::new(Torch::new(100, seed).unwrap()),
            Arc::new(Feistel::new(100, seed).unwrap()),
            Arc::new(Weighted::new(&[1.0; 100], 100, seed).unwrap()),
        ]
    };
    for (one, other) in samplers(1).into_iter().zip(samplers(100)) {
        let order = |sampler: &Arc<dyn Sampler>, epoch| ids(&sampler.order(epoch).unwrap());
        assert_eq!(order(&one, 3), order(&one, 3));
        assert_ne!(order(&one, 3), order(&one, 4));
        assert_ne!(order(&one, 3), order(&other, 3));
        assert_ne!(one.fingerprint(), other.fingerprint());
    }
}
