//! Memory use, by counting allocations and by the kernel (RSS and Pss). Samples that a run caches
//! or has read ahead take the bytes that they count, whatever their source. Real tiers and files,
//! samples of 1 KB, 10 KB and 110 KB.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot continue fails")]

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use foreread_dataset::{Catalog, Format, IndexOptions};
use foreread_layers::{MergePolicy, Stack};
use foreread_loader::{BlockTable, Dataset, Loader, LoaderParts, OnError, ReadSource};
use foreread_local::disk::{DatasetOnDisk, DiskConfig, DiskTier};
use foreread_local::{LocalConfig, LocalOrigin};
use foreread_memory::MemoryTier;
use foreread_oracle::{Deal, Phase, PhaseKind, Run, Schedule, Shuffle};
use foreread_planner::{CacheStore, Cluster, Level, LocalPlan, plan};
use foreread_tier::{ArenaBuffers, CacheTier};
use foreread_tier_testing::{CountingAllocator, until};
use foreread_types::{DatasetId, Rank, StoreId};
use tokio::runtime::Runtime;

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator::new();

/// All allocations of the program are counted, so one test at a time.
static ALONE: Mutex<()> = Mutex::new(());

/// Allocations other than samples: channels, batches, tables.
const OVERHEAD: u64 = 1 << 20;

/// The same as the kernel sees it, including freed memory that the allocator keeps.
const RESIDENT_OVERHEAD: u64 = 8 << 20;

const LOOK_AHEAD: u64 = 2 << 20;

/// Lengths of samples, and their number. An extra page for each sample would exceed [`OVERHEAD`].
const LENGTHS: [(usize, usize); 3] = [(1_000, 4_000), (10_000, 1_000), (110_000, 400)];

/// Caches with their capacities.
type Caches = Vec<(ReadSource, Arc<dyn CacheTier>, u64)>;

/// Samples of one length, as files or as members of shards.
struct World {
    runtime: Runtime,
    directory: tempfile::TempDir,
    catalog: Catalog,
    origin: Arc<LocalOrigin>,
    buffers: ArenaBuffers,
}

impl World {
    fn new((length, samples): (usize, usize), in_shards: bool) -> Self {
        let mut runtime = tokio::runtime::Builder::new_multi_thread();
        let runtime = runtime.worker_threads(1).enable_all().build().unwrap();
        let directory = tempfile::tempdir().unwrap();
        let data = directory.path().join("data");
        std::fs::create_dir(&data).unwrap();
        match in_shards {
            true => write_shards(&data, length, samples),
            false => (0..samples).for_each(|id| {
                std::fs::write(data.join(format!("{id:06}")), content(id, length)).unwrap();
            }),
        }
        let buffers = ArenaBuffers::default();
        let origin = LocalOrigin::open(&data, LocalConfig::default(), Arc::new(buffers.clone())).unwrap();
        let format = if in_shards { Format::TfRecord } else { Format::Files };
        let options = IndexOptions::default().with_format(format);
        let url = data.display().to_string();
        let catalog = runtime.block_on(Catalog::index(&origin, &url, &options, |_| ())).unwrap();
        assert_eq!(catalog.len(), samples as u64);
        Self { runtime, directory, catalog, origin: Arc::new(origin), buffers }
    }

    fn disk(&self) -> (Arc<DiskTier>, u64) {
        let path = self.directory.path().join("cache");
        std::fs::create_dir(&path).unwrap();
        let (identity, samples) = (self.catalog.identity("fake"), self.catalog.len());
        let dataset = DatasetOnDisk { identity, samples, bytes: self.catalog.total_bytes() };
        let config = DiskConfig::new([(path, 1 << 30)]);
        let tier = DiskTier::open(config, &[dataset], Arc::new(self.buffers.clone())).unwrap();
        let room = tier.capacity();
        (Arc::new(tier), room)
    }

    /// Bytes in use, in the program's allocator and in the arena of samples.
    fn live(&self) -> u64 {
        ALLOCATOR.live() + self.buffers.in_use() as u64
    }

    /// Two epochs with a slow trainer. `look` gets the staged bytes after each batch.
    fn train(&self, caches: Caches, in_blocks: bool, mut look: impl FnMut(u64)) {
        let train = Phase {
            kind: PhaseKind::Train,
            dataset: DatasetId(0),
            sampler: Arc::new(Shuffle::new(self.catalog.len(), 7).unwrap()),
            batch_size: Some(32),
            drop_last: false,
        };
        let run =
            Run::new(Arc::new(Schedule::new(2, vec![train]).unwrap()), Deal::Torch, 1, Rank(0)).unwrap();
        let levels = caches
            .iter()
            .map(|(source, cache, room)| Level::new(source.as_str(), *room, cache.footprint()))
            .collect();
        let cluster = Cluster::single(CacheStore::new(StoreId(0), levels));
        let plan = Arc::new(plan(&run, &[self.catalog.sizes()], &cluster).unwrap());
        let blocks = match in_blocks {
            true => BlockTable::of(&self.catalog, DatasetId(0), &plan, 1 << 20).unwrap(),
            false => BlockTable::default(),
        };
        assert_eq!(blocks.is_empty(), !in_blocks);
        let origin =
            Stack::bare().with_merge(Some(MergePolicy::default())).wrap(Arc::clone(&self.origin) as _);
        let parts = LoaderParts {
            run,
            plan: LocalPlan::Private(plan),
            datasets: vec![Dataset::new(self.catalog.clone(), origin).with_blocks(blocks)],
            caches: caches.into_iter().map(|(source, cache, _)| (source, cache)).collect(),
            buffers: Arc::new(self.buffers.clone()),
            look_ahead: LOOK_AHEAD,
            on_error: OnError::Fail,
            locality: None,
            warm: false,
        };
        let loader = Loader::start(parts, self.runtime.handle());
        while let Some(batch) = loader.next_timeout(Duration::from_secs(300)).unwrap() {
            let start = batch.iter().next().map(|(id, _)| id.0 as usize).unwrap();
            assert_eq!(batch.iter().next().unwrap().1[..8], content(start, 8)[..]);
            if batch.index().is_multiple_of(8) {
                let mut before = None;
                until("it reads no further ahead", || {
                    let staged = loader.staged_bytes();
                    before.replace(staged) == Some(staged)
                });
            }
            look(loader.staged_bytes());
        }
    }
}

fn content(id: usize, length: usize) -> Vec<u8> {
    let mut content = (id as u64).to_le_bytes().to_vec();
    content.resize(length, id as u8);
    content
}

/// TFRecord shards of 8 MiB.
fn write_shards(directory: &Path, length: usize, samples: usize) {
    let masked =
        |bytes: &[u8]| crc32c::crc32c(bytes).rotate_right(15).wrapping_add(0xa282_ead8).to_le_bytes();
    let a_shard = (8 << 20) / length;
    for first in (0..samples).step_by(a_shard) {
        let mut shard = Vec::new();
        for id in first..samples.min(first + a_shard) {
            let (size, data) = ((length as u64).to_le_bytes(), content(id, length));
            shard.extend(size);
            shard.extend(masked(&size));
            shard.extend(&data);
            shard.extend(masked(&data));
        }
        std::fs::write(directory.join(format!("{first:06}.tfrecord")), shard).unwrap();
    }
}

/// Memory for all samples.
fn memory() -> (Arc<MemoryTier>, u64) {
    (Arc::new(MemoryTier::new(64 << 20)), 64 << 20)
}

/// Compares the memory that a run takes after filling `memory` with its counted size.
fn keeps_what_it_counts(
    what: &str,
    world: &World,
    (memory, room): (Arc<MemoryTier>, u64),
    disk: Option<(Arc<DiskTier>, u64)>,
    in_blocks: bool,
) {
    let (before, resident) = (world.live(), Resident::now());
    let mut caches: Caches = vec![(ReadSource::Memory, Arc::clone(&memory) as _, room)];
    caches.extend(disk.clone().map(|(disk, room)| (ReadSource::Disk, disk as _, room)));
    world.train(caches, in_blocks, |_| ());
    if let Some((disk, _)) = disk {
        // Pending removals on the disk take memory.
        world.runtime.block_on(disk.flush());
    }
    assert_eq!(memory.len() as u64, world.catalog.len(), "{what}");
    let (taken, counted) = (world.live().saturating_sub(before), memory.budget().used());
    assert!(taken <= counted + OVERHEAD, "{what}: {taken} bytes are taken, {counted} are counted");
    let now = Resident::now();
    for (name, now, before) in [("RSS", now.rss, resident.rss), ("Pss", now.pss, resident.pss)] {
        let grown = now.saturating_sub(before);
        let allowed = counted + RESIDENT_OVERHEAD;
        assert!(grown <= allowed, "{what}: {name} has grown by {grown}, and {counted} are counted");
    }
}

/// The resident memory of this process.
struct Resident {
    rss: u64,
    /// Its share of memory that is in no file.
    pss: u64,
}

impl Resident {
    fn now() -> Self {
        let rollup = std::fs::read_to_string("/proc/self/smaps_rollup").unwrap();
        let bytes = |name: &str| {
            let line = rollup.lines().find_map(|line| line.strip_prefix(name)).unwrap();
            line.trim().strip_suffix("kB").unwrap().trim().parse::<u64>().unwrap() * 1024
        };
        // Pages of the program are shared with its other processes, whose number changes.
        Self { rss: bytes("Rss:"), pss: bytes("Pss_Anon:") + bytes("Pss_Shmem:") }
    }
}

#[test]
// semantics: CACHE-5
fn samples_from_the_origin_take_their_counted_size() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    for lengths @ (length, _) in LENGTHS {
        let world = World::new(lengths, false);
        keeps_what_it_counts(&format!("{length} bytes"), &world, memory(), None, false);
    }
}

#[test]
// semantics: CACHE-5
fn samples_out_of_blocks_take_their_counted_size() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    for lengths @ (length, _) in LENGTHS {
        let world = World::new(lengths, true);
        keeps_what_it_counts(&format!("{length} bytes"), &world, memory(), None, true);
    }
}

/// Samples of 1 KB took three times their counted size if an earlier run had left them on a disk.
#[test]
// semantics: CACHE-5
fn samples_moved_from_disk_take_their_counted_size() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    for lengths @ (length, _) in LENGTHS {
        let world = World::new(lengths, false);
        let (disk, on_disk) = world.disk();
        let fill = || vec![(ReadSource::Disk, Arc::clone(&disk) as _, on_disk)];
        // Stores that were skipped under load succeed the next time.
        for _ in 0..20 {
            world.train(fill(), false, |_| ());
            world.runtime.block_on(disk.flush());
            if disk.stored(DatasetId(0)).samples == world.catalog.len() {
                break;
            }
        }
        assert_eq!(disk.stored(DatasetId(0)).samples, world.catalog.len());
        look_ahead_is_what_is_counted(length, &world, fill());
        let on_disk = Some((Arc::clone(&disk), on_disk));
        keeps_what_it_counts(&format!("{length} bytes from disk"), &world, memory(), on_disk, false);
        assert_eq!(disk.stored(DatasetId(0)).samples, 0, "all have moved");
    }
}

/// Samples read ahead from a disk take at most the look-ahead.
fn look_ahead_is_what_is_counted(length: usize, world: &World, caches: Caches) {
    let before = world.live();
    let mut most = 0;
    world.train(caches, false, |staged| {
        most = most.max(world.live().saturating_sub(before));
        let batches = 2 * 32 * (length as u64 + 8192);
        assert!(staged <= LOOK_AHEAD.max(batches), "{staged} bytes are staged");
    });
    let batches = 2 * 32 * (length as u64 + 8192);
    let allowed = LOOK_AHEAD.max(batches) + OVERHEAD;
    assert!(most <= allowed, "{most} bytes for a look-ahead of {LOOK_AHEAD} of samples of {length}");
}
