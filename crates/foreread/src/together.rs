//! What all ranks' caches do as one: the plan of a cluster whose ranks have caches like this one's, before machines are
//! booked. Ranks that meet work by such a plan, made of the caches that each of them has.

use foreread_planner::{Amount, Cluster, EpochForecast, Network, Ranks, Store, plan_cluster};
use foreread_types::StoreId;

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
    /// Those of them that are expected to be served by the rank's own caches.
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
        let local = plan.stores().iter().fold(Amount::default(), |sum, store| Amount {
            samples: sum.samples.saturating_add(store.local.samples),
            bytes: sum.bytes.saturating_add(store.local.bytes),
        });
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
}
