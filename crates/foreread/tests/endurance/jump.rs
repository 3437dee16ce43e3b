//! Jumps: a trainer that leaves an epoch before its end, or goes back, goes on in the right order
//! with warm caches.

use std::sync::Arc;

use foreread::{Jump, Loader, Memory};
use foreread_tier_testing::{FakeOrigin, TestRandom};

use crate::rig::Fakes;

const SAMPLES: u64 = 120;

fn start(origin: &FakeOrigin) -> Loader {
    let fakes = Fakes::default().with("fake://train", Arc::new(origin.clone()));
    let builder = Loader::builder("fake://train").registry(fakes.registry());
    builder.batch_size(7).epochs(50).seed(3).memory(Memory::Bytes(1 << 20)).look_ahead(5000).start().unwrap()
}

fn next(loader: &mut Loader, origin: &FakeOrigin) -> (u64, Vec<u64>) {
    let batch = loader.batches().next().unwrap().unwrap();
    let ids = batch.iter().map(|(id, bytes)| {
        assert_eq!(*bytes, origin.expected(id));
        id.0
    });
    (batch.epoch(), ids.collect())
}

fn order(epoch: u64) -> Vec<u64> {
    let sampler = foreread::order::sampler(Default::default(), SAMPLES, 3).unwrap();
    let order = sampler.order(epoch).unwrap();
    (0..SAMPLES).map(|at| order.at(at).0).collect()
}

#[test]
// semantics: ID-4
fn after_any_jump_comes_what_the_order_says() {
    let origin = FakeOrigin::new((0..SAMPLES).map(|id| (format!("{id:04}"), 100 + id % 50)));
    let mut draw = TestRandom::new();
    let mut loader = start(&origin);
    let (mut saved, mut taken) = (Vec::new(), 0);
    let mut at = (0u64, 0usize);
    for _ in 0..40 {
        for _ in 0..draw.below(20) {
            if at.0 >= 50 {
                break;
            }
            let (epoch, ids) = next(&mut loader, &origin);
            let expected = order(at.0);
            let until = (at.1 + 7).min(expected.len());
            assert_eq!((epoch, &ids[..]), (at.0, &expected[at.1..until]), "seed {}", draw.seed);
            taken += ids.len() as u64;
            at = if until == expected.len() { (at.0 + 1, 0) } else { (at.0, until) };
            saved.push((loader.state(), at));
        }
        if draw.below(3) == 0 && !saved.is_empty() {
            let (state, then) = saved[draw.below(saved.len() as u64) as usize].clone();
            loader.jump(&Jump::State(state)).unwrap();
            at = then;
        } else {
            let epoch = draw.below(52);
            loader.jump(&Jump::Epoch(epoch)).unwrap();
            at = (epoch, 0);
        }
    }
    let report = loader.report();
    assert_eq!(report.epochs.iter().map(|epoch| epoch.samples).sum::<u64>(), taken);
    // Memory holds everything, and a jump forgets nothing of it but what was on its way.
    assert!(report.origin_requests <= SAMPLES + 40 * 60, "{}", report.origin_requests);
}

#[test]
// semantics: ID-4
fn what_memory_holds_is_not_read_again_after_a_jump() {
    let origin = FakeOrigin::new((0..SAMPLES).map(|id| (format!("{id:04}"), 100 + id % 50)));
    let mut loader = start(&origin);
    while next(&mut loader, &origin).0 == 0 {}
    let before = loader.report().origin_requests;
    for epoch in [5, 2, 40] {
        loader.jump(&Jump::Epoch(epoch)).unwrap();
        assert_eq!(next(&mut loader, &origin), (epoch, order(epoch)[..7].to_vec()));
    }
    assert_eq!((before, loader.report().origin_requests), (SAMPLES, SAMPLES));
}

#[test]
fn a_state_of_another_run_is_refused_and_the_run_goes_on() {
    let origin = FakeOrigin::new((0..SAMPLES).map(|id| (format!("{id:04}"), 100 + id % 50)));
    let fakes = Fakes::default().with("fake://train", Arc::new(origin.clone()));
    let other =
        Loader::builder("fake://train").registry(fakes.registry()).seed(4).epochs(1).start().unwrap().state();
    let mut loader = start(&origin);
    assert!(loader.jump(&Jump::State(other)).unwrap_err().to_string().contains("seed is 4"));
    assert_eq!(next(&mut loader, &origin), (0, order(0)[..7].to_vec()));
}
