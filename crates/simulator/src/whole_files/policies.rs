//! The policies of caches of whole files.

use std::time::Duration;

use foreread_oracle::{Sampler as _, Shuffle};

use super::caches::{ChosenFiles, CopyRoom, EpochCounts, FileCache, FixedPart, LeastRecent};
use super::scenario::{FileOrder, FilesScenario};
use crate::error::SimulateError;
use crate::named::named;

named! {
    /// A policy of a cache of whole files.
    pub enum FilesPolicy is a "policy" {
        /// foreread: files that the epoch has not used yet are copied ahead, into the room of used
        /// ones.
        CopiesAhead "copies-ahead",
        /// The first files stay.
        NeverEvict "never-evict",
        /// The least recently used file leaves.
        Lru "lru",
    }
}

impl FilesPolicy {
    /// The counts of each epoch, from the first.
    pub(super) fn run(self, scenario: &FilesScenario, orders: &[Vec<u32>]) -> Vec<EpochCounts> {
        let room = CopyRoom::new(scenario);
        let announced = |epoch: u64| orders[epoch as usize % orders.len()].clone();
        match self {
            Self::CopiesAhead => {
                let is_known = scenario.order == FileOrder::Known;
                open_all(
                    scenario,
                    orders,
                    &mut ChosenFiles::new(room, scenario.files, is_known.then_some(&announced)),
                )
            }
            Self::NeverEvict => open_all(scenario, orders, &mut FixedPart(room)),
            Self::Lru => open_all(scenario, orders, &mut LeastRecent::new(room)),
        }
    }
}

/// The orders of epochs. The last one is followed by the first one again.
pub(super) fn orders(scenario: &FilesScenario, seed: u64) -> Result<Vec<Vec<u32>>, SimulateError> {
    let sampler = Shuffle::new(u64::from(scenario.files), seed)?;
    let different = if scenario.order == FileOrder::Equal { 1 } else { scenario.epochs };
    let mut orders = Vec::new();
    for epoch in 0..different {
        let order = sampler.order(u64::from(epoch))?;
        orders.push((0..order.len()).map(|at| order.at(at).0 as u32).collect());
    }
    Ok(orders)
}

fn open_all(scenario: &FilesScenario, orders: &[Vec<u32>], cache: &mut dyn FileCache) -> Vec<EpochCounts> {
    let interval = scenario.seconds / f64::from(scenario.files);
    let mut opens = 0.0;
    let epochs = orders.iter().cycle().take(scenario.epochs as usize);
    let each = epochs.map(|order| {
        let mut counts = EpochCounts::default();
        for &file in order {
            cache.open(file, Duration::from_secs_f64(interval * opens), &mut counts);
            opens += 1.0;
        }
        counts
    });
    each.collect()
}
