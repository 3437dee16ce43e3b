//! The predicted duration of an epoch, and the resource that limits it.
//!
//! An engine that reads ahead keeps all resources busy at the same time, and reads cross the epoch
//! boundary. So an epoch takes as long as the busiest resource:
//!
//! ```text
//! seconds = max( origin bytes / t(g)                        the origin's bandwidth, g ranks reading
//!                origin bytes of a rank / client limit       the throughput of one client
//!                requests of a rank * (latency + s / rate) / in flight
//!                bytes into or out of a node / network   and its latency over the requests in flight
//!                bytes of a level / its speed                read and written
//!                bytes of a rank / staging, preprocessing, computing )
//! ```
//!
//! Each term is for the rank, store or node with the highest load. Start-up (the first sample's
//! latency, computing an order) is left out. The price is a prediction that is too optimistic for
//! epochs of less than a second.

use std::collections::BTreeMap;
use std::fmt;

use foreread_oracle::Run;

use crate::cluster::Cluster;
use crate::curve::transfer_ns;
use crate::level::{LevelIndex, MAX_LEVELS};
use crate::wide::{narrow, share};

/// A number of samples and their bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Amount {
    /// Samples. Each use counts.
    pub samples: u64,
    /// Their bytes.
    pub bytes: u64,
}

impl Amount {
    /// `samples` samples of `bytes` bytes each.
    pub(crate) fn of(samples: u64, bytes: u64) -> Self {
        Self { samples, bytes: samples.saturating_mul(bytes) }
    }

    pub(crate) fn plus(self, other: Self) -> Self {
        Self {
            samples: self.samples.saturating_add(other.samples),
            bytes: self.bytes.saturating_add(other.bytes),
        }
    }

    pub(crate) fn minus(self, other: Self) -> Self {
        Self {
            samples: self.samples.saturating_sub(other.samples),
            bytes: self.bytes.saturating_sub(other.bytes),
        }
    }

    /// The fraction `part / whole`, rounded down.
    pub(crate) fn share(self, part: u128, whole: u128) -> Self {
        let of = |value: u64| share(value.into(), part, whole) as u64;
        Self { samples: of(self.samples), bytes: of(self.bytes) }
    }

    /// As [`share`](Self::share), with separate fractions of samples and bytes.
    pub(crate) fn shares(self, part: (u128, u128), whole: (u128, u128)) -> Self {
        Self { samples: self.share(part.0, whole.0).samples, bytes: self.share(part.1, whole.1).bytes }
    }

    /// Samples and bytes.
    pub(crate) fn both(self) -> (u128, u128) {
        (self.samples.into(), self.bytes.into())
    }
}

/// The resources that may limit an epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Resource {
    /// The throughput of the origin for all ranks together.
    OriginBandwidth,
    /// The throughput of the origin for one rank.
    OriginClient,
    /// The origin's latency, with the maximum number of requests in flight.
    OriginRequests,
    /// The slowest storage server of the origin.
    OriginServer,
    /// The network between nodes.
    Network,
    /// A level of a store: its memory, its disk.
    Level(LevelIndex),
    /// Writing into the staging buffer.
    Staging,
    /// Decoding and augmenting.
    Preprocessing,
    /// The training itself.
    Compute,
}

impl fmt::Display for Resource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OriginBandwidth => f.pad("origin bandwidth"),
            Self::OriginClient => f.pad("origin client limit"),
            Self::OriginRequests => f.pad("origin requests"),
            Self::OriginServer => f.pad("slowest origin server"),
            Self::Network => f.pad("network"),
            Self::Level(LevelIndex(level)) => write!(f, "level {level}"),
            Self::Staging => f.pad("staging"),
            Self::Preprocessing => f.pad("preprocessing"),
            Self::Compute => f.pad("compute"),
        }
    }
}

/// The prediction of one epoch, over all ranks of the plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EpochForecast {
    /// The epoch, counted from 0 at the beginning of the schedule.
    pub epoch: u64,
    /// The duration.
    pub nanoseconds: u64,
    /// The limiting resource.
    pub limiting: Resource,
    /// The busy time of each resource in nanoseconds, at the rank, store or node that uses it
    /// longest.
    pub busy: BTreeMap<Resource, u64>,
    /// Delivered samples from the origin, by the rank's own read.
    pub origin: Amount,
    /// Delivered samples from another rank's store, including reads by the owner on request.
    pub peers: Amount,
    /// Delivered samples from the rank's own store, by level.
    pub levels: [Amount; MAX_LEVELS],
    /// Reads from the origin: one per sample with an owner, and every use of the others.
    pub requests: Amount,
    /// The price of these reads, in 10^-9 of the currency's unit. `None` without a price.
    pub price_nano: Option<u64>,
}

impl EpochForecast {
    /// The duration in seconds.
    pub fn seconds(&self) -> f64 {
        self.nanoseconds as f64 / 1e9
    }
}

/// The work of the ranks of one store in an epoch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct StoreWork {
    pub(crate) ranks: u32,
    /// Delivered to its ranks.
    pub(crate) used: Amount,
    /// Read from the origin by its ranks, and the part of it that they read for themselves.
    pub(crate) origin: Amount,
    pub(crate) origin_own: Amount,
    /// The time of the slowest storage server for the reads of one rank.
    pub(crate) server_ns: u64,
    /// Received from other stores, and sent to them.
    pub(crate) received: Amount,
    pub(crate) sent: Amount,
    /// Read by its own ranks, read by all ranks, and written.
    pub(crate) near: [Amount; MAX_LEVELS],
    pub(crate) read: [Amount; MAX_LEVELS],
    pub(crate) written: [Amount; MAX_LEVELS],
}

/// Predicts an epoch from the work of every store. `stores` are positions in `cluster.stores`.
/// `equal_clusters` is the number of equal clusters that read from the origin. It exceeds 1 if the
/// plan is for one rank of several.
pub(crate) fn forecast(
    cluster: &Cluster,
    epoch: u64,
    stores: &[(usize, StoreWork)],
    equal_clusters: u32,
) -> EpochForecast {
    let mut busy = BTreeMap::new();
    let mut note = |resource, ns: u64| {
        let most: &mut u64 = busy.entry(resource).or_default();
        *most = (*most).max(ns);
    };
    let (origin, network, trainer) = (&cluster.origin, &cluster.network, &cluster.trainer);
    let world: u64 = stores.iter().map(|(_, work)| u64::from(work.ranks)).sum();
    let mut nodes: BTreeMap<u32, (u64, u128, u128)> = BTreeMap::new();
    let (mut all, mut clients) = (Amount::default(), 0u64);
    let (mut own, mut peers) = (Amount::default(), Amount::default());
    let mut levels = [Amount::default(); MAX_LEVELS];
    let mut on_node: BTreeMap<u32, u64> = BTreeMap::new();
    for &(at, work) in stores {
        *on_node.entry(cluster.stores[at].node).or_default() += u64::from(work.ranks);
    }
    for &(at, work) in stores {
        let ranks = u64::from(work.ranks.max(1));
        let of_rank = |bytes: u64| u128::from(bytes.div_ceil(ranks));
        let (store, requests) = (&cluster.stores[at], work.origin.samples.div_ceil(ranks));
        let one = u128::from(origin.latency_ns) * u128::from(requests)
            + u128::from(transfer_ns(of_rank(work.origin.bytes), origin.bytes_per_second));
        note(Resource::OriginRequests, narrow(one / u128::from(origin.in_flight.max(1))));
        note(Resource::OriginClient, transfer_ns(of_rank(work.origin.bytes), origin.client_bytes_per_second));
        if cluster.servers.is_some() {
            note(Resource::OriginServer, work.server_ns);
        }
        // Transfers to and from other stores cross the network, except between stores of one node.
        // Their part follows from their number of ranks.
        let node = on_node.get(&store.node).copied().unwrap_or(0);
        let others = world.saturating_sub(u64::from(work.ranks));
        let far = |amount: Amount| amount.share(world.saturating_sub(node).into(), others.into());
        let (received, sent) = (far(work.received), far(work.sent));
        let of_node = nodes.entry(store.node).or_default();
        of_node.1 += u128::from(received.bytes);
        of_node.2 += u128::from(sent.bytes);
        let waits = u128::from(received.samples.div_ceil(ranks)) * u128::from(network.latency_ns);
        of_node.0 = of_node.0.max(narrow(waits / u128::from(network.in_flight.max(1))));
        for (index, level) in store.levels.iter().enumerate().take(MAX_LEVELS) {
            let read = transfer_ns(work.read[index].bytes.into(), level.read.at(level.threads));
            let written = transfer_ns(work.written[index].bytes.into(), level.write.at(level.threads));
            note(Resource::Level(LevelIndex(index as u8)), read.saturating_add(written));
            levels[index] = levels[index].plus(work.near[index]);
        }
        let used = of_rank(work.used.bytes);
        note(Resource::Staging, transfer_ns(used, trainer.staging.at(trainer.staging_threads)));
        note(Resource::Preprocessing, transfer_ns(used, trainer.preprocess));
        note(Resource::Compute, transfer_ns(used, trainer.compute));
        if work.origin.samples > 0 {
            clients += u64::from(work.ranks);
        }
        all = all.plus(work.origin);
        own = own.plus(work.origin_own);
        peers = peers.plus(work.received);
    }
    for (waits, received, sent) in nodes.into_values() {
        let bytes = transfer_ns(received.max(sent), network.bytes_per_second);
        note(Resource::Network, bytes.max(waits));
    }
    let readers = u32::try_from(clients.saturating_mul(equal_clusters.into())).unwrap_or(u32::MAX);
    let bytes = u128::from(all.bytes) * u128::from(equal_clusters);
    note(Resource::OriginBandwidth, transfer_ns(bytes, origin.clients.at(readers)));
    let longest = busy.iter().max_by(|a, b| a.1.cmp(b.1).then(b.0.cmp(a.0)));
    let (limiting, nanoseconds) = longest.map_or((Resource::Compute, 0), |(&limiting, &ns)| (limiting, ns));
    EpochForecast {
        epoch,
        nanoseconds,
        limiting,
        busy,
        origin: own,
        peers,
        levels,
        requests: all,
        price_nano: origin.price.map(|price| price.nano(all.samples, all.bytes)),
    }
}

/// The uses of `ranks` ranks in each epoch, with the epoch's number. `datasets` are all uses in the
/// run.
pub(crate) fn uses_by_epoch(run: &Run, datasets: &[Amount], ranks: u32) -> Vec<(u64, Amount)> {
    let mut epochs: Vec<(u64, Amount)> = Vec::new();
    for pass in run.passes() {
        let all = datasets[pass.dataset.0 as usize];
        let samples = pass.samples.saturating_mul(ranks.into());
        let used = Amount { samples, bytes: all.share(samples.into(), all.samples.into()).bytes };
        match epochs.last_mut() {
            Some((epoch, sum)) if *epoch == pass.epoch => *sum = sum.plus(used),
            _ => epochs.push((pass.epoch, used)),
        }
    }
    epochs
}
