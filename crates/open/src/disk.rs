//! The disk tier of a run: opened for its datasets, closed with it.
//!
//! A directory belongs to a node, and a node may have several ranks. Each rank keeps its own part
//! of this user's cache, so no two ranks write to the same files. The cache itself is the first
//! rank's part, `rank-1` in it is the second's, and so on. The size of `--disk` is divided among
//! the parts. A run with fewer ranks than its predecessor takes over the unowned parts, so that
//! their samples are used. The price: a part stays small when the number of ranks falls.

use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use foreread_layers::{Breaker, DeadlinePolicy};
use foreread_local::DiskTier;
use foreread_local::disk::{DatasetLineage, DatasetOnDisk, DiskConfig, DiskDirectory, DiskOutlook};
use foreread_tier::TierError;
use foreread_tier::{CacheTier, OpenContext};
use foreread_types::{DatasetId, RankOf};
use serde::Serialize;

use crate::error::{Error, Result, ended};
use crate::origin::OpenDataset;
use crate::size::ByteSize;

/// The timeout of the flush at the end of a run.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(5);

/// The timeout of each read from the disk, plus the time for its bytes. It covers the reads queued
/// before it.
const READ_TIMEOUT: Duration = Duration::from_secs(10);

/// A directory of the disk tier and its size. As text `DIR=SIZE` or `DIR=SIZE,shared`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Disk {
    /// The directory. It is created if its parent exists.
    pub directory: PathBuf,
    /// The most bytes of its cache.
    pub bytes: u64,
    /// Whether one cache serves all users, instead of one cache per user. Then owners and modes are
    /// not checked: everyone with write access is trusted.
    pub shared: bool,
}

impl FromStr for Disk {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("invalid disk '{text}': expected DIR=SIZE, e.g. /local/cache=500GB");
        let (directory, size) =
            text.rsplit_once('=').filter(|(directory, _)| !directory.is_empty()).ok_or_else(wrong)?;
        if directory.contains('$') {
            return Err(format!(
                "invalid disk '{text}': variables are not replaced here; write it in double quotes in the \
                 shell, or name the directory itself"
            ));
        }
        let (size, shared) = match size.split_once(',') {
            Some((size, "shared")) => (size, true),
            Some((_, other)) => {
                return Err(format!("'{text}': expected shared after the size, not '{other}'"));
            }
            None => (size, false),
        };
        let bytes = ByteSize::of_cache(size).map_err(|error| error.to_string())?.0;
        Ok(Self { directory: directory.into(), bytes, shared })
    }
}

/// The content and counters of a run's disk tier. Bytes are footprints: they include the overhead
/// of each sample.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct DiskReport {
    /// Its capacity. 0 if another process owns the directories, or if they are not used.
    pub capacity_bytes: u64,
    /// Its bytes of the run's datasets.
    pub held_bytes: u64,
    /// Samples written in this run.
    pub written: u64,
    /// Stores that were left out because too many writes were queued. Their samples were
    /// delivered. Not the field of that name in the run's report, which counts uses.
    pub skipped: u64,
    /// Samples that were not stored because the disk failed or was full.
    pub failed: u64,
    /// Samples that were dropped because their checksum did not match.
    pub corrupt: u64,
    /// The implementation of reads: `io_uring` or `threads`. Empty if nothing is read there.
    pub reader: &'static str,
}

/// A disk tier, and its offer to the plan.
#[derive(Clone, Debug)]
pub struct OpenDisk {
    /// The tier.
    pub tier: Arc<DiskTier>,
    /// Capacity, in bytes of footprints.
    pub capacity: u64,
    /// Bytes of the run's datasets that it already contains.
    pub warm: u64,
    /// The number of the run's datasets.
    datasets: u32,
}

impl OpenDisk {
    /// The tier as runs read it.
    pub fn cache(&self) -> Arc<dyn CacheTier> {
        guarded(Arc::clone(&self.tier))
    }

    /// The tier's current counters.
    pub fn report(&self) -> DiskReport {
        report_of(&self.tier, self.capacity, self.datasets)
    }

    /// Waits for `given`, the end of samples on their way to the tier, and for queued writes, for
    /// 5 seconds at most.
    pub async fn flush(&self, given: impl Future<Output = ()>) {
        let written = async {
            given.await;
            self.tier.flush().await;
        };
        within_flush_timeout(written).await;
    }
}

/// Waits for the writes at the end of a run, for 5 seconds at most.
pub async fn within_flush_timeout(written: impl Future<Output = ()>) {
    if tokio::time::timeout(FLUSH_TIMEOUT, written).await.is_err() {
        tracing::warn!("the disk tier does not finish its queued writes; they are abandoned");
    }
}

/// The counters of a tier with so many datasets.
pub fn report_of(tier: &DiskTier, capacity: u64, datasets: u32) -> DiskReport {
    let counts = tier.counts();
    DiskReport {
        capacity_bytes: capacity,
        held_bytes: held(tier, datasets),
        written: counts.written,
        skipped: counts.skipped,
        failed: counts.failed,
        corrupt: counts.corrupt,
        reader: tier.reader().as_str(),
    }
}

/// `tier` with a timeout and a circuit breaker. A device that stops responding costs each read a
/// timeout. Then it gets no requests for a while, and the origin is read instead.
pub fn guarded(tier: Arc<impl CacheTier + 'static>) -> Arc<dyn CacheTier> {
    let deadline = DeadlinePolicy::default().with_floor(READ_TIMEOUT);
    Arc::new(Breaker::new(tier, deadline, "the disk", 0))
}

/// The footprints of the run's datasets in the tier, in bytes.
fn held(tier: &DiskTier, datasets: u32) -> u64 {
    (0..datasets).map(|dataset| tier.stored(DatasetId(dataset)).bytes).sum()
}

/// A rank's parts of a directory, each with its bytes.
pub fn parts_of(on_node: RankOf, directory: &DiskDirectory) -> Vec<DiskDirectory> {
    let all = directory.parts().max(on_node.ranks);
    let bytes = directory.capacity / u64::from(all);
    (on_node.rank..all)
        .step_by(on_node.ranks as usize)
        .map(|part| DiskDirectory::new(&directory.path, bytes).with_part(part).with_shared(directory.shared))
        .collect()
}

/// The datasets as the tier knows them.
fn on_disk(opened: &[OpenDataset]) -> Vec<DatasetOnDisk> {
    let one = |dataset: &OpenDataset| DatasetOnDisk {
        identity: dataset.identity,
        samples: dataset.catalog.len(),
        bytes: dataset.catalog.total_bytes(),
    };
    opened.iter().map(one).collect()
}

/// The caches of earlier datasets that these continue.
fn lineages(opened: &[OpenDataset]) -> Vec<DatasetLineage> {
    opened.iter().filter_map(|dataset| dataset.lineage.clone()).collect()
}

/// This rank's parts of directories.
fn parts(disks: &[Disk], on_node: RankOf) -> DiskConfig {
    let directories =
        disks.iter().map(|disk| DiskDirectory::new(&disk.directory, disk.bytes).with_shared(disk.shared));
    DiskConfig::new(directories.flat_map(|directory| parts_of(on_node, &directory)))
}

/// The offers of this rank's parts of the directories of the settings. The directories are not
/// changed.
pub async fn look(
    disks: &[Disk],
    on_node: RankOf,
    opened: &[OpenDataset],
    context: &OpenContext,
) -> Result<DiskOutlook> {
    if disks.is_empty() {
        return Ok(DiskOutlook::default());
    }
    let (datasets, disks, lineages) = (on_disk(opened), disks.to_vec(), lineages(opened));
    // Reads the indexes.
    let looking = context
        .runtime
        .spawn_blocking(move || DiskTier::look(&parts(&disks, on_node).with_lineages(lineages), &datasets));
    let found: Result<DiskOutlook, TierError> = looking.await.map_err(ended)?;
    found.map_err(Error::disk)
}

/// Opens this rank's parts of the directories of the settings. `None` if there are none.
pub async fn open(
    disks: &[Disk],
    on_node: RankOf,
    opened: &[OpenDataset],
    context: &OpenContext,
) -> Result<Option<OpenDisk>> {
    if disks.is_empty() {
        return Ok(None);
    }
    let datasets = on_disk(opened);
    let location = |dataset: &OpenDataset| {
        let earliest = dataset.lineage.as_ref().and_then(|lineage| lineage.pieces.first());
        (earliest.map_or(dataset.identity, |(_, identity)| *identity), dataset.catalog.base_url().to_owned())
    };
    let (locations, lineages) = (opened.iter().map(location).collect(), lineages(opened));
    let buffers = Arc::clone(&context.buffers);
    // Reads the indexes, and may remove old caches.
    let configured = disks.to_vec();
    let opening = context.runtime.spawn_blocking(move || {
        let parts = parts(&configured, on_node).with_locations(locations).with_lineages(lineages);
        let tier = DiskTier::open(parts, &datasets, buffers)?;
        if on_node.rank == 0 {
            configured.iter().for_each(warn_of_little_space);
        }
        let count = datasets.len() as u32;
        let (capacity, warm) = (tier.capacity(), held(&tier, count));
        Ok(OpenDisk { capacity, warm, tier: Arc::new(tier), datasets: count })
    });
    let opened: Result<OpenDisk, TierError> = opening.await.map_err(ended)?;
    opened.map(Some).map_err(Error::disk)
}

/// Warns if a cache cannot reach its size, because its file system has less space.
pub fn warn_of_little_space(disk: &Disk) {
    let Ok(system) = rustix::fs::statvfs(&disk.directory) else { return };
    let free = system.f_bavail.saturating_mul(system.f_frsize);
    // Some file systems report no blocks at all.
    if disk.bytes <= free || system.f_blocks == 0 {
        return;
    }
    let cached = foreread_local::disk::list(&disk.directory).unwrap_or_default();
    let space = cached.iter().fold(free, |space, entry| space.saturating_add(entry.bytes));
    if disk.bytes > space {
        tracing::warn!(
            directory = %disk.directory.display(),
            "the disk cache may take {}, but its file system has only {} for it; it grows until the disk is \
             full",
            ByteSize(disk.bytes),
            ByteSize(space)
        );
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::DirBuilderExt;

    use foreread_tier_testing::{FailingTier, FakeOrigin, Fault, StoredCache, When};
    use foreread_types::{SampleId, Tick};

    use super::*;

    /// Guards against this fault: a plan created the directory, and a cache in it.
    /// Guards against this fault: a device that stopped responding hung the run, although the
    /// origin had the sample.
    #[tokio::test(start_paused = true)]
    // semantics: DISK-1
    async fn stuck_disk_fails_its_reads_in_bounded_time() {
        let origin = FakeOrigin::uniform(100, 1000);
        let stuck = FailingTier::new(Arc::new(StoredCache::new(1 << 20))).on(When::Always, Fault::Never);
        let cache = guarded(Arc::new(stuck));
        let mut waited = Duration::ZERO;
        for id in 0..100 {
            let began = tokio::time::Instant::now();
            let error = cache.read(Arc::new(origin.request(SampleId(id), Tick(id)))).await.unwrap_err();
            // The record stays, because the device may recover.
            assert!(!error.kind().is_loss(), "{error}");
            waited += began.elapsed();
        }
        // Three reads open the breaker. The others do not wait.
        assert!(waited < 5 * READ_TIMEOUT, "{waited:?}");
    }

    #[tokio::test(start_paused = true)]
    // semantics: DISK-21
    async fn end_of_a_run_waits_five_seconds_for_writes() {
        let second = Duration::from_secs(1);
        for (writing, waited) in [(4 * second, 4 * second), (6 * second, 5 * second)] {
            let began = tokio::time::Instant::now();
            within_flush_timeout(async { tokio::time::sleep(writing).await }).await;
            assert_eq!(began.elapsed(), waited);
        }
    }

    #[test]
    // semantics: RANK-37
    fn each_part_of_a_directory_has_exactly_one_rank() {
        let made = tempfile::tempdir().unwrap();
        let directory = DiskDirectory::new(made.path(), 1200);
        let user = std::os::unix::fs::MetadataExt::uid(&std::fs::metadata(made.path()).unwrap());
        let own = made.path().join(format!("foreread-cache-{user}"));
        for (before, ranks) in [(0, 1), (1, 4), (4, 2), (4, 3), (4, 1), (4, 6)] {
            (1..before).for_each(|number: u32| {
                let part = own.join(format!("rank-{number}"));
                std::fs::DirBuilder::new().recursive(true).mode(0o700).create(part).unwrap();
            });
            if before > 0 {
                std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&own).unwrap();
                std::fs::write(own.join("rank-77"), "no directory").unwrap();
                std::fs::create_dir_all(own.join("rank-007")).unwrap();
            }
            // Outside of this user's cache: another user cannot make the parts small.
            std::fs::create_dir_all(made.path().join("rank-99")).unwrap();
            let parts = (0..ranks).flat_map(|rank| parts_of(RankOf { rank, ranks }, &directory));
            let mut parts: Vec<_> = parts.collect();
            parts.sort_by_key(|part| part.part);
            let all = before.max(ranks);
            assert_eq!(parts.len(), all as usize, "{before} {ranks}");
            parts.dedup();
            assert_eq!(parts.len(), all as usize, "{before} {ranks}");
            assert!(parts.iter().all(|part| part.capacity == 1200 / u64::from(all)));
        }
        let none = DiskDirectory::new(made.path().join("none"), 7).with_shared(true);
        assert_eq!(parts_of(RankOf::ALONE, &none), [none]);
    }
}
