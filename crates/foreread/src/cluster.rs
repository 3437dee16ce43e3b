//! The cluster of a plan: the settings, with the speeds from a calibration.
//!
//! Speeds that were not measured do not limit. A plan still places samples correctly, but predicts
//! no times.

use foreread_memory::MemoryTier;
use foreread_open::calibration::{Calibration, DiskSpeed, OriginSpeed, Point};
#[cfg(all(feature = "share", target_os = "linux"))]
use foreread_open::units::STORE_FOOTPRINT;
use foreread_planner::{CacheStore, Cluster, Curve, LargeReads, Level, Origin, Trainer};
use foreread_tier::{CacheTier, Tier};
use foreread_types::{Sizes, StoreId};

use crate::config::Config;
#[cfg(all(feature = "share", target_os = "linux"))]
use crate::node_links::{CacheClient, NodeRoom};
use crate::planned::RunEnvironment;

/// The name of the disk tier in a plan.
pub(crate) const DISK: &str = "disk";

/// The name of the node's agent in a plan, and that of the cache that the ranks of a node share.
#[cfg(all(feature = "share", target_os = "linux"))]
const AGENT: &str = "agent";
#[cfg(all(feature = "share", target_os = "linux"))]
const NODE_CACHE: &str = "node cache";

/// This rank's caches, with `memory` bytes of memory, and the origin at `place`.
pub(crate) fn describe(
    config: &Config,
    memory: u64,
    place: &RunEnvironment,
    train: Option<&Sizes>,
) -> Cluster {
    let mut levels = kinds(config);
    for level in &mut levels {
        level.capacity = if level.name == DISK { place.disk } else { memory };
    }
    levels.retain(|level| level.capacity > 0);
    Cluster {
        look_ahead: config.look_ahead,
        origin: match &place.stored {
            Some(stored) => stored.origin(of_origin(config, origin_speed(config, place))),
            None => of_origin(config, origin_speed(config, place)),
        },
        trainer: of_trainer(config, train),
        servers: match (&place.stored, &place.servers) {
            (Some(stored), Some(servers)) => Some(stored.servers(servers)),
            (_, servers) => servers.clone(),
        },
        ..Cluster::single(CacheStore::new(StoreId(config.rank.rank), levels))
    }
}

/// The memory and the disks of an agent, or of the cache that the ranks of a node share. One level.
#[cfg(all(feature = "share", target_os = "linux"))]
pub(crate) fn of_agent(agent: &dyn CacheClient) -> Level {
    let name = if agent.shared_by().is_some() { NODE_CACHE } else { AGENT };
    let NodeRoom { memory, disk } = agent.room();
    Level::new(name, memory.saturating_add(disk), STORE_FOOTPRINT)
}

/// The kinds of cache that processes of a node share, without capacity.
#[cfg(all(feature = "share", target_os = "linux"))]
pub(crate) fn shared_kinds() -> Vec<Level> {
    [AGENT, NODE_CACHE].map(|name| Level::new(name, 0, STORE_FOOTPRINT)).into()
}

/// The kinds of cache that a rank may have, without capacity, the fastest first.
pub(crate) fn kinds(config: &Config) -> Vec<Level> {
    let tier = MemoryTier::new(0);
    let memory = Level::new(tier.name(), 0, tier.footprint());
    vec![memory, of_disk(config)]
}

/// Whether the origin's speed is known, so that read times can be predicted.
pub(crate) fn is_timed(config: &Config, place: &RunEnvironment) -> bool {
    config.origin_limit.is_some() || origin_speed(config, place).is_some()
}

/// The figures of the run's origin. For a dataset that is only described, the figures of any
/// origin.
fn origin_speed<'a>(config: &'a Config, place: &RunEnvironment) -> Option<&'a OriginSpeed> {
    let calibration: &Calibration = config.calibration.as_deref()?;
    match &place.url {
        Some(url) => calibration.of_origin(url),
        None => calibration.origin.as_ref(),
    }
}

fn of_origin(config: &Config, speed: Option<&OriginSpeed>) -> Origin {
    let parallelism = config.origin_parallelism.map(|most| u32::try_from(most.max(1)).unwrap_or(u32::MAX));
    let mut origin = Origin::default();
    if let Some(speed) = speed {
        origin.latency_ns = (speed.latency_seconds * 1e9) as u64;
        origin.bytes_per_second = speed.stream_bytes_per_second;
        // Assumes the best number of parallel reads, because the limit adapts to it.
        if let Some(best) = speed.best() {
            origin.in_flight = best.parallelism;
            origin.client_bytes_per_second = best.bytes_per_second;
        }
        origin.large = speed.large.as_ref().and_then(|large| {
            let bytes_per_second = match parallelism {
                Some(most) => at(&large.read, most),
                None => large.best()?.bytes_per_second,
            };
            Some(LargeReads { bytes: large.bytes, bytes_per_second })
        });
    }
    if let Some(parallelism) = parallelism {
        origin.in_flight = origin.in_flight.min(parallelism);
        if let Some(speed) = speed {
            origin.client_bytes_per_second = at(&speed.read, origin.in_flight);
        }
    }
    if let Some(limit) = config.origin_limit {
        origin.bytes_per_second = origin.bytes_per_second.min(limit);
        origin.client_bytes_per_second = origin.client_bytes_per_second.min(limit);
        if let Some(large) = &mut origin.large {
            large.bytes_per_second = large.bytes_per_second.min(limit);
        }
    }
    origin
}

pub(crate) fn of_disk(config: &Config) -> Level {
    let level = Level::new(DISK, 0, foreread_local::DiskTier::FOOTPRINT);
    let calibration = config.calibration.as_deref();
    let speeds = config.disk.iter().map(|disk| calibration.and_then(|known| known.of_disk(&disk.directory)));
    // Samples are spread over directories. The total speed is unknown if that of one directory is.
    let Some(speeds) = speeds.collect::<Option<Vec<&DiskSpeed>>>().filter(|speeds| !speeds.is_empty()) else {
        return level;
    };
    let read = speeds.iter().filter_map(|speed| speed.best()).map(|best| best.bytes_per_second);
    let write = speeds.iter().map(|speed| speed.write_bytes_per_second);
    let (read, write) = (read.fold(0, u64::saturating_add), write.fold(0, u64::saturating_add));
    Level { read: Curve::flat(read), write: Curve::flat(write), ..level }
}

/// The trainer, from the computation time per batch.
fn of_trainer(config: &Config, train: Option<&Sizes>) -> Trainer {
    let mut trainer = Trainer::default();
    let nanoseconds = config.compute.as_nanos();
    if let Some(train) = train.filter(|train| nanoseconds > 0 && !train.is_empty()) {
        let batch = u128::from(train.total()) * u128::from(config.batch_size) / u128::from(train.len());
        let rate = batch.saturating_mul(1_000_000_000) / nanoseconds;
        trainer.compute = u64::try_from(rate).unwrap_or(u64::MAX).max(1);
    }
    trainer
}

/// Throughput with this number of parallel reads, interpolated between measured points.
fn at(points: &[Point], parallelism: u32) -> u64 {
    let points = points.iter().map(|point| (point.parallelism, point.bytes_per_second)).collect();
    // Points were checked when they were read.
    Curve::new(points).map_or(u64::MAX, |curve| curve.at(parallelism))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use super::*;

    use foreread_planner::{OriginServers, ServerSpeed};

    use foreread_open::calibration::LargeReads;
    use foreread_open::stored::StoredSizes;

    fn calibrated() -> Config {
        let point =
            |parallelism, bytes_per_second| Point { parallelism, bytes_per_second, spread: 0.0, samples: 1 };
        let origin = OriginSpeed {
            url: "/data".to_owned(),
            sample_bytes: 100_000,
            latency_seconds: 0.01,
            stream_bytes_per_second: 80_000_000,
            read: vec![point(1, 10_000_000), point(9, 80_000_000), point(16, 81_000_000)],
            large: Some(LargeReads {
                bytes: 8_000_000,
                read: vec![point(1, 100_000_000), point(8, 200_000_000)],
            }),
            servers: None,
        };
        let disk = DiskSpeed {
            directory: "/scratch".to_owned(),
            write_bytes_per_second: 300,
            read: vec![point(16, 500)],
        };
        let calibration =
            Calibration { version: 1, made: 0, origin: Some(origin), memory: None, disk: vec![disk] };
        Config { calibration: Some(Arc::new(calibration)), ..Config::default() }
    }

    fn place(url: Option<&str>) -> RunEnvironment {
        RunEnvironment {
            kernel_cached: false,
            disk: 1000,
            warm: 0,
            has_agent: false,
            is_client: false,
            url: url.map(str::to_owned),
            packed: false,
            stored: None,
            servers: None,
        }
    }

    fn described(config: &Config, url: &str) -> Cluster {
        describe(config, 1000, &place(Some(url)), Some(&Sizes::uniform(10, 100_000)))
    }

    #[test]
    // semantics: TIME-1
    fn measured_speeds_are_those_of_this_origin_alone() {
        let config = calibrated();
        let here = described(&config, "/data").origin;
        assert_eq!(
            (here.latency_ns, here.in_flight, here.client_bytes_per_second),
            (10_000_000, 9, 80_000_000)
        );
        assert_eq!(described(&config, "/other").origin, Origin::default());
        assert!(is_timed(&config, &place(Some("/data"))) && is_timed(&config, &place(None)));
        assert!(!is_timed(&config, &place(Some("/other"))));
        assert!(is_timed(&Config { origin_limit: Some(1), ..config }, &place(Some("/other"))));
    }

    #[test]
    // semantics: TIME-2
    fn users_limits_override_measured_speeds() {
        let limited = Config { origin_limit: Some(7_000_000), ..calibrated() };
        let origin = described(&limited, "/data").origin;
        assert_eq!(origin.client_bytes_per_second, 7_000_000);
        assert_eq!(
            origin.large,
            Some(foreread_planner::LargeReads { bytes: 8_000_000, bytes_per_second: 7_000_000 })
        );
        let few = Config { origin_parallelism: Some(5), ..calibrated() };
        assert_eq!(described(&few, "/data").origin.client_bytes_per_second, 45_000_000);
    }

    #[test]
    fn disk_speed_is_known_if_that_of_each_directory_is() {
        let disk = |directory: &str| foreread_open::disk::Disk {
            directory: directory.into(),
            bytes: 1000,
            shared: false,
        };
        let known = Config { disk: vec![disk("/scratch")], ..calibrated() };
        let level = &described(&known, "/data").stores[0].levels[1];
        assert_eq!((level.read.at(1), level.write.at(1)), (500, 300));
        let twice = Config { disk: vec![disk("/scratch"), disk("/scratch")], ..calibrated() };
        assert_eq!(described(&twice, "/data").stores[0].levels[1].read.at(1), 1000);
        let mut fastest = calibrated();
        if let Some(calibration) = fastest.calibration.as_mut().map(Arc::make_mut) {
            calibration.disk[0].write_bytes_per_second = u64::MAX;
        }
        let fastest = Config { disk: twice.disk, ..fastest };
        assert_eq!(described(&fastest, "/data").stores[0].levels[1].write.at(1), u64::MAX);
        let half = Config { disk: vec![disk("/scratch"), disk("/more")], ..calibrated() };
        assert_eq!(described(&half, "/data").stores[0].levels[1].read, Curve::unlimited());
    }

    /// Servers of compressed samples seemed slower than the whole storage.
    #[test]
    // semantics: FORMAT-5
    fn speeds_are_those_of_decoded_bytes() {
        let speed = ServerSpeed { latency_ns: 5, bytes_per_second: 100 };
        let servers = Some(OriginServers::new(vec![speed], vec![[0; 10].into()]));
        let stored = Some(StoredSizes::with([Sizes::uniform(10, 25)], &[Sizes::uniform(10, 100)]));
        let place = RunEnvironment { stored, servers, ..place(Some("/data")) };
        let described = describe(&calibrated(), 1000, &place, Some(&Sizes::uniform(10, 100)));
        let quick = ServerSpeed { bytes_per_second: 400, ..speed };
        let servers = described.servers.unwrap();
        assert_eq!((servers.speeds(), servers.average()), (&[quick][..], quick));
        assert_eq!(described.origin.client_bytes_per_second, 320_000_000);
    }

    #[test]
    fn compute_time_counts_per_batch() {
        let config = Config { compute: Duration::from_millis(100), batch_size: 10, ..Config::default() };
        assert_eq!(described(&config, "/data").trainer.compute, 10_000_000);
    }
}
