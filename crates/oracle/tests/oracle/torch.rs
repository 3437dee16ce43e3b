//! Equality with PyTorch.

use std::sync::Arc;

use foreread_oracle::{AccessStream, Deal, Dealing, Sampler, Sequential, Torch, TorchWeighted};
use foreread_types::Rank;

use crate::{ids, read};

#[test]
fn randperm_equals_its_vectors() {
    assert_eq!(ids(&Torch::new(10, 0).unwrap().order(0).unwrap()), [4, 1, 7, 5, 3, 9, 0, 8, 6, 2]);
    let expected = [41615, 23657, 92717, 16389, 28607, 45432, 45737, 59262, 69052, 23840];
    assert_eq!(ids(&Torch::new(100_000, 7).unwrap().order(0).unwrap())[..10], expected);
}

#[test]
fn seed_plus_epoch_counts_modulo_2_to_32() {
    let order = |seed, epoch| ids(&Torch::new(1000, seed).unwrap().order(epoch).unwrap());
    assert_eq!(order((1 << 40) + 7, 0), order(7, 0));
    assert_eq!(order(3, 4), order(7, 0));
    assert_eq!(order(u64::MAX, 8), order(7, 0));
}

/// Every line of `torch_reference.txt`, which PyTorch wrote. The cases include one sample, and
/// fewer samples than ranks.
#[test]
// semantics: ORDER-2
fn torch_order_equals_distributed_and_batch_samplers() {
    let mut cases = 0;
    for line in include_str!("torch_reference.txt").lines() {
        let fields: Vec<u64> = line.split_whitespace().map(|field| field.parse().unwrap()).collect();
        let (&[samples, seed, epoch, shuffle, world_size, rank, drop_last, batch], expected) =
            fields.split_first_chunk().unwrap();
        let sampler: Arc<dyn Sampler> = match shuffle {
            0 => Arc::new(Sequential::new(samples).unwrap()),
            _ => Arc::new(Torch::new(samples, seed).unwrap()),
        };
        let batch_size = (batch > 0).then_some(batch);
        let dealing = Dealing::new(Deal::Torch, world_size as u32, batch_size, drop_last == 1).unwrap();
        let order = sampler.order(epoch).unwrap();
        let stream = AccessStream::new(order, dealing, Rank(rank as u32), 0).unwrap();
        assert_eq!(read(&stream, 7), expected, "{line}");
        cases += 1;
    }
    assert!(cases >= 60);
}

/// Every line of `torch_weighted_reference.txt`, which PyTorch wrote.
#[test]
// semantics: ORDER-7
fn torch_draws_equal_weighted_random_sampler() {
    let mut cases = 0;
    for line in include_str!("torch_weighted_reference.txt").lines() {
        let [head, weights, expected] = line.split(';').collect::<Vec<_>>()[..] else { panic!("{line}") };
        let numbers = |text: &str| -> Vec<u64> {
            text.split_whitespace().map(|field| field.parse().unwrap()).collect()
        };
        let [seed, epoch, len] = numbers(head)[..] else { panic!("{line}") };
        let weights: Vec<f64> = weights.split_whitespace().map(|field| field.parse().unwrap()).collect();
        let sampler = TorchWeighted::new(&weights, len, seed).unwrap();
        assert_eq!(ids(&sampler.order(epoch).unwrap()), numbers(expected), "{line}");
        cases += 1;
    }
    assert!(cases >= 40);
}
