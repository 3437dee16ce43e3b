//! The policies of caches that several jobs use.

use std::fmt;
use std::str::FromStr;

use foreread_oracle::{Order, Sampler as _};
use foreread_planner::policies::{self, CacheOutcome};
use foreread_planner::{AnnouncedUses, CacheUse, DatasetCosts, JobStart, NextUse, SharedMiss};
use foreread_types::{SampleId, Sizes};
use serde::{Serialize, Serializer};

use super::merged_uses::{MergedUse, MergedUses, NS_PER_SAMPLE, OrderCursor};
use super::scenario::JobsScenario;
use crate::error::{SimulateError, SimulateReason};

/// A policy of a cache that several jobs use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum JobsPolicy {
    /// Belady's MIN over the uses of all jobs, whose times are known in advance.
    Min,
    /// foreread: the nearest predicted next use by any job.
    NextUse,
    /// foreread with a byte per sample: a sample stays if another use is announced.
    AnnouncedUse,
    /// The least recently used sample leaves.
    Lru,
    /// The first samples stay.
    NeverEvict,
    /// Each job has its own part of the cache and never evicts.
    Private,
}

impl JobsPolicy {
    /// All policies, in the order of reports.
    pub const ALL: [Self; 6] =
        [Self::Min, Self::NextUse, Self::AnnouncedUse, Self::Lru, Self::NeverEvict, Self::Private];

    /// The policy's name in the command line and in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Min => "min",
            Self::NextUse => "next-use",
            Self::AnnouncedUse => "announced-use",
            Self::Lru => "lru",
            Self::NeverEvict => "never-evict",
            Self::Private => "private",
        }
    }

    /// The hits and writes of the measured part.
    pub(super) fn run(
        self,
        scenario: &JobsScenario,
        merged: &MergedUses,
    ) -> Result<CacheOutcome, SimulateError> {
        let capacity = scenario.capacity();
        let shared = |policy: fn(&[SampleId], u64) -> CacheOutcome| {
            measured(policy, &MergedUses::ids(&merged.uses, None), merged.warm_up, capacity)
        };
        match self {
            Self::Min => Ok(shared(policies::min)),
            Self::Lru => Ok(shared(policies::lru)),
            Self::NeverEvict => Ok(shared(policies::never_evict)),
            Self::Private => Ok(private(scenario, merged)),
            Self::NextUse => next_use(scenario, merged),
            Self::AnnouncedUse => announced_use(scenario, merged),
        }
    }
}

impl fmt::Display for JobsPolicy {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.pad(self.name())
    }
}

impl Serialize for JobsPolicy {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

impl FromStr for JobsPolicy {
    type Err = SimulateError;

    fn from_str(name: &str) -> Result<Self, SimulateError> {
        let known = || Self::ALL.map(Self::name).join(" ");
        let found = Self::ALL.into_iter().find(|policy| policy.name() == name);
        found.ok_or_else(|| SimulateReason::Policy { name: name.to_owned(), known: known() }.into())
    }
}

/// The outcome after the first `warm_up` uses.
fn measured(
    policy: fn(&[SampleId], u64) -> CacheOutcome,
    ids: &[SampleId],
    warm_up: usize,
    capacity: u64,
) -> CacheOutcome {
    let (all, before) = (policy(ids, capacity), policy(&ids[..warm_up], capacity));
    // MIN knows in both runs when the uses end, so the last ones of both are alike.
    CacheOutcome {
        hits: all.hits.saturating_sub(before.hits),
        writes: all.writes.saturating_sub(before.writes),
    }
}

fn private(scenario: &JobsScenario, merged: &MergedUses) -> CacheOutcome {
    let jobs = scenario.paces.len() as u64;
    let mut sum = CacheOutcome::default();
    for job in 0..jobs {
        let ids = MergedUses::ids(&merged.uses, Some(job as u32));
        let warm_up = MergedUses::ids(&merged.uses[..merged.warm_up], Some(job as u32)).len();
        let outcome = measured(policies::never_evict, &ids, warm_up, scenario.capacity() / jobs);
        sum.hits += outcome.hits;
        sum.writes += outcome.writes;
    }
    sum
}

/// Counts the uses of the measured part.
fn count(
    merged: &MergedUses,
    mut each: impl FnMut(&MergedUse) -> Result<CacheUse, SimulateError>,
) -> Result<CacheOutcome, SimulateError> {
    let mut sum = CacheOutcome::default();
    for (at, it) in merged.uses.iter().enumerate() {
        let CacheUse { hit, kept } = each(it)?;
        if at >= merged.warm_up {
            sum.hits += u64::from(hit);
            sum.writes += u64::from(kept && !hit);
        }
    }
    Ok(sum)
}

/// All ids of an order.
fn ids(order: &Order, samples: u32) -> impl Iterator<Item = SampleId> + '_ {
    (0..u64::from(samples)).map(|at| order.at(at))
}

fn next_use(scenario: &JobsScenario, merged: &MergedUses) -> Result<CacheOutcome, SimulateError> {
    let mut cache = NextUse::new(scenario.capacity());
    let sizes = Sizes::uniform(u64::from(scenario.samples), 1);
    let dataset = cache.add_dataset(DatasetCosts::new(sizes))?;
    let mut jobs = vec![None; scenario.paces.len()];
    let mut epochs = vec![0; scenario.paces.len()];
    let mut evicted = Vec::new();
    count(merged, |it| {
        let index = it.job as usize;
        let order = |epoch| merged.samplers[index].order(epoch);
        let job = match jobs[index] {
            Some(job) if it.position > 0 => job,
            Some(job) => {
                epochs[index] += 1;
                cache.begin_epoch(job, Some(ids(&order(epochs[index] + 1)?, scenario.samples)))?;
                job
            }
            None => {
                let ns_per_sample = (NS_PER_SAMPLE / scenario.paces[index]) as u64;
                let start = JobStart { now_ns: it.ns, position: 0, ns_per_sample };
                let (first, second) = (order(0)?, order(1)?);
                let (first, second) = (ids(&first, scenario.samples), ids(&second, scenario.samples));
                *jobs[index].insert(cache.add_job(dataset, start, first, Some(second))?)
            }
        };
        evicted.clear();
        Ok(cache.used(job, it.position, SampleId(u64::from(it.sample)), it.ns, &mut evicted))
    })
}

/// Each job announces as many uses as it expects within the horizon.
fn announced_use(scenario: &JobsScenario, merged: &MergedUses) -> Result<CacheOutcome, SimulateError> {
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
    count(merged, |it| {
        cache.announce(ahead[it.job as usize].next()?);
        Ok(cache.used(SampleId(u64::from(it.sample)), 1))
    })
}
