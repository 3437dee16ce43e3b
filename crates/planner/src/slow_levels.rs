//! Levels that are read more slowly than the origin stay empty.
//!
//! A cache must save time. A disk may give a rank less throughput than the origin does while all
//! ranks read from the origin. A copy there costs time at each use. Such a level gets no capacity
//! in a plan, the plan reports it, and the next level is used instead. Only known figures count: a
//! level or an origin without figures never limits.
//!
//! # The price
//!
//! All or nothing. A disk half as fast as the origin could still serve a third of the reads, so
//! that both are busy. But an origin is shared with other jobs, and a plan that loads it beyond the
//! lower bound must gain more than that. An origin may be bound by bytes for one kind of sample and
//! by requests for another. The mean sample decides.

use foreread_oracle::Run;
use foreread_types::Sizes;

use crate::cluster::Cluster;
use crate::curve::transfer_ns;
use crate::level::{Level, MAX_LEVELS};
use crate::origin::Origin;
use crate::wide::narrow;

/// By store, the levels that stay empty.
pub(crate) type SlowLevels = Vec<[bool; MAX_LEVELS]>;

/// The cluster without capacity in the levels that are slower than its origin, and the list of
/// these levels. `None` if there are none. `sizes` are those of the run's datasets.
pub(crate) fn without_slow_levels(
    cluster: &Cluster,
    run: &Run,
    sizes: &[Sizes],
) -> Option<(Cluster, SlowLevels)> {
    let origin = rate(&cluster.origin, run.world_size(), mean(sizes))?;
    let ranks = cluster.ranks_of(&cluster.stores_of_ranks(run.world_size()));
    let slower: SlowLevels = (cluster.stores.iter().zip(&ranks))
        .map(|(store, &ranks)| {
            let mut slower = [false; MAX_LEVELS];
            for (slower, level) in slower.iter_mut().zip(&store.levels) {
                *slower = level.capacity > 0 && is_slower(level, ranks, origin);
            }
            slower
        })
        .collect();
    if slower.iter().flatten().all(|slower| !slower) {
        return None;
    }
    let mut cluster = cluster.clone();
    for (store, slower) in cluster.stores.iter_mut().zip(&slower) {
        let levels = store.levels.iter_mut().zip(slower);
        levels.filter(|(_, slower)| **slower).for_each(|(level, _)| level.capacity = 0);
    }
    Some((cluster, slower))
}

/// Whether so many ranks of a store read samples more slowly from a level than from the origin. All
/// ranks of the run read from the origin then. Only known figures count.
pub fn is_slower_than_origin(
    level: &Level,
    ranks: u32,
    (origin, world_size): (&Origin, u32),
    sizes: &[Sizes],
) -> bool {
    rate(origin, world_size, mean(sizes)).is_some_and(|origin| is_slower(level, ranks, origin))
}

fn is_slower(level: &Level, ranks: u32, origin: u64) -> bool {
    level.read.at(level.threads) / u64::from(ranks).max(1) < origin
}

/// Bytes per second of one rank from the origin while all ranks read samples of `bytes` bytes.
/// `None` without a known limit.
fn rate(origin: &Origin, world_size: u32, bytes: u64) -> Option<u64> {
    let share = match origin.clients.at(world_size) {
        u64::MAX => u64::MAX,
        all => all / u64::from(world_size.max(1)),
    };
    let known = share.min(origin.client_bytes_per_second);
    if known == u64::MAX {
        return None;
    }
    let one = u128::from(transfer_ns(bytes.into(), origin.bytes_per_second)) + u128::from(origin.latency_ns);
    let many = u128::from(bytes) * 1_000_000_000 * u128::from(origin.in_flight) / one.max(1);
    Some(known.min(narrow(many)))
}

/// The mean length of all samples, at least 1.
fn mean(sizes: &[Sizes]) -> u64 {
    let (samples, bytes) = sizes.iter().fold((0u128, 0u128), |(samples, bytes), sizes| {
        (samples + u128::from(sizes.len()), bytes + u128::from(sizes.total()))
    });
    narrow(bytes / samples.max(1)).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Curve;

    const MB: u64 = 1_000_000;

    #[test]
    fn unknown_origin_has_no_rate() {
        assert_eq!(rate(&Origin::default(), 4, 100_000), None);
    }

    #[test]
    fn rank_gets_its_share_of_the_narrowest_limit() {
        let shared = Origin { clients: Curve::flat(146 * MB), latency_ns: 0, ..Origin::default() };
        assert_eq!(rate(&shared, 4, 100_000), Some(36_500_000));
        let client = Origin { client_bytes_per_second: 20 * MB, ..shared.clone() };
        assert_eq!(rate(&client, 4, 100_000), Some(20 * MB));
        // Two reads in flight, 10 ms each: 200 requests/s.
        let late = Origin { latency_ns: 10_000_000, bytes_per_second: u64::MAX, in_flight: 2, ..shared };
        assert_eq!(rate(&late, 4, 10_000), Some(2 * MB));
    }
}
