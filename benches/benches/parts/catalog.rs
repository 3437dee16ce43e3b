//! Catalogs of 1.28 million samples.

use std::hint::black_box;

use anyhow::Result;
use criterion::Criterion;
use foreread_benches::{IMAGENET, files};
use foreread_dataset::Catalog;
use foreread_types::SampleId;

pub fn parts(criterion: &mut Criterion) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let path = directory.path().join("catalog.foreread");
    let made = Catalog::from_objects("/data/train", files::imagenet_objects(IMAGENET))?;
    made.save(&path)?;
    drop(made);
    let mut group = criterion.benchmark_group("catalog of 1.28 M");
    group.bench_function("open", |bencher| {
        bencher.iter(|| Catalog::open(&path).map(|catalog| catalog.sizes()))
    });
    let catalog = Catalog::open(&path)?;
    let mut id = 0;
    group.bench_function("an entry", |bencher| {
        bencher.iter(|| {
            id = (id + 104_729) % IMAGENET;
            catalog.entry(black_box(SampleId(id)))
        });
    });
    group.finish();
    Ok(())
}
