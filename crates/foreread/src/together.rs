//! What all ranks' caches do as one: the plan of a cluster whose ranks have caches like this one's, before machines are
//! booked. Ranks that meet work by such a plan, made of the caches that each of them has.

use foreread_oracle::Pass;
use foreread_planner::{
    Amount, Cluster, ClusterPlan, EpochForecast, Locality, Network, Ranks, Store, plan_cluster,
};
use foreread_types::{SampleKey, StoreId};

use crate::error::Result;
use crate::planned::Planned;

/// All ranks' caches as one.
#[derive(Clone, Debug, PartialEq)]
pub struct Together {
    /// How many ranks.
    pub ranks: u32,
    /// Bytes that all ranks together read from the origin over the run.
    pub origin_bytes: u64,
    /// The fewest that any policy can read.
    pub floor_origin_bytes: u64,
    /// Uses of all samples by all ranks.
    pub uses: Amount,
    /// Those of them that are expected to be served by the rank's own caches, as samples are dealt to ranks: with
    /// [`Config::locality`](crate::Config::locality) to those that keep them.
    pub local: Amount,
    /// The network between nodes that the times are for: nobody has measured it.
    pub network: Network,
    /// How long epochs take, where it is known how fast the origin is.
    pub forecast: Option<Vec<EpochForecast>>,
}

impl Planned {
    /// Plans for all ranks together, if there are several. Takes seconds for tens of millions of samples.
    ///
    /// # Errors
    /// If the run cannot be planned.
    pub fn together(&self) -> Result<Option<Together>> {
        let ranks = self.run.world_size();
        let Some(own) = self.cluster.stores.first().filter(|_| ranks > 1) else { return Ok(None) };
        let store = |rank| Store::new(StoreId(rank), own.levels.clone());
        let cluster = Cluster {
            stores: (0..ranks).map(store).collect(),
            ranks: Ranks::PerStore(1),
            ..self.cluster.clone()
        };
        let plan = plan_cluster(&self.counted, &self.sizes, &cluster)?;
        let forecast = self.is_timed.then(|| plan.predict(&self.counted, &cluster)).transpose()?;
        let local = match self.config.locality {
            true => self.dealt_by_locality(&plan, &cluster)?,
            false => plan.stores().iter().fold(Amount::default(), |all, store| sum(all, store.local)),
        };
        Ok(Some(Together {
            ranks,
            origin_bytes: plan.origin_bytes(),
            floor_origin_bytes: plan.floor(),
            uses: plan.uses(),
            local,
            network: cluster.network,
            forecast,
        }))
    }

    /// The uses that dealing by locality gives to the ranks that keep the samples: those of the last epoch, for each epoch,
    /// because every epoch is dealt from an order like it.
    /// Uses that are left over may find a second copy, which is not counted.
    fn dealt_by_locality(&self, plan: &ClusterPlan, cluster: &Cluster) -> Result<Amount> {
        let passes: Vec<Pass> = self.counted.passes().collect();
        let last = passes.last().map(|pass| pass.epoch);
        let mut local = Amount::default();
        for pass in passes.iter().filter(|pass| Some(pass.epoch) == last) {
            let (sizes, mut of_pass) = (&self.sizes[pass.dataset.0 as usize], Amount::default());
            let mut locality = Locality::new(&self.counted, pass, cluster, plan.owners())?;
            for step in 0..locality.steps() {
                for (rank, id) in locality.step(step) {
                    // Each rank has a store of its own.
                    let owner = plan.owner(SampleKey::new(pass.dataset, id));
                    if owner.is_some_and(|owner| owner.store == rank.0 as usize) {
                        of_pass = sum(of_pass, Amount { samples: 1, bytes: sizes.bytes(id) });
                    }
                }
            }
            let epochs = passes.iter().filter(|other| other.phase == pass.phase).count() as u64;
            let Amount { samples, bytes } = of_pass;
            let of_phase =
                Amount { samples: samples.saturating_mul(epochs), bytes: bytes.saturating_mul(epochs) };
            local = sum(local, of_phase);
        }
        Ok(local)
    }
}

fn sum(one: Amount, other: Amount) -> Amount {
    Amount {
        samples: one.samples.saturating_add(other.samples),
        bytes: one.bytes.saturating_add(other.bytes),
    }
}
