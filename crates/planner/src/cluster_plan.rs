//! One plan for all ranks: who keeps what, and what the run will read from where.
//!
//! # The decision, and its price
//!
//! The cluster's caches are one cache: every sample has at most one owner until all have one, and only the room that is
//! left then takes second copies. So the origin is read as seldom as one cache of all bytes together allows, which is
//! the floor.
//!
//! Who owns a sample is chosen between two rules, by predicted time. The rank that reads it *first* moves nothing in the
//! first epoch; the rank that reads it *most often* has more of its later uses in its own store. The second costs an
//! order for every epoch to find out, so a caller may ask for the first alone.
//!
//! Everything follows from the run's orders, the sizes and the cluster's description, in integers, so all ranks compute
//! the same plan without talking; [`ClusterPlan::fingerprint`] is what they compare when they meet. Of second copies a
//! rank keeps its own store's.

use std::sync::Arc;

use foreread_oracle::{Fingerprinter, Run};
use foreread_types::{DatasetId, Fingerprint, SampleId, SampleKey, Sizes, StoreId};

use crate::assign::{Assigned, Part, assign};
use crate::cluster::{Cluster, LevelIndex, MAX_LEVELS};
use crate::copies::{self, Copies, SecondCopy};
use crate::demand::{Demand, Epoch, Scope, Uses, check};
use crate::error::{PlanError, Reason};
use crate::floor::Floor;
use crate::forecast::{Amount, EpochForecast, narrow};
use crate::holding::{Holding, Traffic};
use crate::knapsack::worth;
use crate::owners::{NOBODY, Of, Owner, Owners, pack, unpack};
use crate::placement::Placement;
use crate::plan::LevelPlan;
use crate::readers::{Readers, dealing};
use crate::rooms::Rooms;
use crate::rule::Rule;
use crate::slower::{self, Slower};

/// Who is to own a sample.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Ownership {
    /// The rank that reads it first. Costs one order.
    FirstReader,
    /// The rank that reads it most often over the run; of several, the one that reads it first. Costs all orders.
    MostFrequentReader,
    /// Whichever of the two is predicted to take less time; of equals, the most frequent reader.
    #[default]
    Cheaper,
}

/// The most samples for which a table is made where a rule would do.
const TABLE_MOST: u64 = 1 << 26;

/// The most samples for which tables are made at all: they are numbered through in 32 bits.
const TABLES: u64 = u32::MAX as u64;

/// Where the samples of a run live in a cluster, and what that costs. Equal inputs give equal plans on every rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterPlan {
    ownership: Ownership,
    owners: Owners,
    copies: Placement,
    copies_print: Option<Fingerprint>,
    floor: Floor,
    origin_bytes: u64,
    stores: Vec<StorePlan>,
    traffic: Traffic,
}

/// What one store holds, and what of its uses it serves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StorePlan {
    /// Its number.
    pub id: StoreId,
    /// How many ranks use it as their own.
    pub ranks: u32,
    /// What each of its levels holds, second copies among it.
    pub levels: Vec<LevelPlan>,
    /// What it owns.
    pub owned: Amount,
    /// Second copies.
    pub copies: Amount,
    /// Uses by its own ranks of what lies in it, over the run: at least these where not every reader was counted, and
    /// the expected number where none was.
    pub local: Amount,
}

/// Decides where the samples of `run` live in `cluster`, for all of its ranks: `run` may be any rank's.
///
/// `sizes` are indexed by [`DatasetId`]. Plans for what is left of the run, with caches that hold [`Cluster::held`] at its
/// start and nothing else; [`ClusterPlan::predict`] counts them as cold.
///
/// Tables take 4 bytes a sample and two bits for second copies. Where every order is computed (`feistel`,
/// `sequential`), all samples of a dataset have one size, and either [`Ownership::FirstReader`] is asked for or there are
/// more than 2^26 samples, a rule takes their place, which needs no memory a sample.
///
/// # Errors
/// A cluster description that makes no sense for the run, sizes that are missing or of another dataset, 2^32 samples
/// or more without a rule, tables that do not fit in memory, and whatever the oracle returns.
///
/// ```
/// use std::sync::Arc;
/// use foreread_oracle::{Deal, Phase, PhaseKind, Run, Schedule, Shuffle};
/// use foreread_planner::{Cluster, Level, Ownership, Ranks, Store, plan_cluster};
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
/// let stores = (0..4).map(|id| Store::new(StoreId(id), vec![memory.clone()])).collect();
/// let cluster = Cluster { stores, ranks: Ranks::PerStore(1), ..Cluster::default() };
/// let plan = plan_cluster(&run, &[Sizes::uniform(1000, 100)], &cluster, Ownership::Cheaper)?;
/// assert_eq!(plan.origin_bytes(), 100_000 + 2 * 20_000);
/// assert_eq!(plan.origin_bytes(), plan.floor());
/// let owned = (0..1000).filter(|&id| {
///     plan.owner(SampleKey::new(DatasetId(0), SampleId(id))).is_some_and(|owner| owner.store == 2)
/// });
/// assert_eq!(owned.count(), 200);
/// # Ok(())
/// # }
/// ```
pub fn plan_cluster(
    run: &Run,
    sizes: &[Sizes],
    cluster: &Cluster,
    ownership: Ownership,
) -> Result<ClusterPlan, PlanError> {
    Ok(planned(run, sizes, cluster, ownership, false)?.0)
}

/// The same for whoever looks at all ranks at once, as a simulation does: the plan, and the second copies of every store,
/// those first that save most. A rank's own plan has its own store's only.
///
/// # Errors
/// As [`plan_cluster`].
pub fn plan_cluster_and_copies(
    run: &Run,
    sizes: &[Sizes],
    cluster: &Cluster,
    ownership: Ownership,
) -> Result<(ClusterPlan, Vec<SecondCopy>), PlanError> {
    planned(run, sizes, cluster, ownership, true)
}

fn planned(
    run: &Run,
    sizes: &[Sizes],
    cluster: &Cluster,
    ownership: Ownership,
    all_copies: bool,
) -> Result<(ClusterPlan, Vec<SecondCopy>), PlanError> {
    cluster.check(run.world_size())?;
    check(run, sizes)?;
    let room = u128::from(cluster.capacity()) + u128::from(cluster.look_ahead) * u128::from(run.world_size());
    let samples = used(run, sizes).map(|dataset| sizes[dataset].len()).fold(0, u64::saturating_add);
    let stores = &cluster.stores_of_ranks(run.world_size());
    let (used, slower) = slower::without(cluster, run, sizes).unzip();
    let (described, cluster) = (cluster, used.as_ref().unwrap_or(cluster));
    let slower = slower.unwrap_or_default();
    let planning = Planning { run, sizes, cluster, described, slower, stores, all_copies };
    let quick = ownership == Ownership::FirstReader && cluster.held.is_nothing();
    if planning.is_ruled() && (quick || samples > TABLE_MOST) {
        // Nothing is counted: whole passes are arithmetic, and what others read is estimated.
        let demand = Demand::within(run, sizes, Scope::Cluster, 0)?;
        return Ok((planning.rule(&demand, Floor::of_demand(&demand, narrow(room)))?, Vec::new()));
    }
    if samples > TABLES {
        return Err(Reason::Samples { samples, most: TABLES }.into());
    }
    let demand = Demand::of(run, sizes, Scope::Cluster)?;
    let floor = Floor::of_demand(&demand, narrow(room));
    let mut readers = Vec::new();
    for (dataset, sizes) in sizes.iter().enumerate() {
        let id = DatasetId(dataset as u32);
        let first = Readers::first(run, id, sizes.len(), planning.stores)?;
        readers.push(match ownership {
            Ownership::FirstReader => first,
            _ => first.count(run, id, planning.stores, cluster.stores.len())?,
        });
    }
    let most = match ownership {
        Ownership::FirstReader => None,
        _ => Some(planning.table(&demand, floor, &readers, Ownership::MostFrequentReader)?),
    };
    let first = match ownership {
        Ownership::MostFrequentReader => None,
        _ => Some(planning.table(&demand, floor, &readers, Ownership::FirstReader)?),
    };
    Ok(match (first, most) {
        (Some(first), Some(most)) => {
            if first.0.nanoseconds(run, cluster) < most.0.nanoseconds(run, cluster) {
                first
            } else {
                most
            }
        }
        (Some(plan), None) | (None, Some(plan)) => plan,
        (None, None) => planning.table(&demand, floor, &readers, Ownership::FirstReader)?,
    })
}

/// The datasets that a run reads.
fn used<'a>(run: &'a Run, sizes: &'a [Sizes]) -> impl Iterator<Item = usize> + 'a {
    let phases = &run.schedule().phases;
    (0..sizes.len()).filter(|&dataset| phases.iter().any(|phase| phase.dataset.0 as usize == dataset))
}

struct Planning<'a> {
    run: &'a Run,
    sizes: &'a [Sizes],
    cluster: &'a Cluster,
    /// The same, with the levels that stay empty because the origin is quicker, and which those are.
    described: &'a Cluster,
    slower: Slower,
    /// By rank.
    stores: &'a [u16],
    /// Whether the second copies of other ranks' stores are asked for.
    all_copies: bool,
}

impl Planning<'_> {
    /// Whether every dataset that is read can be owned by a rule.
    fn is_ruled(&self) -> bool {
        self.run.schedule().phases.iter().all(|phase| {
            let sampler = &phase.sampler;
            let whole = sampler.is_distinct() && sampler.len() == sampler.population();
            sampler.is_computed() && whole && self.sizes[phase.dataset.0 as usize].is_uniform()
        })
    }

    fn ranks(&self) -> Vec<u32> {
        let mut ranks = vec![0; self.cluster.stores.len()];
        self.stores.iter().for_each(|&store| ranks[usize::from(store)] += 1);
        ranks
    }

    fn table(
        &self,
        demand: &Demand,
        floor: Floor,
        readers: &[Readers],
        ownership: Ownership,
    ) -> Result<(ClusterPlan, Vec<SecondCopy>), PlanError> {
        let first = ownership == Ownership::FirstReader;
        let parts: Vec<Part<'_>> = (self.sizes.iter().zip(readers).zip(&demand.datasets).enumerate())
            .map(|(dataset, ((sizes, readers), demand))| {
                let dataset = DatasetId(dataset as u32);
                Part { dataset, sizes, uses: &demand.uses, readers, first }
            })
            .collect();
        let mut rooms = Rooms::new(self.cluster);
        let assigned = assign(self.cluster, &parts, &mut rooms)?;
        let complete = parts.iter().zip(&assigned).all(|(part, assigned)| {
            (0..).zip(&assigned.owners).all(|(id, &owner)| owner != NOBODY || part.uses.of(SampleId(id)) <= 1)
        });
        let mut copies = if complete {
            let own = usize::from(self.stores[self.run.rank().0 as usize]);
            copies::choose(self.cluster, &parts, &assigned, &mut rooms, own, self.all_copies)?
        } else {
            None
        };
        let all = copies.as_mut().map_or_else(Vec::new, |copies| std::mem::take(&mut copies.all));
        let holdings = self.holdings(&parts, &assigned);
        let held = self.held(&parts, &assigned);
        let owners = assigned.into_iter().map(|assigned| {
            if assigned.owners.iter().all(|&owner| owner == NOBODY) {
                Of::Nobody
            } else {
                Of::Table(Arc::new(assigned.owners))
            }
        });
        let floor = Floor { bytes: floor.bytes.saturating_sub(held), ..floor };
        let plan = self.finish(demand, floor, ownership, Owners::new(owners.collect()), holdings, copies);
        let origin_bytes = plan.origin_bytes.saturating_sub(held);
        Ok((ClusterPlan { origin_bytes, ..plan }, all))
    }

    /// Bytes of what lies where it was found, which the origin need not send.
    fn held(&self, parts: &[Part<'_>], assigned: &[Assigned]) -> u64 {
        let mut bytes = 0u64;
        for (part, assigned) in parts.iter().zip(assigned) {
            for (id, store, level) in self.cluster.held.of(part.dataset.0 as usize) {
                if assigned.owners.get(id as usize) == Some(&pack(store, level)) {
                    bytes = bytes.saturating_add(part.sizes.bytes(SampleId(id)));
                }
            }
        }
        bytes
    }

    fn holdings(&self, parts: &[Part<'_>], assigned: &[Assigned]) -> Vec<Holding> {
        let ranks = self.ranks();
        let world = u64::from(self.run.world_size());
        let mut holdings = vec![Holding::default(); ranks.len()];
        for (part, assigned) in parts.iter().zip(assigned) {
            for (holding, filled) in holdings.iter_mut().zip(&assigned.filled) {
                holding.hold(filled);
            }
            // Where nobody counted, what is used after the first use is used by chance.
            let mut chance = vec![Amount::default(); ranks.len()];
            for (id, &packed) in assigned.owners.iter().enumerate() {
                let Some((store, _)) = unpack(packed) else { continue };
                let (uses, bytes) =
                    (part.uses.of(SampleId(id as u64)), part.sizes.bytes(SampleId(id as u64)));
                let times = |uses: u64| Amount { samples: uses, bytes: uses.saturating_mul(bytes) };
                let holding = &mut holdings[store];
                holding.uses = holding.uses.plus(times(uses));
                let first = usize::from(part.readers.first[id]) == store;
                if first {
                    holding.first = holding.first.plus(times(1));
                }
                if part.readers.is_counted() {
                    let near = part.readers.uses_at(id, store).min(uses);
                    holding.again = holding.again.plus(times(near - u64::from(first && near > 0)));
                } else {
                    chance[store] = chance[store].plus(times(uses - 1));
                }
            }
            for ((holding, chance), &ranks) in holdings.iter_mut().zip(chance).zip(&ranks) {
                holding.again = holding.again.plus(chance.share(ranks.into(), world.into()));
            }
        }
        holdings
    }

    fn rule(&self, demand: &Demand, floor: Floor) -> Result<ClusterPlan, PlanError> {
        let ranks = self.ranks();
        let (stores, world) = (self.cluster.stores.len(), self.run.world_size());
        let mut owners = vec![Of::Nobody; self.sizes.len()];
        let mut holdings = vec![Holding::default(); stores];
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
            let order = phase.sampler.order(pass.epoch)?;
            let rule = Rule::new(&order, dealing(self.run, &pass)?, self.stores, &places, print);
            for (at, held) in rule.held(stores).into_iter().enumerate() {
                let holding = &mut holdings[at];
                for (index, level) in self.cluster.stores[at].levels.iter().enumerate() {
                    let samples = held.levels[index];
                    let footprint = samples.saturating_mul(level.footprint.of(bytes));
                    left[at][index] = left[at][index].saturating_sub(footprint);
                    let filled = &mut holding.levels[index];
                    filled.samples += samples;
                    filled.bytes += u128::from(samples) * u128::from(bytes);
                    filled.footprint += footprint;
                }
                let owned: u64 = held.levels.iter().sum();
                let times = |samples: u64| Amount { samples, bytes: samples.saturating_mul(bytes) };
                holding.uses = holding.uses.plus(times(owned.saturating_mul(uses)));
                holding.first = holding.first.plus(times(held.first));
                let again = times(owned.saturating_mul(uses - 1));
                holding.again = holding.again.plus(again.share(ranks[at].into(), world.into()));
            }
            owners[dataset] = Of::Rule(rule);
        }
        Ok(self.finish(demand, floor, Ownership::FirstReader, Owners::new(owners), holdings, None))
    }

    /// The datasets whose samples are worth keeping, and their uses, the best first.
    fn by_worth(&self, demand: &Demand) -> Vec<(usize, u64)> {
        let mut datasets: Vec<_> = used(self.run, self.sizes)
            .filter(|&dataset| !self.sizes[dataset].is_empty())
            .filter_map(|dataset| match demand.datasets[dataset].uses {
                Uses::Same(uses) if uses > 1 => {
                    let bytes = self.sizes[dataset].bytes(SampleId(0));
                    let worth = worth(uses, bytes, bytes, &self.cluster.origin);
                    Some((std::cmp::Reverse(worth), dataset, uses))
                }
                _ => None,
            })
            .collect();
        datasets.sort_unstable();
        datasets.into_iter().map(|(_, dataset, uses)| (dataset, uses)).collect()
    }

    fn finish(
        &self,
        demand: &Demand,
        floor: Floor,
        ownership: Ownership,
        owners: Owners,
        mut holdings: Vec<Holding>,
        copies: Option<Copies>,
    ) -> ClusterPlan {
        let owned: Vec<Amount> = holdings.iter().map(Holding::owned).collect();
        if let Some(copies) = &copies {
            for (at, holding) in holdings.iter_mut().enumerate() {
                holding.copied = copies.near[at];
                holding.hold(&copies.filled[at]);
            }
        }
        let ranks = self.ranks();
        let stores = self.described.stores.iter().zip(&holdings).enumerate().map(|(at, (store, holding))| {
            let copied = copies.iter().flat_map(|copies| copies.filled[at]);
            let copied = copied.fold(Amount::default(), |all, filled| {
                all.plus(Amount { samples: filled.samples, bytes: narrow(filled.bytes) })
            });
            let levels = store.levels.iter().zip(&holding.levels).enumerate();
            let levels = levels.map(|(index, (level, filled))| LevelPlan {
                name: level.name.clone(),
                capacity: level.capacity,
                samples: filled.samples,
                bytes: narrow(filled.bytes),
                footprint: filled.footprint,
                slower_than_origin: self.slower.get(at).is_some_and(|levels| levels[index]),
            });
            StorePlan {
                id: store.id,
                ranks: ranks[at],
                levels: levels.collect(),
                owned: owned[at],
                copies: copied,
                local: holding.first.plus(holding.again).plus(holding.copied),
            }
        });
        let stores: Vec<StorePlan> = stores.collect();
        let traffic = Traffic::new(demand, &ranks, holdings, owned);
        ClusterPlan {
            ownership,
            owners,
            copies_print: copies.as_ref().map(|copies| copies.print),
            copies: Placement::new(copies.map_or_else(Vec::new, |copies| copies.own)),
            floor,
            origin_bytes: traffic.origin_bytes(),
            stores,
            traffic,
        }
    }
}

impl ClusterPlan {
    /// Which of the two rules was taken; never [`Ownership::Cheaper`].
    pub fn ownership(&self) -> Ownership {
        self.ownership
    }

    /// Who keeps which sample.
    pub fn owners(&self) -> &Owners {
        &self.owners
    }

    /// Who keeps a sample; none where nobody does, unknown samples and datasets among them.
    pub fn owner(&self, key: SampleKey) -> Option<Owner> {
        self.owners.of(key)
    }

    /// Second copies in the store of the rank whose run was planned: each is put there at its first use by one of the
    /// store's ranks.
    pub fn copies(&self) -> &Placement {
        &self.copies
    }

    /// Where a rank's own store keeps a sample, as owner or as a second copy; `store` is the position of the store of
    /// the rank whose run was planned.
    pub fn local(&self, store: usize, key: SampleKey) -> Option<LevelIndex> {
        match self.owner(key) {
            Some(owner) if owner.store == store => Some(owner.level),
            _ => self.copies.level(key),
        }
    }

    /// The origin bytes that no policy can save, with all levels of all stores and all look-ahead.
    pub fn floor(&self) -> u64 {
        self.floor.bytes
    }

    /// Whether the floor was counted; if not, the run was too long for that, and it is an estimate.
    pub fn floor_is_exact(&self) -> bool {
        self.floor.exact
    }

    /// The origin bytes that all ranks together read, as predicted: the first use of every sample with an owner, and all
    /// uses of the others. What the look-ahead happens to hold at an epoch's boundary is not counted, nor is the padding of
    /// epochs that read every sample anyway: fewer samples an epoch than there are ranks.
    pub fn origin_bytes(&self) -> u64 {
        self.origin_bytes
    }

    /// Uses of all samples by all ranks in what is left of the run, but for the padding of epochs that read every sample
    /// anyway.
    pub fn uses(&self) -> Amount {
        self.traffic.uses
    }

    /// What each store holds, in the order of the cluster's description.
    pub fn stores(&self) -> &[StorePlan] {
        &self.stores
    }

    /// Predicts every epoch of what is left of the run. `cluster` is the description that the plan was made with, or the
    /// same with measured speeds.
    ///
    /// Exact, for what it counts, in all samples that every epoch uses once; the uses of samples with an owner are
    /// spread over the epochs after the first alike.
    ///
    /// # Errors
    /// A cluster description that makes no sense for the run, or that has other stores.
    pub fn predict(&self, run: &Run, cluster: &Cluster) -> Result<Vec<EpochForecast>, PlanError> {
        cluster.check(run.world_size())?;
        if cluster.stores.len() != self.stores.len() {
            let found = cluster.stores.len();
            return Err(Reason::OtherStores { found, expected: self.stores.len() }.into());
        }
        Ok(self.traffic.predict(run, cluster))
    }

    /// Names everything that the plan decides; equal on all ranks with equal inputs.
    pub fn fingerprint(&self) -> Fingerprint {
        let first = self.ownership == Ownership::FirstReader;
        let mut print = Fingerprinter::new("cluster plan 1").number(first.into());
        print = self.owners.describe(print);
        print = match self.copies_print {
            Some(copies) => print.number(1).part(copies),
            None => print.number(0),
        };
        print = print.number(self.floor.bytes).number(self.floor.exact.into()).number(self.origin_bytes);
        print = print.number(self.stores.len() as u64);
        for store in &self.stores {
            print =
                print.number(store.id.0.into()).number(store.ranks.into()).number(store.levels.len() as u64);
            for LevelPlan { name, capacity, samples, bytes, footprint, .. } in &store.levels {
                print = print.text(name).numbers([*capacity, *samples, *bytes, *footprint].into_iter());
            }
        }
        print.finish()
    }

    fn nanoseconds(&self, run: &Run, cluster: &Cluster) -> u128 {
        self.traffic.predict(run, cluster).iter().map(|epoch| u128::from(epoch.nanoseconds)).sum()
    }
}

/// What an epoch needs, as the cluster's traffic wants it.
pub(crate) fn new_bytes(epoch: Option<&Epoch>) -> u64 {
    epoch.map_or(0, |epoch| epoch.distinct.saturating_sub(epoch.seen))
}
