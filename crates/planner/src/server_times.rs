//! The time of each storage server under a plan, and whether a placement by server pays.
//!
//! A server's time is the sum over the reads from it. An epoch takes at least as long as its
//! slowest server. It is predicted together with all other resources, so a placement by server
//! gains nothing if the client, the network or the trainer is slower.
//!
//! # The decision, and its price
//!
//! The plan without servers is made, too. The plan by server is used only if its epochs after the
//! first are a tenth shorter and its slowest server has less to do. The price is a second plan.
//! Figures change during a run, so smaller gains would be chance.

use foreread_types::{SampleId, Sizes};
use serde::Serialize;

use crate::demand::Demand;
use crate::forecast::{Amount, EpochForecast, Resource};
use crate::servers::OriginServers;
use crate::wide::{narrow, share};

/// A placement by server must shorten epochs to this part of their time without it.
const PAYS: (u128, u128) = (9, 10);

/// The time of each server over the rest of a run, in nanoseconds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ServerTimes {
    /// The first read of each sample, and all later reads of samples that are not kept.
    servers: Vec<(u128, u128)>,
    /// The bytes of first uses, and those of all other uses.
    first: u128,
    again: u128,
}

impl ServerTimes {
    /// `is_kept` gets the dataset and the sample.
    pub(crate) fn of(
        servers: &OriginServers,
        sizes: &[Sizes],
        demand: &Demand,
        is_kept: impl Fn(usize, SampleId) -> bool,
    ) -> Self {
        let mut times = Self { servers: vec![(0, 0); servers.count()], first: 0, again: 0 };
        for (dataset, (sizes, demand)) in sizes.iter().zip(&demand.datasets).enumerate() {
            times.first += u128::from(demand.distinct);
            times.again += demand.bytes.saturating_sub(demand.distinct.into());
            if demand.reads == 0 {
                continue;
            }
            for id in (0..sizes.len()).map(SampleId) {
                let Some(later) = demand.uses.of(id).checked_sub(1) else { continue };
                let server = servers.of(dataset, id);
                let ns = u128::from(servers.nanoseconds(server, sizes.bytes(id)));
                let (first, again) = &mut times.servers[server];
                *first = first.saturating_add(ns);
                if later > 0 && !is_kept(dataset, id) {
                    *again = again.saturating_add(ns.saturating_mul(later.into()));
                }
            }
        }
        times
    }

    /// Whether no sample is read from a server after its first use.
    pub(crate) fn all_kept(&self) -> bool {
        self.servers.iter().all(|&(_, later)| later == 0)
    }

    /// The time of the slowest server in an epoch that uses `used`, of which `new` bytes are used
    /// for the first time.
    pub(crate) fn slowest(&self, new: u64, used: Amount) -> u128 {
        let new = u128::from(new);
        let again = u128::from(used.bytes).saturating_sub(new);
        let of_server = |&(first, later): &(u128, u128)| {
            share(first, new, self.first).saturating_add(share(later, again, self.again))
        };
        self.servers.iter().map(of_server).max().unwrap_or(0)
    }
}

/// A placement that evens the remaining time of storage servers, and its predicted gain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct ServerGain {
    /// The mean time of the epochs after the first, in nanoseconds.
    pub epoch_ns: u64,
    /// The same with a placement that ignores servers.
    pub ignoring_servers_ns: u64,
}

impl ServerGain {
    /// The gain of the forecast `even` over `ignoring`. `None` if it is less than a tenth.
    pub(crate) fn of(even: &[EpochForecast], ignoring: &[EpochForecast]) -> Option<Self> {
        let later = even.len().saturating_sub(1);
        let sum = |epochs: &[EpochForecast], of: fn(&EpochForecast) -> u64| {
            epochs.iter().skip(1).map(|epoch| u128::from(of(epoch))).sum::<u128>()
        };
        let slowest = |epoch: &EpochForecast| epoch.busy.get(&Resource::OriginServer).copied().unwrap_or(0);
        let [time, before] = [even, ignoring].map(|epochs| sum(epochs, |epoch| epoch.nanoseconds));
        let pays =
            time * PAYS.1 <= before * PAYS.0 && before > 0 && sum(even, slowest) < sum(ignoring, slowest);
        let mean = |sum: u128| narrow(sum / (later as u128).max(1));
        pays.then(|| Self { epoch_ns: mean(time), ignoring_servers_ns: mean(before) })
    }
}
