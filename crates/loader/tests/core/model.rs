//! The expected result of a run, computed in the simplest way: no look-ahead, no caches, no order
//! of events.

use std::collections::{HashMap, HashSet};

use foreread_loader::OnError;
use foreread_oracle::Run;
use foreread_types::SampleKey;

use crate::scenario::Scenario;

/// One batch as the trainer must get it.
#[derive(Debug)]
pub struct Expected {
    pub pass: usize,
    pub index: u64,
    pub first: u64,
    /// The sample of each use.
    pub keys: Vec<SampleKey>,
    /// The sample delivered for each use. `None` where it is skipped.
    pub delivered: Vec<Option<SampleKey>>,
    pub skipped: u64,
    pub substituted: u64,
}

impl Expected {
    fn takes(&self, scenario: &Scenario) -> u64 {
        self.keys.iter().map(|&key| scenario.takes_at_most(key)).sum()
    }
}

#[derive(Debug)]
pub struct Model {
    /// The batches in order, up to the last batch of the run.
    pub batches: Vec<Expected>,
    /// The use that ends the run, and its sample.
    pub fail: Option<(u64, SampleKey)>,
    /// Every use of the whole run in order, also those after its end.
    pub uses: Vec<SampleKey>,
    /// For each use, the distance of the next use of its sample. `None` beyond the last computed
    /// order.
    pub gaps: Vec<Option<u64>>,
    /// The maximum charges of the largest batches, descending.
    largest: Vec<u64>,
}

impl Model {
    pub fn new(scenario: &Scenario, run: &Run) -> Self {
        let (batches, uses, gaps, largest) = Default::default();
        let mut model = Self { batches, fail: None, uses, gaps, largest };
        let (mut over, mut known) = (false, u64::MAX);
        for pass in run.passes() {
            if scenario.faults.undealt == Some(pass.index) {
                (over, known) = (true, pass.first_tick.0);
            }
            let stream = run.stream(&pass).unwrap();
            let ids = (0..stream.len()).map(|index| stream.at(index));
            let keys: Vec<_> = ids.map(|id| SampleKey::new(pass.dataset, id)).collect();
            for (index, keys) in keys.chunks(pass.batch_size as usize).enumerate() {
                let first = model.uses.len() as u64;
                model.uses.extend(keys);
                let batch = deliver(scenario, (pass.index, index as u64, first), keys);
                model.largest.push(match &batch {
                    Ok(batch) => batch.takes(scenario),
                    Err(_) => keys.iter().map(|&key| scenario.takes_at_most(key)).sum(),
                });
                match batch {
                    _ if over => {}
                    Ok(batch) => model.batches.push(batch),
                    Err(bad) => {
                        model.fail = Some((first + bad as u64, keys[bad]));
                        over = true;
                    }
                }
            }
        }
        model.largest.sort_unstable_by(|a, b| b.cmp(a));
        let mut last = HashMap::new();
        model.gaps = vec![None; model.uses.len()];
        for (tick, &key) in model.uses.iter().enumerate().take_while(|(tick, _)| (*tick as u64) < known) {
            if let Some(before) = last.insert(key, tick) {
                model.gaps[before] = Some((tick - before) as u64);
            }
        }
        model
    }

    /// The maximum charge of the `count` largest batches.
    pub fn largest(&self, count: usize) -> u64 {
        self.largest.iter().take(count).sum()
    }

    /// Origin bytes if every use of samples without a place is read, and the first use of the
    /// others.
    pub fn origin_bytes(&self, scenario: &Scenario, placed: impl Fn(SampleKey) -> bool) -> u64 {
        let mut seen = HashSet::new();
        self.uses
            .iter()
            .filter(|&&key| !placed(key) || seen.insert(key))
            .map(|&key| scenario.bytes(key))
            .sum()
    }
}

/// The batch, or its first use that ends the run.
fn deliver(
    scenario: &Scenario,
    (pass, index, first): (usize, u64, u64),
    keys: &[SampleKey],
) -> Result<Expected, usize> {
    let good = |at: &usize| !scenario.is_bad(keys[*at]);
    let mut batch = Expected {
        pass,
        index,
        first,
        keys: keys.to_vec(),
        delivered: keys.iter().copied().map(Some).collect(),
        skipped: 0,
        substituted: 0,
    };
    for at in (0..keys.len()).filter(|at| !good(at)) {
        match scenario.on_error {
            OnError::Fail => return Err(at),
            OnError::Skip => {
                batch.delivered[at] = None;
                batch.skipped += 1;
            }
            OnError::Substitute => {
                let nearest = (0..keys.len())
                    .filter(good)
                    .min_by_key(|&other| (other.abs_diff(at), other))
                    .ok_or(at)?;
                batch.delivered[at] = Some(keys[nearest]);
                batch.substituted += 1;
            }
        }
    }
    Ok(batch)
}
