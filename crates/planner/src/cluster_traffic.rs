//! The content of all stores, the uses that they serve over a run, and the spread of these over
//! epochs.
//!
//! Counts are of the run as a whole. An epoch has three kinds of uses. The origin serves the first
//! uses of samples that are new in it, by way of the owner. A fixed part of the other uses of
//! samples with an owner is local. The origin serves every use of the remaining samples.

use std::sync::Arc;

use foreread_oracle::Run;

use crate::cluster::Cluster;
use crate::cluster_plan::new_bytes;
use crate::copies::{ForeignUses, expected};
use crate::demand::{Demand, EpochDemand};
use crate::forecast::{Amount, EpochForecast, StoreWork, forecast, uses_by_epoch};
use crate::knapsack::LevelFill;
use crate::level::MAX_LEVELS;
use crate::server_times::ServerTimes;
use crate::wide::narrow;

/// The content of one store, and its uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct StoreHolding {
    pub(crate) levels: [LevelFill; MAX_LEVELS],
    /// Uses of owned samples by all ranks.
    pub(crate) uses: Amount,
    /// First uses of owned samples by its own ranks, and the other uses of them by its own ranks.
    pub(crate) first: Amount,
    pub(crate) again: Amount,
    /// The second copies that it is expected to have in the end, and their uses.
    pub(crate) copies: [LevelFill; MAX_LEVELS],
    pub(crate) copied: Amount,
}

impl StoreHolding {
    pub(crate) fn hold(&mut self, filled: &[LevelFill; MAX_LEVELS]) {
        for (level, &filled) in self.levels.iter_mut().zip(filled) {
            *level = level.and(filled);
        }
    }

    /// The samples in it.
    pub(crate) fn owned(&self) -> Amount {
        let all = self.levels.iter().fold(LevelFill::default(), |all, &filled| all.and(filled));
        Amount { samples: all.samples, bytes: narrow(all.bytes) }
    }
}

/// The sources of a run's uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ClusterTraffic {
    /// All uses.
    pub(crate) uses: Amount,
    /// By dataset.
    datasets: Vec<Amount>,
    epochs: Arc<[EpochDemand]>,
    /// Bytes of all samples that are used at least once.
    distinct: u64,
    /// By store.
    ranks: Vec<u32>,
    owned: Vec<Amount>,
    holdings: Vec<StoreHolding>,
    /// The time of each storage server, if servers are known.
    servers: Option<ServerTimes>,
}

/// Adds the expected second copies to each store, in the free space `left` of its levels, for a run
/// of `epochs` epochs. If copies go by sample number, only as many samples may get one as fit.
/// Otherwise every sample of another store may.
pub(crate) fn expect_copies(
    cluster: &Cluster,
    ranks: &[u32],
    epochs: usize,
    holdings: &mut [StoreHolding],
    left: &[[u64; MAX_LEVELS]],
    by_number: bool,
) {
    let owned: Vec<Amount> = holdings.iter().map(StoreHolding::owned).collect();
    let all = sum(owned.iter().copied());
    let later = sum(holdings.iter().map(|holding| holding.uses)).minus(all).samples;
    let world: u128 = ranks.iter().map(|&ranks| u128::from(ranks)).sum();
    for (at, holding) in holdings.iter_mut().enumerate() {
        let others = all.minus(owned[at]);
        let Some(mean) = others.bytes.checked_div(others.samples) else { continue };
        let levels = cluster.stores[at].levels.iter().zip(&left[at]).map(|(level, left)| {
            let footprint = level.footprint.of(mean);
            (footprint, left.checked_div(footprint).unwrap_or(others.samples))
        });
        let levels: Vec<(u64, u64)> = levels.collect();
        let places = levels.iter().fold(0, |sum, level| level.1.saturating_add(sum)).min(others.samples);
        let share = Amount { samples: later, bytes: 0 }.share(ranks[at].into(), world).samples;
        let part_of_remote =
            Amount { samples: places, bytes: 0 }.share(others.samples.into(), all.samples.into());
        let (mut copies, served) = expected(ForeignUses {
            samples: others.samples,
            eligible: if by_number { part_of_remote.samples } else { others.samples },
            places,
            uses: share.saturating_sub(holding.again.samples),
            epochs: epochs.saturating_sub(1) as u64,
        });
        holding.copied = others.share(served.into(), others.samples.into());
        for (filled, (footprint, places)) in holding.copies.iter_mut().zip(levels) {
            let samples = copies.min(places);
            copies -= samples;
            *filled = LevelFill::of(samples, mean, footprint);
        }
    }
}

fn sum(amounts: impl Iterator<Item = Amount>) -> Amount {
    amounts.fold(Amount::default(), Amount::plus)
}

impl ClusterTraffic {
    pub(crate) fn new(
        demand: &Demand,
        ranks: &[u32],
        holdings: Vec<StoreHolding>,
        owned: Vec<Amount>,
    ) -> Self {
        let datasets: Vec<Amount> = demand
            .datasets
            .iter()
            .map(|dataset| Amount { samples: narrow(dataset.reads), bytes: narrow(dataset.bytes) })
            .collect();
        let distinct = demand.datasets.iter().fold(0, |sum, of| u64::saturating_add(sum, of.distinct));
        Self {
            uses: sum(datasets.iter().copied()),
            datasets,
            epochs: demand.epochs().into(),
            distinct,
            ranks: ranks.to_vec(),
            owned,
            holdings,
            servers: None,
        }
    }

    pub(crate) fn set_servers(&mut self, servers: ServerTimes) {
        self.servers = Some(servers);
    }

    /// Origin bytes of the whole run.
    pub(crate) fn origin_bytes(&self) -> u64 {
        let kept = sum(self.holdings.iter().map(|holding| holding.uses));
        let owned = sum(self.owned.iter().copied());
        self.uses.minus(kept).plus(owned).bytes
    }

    pub(crate) fn predict(&self, run: &Run, cluster: &Cluster) -> Vec<EpochForecast> {
        let mut epochs: Vec<EpochForecast> = Vec::new();
        let mut before = None;
        let used = uses_by_epoch(run, &self.datasets, run.world_size());
        for (index, (number, used)) in used.into_iter().enumerate() {
            let new = new_bytes(self.epochs.get(index));
            // Most epochs equal the one before.
            let same = before == Some((used, new));
            before = Some((used, new));
            epochs.push(match epochs.last() {
                Some(last) if same => EpochForecast { epoch: number, ..last.clone() },
                _ => self.epoch(cluster, number, used, new),
            });
        }
        epochs
    }

    fn epoch(&self, cluster: &Cluster, number: u64, used: Amount, new: u64) -> EpochForecast {
        let owned = sum(self.owned.iter().copied());
        let kept = sum(self.holdings.iter().map(|holding| holding.uses));
        // Uses of samples with an owner, and the first uses among them.
        let part = |of: Amount, part: Amount, whole: Amount| of.shares(part.both(), whole.both());
        let kept_now = part(used, kept, self.uses);
        let first = owned.share(new.into(), self.distinct.into());
        let rest = used.minus(kept_now);
        let again = kept_now.minus(first);
        let all_again = kept.minus(owned);
        let world: u128 = self.ranks.iter().map(|&ranks| u128::from(ranks)).sum();
        // Ranks read equal parts from each server.
        let slowest = self.servers.as_ref().map_or(0, |times| times.slowest(new, used));
        let server_ns = narrow(slowest / world.max(1));
        let mut stores = Vec::new();
        for (at, (holding, &ranks)) in self.holdings.iter().zip(&self.ranks).enumerate() {
            let used = used.share(ranks.into(), world);
            let mut work = StoreWork { ranks, used, server_ns, ..StoreWork::default() };
            let rest = rest.share(ranks.into(), world);
            work.origin = part(first, self.owned[at], owned).plus(rest);
            work.origin_own = part(first, holding.first, owned).plus(rest);
            let near = part(again, holding.again.plus(holding.copied), all_again);
            work.received = work.used.minus(near).minus(work.origin_own);
            stores.push((at, near, work));
        }
        // Owners send the bytes that others receive, in proportion to the uses of their samples by
        // others.
        let far = |holding: &StoreHolding| holding.uses.minus(holding.first).minus(holding.again);
        let received = sum(stores.iter().map(|(_, _, work)| work.received));
        let all_far = sum(self.holdings.iter().map(far));
        let mut works = Vec::new();
        for (at, near, mut work) in stores {
            let holding = &self.holdings[at];
            work.sent = part(received, far(holding), all_far);
            let held = holding.owned();
            for (level, filled) in holding.levels.iter().enumerate() {
                let here = Amount { samples: filled.samples, bytes: narrow(filled.bytes) };
                work.near[level] = part(near, here, held);
                work.read[level] = part(near.plus(work.sent), here, held);
                work.written[level] = part(part(first, self.owned[at], owned), here, held);
            }
            works.push((at, work));
        }
        forecast(cluster, number, &works, 1)
    }
}
