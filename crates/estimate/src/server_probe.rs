//! The read speed of each storage server that holds samples.
//!
//! One slow server delays an epoch, and a plan can keep its samples. So servers are measured one
//! after the other, each with up to eight reads in flight: as many as a Lustre client has by
//! default. The 64 servers with the most samples are measured, each for at most two seconds. The
//! price is up to two minutes. Samples that the measurement of the whole origin has read are left
//! out if others are left, because a cache may have them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use foreread::calibration::{Point, ServerSpeed, ServerSpeeds};
use foreread_tier::{OriginTier, StorageServer, TierError};
use foreread_types::SampleId;

use crate::measure::RequestSource;
use crate::probe::{self, ProbeLimits};

/// The most servers that are measured.
const MAX_SERVERS: usize = 64;

/// The most time for one server, and its part of a shorter time for the whole origin.
const TIME: Duration = Duration::from_secs(2);
const PART_OF_TIME: u32 = 8;

/// The most parallel reads of one server.
const MAX_READS: u32 = 8;

/// Measures the servers of `requests`. `None` for fewer than two servers. `budget` is that of the
/// whole origin. `report` gets each server and figure.
///
/// # Errors
/// The first read that fails.
pub(crate) async fn measure(
    tier: &Arc<dyn OriginTier>,
    requests: &RequestSource,
    budget: ProbeLimits,
    mut report: impl FnMut(&str, Point),
) -> Result<Option<ServerSpeeds>, TierError> {
    let by_server = by_server(requests);
    if by_server.len() < 2 {
        return Ok(None);
    }
    let time = TIME.min(budget.time / PART_OF_TIME);
    let bytes = budget.bytes / by_server.len() as u64;
    let mut measured = Vec::new();
    for (server, ids) in by_server {
        let name = server.to_string();
        let sizes = requests.catalog.stored_sizes().unwrap_or_else(|| requests.catalog.sizes());
        let total: u64 = ids.iter().map(|id| sizes.bytes(*id)).sum();
        let sample_bytes = (total / ids.len() as u64).max(1);
        let Some(first) = requests.request(ids[0]) else { continue };
        let mut endless = ids.iter().cycle();
        let next = || endless.next().and_then(|id| requests.request(*id)).unwrap_or_else(|| first.clone());
        // No sample is read twice, apart from the last ones of a step.
        let limits = ProbeLimits { time, bytes: bytes.min(total).max(1), ..budget };
        let mut read = probe::curve(tier, MAX_READS, limits, next, |point| report(&name, point)).await?;
        if read.is_empty() {
            let most = (sample_bytes as f64 / time.as_secs_f64()) as u64;
            let point = Point { parallelism: 1, bytes_per_second: most.max(1), spread: 1.0, samples: 0 };
            report(&name, point);
            read.push(point);
        }
        measured.push(ServerSpeed { name, sample_bytes, read });
    }
    let made = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    Ok(Some(ServerSpeeds { made, server: measured }))
}

/// The samples to read from each server, for the servers with the most samples.
fn by_server(requests: &RequestSource) -> BTreeMap<StorageServer, Vec<SampleId>> {
    let (catalog, ids) = (&requests.catalog, &requests.ids);
    if !catalog.has_servers() {
        return BTreeMap::new();
    }
    let of = |ids: &[SampleId]| {
        let mut servers: BTreeMap<StorageServer, Vec<SampleId>> = BTreeMap::new();
        for &id in ids {
            if let Some(server) = catalog.server(id).filter(|_| !catalog.is_released(id)) {
                servers.entry(server).or_default().push(id);
            }
        }
        servers
    };
    let unread = of(&ids[requests.at.min(ids.len())..]);
    let mut all: Vec<_> = of(ids).into_iter().collect();
    all.sort_by_key(|(server, ids)| (std::cmp::Reverse(ids.len()), *server));
    all.truncate(MAX_SERVERS);
    let of_server = |(server, ids): (StorageServer, Vec<SampleId>)| {
        let unread = unread.get(&server).cloned();
        (server, unread.unwrap_or(ids))
    };
    all.into_iter().map(of_server).collect()
}
