//! The plan for all ranks: the owner of each sample, and the expected source of each read.
//!
//! # The decision, and its price
//!
//! The cluster's caches are one cache. Every sample has at most one owner until all have one. Only
//! the space that is then left takes second copies. So the origin is read as seldom as one cache
//! with all the bytes allows, which is the lower bound.
//!
//! The rank that reads a sample first owns it. So no sample moves between ranks in the first epoch,
//! and a plan costs one order, whatever the length of the run. The price is described at
//! [`readers`](crate::readers). If the caches hold everything, shards may be owned in
//! [blocks](crate::block_owners) instead ([`plan_cluster_in_blocks`]).
//!
//! A plan follows from the run's orders, the sizes and the cluster's description, in integers. So
//! all ranks compute the same plan without communication. They compare [`ClusterPlan::fingerprint`]
//! when they meet. A rank keeps only its store's second copies.

use std::cmp::Reverse;
use std::sync::Arc;

use foreread_oracle::{Fingerprinter, Run};
use foreread_types::{DatasetId, Fingerprint, SampleId, SampleKey, Sizes, StoreId};

use crate::assign::{DatasetSamples, assign};
use crate::block_owners::BlockRanges;
use crate::cluster::Cluster;
use crate::cluster_traffic::{ClusterTraffic, StoreHolding, expect_copies};
use crate::copies::{CopyChooser, SecondCopy, StoreCopies};
use crate::demand::{Demand, EpochDemand, Scope, UseCounts, check};
use crate::error::{PlanError, PlanReason};
use crate::forecast::{Amount, EpochForecast};
use crate::free_space::FreeSpace;
use crate::knapsack::{LevelFill, worth};
use crate::level::{LevelIndex, MAX_LEVELS};
use crate::lower_bound::LowerBound;
use crate::owners::{DatasetOwners, NO_OWNER, Owners, PackedOwner, SampleOwner, pack, unpack};
use crate::placement::{LevelTable, Placement};
use crate::plan::LevelPlan;
use crate::readers::{first, repeated};
use crate::rule::OwnerRule;
use crate::server_times::ServerGain;
use crate::slow_levels::{self, SlowLevels};
use crate::wide::narrow;

/// Changes whenever equal inputs give another plan than before. Ranks of different releases compare
/// it before they compare plans.
pub const PLANNER_VERSION: u64 = 2;

/// Above this number of samples a rule replaces the tables if possible.
const MAX_TABLE_SAMPLES: u64 = 1 << 20;

/// Above this number of samples a rule is used even if caches hold samples at the start or shards
/// have blocks. The rule ignores both.
const MAX_HELD_SAMPLES: u64 = 1 << 26;

/// The maximum number of samples in tables. They are numbered with 32 bits.
const MAX_SAMPLES: u64 = u32::MAX as u64;

/// The location of a run's samples in a cluster, and the cost. Equal inputs give equal plans on
/// every rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterPlan {
    owners: Owners,
    copies: Placement,
    floor: LowerBound,
    origin_bytes: u64,
    stores: Vec<StorePlan>,
    pub(crate) traffic: ClusterTraffic,
    pub(crate) server_gain: Option<ServerGain>,
    in_blocks: bool,
    print: Fingerprint,
}

/// The samples that one store holds, and the uses that it serves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StorePlan {
    /// The number of the store.
    pub id: StoreId,
    /// The number of its ranks.
    pub ranks: u32,
    /// The content of each level, including second copies.
    pub levels: Vec<LevelPlan>,
    /// The samples that it owns.
    pub owned: Amount,
    /// Second copies. For the store of the rank whose run was planned, the copies that fit. For
    /// other stores, the number that their ranks are expected to make.
    pub copies: Amount,
    /// The expected number of uses by its own ranks of samples in it, over the run.
    pub local: Amount,
}

/// Plans the location of the samples of `run` in `cluster` for all ranks. `run` may be any rank's.
///
/// `sizes` are indexed by [`DatasetId`]. The plan covers the rest of the run, with caches that hold
/// [`Cluster::held`] at its start and nothing else. [`ClusterPlan::predict`] counts them as cold.
///
/// Tables take 4 bytes per sample, and two bits for second copies. A rule without memory per sample
/// replaces them under three conditions. Every order is computed (`feistel`, `sequential`). All
/// samples of a dataset have one size. There are more than 2^20 samples.
///
/// # Errors
/// An invalid cluster description, sizes that are missing or of another dataset, or 2^32 samples or
/// more without a rule. Also tables that do not fit in memory, and the errors of the oracle.
///
/// ```
/// use std::sync::Arc;
/// use foreread_oracle::{Deal, Phase, PhaseKind, Run, Schedule, Shuffle};
/// use foreread_planner::{Cluster, Level, Ranks, CacheStore, plan_cluster};
/// use foreread_types::{DatasetId, Footprint, Rank, SampleId, SampleKey, Sizes, StoreId};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let train = Phase {
///     kind: PhaseKind::Train,
///     dataset: DatasetId(0),
///     sampler: Arc::new(Shuffle::new(1000, 42)?),
///     batch_size: Some(25),
///     drop_last: false,
/// };
/// let run = Run::new(Arc::new(Schedule::new(3, vec![train])?), Deal::Torch, 4, Rank(0))?;
/// // Four ranks with memory for a fifth each: four fifths of the dataset.
/// let memory = Level::new("memory", 20_000, Footprint::EXACT);
/// let stores = (0..4).map(|id| CacheStore::new(StoreId(id), vec![memory.clone()])).collect();
/// let cluster = Cluster { stores, ranks: Ranks::PerStore(1), ..Cluster::default() };
/// let plan = plan_cluster(&run, &[Sizes::uniform(1000, 100)], &cluster)?;
/// assert_eq!(plan.origin_bytes(), 100_000 + 2 * 20_000);
/// assert_eq!(plan.origin_bytes(), plan.floor());
/// let owned = (0..1000).filter(|&id| {
///     plan.owner(SampleKey::new(DatasetId(0), SampleId(id))).is_some_and(|owner| owner.store == 2)
/// });
/// assert_eq!(owned.count(), 200);
/// # Ok(())
/// # }
/// ```
pub fn plan_cluster(run: &Run, sizes: &[Sizes], cluster: &Cluster) -> Result<ClusterPlan, PlanError> {
    plan_cluster_in_blocks(run, sizes, cluster, BlockRanges::default())
}

/// As [`plan_cluster`], with one owner for all samples of a block. If not every sample that is used
/// again can have an owner, the plan is that of [`plan_cluster`]. A rule, above 2^26 samples,
/// ignores blocks, too. See [`ClusterPlan::is_in_blocks`].
///
/// # Errors
/// As [`plan_cluster`].
pub fn plan_cluster_in_blocks(
    run: &Run,
    sizes: &[Sizes],
    cluster: &Cluster,
    blocks: BlockRanges<'_>,
) -> Result<ClusterPlan, PlanError> {
    Ok(planned(run, sizes, (cluster, blocks), false, MAX_TABLE_SAMPLES)?.0)
}

/// As [`plan_cluster`], for a caller that considers all ranks at once, such as a simulation.
/// Returns the plan and the second copies of every store. A rank's plan has only those of its
/// store.
///
/// # Errors
/// As [`plan_cluster`].
pub fn plan_cluster_and_copies(
    run: &Run,
    sizes: &[Sizes],
    cluster: &Cluster,
) -> Result<(ClusterPlan, Vec<SecondCopy>), PlanError> {
    planned(run, sizes, (cluster, BlockRanges::default()), true, MAX_TABLE_SAMPLES)
}

fn planned(
    run: &Run,
    sizes: &[Sizes],
    (cluster, blocks): (&Cluster, BlockRanges<'_>),
    all_copies: bool,
    table_most: u64,
) -> Result<(ClusterPlan, Vec<SecondCopy>), PlanError> {
    cluster.check(run.world_size())?;
    check(run, sizes)?;
    let room = u128::from(cluster.capacity()) + u128::from(cluster.look_ahead) * u128::from(run.world_size());
    let samples = used(run, sizes).map(|dataset| sizes[dataset].len()).fold(0, u64::saturating_add);
    let stores = &cluster.stores_of_ranks(run.world_size());
    let (used, slower) = slow_levels::without_slow_levels(cluster, run, sizes).unzip();
    let (described, cluster) = (cluster, used.as_ref().unwrap_or(cluster));
    let slower = slower.unwrap_or_default();
    let planning = ClusterPlanner { run, sizes, cluster, described, slower, stores, all_copies, blocks };
    let needs_table = !cluster.held.is_empty() || !blocks.ranges.is_empty();
    if samples > table_most && planning.is_ruled() && (!needs_table || samples > MAX_HELD_SAMPLES) {
        // Whole passes are arithmetic. Others are estimated.
        let demand = Demand::within(run, sizes, Scope::Cluster, 0)?;
        return Ok((planning.rule(&demand, LowerBound::of_demand(&demand, narrow(room)))?, Vec::new()));
    }
    if samples > MAX_SAMPLES {
        return Err(PlanReason::Samples { samples, most: MAX_SAMPLES }.into());
    }
    let demand = Demand::of(run, sizes, Scope::Cluster)?;
    planning.by_server(&demand, LowerBound::of_demand(&demand, narrow(room)))
}

/// The datasets that a run reads.
fn used<'a>(run: &'a Run, sizes: &'a [Sizes]) -> impl Iterator<Item = usize> + 'a {
    let phases = &run.schedule().phases;
    (0..sizes.len()).filter(|&dataset| phases.iter().any(|phase| phase.dataset.0 as usize == dataset))
}

/// The second copies of the rank's own store: a table per dataset, and the content of each level.
type OwnCopies = (Vec<LevelTable>, [LevelFill; MAX_LEVELS]);

pub(crate) struct ClusterPlanner<'a> {
    pub(crate) run: &'a Run,
    pub(crate) sizes: &'a [Sizes],
    pub(crate) cluster: &'a Cluster,
    /// The description with the levels that stay empty because the origin is faster, and the list
    /// of those levels.
    pub(crate) described: &'a Cluster,
    pub(crate) slower: SlowLevels,
    /// By rank.
    pub(crate) stores: &'a [u16],
    /// Whether the second copies of all stores are requested.
    pub(crate) all_copies: bool,
    pub(crate) blocks: BlockRanges<'a>,
}

impl ClusterPlanner<'_> {
    /// Whether a rule can assign every dataset of the run.
    fn is_ruled(&self) -> bool {
        self.run.schedule().phases.iter().all(|phase| {
            let sampler = &phase.sampler;
            let whole = sampler.is_distinct() && sampler.len() == sampler.population();
            sampler.is_computed() && whole && self.sizes[phase.dataset.0 as usize].is_uniform()
        })
    }

    pub(crate) fn table(
        &self,
        demand: &Demand,
        floor: LowerBound,
    ) -> Result<(ClusterPlan, Vec<SecondCopy>), PlanError> {
        let mut datasets = Vec::new();
        for (dataset, (sizes, demand)) in self.sizes.iter().zip(&demand.datasets).enumerate() {
            let dataset = DatasetId(dataset as u32);
            let first = first(self.run, dataset, sizes.len(), self.stores)?;
            datasets.push(DatasetSamples { dataset, sizes, uses: &demand.uses, first });
        }
        let (ranks, mut own, mut all) = (self.cluster.ranks_of(self.stores), None, Vec::new());
        let assigned = |blocks: BlockRanges<'_>| -> Result<_, PlanReason> {
            let mut free = FreeSpace::new(self.cluster);
            let owners = assign(self.cluster, &datasets, (blocks, &ranks), &mut free)?;
            let complete = datasets.iter().zip(&owners).all(|(part, owners)| {
                (0..).zip(owners).all(|(id, &owner)| owner != NO_OWNER || part.uses.of(SampleId(id)) <= 1)
            });
            Ok((free, owners, complete))
        };
        let (mut free, mut owners, mut complete) = assigned(self.blocks)?;
        let in_blocks = complete && !self.blocks.ranges.is_empty();
        if !complete && !self.blocks.ranges.is_empty() {
            (free, owners, complete) = assigned(BlockRanges::default())?;
        }
        let mut holdings = self.holdings(&datasets, &owners)?;
        if complete {
            let left: Vec<_> = (0..self.cluster.stores.len()).map(|store| free.left(store)).collect();
            expect_copies(self.cluster, &ranks, demand.epochs().len(), &mut holdings, &left, false);
            let own_store = self.own_store();
            let wanted =
                left.into_iter().enumerate().filter(|(store, _)| self.all_copies || *store == own_store);
            let (run, cluster, stores) = (self.run, self.cluster, self.stores);
            let choice = CopyChooser { run, cluster, datasets: &datasets, owners: &owners, stores };
            let chosen = choice.choose(wanted)?;
            if self.all_copies {
                all = chosen.iter().flat_map(StoreCopies::list).collect();
            }
            own = chosen.into_iter().find(|copies| copies.store == own_store);
        }
        let held = self.held(&datasets, &owners);
        let owners = owners.into_iter().map(|owners| match owners.iter().all(|&owner| owner == NO_OWNER) {
            true => DatasetOwners::Unowned,
            false => DatasetOwners::Table(Arc::new(owners)),
        });
        let floor = LowerBound { bytes: floor.bytes.saturating_sub(held), ..floor };
        let own = own.map(|copies| (copies.tables, copies.filled));
        let plan = self.finish(demand, floor, held, Owners::new(owners.collect()), holdings, own);
        Ok((ClusterPlan { in_blocks, ..plan }, all))
    }

    /// The position of the store of the rank whose run is planned.
    fn own_store(&self) -> usize {
        usize::from(self.stores[self.run.rank().0 as usize])
    }

    /// Bytes of the samples that stay where they were found, which need no origin read.
    fn held(&self, datasets: &[DatasetSamples<'_>], owners: &[Vec<PackedOwner>]) -> u64 {
        let mut bytes = 0u64;
        for (part, owners) in datasets.iter().zip(owners) {
            for (id, store, level) in self.cluster.held.of(part.dataset.0 as usize) {
                if owners.get(id as usize) == Some(&pack(store, level)) {
                    bytes = bytes.saturating_add(part.sizes.bytes(SampleId(id)));
                }
            }
        }
        bytes
    }

    fn holdings(
        &self,
        datasets: &[DatasetSamples<'_>],
        owners: &[Vec<PackedOwner>],
    ) -> Result<Vec<StoreHolding>, PlanError> {
        let stores = self.cluster.stores.len();
        let mut holdings = vec![StoreHolding::default(); stores];
        for (part, owners) in datasets.iter().zip(owners) {
            // Uses after the first, by all ranks.
            let mut later = Amount::default();
            for (id, &packed) in owners.iter().enumerate() {
                let Some((store, level)) = unpack(packed) else { continue };
                let (uses, bytes) =
                    (part.uses.of(SampleId(id as u64)), part.sizes.bytes(SampleId(id as u64)));
                let times = |uses| Amount::of(uses, bytes);
                let holding = &mut holdings[store];
                let level = usize::from(level.0);
                let footprint = self.cluster.stores[store].levels[level].footprint.of(bytes);
                holding.levels[level] = holding.levels[level].and(LevelFill::of(1, bytes, footprint));
                holding.uses = holding.uses.plus(times(uses));
                if usize::from(part.first[id]) == store {
                    holding.first = holding.first.plus(times(1));
                }
                later = later.plus(times(uses.saturating_sub(1)));
            }
            let repeated = repeated(self.run, part.dataset, self.stores, owners, stores)?;
            for (holding, &near) in holdings.iter_mut().zip(&repeated.near) {
                holding.again = holding.again.plus(later.share(near.into(), repeated.owned.into()));
            }
        }
        Ok(holdings)
    }

    fn rule(&self, demand: &Demand, floor: LowerBound) -> Result<ClusterPlan, PlanError> {
        let ranks = self.cluster.ranks_of(self.stores);
        let (stores, world) = (self.cluster.stores.len(), self.run.world_size());
        let mut owners = vec![DatasetOwners::Unowned; self.sizes.len()];
        let mut complete = true;
        let mut holdings = vec![StoreHolding::default(); stores];
        let mut left: Vec<[u64; MAX_LEVELS]> = vec![[0; MAX_LEVELS]; stores];
        for (left, store) in left.iter_mut().zip(&self.cluster.stores) {
            left.iter_mut().zip(&store.levels).for_each(|(left, level)| *left = level.capacity);
        }
        for (dataset, uses) in self.by_worth(demand) {
            let bytes = self.sizes[dataset].bytes(SampleId(0));
            let Some(pass) = self.run.passes().find(|pass| pass.dataset.0 as usize == dataset) else {
                continue;
            };
            let mut places = vec![[0; MAX_LEVELS]; stores];
            for ((places, left), store) in places.iter_mut().zip(&left).zip(&self.cluster.stores) {
                for ((places, &left), level) in places.iter_mut().zip(left).zip(&store.levels) {
                    let most = self.sizes[dataset].len();
                    *places = left.checked_div(level.footprint.of(bytes)).unwrap_or(most).min(most);
                }
            }
            let phase = &self.run.schedule().phases[pass.phase as usize];
            let print = Fingerprinter::new("rule 1").part(phase.sampler.fingerprint()).number(pass.epoch);
            let order = phase.order(pass.epoch)?;
            let rule = OwnerRule::new(&order, self.run.dealing(&pass), self.stores, &places, print);
            let mut kept = 0;
            for (at, held) in rule.held(stores).into_iter().enumerate() {
                let holding = &mut holdings[at];
                for (index, level) in self.cluster.stores[at].levels.iter().enumerate() {
                    let samples = held.levels[index];
                    let filled = LevelFill::of(samples, bytes, level.footprint.of(bytes));
                    left[at][index] = left[at][index].saturating_sub(filled.footprint);
                    holding.levels[index] = holding.levels[index].and(filled);
                }
                let owned: u64 = held.levels.iter().sum();
                kept += owned;
                let times = |samples| Amount::of(samples, bytes);
                holding.uses = holding.uses.plus(times(owned.saturating_mul(uses)));
                holding.first = holding.first.plus(times(held.first));
                let again = times(owned.saturating_mul(uses - 1));
                holding.again = holding.again.plus(again.share(ranks[at].into(), world.into()));
            }
            complete &= kept == self.sizes[dataset].len();
            owners[dataset] = DatasetOwners::Rule(rule);
        }
        let mut own = None;
        if complete {
            expect_copies(self.cluster, &ranks, demand.epochs().len(), &mut holdings, &left, true);
            own = Some(self.copies_by_id(demand, left[self.own_store()]));
        }
        Ok(self.finish(demand, floor, 0, Owners::new(owners), holdings, own))
    }

    /// Second copies of the rank's own store under a rule: the first samples of each dataset that
    /// fit. Samples that the store owns count among them, so no search is needed.
    fn copies_by_id(&self, demand: &Demand, mut left: [u64; MAX_LEVELS]) -> OwnCopies {
        let mut tables = vec![LevelTable::NOTHING; self.sizes.len()];
        let mut filled = [LevelFill::default(); MAX_LEVELS];
        let levels = &self.cluster.stores[self.own_store()].levels;
        for (dataset, _) in self.by_worth(demand).into_iter().filter(|&(_, uses)| uses > 2) {
            let (bytes, samples) = (self.sizes[dataset].bytes(SampleId(0)), self.sizes[dataset].len());
            let (mut ends, mut end) = ([0; MAX_LEVELS], 0);
            for (at, (ends, left)) in ends.iter_mut().zip(&mut left).enumerate() {
                if let Some(footprint) = levels.get(at).map(|level| level.footprint.of(bytes)) {
                    let here = left.checked_div(footprint).unwrap_or(u64::MAX).min(samples - end);
                    *left -= here * footprint;
                    end += here;
                    filled[at] = filled[at].and(LevelFill::of(here, bytes, footprint));
                }
                *ends = end;
            }
            tables[dataset] = LevelTable::Ranges(ends);
        }
        (tables, filled)
    }

    /// The datasets whose samples are worth keeping, with their uses, best first.
    fn by_worth(&self, demand: &Demand) -> Vec<(usize, u64)> {
        let mut datasets: Vec<_> = used(self.run, self.sizes)
            .filter(|&dataset| !self.sizes[dataset].is_empty())
            .filter_map(|dataset| match demand.datasets[dataset].uses {
                UseCounts::Same(uses) if uses > 1 => {
                    let bytes = self.sizes[dataset].bytes(SampleId(0));
                    let worth = worth(uses, bytes, bytes, &self.cluster.origin);
                    Some((Reverse(worth), dataset, uses))
                }
                _ => None,
            })
            .collect();
        datasets.sort_unstable();
        datasets.into_iter().map(|(_, dataset, uses)| (dataset, uses)).collect()
    }

    /// The plan, with `held` bytes that stay where they were found.
    fn finish(
        &self,
        demand: &Demand,
        floor: LowerBound,
        held: u64,
        owners: Owners,
        mut holdings: Vec<StoreHolding>,
        own: Option<OwnCopies>,
    ) -> ClusterPlan {
        let owned: Vec<Amount> = holdings.iter().map(StoreHolding::owned).collect();
        let (tables, own) = own.unzip();
        let (ranks, own_store) = (self.cluster.ranks_of(self.stores), self.own_store());
        let mut stores = Vec::new();
        let mut print = owners.describe(Fingerprinter::new("cluster plan").number(PLANNER_VERSION));
        for (at, (store, holding)) in self.described.stores.iter().zip(&mut holdings).enumerate() {
            print = print.number(store.id.0.into()).number(ranks[at].into());
            for (level, filled) in store.levels.iter().zip(&holding.levels) {
                let numbers = [level.capacity, filled.samples, narrow(filled.bytes), filled.footprint];
                print = print.text(&level.name).numbers(numbers.into_iter());
            }
            let expected = holding.copies;
            let copied = own.filter(|_| at == own_store).unwrap_or(expected);
            let levels = store.levels.iter().enumerate().map(|(index, level)| {
                let filled = holding.levels[index].and(copied[index]);
                LevelPlan::new(level, filled, self.slower.get(at).is_some_and(|levels| levels[index]))
            });
            let copies = copied.iter().fold(LevelFill::default(), |all, &filled| all.and(filled));
            stores.push(StorePlan {
                id: store.id,
                ranks: ranks[at],
                levels: levels.collect(),
                owned: owned[at],
                copies: Amount { samples: copies.samples, bytes: narrow(copies.bytes) },
                local: holding.first.plus(holding.again).plus(holding.copied),
            });
            holding.hold(&expected);
        }
        let traffic = ClusterTraffic::new(demand, &ranks, holdings, owned);
        let origin_bytes = traffic.origin_bytes().saturating_sub(held);
        print = print.number(floor.bytes).number(floor.exact.into()).number(origin_bytes);
        ClusterPlan {
            owners,
            copies: Placement::new(tables.unwrap_or_default()),
            floor,
            origin_bytes,
            stores,
            traffic,
            server_gain: None,
            in_blocks: false,
            print: print.finish(),
        }
    }
}

impl ClusterPlan {
    /// The owner of each sample.
    pub fn owners(&self) -> &Owners {
        &self.owners
    }

    /// The owner of a sample. `None` if it has none or is unknown.
    pub fn owner(&self, key: SampleKey) -> Option<SampleOwner> {
        self.owners.of(key)
    }

    /// Second copies in the store of the rank whose run was planned. Each one is stored at its
    /// first use by one of the store's ranks.
    pub fn copies(&self) -> &Placement {
        &self.copies
    }

    /// The level of a rank's own store that keeps a sample, as owner or as second copy. `store` is
    /// the position of the store of the rank whose run was planned.
    pub fn local(&self, store: usize, key: SampleKey) -> Option<LevelIndex> {
        match self.owner(key) {
            Some(owner) if owner.store == store => Some(owner.level),
            _ => self.copies.level(key),
        }
    }

    /// Whether samples of a block have one owner, apart from few blocks that no store had space
    /// for.
    pub fn is_in_blocks(&self) -> bool {
        self.in_blocks
    }

    /// The lower bound of origin bytes for any policy, with all levels of all stores and all
    /// look-ahead.
    pub fn floor(&self) -> u64 {
        self.floor.bytes
    }

    /// Whether the lower bound was counted. If not, the run was too long to count and it is an
    /// estimate.
    pub fn floor_is_exact(&self) -> bool {
        self.floor.exact
    }

    /// The predicted origin bytes of all ranks: the first use of every sample with an owner, and
    /// all uses of the others. Not counted are samples in the look-ahead at an epoch boundary. Also
    /// not counted is the padding of epochs that read every sample anyway, which is fewer samples
    /// per epoch than there are ranks.
    pub fn origin_bytes(&self) -> u64 {
        self.origin_bytes
    }

    /// Uses of all samples by all ranks in the rest of the run, except the padding of epochs that
    /// read every sample anyway.
    pub fn uses(&self) -> Amount {
        self.traffic.uses
    }

    /// The content of each store, in the order of the cluster's description.
    pub fn stores(&self) -> &[StorePlan] {
        &self.stores
    }

    /// The gain of a placement by storage server. `None` if the placement ignores servers: they are
    /// unknown, less than a tenth would be gained, or a rule assigns the samples.
    pub fn server_gain(&self) -> Option<ServerGain> {
        self.server_gain
    }

    /// Predicts every epoch of the rest of the run. `cluster` is the description that the plan was
    /// made with, or the same with measured speeds.
    ///
    /// Exact, apart from the bytes that [`origin_bytes`](Self::origin_bytes) leaves out, if every
    /// epoch uses each sample once. The uses of samples with an owner are spread evenly over the
    /// epochs after the first.
    ///
    /// # Errors
    /// A cluster description that is invalid for the run, or that has other stores.
    pub fn predict(&self, run: &Run, cluster: &Cluster) -> Result<Vec<EpochForecast>, PlanError> {
        cluster.check(run.world_size())?;
        if cluster.stores.len() != self.stores.len() {
            let found = cluster.stores.len();
            return Err(PlanReason::OtherStores { found, expected: self.stores.len() }.into());
        }
        Ok(self.traffic.predict(run, cluster))
    }

    /// The fingerprint of all decisions of the plan. Equal on all ranks with equal inputs. Second
    /// copies follow from it and from the inputs.
    pub fn fingerprint(&self) -> Fingerprint {
        self.print
    }
}

/// Bytes of an epoch that no earlier epoch has used.
pub(crate) fn new_bytes(epoch: Option<&EpochDemand>) -> u64 {
    epoch.map_or(0, |epoch| epoch.distinct.saturating_sub(epoch.seen))
}

#[cfg(test)]
mod tests {
    use foreread_oracle::{Deal, Feistel, Phase, PhaseKind, Sampler, Schedule, Sequential};
    use foreread_types::{Footprint, Rank};

    use super::*;
    use crate::{CacheStore, Level, Ranks};

    fn phase(dataset: u32, sampler: Arc<dyn Sampler>, drop_last: bool) -> Phase {
        let (kind, dataset) = (PhaseKind::Train, DatasetId(dataset));
        Phase { kind, dataset, sampler, batch_size: Some(7), drop_last }
    }

    #[test]
    // semantics: PLAN-6
    fn rule_keeps_as_much_as_the_table() {
        let (samples, epochs) = (2003, 5);
        for (capacities, drop_last) in [
            (vec![vec![300], vec![300], vec![300], vec![300]], false),
            (vec![vec![100, 50], vec![700], vec![], vec![20, 10]], true),
            (vec![vec![5000], vec![], vec![3], vec![1]], true),
            (vec![vec![900, 900], vec![900, 100], vec![300, 2000], vec![600]], false),
        ] {
            let train = phase(0, Arc::new(Feistel::new(samples, 1).unwrap()), drop_last);
            let validation = phase(1, Arc::new(Sequential::new(100).unwrap()), false);
            let schedule = Schedule::new(epochs, vec![train, validation]).unwrap();
            let run = Run::new(Arc::new(schedule), Deal::Blocks, 4, Rank(1)).unwrap();
            let sizes = [Sizes::uniform(samples, 1), Sizes::uniform(100, 1)];
            let stores = (0..).zip(capacities).map(|(id, levels)| {
                let level = |room| Level::new("", room, Footprint::EXACT);
                CacheStore::new(StoreId(id), levels.into_iter().map(level).collect())
            });
            let cluster =
                Cluster { stores: stores.collect(), ranks: Ranks::PerStore(1), ..Cluster::default() };
            let [rule, table] = [0, u64::MAX].map(|most| {
                planned(&run, &sizes, (&cluster, BlockRanges::default()), false, most).unwrap().0
            });
            assert!(rule.owners().is_rule() && !table.owners().is_rule());
            let kept = |plan: &ClusterPlan| {
                let keys = (0..2u32).flat_map(|dataset| {
                    let key = move |id| SampleKey::new(DatasetId(dataset), SampleId(id));
                    (0..sizes[dataset as usize].len()).map(key)
                });
                keys.filter(|&key| plan.owner(key).is_some()).count()
            };
            assert_eq!(kept(&rule), kept(&table));
            for planned in rule.stores().iter().flat_map(|store| &store.levels) {
                assert!(planned.footprint <= planned.capacity);
            }
            // The rule's figures are estimates if samples are dropped.
            let (found, expected) = (rule.origin_bytes(), table.origin_bytes());
            assert!(found.abs_diff(expected) * 100 < expected, "{found}, by the table {expected}");
            let local =
                |plan: &ClusterPlan| plan.stores().iter().map(|store| store.local.samples).sum::<u64>();
            // Its second copies have low sample numbers, and are not the samples that are read
            // first.
            let (found, expected) = (local(&rule), local(&table));
            assert!(
                found * 100 > expected * 85 && found * 100 < expected * 105,
                "{found}, by the table {expected}"
            );
        }
    }
}
