//! The plan of a cluster by storage server, next to the plan that ignores servers.
//!
//! [`assign`](crate::assign) takes the order of samples from the servers in the cluster's
//! description. So both plans are made with two descriptions, and their forecasts are compared. The
//! price is a second plan. It is not made if all samples that are used again are kept.

use foreread_types::{DatasetId, SampleKey};

use crate::cluster::Cluster;
use crate::cluster_plan::{ClusterPlan, ClusterPlanner};
use crate::copies::SecondCopy;
use crate::demand::Demand;
use crate::error::PlanError;
use crate::lower_bound::LowerBound;
use crate::server_times::{ServerGain, ServerTimes};

impl ClusterPlanner<'_> {
    /// The plan by storage server if it gains a tenth, and otherwise the plan that ignores servers.
    pub(crate) fn by_server(
        &self,
        demand: &Demand,
        floor: LowerBound,
    ) -> Result<(ClusterPlan, Vec<SecondCopy>), PlanError> {
        let Some(servers) = &self.cluster.servers else { return self.table(demand, floor) };
        let times = |plan: &ClusterPlan| {
            ServerTimes::of(servers, self.sizes, demand, |dataset, id| {
                plan.owner(SampleKey::new(DatasetId(dataset as u32), id)).is_some()
            })
        };
        let without = Cluster { servers: None, ..self.cluster.clone() };
        let planner = ClusterPlanner { cluster: &without, slower: self.slower.clone(), ..*self };
        let mut ignoring = planner.table(demand, floor)?;
        let before = times(&ignoring.0);
        let all_kept = before.all_kept();
        ignoring.0.traffic.set_servers(before);
        if all_kept {
            return Ok(ignoring);
        }
        let mut even = self.table(demand, floor)?;
        let after = times(&even.0);
        even.0.traffic.set_servers(after);
        let [forecast, forecast_ignoring] =
            [&even, &ignoring].map(|(plan, _)| plan.traffic.predict(self.run, self.cluster));
        even.0.server_gain = ServerGain::of(&forecast, &forecast_ignoring);
        Ok(if even.0.server_gain.is_some() { even } else { ignoring })
    }
}
