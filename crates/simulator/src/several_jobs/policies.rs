//! The policies of caches that several jobs use.

use foreread_oracle::{Order, Sampler as _};
use foreread_planner::policies::{self, CacheOutcome};
use foreread_planner::{AnnouncedUses, CacheUse, DatasetCosts, JobStart, NextUseCache, SharedMiss};
use foreread_types::{SampleId, Sizes};

use super::merged_uses::{MergedUses, NS_PER_SAMPLE, OrderCursor};
use super::scenario::JobsScenario;
use crate::error::SimulateError;
use crate::named::named;

named! {
    /// A policy of a cache that several jobs use.
    pub enum JobsPolicy is a "policy" {
        /// Belady's MIN over the uses of all jobs, whose times are known in advance.
        Min "min",
        /// foreread: the nearest predicted next use by any job.
        NextUse "next-use",
        /// foreread with a byte per sample: a sample stays if another use is announced.
        AnnouncedUse "announced-use",
        /// The least recently used sample leaves.
        Lru "lru",
        /// The first samples stay.
        NeverEvict "never-evict",
        /// Each job has its own part of the cache and never evicts.
        Private "private",
    }
}

impl JobsPolicy {
    /// The hits and writes of the measured epochs, and the number of their uses.
    pub(super) fn run(
        self,
        scenario: &JobsScenario,
        merged: &MergedUses,
    ) -> Result<(CacheOutcome, u64), SimulateError> {
        let capacity = scenario.capacity();
        let mut counter = MeasuredUses { merged, outcome: CacheOutcome::default(), uses: 0 };
        let all: Vec<usize> = (0..merged.uses.len()).collect();
        match self {
            Self::Min => policies::min_each(&merged.ids(&all), capacity, |at, it| counter.count(at, it)),
            Self::Lru => policies::lru_each(&merged.ids(&all), capacity, |at, it| counter.count(at, it)),
            Self::NeverEvict => {
                policies::never_evict_each(&merged.ids(&all), capacity, |at, it| counter.count(at, it));
            }
            Self::Private => {
                let jobs = scenario.paces.len();
                for job in 0..jobs as u32 {
                    let own: Vec<usize> =
                        all.iter().copied().filter(|&at| merged.uses[at].job == job).collect();
                    let capacity = capacity / jobs as u64;
                    policies::never_evict_each(&merged.ids(&own), capacity, |at, it| {
                        counter.count(own[at], it);
                    });
                }
            }
            Self::NextUse => next_use(scenario, merged, &mut counter)?,
            Self::AnnouncedUse => announced_use(scenario, merged, &mut counter)?,
        }
        Ok((counter.outcome, counter.uses))
    }
}

/// Counts the uses of the measured epochs.
struct MeasuredUses<'a> {
    merged: &'a MergedUses,
    outcome: CacheOutcome,
    uses: u64,
}

impl MeasuredUses<'_> {
    fn count(&mut self, at: usize, it: CacheUse) {
        if self.merged.is_measured(&self.merged.uses[at]) {
            self.outcome.count(it);
            self.uses += 1;
        }
    }
}

/// All ids of an order.
fn ids(order: &Order) -> impl Iterator<Item = SampleId> + '_ {
    (0..order.len()).map(|at| order.at(at))
}

fn next_use(
    scenario: &JobsScenario,
    merged: &MergedUses,
    counter: &mut MeasuredUses<'_>,
) -> Result<(), SimulateError> {
    let mut cache = NextUseCache::new(scenario.capacity());
    let sizes = Sizes::uniform(u64::from(scenario.samples), 1);
    let dataset = cache.add_dataset(DatasetCosts::new(sizes))?;
    let mut jobs = vec![None; scenario.paces.len()];
    let mut evicted = Vec::new();
    for (at, it) in merged.uses.iter().enumerate() {
        let index = it.job as usize;
        let order = |epoch: u32| merged.samplers[index].order(u64::from(epoch));
        let job = match jobs[index] {
            Some(job) if it.position > 0 => job,
            Some(job) => {
                cache.begin_epoch(job, Some(ids(&order(it.epoch + 1)?)))?;
                job
            }
            None => {
                let ns_per_sample = (NS_PER_SAMPLE / scenario.paces[index]) as u64;
                let start = JobStart { now_ns: it.ns, position: 0, ns_per_sample };
                let (first, second) = (order(0)?, order(1)?);
                *jobs[index].insert(cache.add_job(dataset, start, ids(&first), Some(ids(&second)))?)
            }
        };
        evicted.clear();
        let sample = SampleId(u64::from(it.sample));
        counter.count(at, cache.used(job, it.position, sample, it.ns, &mut evicted));
    }
    Ok(())
}

/// Each job announces as many uses as it expects within the horizon.
fn announced_use(
    scenario: &JobsScenario,
    merged: &MergedUses,
    counter: &mut MeasuredUses<'_>,
) -> Result<(), SimulateError> {
    let samples = u64::from(scenario.samples);
    let horizon = SharedMiss::of(&scenario.paces, scenario.cache).horizon;
    let mut cache = AnnouncedUses::new(samples, scenario.capacity())?;
    let mut ahead = Vec::new();
    for (pace, sampler) in scenario.paces.iter().zip(&merged.samplers) {
        let window = (horizon * pace * f64::from(scenario.samples)).round().max(1.0) as u64;
        let mut cursor = OrderCursor::new(sampler)?;
        for _ in 0..window {
            cache.announce(cursor.next()?);
        }
        ahead.push(cursor);
    }
    for (at, it) in merged.uses.iter().enumerate() {
        cache.announce(ahead[it.job as usize].next()?);
        counter.count(at, cache.used(SampleId(u64::from(it.sample)), 1));
    }
    Ok(())
}
