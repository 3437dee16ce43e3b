//! A store of small samples, and orders over it, for the tests of sources.

use std::sync::Arc;

use foreread::{Builder, Loader};
use foreread_tier_testing::{FakeOrigin, TestRandom};

use crate::rig::Fakes;

/// A store with this many small samples, of many lengths.
pub fn origin(samples: u64) -> FakeOrigin {
    FakeOrigin::new((0..samples).map(|id| (format!("{:02}/{id:04}", id / 10), 500 + id * 37 % 400)))
}

/// A builder of a run over `origin`.
pub fn builder(origin: &FakeOrigin) -> Builder {
    let fakes = Fakes::default().with("fake://train", Arc::new(origin.clone()));
    Loader::builder("fake://train").registry(fakes.registry())
}

/// All ids in a random order.
pub fn shuffled(draw: &mut TestRandom, samples: u64) -> Vec<u64> {
    let mut ids: Vec<u64> = (0..samples).collect();
    for at in (1..ids.len()).rev() {
        ids.swap(at, draw.below(at as u64 + 1) as usize);
    }
    ids
}

/// Like eight workers of a data loader: each has every eighth batch, and requests it as a whole or
/// sample by sample, from a source of its own.
pub fn eight_callers<S: Send>(order: &[u64], source: impl Fn() -> S, get: impl Fn(&S, &[u64]) + Sync) {
    std::thread::scope(|scope| {
        for worker in 0..8 {
            let (source, get) = (source(), &get);
            scope.spawn(move || {
                for batch in order.chunks(10).skip(worker).step_by(8) {
                    match worker % 2 {
                        0 => get(&source, batch),
                        _ => batch.iter().for_each(|&id| get(&source, &[id])),
                    }
                }
            });
        }
    });
}
