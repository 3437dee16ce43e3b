//! The samples of stored units, and when this run uses them next.
//!
//! Samples that share a unit follow one another in the catalog, so neighbours are found by looking
//! at entries in both directions. A search ends after [`MOST_NEIGHBOURS`] samples: a dictionary
//! that a million rows share would take a second each time. The order comes from the run, whose
//! passes are computed a second time here. So a look beyond the trainer's pass never discards an
//! order that the trainer needs.

use foreread_dataset::Catalog;
use foreread_layers::{Neighbour, UnitContents};
use foreread_oracle::Run;
use foreread_planner::LocalPlan;
use foreread_tier::{Span, StoredPart};
use foreread_types::{SampleId, SampleKey, Tick};

/// The most neighbours of a sample in each direction.
const MOST_NEIGHBOURS: u64 = 1 << 16;

/// Uses count as soon within this part of a pass: 9 of 10. So two passes at a time are in use.
const SOON: (u128, u128) = (9, 10);

/// The facts of stored units in one run.
#[derive(Debug)]
pub(crate) struct RunUnits {
    run: Run,
    plan: LocalPlan,
    catalogs: Vec<Catalog>,
}

impl RunUnits {
    /// The units in these catalogs, numbered as in the schedule.
    pub(crate) fn new(run: &Run, plan: LocalPlan, catalogs: Vec<Catalog>) -> Self {
        Self { run: run.separate(), plan, catalogs }
    }

    /// Whether a cache has the sample after its first use.
    fn is_cached(&self, key: SampleKey) -> bool {
        self.plan.level(key).is_some()
    }
}

impl UnitContents for RunUnits {
    fn neighbours(&self, key: SampleKey, part: u32) -> Vec<Neighbour> {
        let Some(catalog) = self.catalogs.get(key.dataset.0 as usize) else { return Vec::new() };
        let Some((path, parts)) = made(catalog, key.id) else { return Vec::new() };
        let Some(unit) = parts.get(part as usize) else { return Vec::new() };
        let in_unit = |id: u64| -> Option<Vec<Neighbour>> {
            let Some((of, parts)) = made(catalog, SampleId(id)) else {
                // Empty samples need no unit, and lie between others.
                return (catalog.sizes().bytes(SampleId(id)) == 0).then(Vec::new);
            };
            if of != path {
                return None;
            }
            let found = (0..).zip(&*parts).filter(|(_, part)| part.is_same_unit(unit));
            let key = SampleKey { id: SampleId(id), ..key };
            let found: Vec<Neighbour> =
                found.map(|(part, of)| Neighbour { key, part, delivered: of.delivered.clone() }).collect();
            (!found.is_empty()).then_some(found)
        };
        let at = key.id.0;
        let after = (at + 1..catalog.len().min(at.saturating_add(MOST_NEIGHBOURS))).map_while(in_unit);
        let before = (at.saturating_sub(MOST_NEIGHBOURS)..at).rev().map_while(in_unit);
        after.chain(before).flatten().collect()
    }

    fn next_use(&self, key: SampleKey, after: Tick) -> Option<Tick> {
        let pass = self.run.pass_of(after)?;
        let from = after.0.checked_add(1)?;
        let soon = from.saturating_add((u128::from(pass.samples) * SOON.0 / SOON.1) as u64);
        if !self.is_cached(key) {
            return self.run.next_use_within(key, Tick(from), Tick(soon));
        }
        // A cache has it from its first use on: in the first pass over its dataset, or in the
        // second one if the first was resumed within.
        let resumed = usize::from(self.run.start().consumed > 0);
        let is_used = || self.run.next_use_within(key, Tick(0), after).is_some();
        if pass.index >= self.run.schedule().phases.len() + resumed || is_used() {
            return None;
        }
        let end = soon.max((pass.first_tick.0 + pass.samples).saturating_sub(1));
        self.run.next_use_within(key, Tick(from), Tick(end))
    }
}

/// The object of a sample, and its parts, if it is decoded.
fn made(catalog: &Catalog, id: SampleId) -> Option<(std::sync::Arc<str>, std::sync::Arc<[StoredPart]>)> {
    let entry = catalog.entry(id).ok()?;
    match entry.span {
        Span::Made(parts) => Some((entry.object.path, parts)),
        Span::Whole | Span::Range(_) => None,
    }
}
