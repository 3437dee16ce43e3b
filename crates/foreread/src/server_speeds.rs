//! The storage servers of a run's samples, with their measured speeds, for the planner.
//!
//! The catalog names the server of each sample, and the calibration has the speed of each server.
//! Plans use both, if the speeds are less than a day old and belong to this origin. The load of a
//! server changes within hours, so older figures are ignored with a warning. In a group of ranks
//! rank 0 decides this for all.
//!
//! A server's time for a read has two parts, one per request and one per byte. The measurement by
//! number of parallel reads separates them: reads that do not slow each other down wait for
//! requests, and reads that do are limited by bytes. Their sum is exact for a sample of the mean
//! length. The price of one length: for other lengths it is an estimate.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use foreread_dataset::Catalog;
use foreread_open::calibration::{self, Calibration};
use foreread_planner::{OriginServers, ServerSpeed};
use foreread_tier::StorageServer;
use foreread_types::SampleId;

use crate::config::Config;

/// Older speeds of servers are ignored.
const MAX_AGE: Duration = Duration::from_secs(24 * 3600);

/// The same settings without outdated speeds of servers, with a warning.
pub(crate) fn recent(config: Config) -> Config {
    recent_at(config, SystemTime::now())
}

fn recent_at(mut config: Config, now: SystemTime) -> Config {
    let now = now.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let made = |calibration: &Calibration| Some(calibration.origin.as_ref()?.servers.as_ref()?.made);
    let Some(calibration) = config.calibration.as_mut() else { return config };
    let Some(age) = made(calibration).map(|made| now.saturating_sub(made)) else { return config };
    if age >= MAX_AGE.as_secs() {
        tracing::warn!(
            "the speeds of storage servers were measured {} hours ago and are ignored; measure again with \
             `foreread calibrate`",
            age / 3600
        );
        if let Some(origin) = &mut Arc::make_mut(calibration).origin {
            origin.servers = None;
        }
    }
    config
}

/// The fingerprint of the columns of servers of these catalogs. `None` if the calibration has no
/// speeds for them. Visits every sample.
#[cfg(all(feature = "share", target_os = "linux"))]
pub(crate) fn fingerprint(config: &Config, catalogs: &[Catalog]) -> Option<u64> {
    let of_catalog = |catalog: &Catalog| {
        let speeds = speeds(config, catalog)?;
        catalog.server_fingerprint().filter(|_| !speeds.is_empty())
    };
    let mut prints = catalogs.iter().map(of_catalog);
    let train = prints.next()??;
    Some(prints.flatten().fold(train, |all, print| all.rotate_left(1) ^ print))
}

/// The servers of all samples. `None` if the training data's are unknown, or have no speeds. Visits
/// every sample.
pub(crate) fn servers(config: &Config, catalogs: &[Catalog]) -> Option<OriginServers> {
    let measured = speeds(config, catalogs.first()?)?;
    if measured.is_empty() || !catalogs[0].has_servers() {
        return None;
    }
    let mut numbers = BTreeMap::new();
    let mut columns = Vec::new();
    for catalog in catalogs {
        // Servers of another file system may have the same names.
        let is_known = catalog.has_servers() && speeds(config, catalog).is_some();
        let ids = || (0..catalog.len()).filter(|_| is_known).map(SampleId);
        ids().filter_map(|id| catalog.server(id)).for_each(|server| {
            numbers.insert(server, 0u16);
        });
        columns.push((catalog, is_known));
    }
    if numbers.len() >= usize::from(OriginServers::UNKNOWN) {
        return None;
    }
    (0..).zip(numbers.values_mut()).for_each(|(number, of_server)| *of_server = number);
    let known: Vec<ServerSpeed> = numbers.keys().filter_map(|server| measured.get(server).copied()).collect();
    // Files that have moved since, to servers that were not measured.
    if known.is_empty() {
        return None;
    }
    let average = OriginServers::new(known, Vec::new()).average();
    let of_server = |server: &StorageServer| measured.get(server).copied().unwrap_or(average);
    let tables = columns.into_iter().map(|(catalog, is_known)| {
        let number = |id| numbers.get(&catalog.server(id)?).copied();
        let ids = (0..catalog.len()).filter(|_| is_known).map(SampleId);
        ids.map(|id| number(id).unwrap_or(OriginServers::UNKNOWN)).collect()
    });
    Some(OriginServers::new(numbers.keys().map(of_server).collect(), tables.collect()))
}

/// The measured speeds of a catalog's servers. `None` if its origin was not measured.
fn speeds(config: &Config, catalog: &Catalog) -> Option<HashMap<StorageServer, ServerSpeed>> {
    let origin = config.calibration.as_deref()?.of_origin(catalog.base_url())?;
    let measured = origin.servers.as_ref()?.server.iter();
    Some(measured.filter_map(|speed| Some((speed.name.parse().ok()?, speed_of(speed)?))).collect())
}

/// The time per request and the time per byte. `None` without a measurement.
fn speed_of(measured: &calibration::ServerSpeed) -> Option<ServerSpeed> {
    let (first, best) = (measured.read.first()?, measured.best()?);
    let bytes = best.bytes_per_second as f64;
    // 1: as many times the throughput as parallel reads. 0: no gain by parallel reads.
    let gain = bytes / first.bytes_per_second as f64 * f64::from(first.parallelism);
    let by_request = match best.parallelism - first.parallelism {
        0 => 0.0,
        _ => ((gain - f64::from(first.parallelism)) / f64::from(best.parallelism - first.parallelism))
            .clamp(0.0, 1.0),
    };
    let latency = by_request * measured.sample_bytes as f64 / bytes * 1e9;
    // Saturates if requests take all the time.
    let bytes_per_second = (bytes / (1.0 - by_request)) as u64;
    Some(ServerSpeed { latency_ns: latency as u64, bytes_per_second: bytes_per_second.max(1) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use foreread_open::calibration::{OriginSpeed, Point, ServerSpeeds};

    fn point(parallelism: u32, bytes_per_second: u64) -> Point {
        Point { parallelism, bytes_per_second, spread: 0.0, samples: 10 }
    }

    fn measured(name: &str, read: Vec<Point>) -> calibration::ServerSpeed {
        calibration::ServerSpeed { name: name.to_owned(), sample_bytes: 100_000, read }
    }

    fn calibrated(made: u64) -> Config {
        let server = vec![measured("OST 3", vec![point(1, 1000)])];
        let origin = OriginSpeed {
            url: "/data".to_owned(),
            sample_bytes: 100_000,
            latency_seconds: 0.0,
            stream_bytes_per_second: 1,
            read: vec![point(1, 1000)],
            large: None,
            servers: Some(ServerSpeeds { made, server }),
        };
        let origin = Some(origin);
        let calibration = Calibration { version: 1, made: 0, origin, memory: None, disk: Vec::new() };
        Config { calibration: Some(Arc::new(calibration)), ..Config::default() }
    }

    #[test]
    // semantics: HPC-11
    fn speeds_of_servers_are_ignored_after_a_day() {
        let now = UNIX_EPOCH + Duration::from_secs(1_000_000);
        let has = |made| {
            let config = recent_at(calibrated(made), now);
            config.calibration.unwrap().origin.as_ref().unwrap().servers.is_some()
        };
        assert!(has(1_000_000) && has(1_000_000 - 86_399) && has(2_000_000));
        assert!(!has(1_000_000 - 86_400));
        assert!(recent_at(Config::default(), now).calibration.is_none());
    }

    #[test]
    fn parallel_reads_separate_requests_from_bytes() {
        let of = |read| speed_of(&measured("OST 1", read)).unwrap();
        // 100 kB in 10 ms. Eight at once are eight times as fast: 1.25 ms a request.
        let requests = of(vec![point(1, 10_000_000), point(8, 80_000_000)]);
        assert_eq!((requests.latency_ns, requests.bytes_per_second), (1_250_000, u64::MAX));
        // Eight at once are no faster: the bytes take all the time.
        let bytes = of(vec![point(1, 10_000_000), point(8, 10_000_000)]);
        assert_eq!((bytes.latency_ns, bytes.bytes_per_second), (0, 10_000_000));
        // Half and half: 1.25 ms for the mean sample in any case.
        let both = of(vec![point(1, 80_000_000 * 2 / 9), point(8, 80_000_000)]);
        let of_mean = both.latency_ns + 100_000 * 1_000_000_000 / both.bytes_per_second;
        assert!(of_mean.abs_diff(1_250_000) < 10 && both.latency_ns > 500_000, "{both:?}");
        assert!(speed_of(&measured("OST 1", Vec::new())).is_none());
    }
}
