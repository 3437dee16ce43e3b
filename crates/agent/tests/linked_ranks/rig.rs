//! A run of several ranks in one process, whose nodes are numbers.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use foreread::calibration::Calibration;
use foreread::ranks::Meeting;
use foreread::report::Report;
use foreread::{Config, Disk, Loader, Memory, RankOf, Registry};
use foreread_host::{HostFault, JobHost};
use foreread_tier_testing::store::{HttpStore, NumberedObjects};

pub const SAMPLES: u64 = 240;
pub const LENGTH: u64 = 2000;

/// The bytes of a sample in memory.
const TAKEN: u64 = LENGTH.next_multiple_of(64) + 192;

/// A run of several ranks, whose nodes are numbers.
pub struct Job<'a> {
    pub store: &'a HttpStore,
    pub meet: &'a Path,
    pub nodes: &'a [u32],
    pub bucket: &'a str,
    pub contents: Vec<Bytes>,
    pub epochs: u64,
    /// Of a rank, in samples.
    pub memory: u64,
    /// The memory of each rank, by their numbers and `memory`.
    pub memory_of: fn(u32, u64) -> u64,
    /// In samples.
    pub look_ahead: u64,
    /// Where even ranks have one disk, and odd ones another.
    pub disks: Option<PathBuf>,
    /// How long a rank computes for a batch, by their numbers.
    pub compute: fn(u32, u64) -> Duration,
    /// The backends of a program.
    pub registry: Option<Registry>,
    /// Of storage.
    pub calibration: Option<Arc<Calibration>>,
    /// Which ranks of which nodes have no cache.
    pub without: Without,
    pub locality: bool,
}

/// The caches that are missing.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Without {
    /// None.
    Nothing,
    /// That of node 1 cannot start.
    Host,
    /// Ranks of node 1 do not reach it.
    Way,
}

impl<'a> Job<'a> {
    pub fn new(store: &'a HttpStore, meet: &'a Path, nodes: &'a [u32]) -> Self {
        let (disks, calibration, registry) = Default::default();
        let compute = |_, _| Duration::ZERO;
        let objects = NumberedObjects::new(SAMPLES, LENGTH);
        let contents = (0..SAMPLES).map(|id| objects.bytes(id)).collect();
        let bucket = "train";
        Self {
            store,
            meet,
            nodes,
            bucket,
            contents,
            epochs: 2,
            memory: SAMPLES / 4,
            memory_of: |_, memory| memory,
            look_ahead: 5,
            disks,
            compute,
            calibration,
            registry,
            without: Without::Nothing,
            locality: false,
        }
    }
}

impl Job<'_> {
    fn rank(&self, rank: u32) -> (Report, Vec<Vec<u64>>) {
        let values = [
            ("RANK", rank.to_string()),
            ("WORLD_SIZE", self.nodes.len().to_string()),
            ("FOREREAD_MEET", self.meet.display().to_string()),
        ];
        let values = HashMap::from(values);
        let mut config = Config::default();
        let ranks = self.nodes.len() as u32;
        (config.rank, config.epochs) = (RankOf { rank, ranks }, self.epochs);
        (config.memory, config.look_ahead) =
            (Memory::Bytes((self.memory_of)(rank, self.memory) * TAKEN), self.look_ahead * LENGTH);
        (config.batch_size, config.seed) = (4, 7);
        // All reads are under way at once.
        config.origin_parallelism = Some(64);
        let disk = |directory| Disk { directory, bytes: 50_000_000, shared: false };
        let disks = self.disks.iter().map(|path| disk(path.join(format!("disk-{}", rank % 2))));
        config.disk = disks.collect();
        config.calibration.clone_from(&self.calibration);
        config.locality = self.locality;
        let storage = [
            ("endpoint", &*self.store.endpoint()),
            ("access_key_id", "a"),
            ("secret_access_key", "b"),
            ("allow_http", "true"),
        ];
        config.storage_options = storage.into_iter().collect();
        let meeting = Meeting::of(&config, &|name| values.get(name).cloned()).unwrap().unwrap();
        let node = self.nodes[rank as usize];
        let host = match self.without {
            Without::Host if node == 1 => JobHost::default().with_fault(HostFault::CannotStart),
            Without::Way if node == 1 => JobHost::default().with_fault(HostFault::Unreachable),
            _ => JobHost::default(),
        };
        let meeting = meeting.host(host).node(node.to_string());
        let scheme = if self.registry.is_some() { "mine" } else { "s3" };
        let mut builder = Loader::builder_with(format!("{scheme}://{}", self.bucket), config).peers(meeting);
        if let Some(registry) = &self.registry {
            builder = builder.registry(registry.clone());
        }
        let loader = builder.start().unwrap();
        let mut delivered = vec![Vec::new(); self.epochs as usize];
        for (number, batch) in (0..).zip(loader.batches()) {
            let batch = batch.unwrap();
            for sample in batch.samples() {
                let id = sample.id().0;
                assert_eq!(sample.bytes(), self.contents[id as usize]);
                delivered[batch.epoch() as usize].push(id);
            }
            std::thread::sleep((self.compute)(rank, number));
        }
        (loader.close().unwrap(), delivered)
    }

    /// Runs all ranks. Returns their reports, after each epoch has delivered each sample once.
    pub fn run(&self) -> Vec<Report> {
        let ranks: Vec<(Report, Vec<Vec<u64>>)> = std::thread::scope(|scope| {
            let ranks = (0..self.nodes.len() as u32).map(|rank| scope.spawn(move || self.rank(rank)));
            ranks.collect::<Vec<_>>().into_iter().map(|rank| rank.join().unwrap()).collect()
        });
        for epoch in 0..self.epochs as usize {
            let mut all: Vec<u64> = ranks.iter().flat_map(|(_, ids)| ids[epoch].clone()).collect();
            all.sort_unstable();
            assert_eq!(all, (0..self.contents.len() as u64).collect::<Vec<_>>(), "epoch {epoch}");
        }
        ranks.into_iter().map(|(report, _)| report).collect()
    }
}

pub fn store() -> HttpStore {
    let store = HttpStore::start();
    store.numbered("train", NumberedObjects::new(SAMPLES, LENGTH));
    store
}

/// The samples that ranks report as read from storage. On a busy machine a late request is followed
/// by a second one.
pub fn samples_read(reports: &[Report]) -> u64 {
    read(reports) - reports.iter().map(|report| report.hedged + report.retried).sum::<u64>()
}

/// The requests to storage that ranks report.
pub fn read(reports: &[Report]) -> u64 {
    reports.iter().map(|report| report.origin_requests).sum()
}
