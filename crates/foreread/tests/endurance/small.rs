//! A store of small samples, and orders over it: what sources are tested with.

use std::sync::Arc;

use foreread::{Builder, Loader};
use foreread_tier_testing::{FakeOrigin, TestRandom};

use crate::rig::Fakes;

/// A store of so many small samples, of many lengths.
pub fn origin(samples: u64) -> FakeOrigin {
    FakeOrigin::new((0..samples).map(|id| (format!("{:02}/{id:04}", id / 10), 500 + id * 37 % 400)))
}

/// A builder of a run over that.
pub fn builder(origin: &FakeOrigin) -> Builder {
    let fakes = Fakes::default().with("fake://train", Arc::new(origin.clone()));
    Loader::builder("fake://train").registry(fakes.registry())
}

/// All ids in an order that is drawn.
pub fn shuffled(draw: &mut TestRandom, samples: u64) -> Vec<u64> {
    let mut ids: Vec<u64> = (0..samples).collect();
    for at in (1..ids.len()).rev() {
        ids.swap(at, draw.below(at as u64 + 1) as usize);
    }
    ids
}
