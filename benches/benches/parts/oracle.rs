//! Orders: an epoch of 1.28 million samples, and one position of a computed permutation.

use std::hint::black_box;

use anyhow::Result;
use criterion::{Criterion, Throughput};
use foreread_benches::IMAGENET;
use foreread_oracle::{AccessStream, Deal, Dealing, Feistel, Sampler, Shuffle, Torch, Weighted};
use foreread_types::{Rank, SampleId};

pub fn parts(criterion: &mut Criterion) -> Result<()> {
    let weights: Vec<f64> = (0..IMAGENET).map(|id| (id % 1000) as f64 + 1.0).collect();
    let samplers: [(&str, Box<dyn Sampler>); 3] = [
        ("shuffle", Box::new(Shuffle::new(IMAGENET, 1)?)),
        ("torch", Box::new(Torch::new(IMAGENET, 1)?)),
        ("weighted", Box::new(Weighted::new(&weights, IMAGENET, 1)?)),
    ];
    let mut group = criterion.benchmark_group("oracle epoch of 1.28 M");
    for (name, sampler) in &samplers {
        let order = sampler.order(1)?;
        group
            .bench_function(format!("{name}: order"), |bencher| bencher.iter(|| sampler.order(black_box(1))));
        group.bench_function(format!("{name}: inverse"), |bencher| bencher.iter(|| order.inverse()));
    }
    group.finish();

    let mut ids = vec![SampleId(0); 4096];
    let mut group = criterion.benchmark_group("oracle, 4096 ids");
    group.throughput(Throughput::Elements(ids.len() as u64));
    for deal in [Deal::Torch, Deal::Blocks] {
        let dealing = Dealing::new(deal, 8, Some(64), false)?;
        let stream = AccessStream::new(samplers[0].1.order(1)?, dealing, Rank(3), 0)?;
        group.bench_function(format!("stream of 1 rank of 8, deal {deal}"), |bencher| {
            bencher.iter(|| stream.fill(black_box(10_000), &mut ids));
        });
    }
    let order = Feistel::new(1_000_000_000_000, 1)?.order(0)?;
    let uses = order.inverse();
    group.bench_function("feistel of 10^12: fill", |bencher| {
        bencher.iter(|| order.fill(black_box(99_999_999_999), 1, &mut ids));
    });
    group.throughput(Throughput::Elements(1));
    let mut value = 1;
    group.bench_function("feistel of 10^12: dependent calls", |bencher| {
        bencher.iter(|| value = order.at(value).0);
    });
    group.bench_function("feistel of 10^12: inverse, dependent calls", |bencher| {
        bencher.iter(|| value = uses.next(SampleId(value), 0).unwrap_or(0));
    });
    group.finish();
    Ok(())
}
