//! Ranks that read shards in blocks in their first epoch: requests, bytes, time and order, compared
//! with reads by extents.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use foreread::calibration::{Calibration, OriginSpeed, Point};
use foreread::ranks::Meetings;
use foreread::{Catalog, Config, Loader, State};
use foreread_dataset::IndexOptions;
use foreread_loader::BlockTable;
use foreread_peer_testing::SimulatedNetwork;
use foreread_tier_testing::FakeOrigin;
use foreread_tier_testing::store::{Archive, Content, NumberedObjects};
use futures::StreamExt;

use crate::fakes::Fakes;
use crate::rig::{Delivered, Job, URL, runtime};

const VALIDATION: &str = "fake://validation";

/// The time of a request.
const LATENCY: Duration = Duration::from_millis(5);

/// The requests that the store answers at once.
const PARALLEL: u32 = 8;

/// The length of blocks, from [`LATENCY`] and [`STREAM`]: the least.
const BLOCK: u64 = 256 << 10;

/// Bytes per second of one read.
const STREAM: u64 = 5_000_000;

/// A dataset in shards, and the job that reads it.
struct Sharded {
    job: Job,
    catalog: Catalog,
    /// The bytes of each sample.
    samples: Vec<Bytes>,
    validation: Option<FakeOrigin>,
}

fn record(data: &[u8]) -> Vec<u8> {
    let sum = |bytes: &[u8]| crc32c::crc32c(bytes).rotate_right(15).wrapping_add(0xa282_ead8).to_le_bytes();
    let length = (data.len() as u64).to_le_bytes();
    [&length[..], &sum(&length), data, &sum(data)].concat()
}

/// TFRecord files of these many records, and all records in order.
fn records(shards: u64, each: u64, bytes: u64) -> (Vec<(String, Bytes)>, Vec<Bytes>) {
    let objects = NumberedObjects::new(shards * each, bytes);
    let samples: Vec<Bytes> = (0..shards * each).map(|id| objects.bytes(id)).collect();
    let shard = |(number, samples): (usize, &[Bytes])| {
        let content: Vec<u8> = samples.iter().flat_map(|sample| record(sample)).collect();
        (format!("{number:04}.tfrecord"), Bytes::from(content))
    };
    (samples.chunks(each as usize).enumerate().map(shard).collect(), samples)
}

/// Tar archives whose members are padded, and of another length in each.
fn archives(shards: u64, each: u64) -> (Vec<(String, Bytes)>, Vec<Bytes>) {
    let (mut contents, mut samples) = (Vec::new(), Vec::new());
    for number in 0..shards {
        let members = NumberedObjects::named(each, 3_000 + 100 * number, |id| format!("{id:06}.bin"));
        samples.extend((0..each).map(|id| members.bytes(id)));
        let archive = Archive::new(members);
        contents.push((format!("{number:04}.tar"), archive.range(0..archive.size())));
    }
    (contents, samples)
}

/// Figures under which blocks pay, or do not: each request has this latency.
fn calibration(latency: Duration) -> Calibration {
    let read = Point { parallelism: PARALLEL, bytes_per_second: 1_000_000_000, spread: 0.0, samples: 100 };
    let origin = OriginSpeed {
        url: URL.to_owned(),
        sample_bytes: 4_000,
        latency_seconds: latency.as_secs_f64(),
        stream_bytes_per_second: STREAM,
        read: vec![read],
        large: None,
        servers: None,
    };
    Calibration { version: 1, made: 0, origin: Some(origin), memory: None, disk: Vec::new() }
}

impl Sharded {
    async fn new(ranks: u32, (contents, samples): (Vec<(String, Bytes)>, Vec<Bytes>)) -> Self {
        let origin = FakeOrigin::of_contents(contents);
        let origin = origin.with_latency(LATENCY).with_parallelism(PARALLEL as usize);
        let catalog = Catalog::index(&origin, URL, &IndexOptions::default(), |_| ()).await.unwrap();
        assert_eq!(catalog.len(), samples.len() as u64);
        origin.counts().reset();
        let mut config = Config::default();
        (config.rank.ranks, config.batch_size, config.epochs) = (ranks, 16, 2);
        config.calibration = Some(Arc::new(calibration(LATENCY)));
        config.look_ahead = 4 << 20;
        let bytes = catalog.total_bytes();
        let job = Job {
            network: SimulatedNetwork::new(1),
            origin,
            config,
            memory: vec![2 * bytes; ranks as usize],
        };
        Self { job, catalog, samples, validation: None }
    }

    /// The number of blocks, and their bytes.
    fn blocks(&self) -> (u64, u64) {
        let table = BlockTable::of_all(&self.catalog, BLOCK).unwrap();
        (table.len() as u64, self.catalog.total_bytes() + table.waste())
    }

    async fn start(&self, state: Option<&State>) -> Vec<Loader> {
        let meetings = Meetings::new();
        let builder = |rank| {
            let mut fakes = Fakes::default().with(URL, Arc::new(self.job.origin.clone()));
            if let Some(validation) = &self.validation {
                fakes = fakes.with(VALIDATION, Arc::new(validation.clone()));
            }
            self.job.builder_over(fakes, &meetings, rank).catalog(self.catalog.clone())
        };
        self.job.start_each(state, builder).await
    }

    /// Takes up to `steps` batches of training data, and checks their bytes.
    async fn take(&self, loader: &mut Loader, steps: usize) -> Vec<Delivered> {
        take(loader, &self.samples, self.validation.as_ref(), steps).await
    }

    /// Runs all ranks to their ends. Returns each rank's samples, and the seconds of the first
    /// epoch.
    async fn run(&self, state: Option<&State>) -> (Vec<Vec<Delivered>>, f64) {
        let ranks = self.start(state).await.into_iter().map(|mut loader| {
            let (samples, validation) = (self.samples.clone(), self.validation.clone());
            tokio::spawn(async move {
                let taken = take(&mut loader, &samples, validation.as_ref(), usize::MAX).await;
                loader.leave_async(Duration::from_secs(60)).await.unwrap();
                (taken, loader.report())
            })
        });
        let (mut taken, mut seconds, mut requests, mut hedged) = (Vec::new(), 0f64, 0, 0);
        for rank in ranks.collect::<Vec<_>>() {
            let (of_rank, report) = rank.await.unwrap();
            taken.push(of_rank);
            seconds = seconds.max(report.epochs[0].seconds);
            requests += report.origin_requests;
            hedged += report.hedged;
        }
        if self.validation.is_none() {
            assert_eq!(requests, self.job.origin.counts().tally().requests, "{hedged} were hedged");
        }
        (taken, seconds)
    }

    fn expected(&self) -> Vec<Vec<Delivered>> {
        (0..self.job.ranks()).map(|rank| self.job.expected_of(self.catalog.len(), rank)).collect()
    }

    /// The requests and bytes since the last call.
    fn reads(&self) -> (u64, u64) {
        let tally = self.job.origin.counts().tally();
        self.job.origin.counts().reset();
        (tally.requests, tally.bytes)
    }
}

async fn take(
    loader: &mut Loader,
    samples: &[Bytes],
    validation: Option<&FakeOrigin>,
    steps: usize,
) -> Vec<Delivered> {
    let (mut taken, mut step) = (Vec::new(), 0);
    while step < steps
        && let Some(batch) = loader.next().await
    {
        let batch = batch.unwrap();
        let is_validation = batch.dataset().0 > 0;
        for (id, bytes) in batch.iter() {
            match validation.filter(|_| is_validation) {
                Some(validation) => assert_eq!(*bytes, validation.expected(id), "validation sample {id}"),
                None => {
                    assert_eq!(*bytes, samples[id.0 as usize], "sample {id}");
                    taken.push((batch.epoch(), id));
                }
            }
        }
        step += usize::from(!is_validation);
    }
    taken
}

#[test]
// semantics: RANK-38
fn ranks_read_64_shards_in_blocks_faster_than_by_extents() {
    for ranks in [2, 4] {
        runtime().block_on(async {
            let mut data = Sharded::new(ranks, records(64, 80, 4_000)).await;
            let (blocks, block_bytes) = data.blocks();
            assert_eq!(blocks, 128);
            let (delivered, in_blocks) = data.run(None).await;
            let (requests, bytes) = data.reads();
            assert!(requests * 10 <= blocks * 11, "{requests} requests for {blocks} blocks");
            let dataset = data.catalog.total_bytes();
            assert!(bytes * 100 <= dataset * 101, "{bytes} of {dataset}, {block_bytes} in blocks");
            assert_eq!(delivered, data.expected());

            // Without latency, blocks do not pay.
            data.job.config.calibration = Some(Arc::new(calibration(Duration::ZERO)));
            let (by_extents, seconds) = data.run(None).await;
            let (requests, bytes) = data.reads();
            assert_eq!(delivered, by_extents);
            assert!(requests > 10 * blocks && bytes >= dataset, "{requests} requests, {bytes} bytes");
            assert!(in_blocks <= 0.7 * seconds, "{ranks} ranks: {in_blocks} s, by extents {seconds} s");
        });
    }
}

#[test]
// semantics: RANK-38
fn blocks_of_padded_tar_shards_serve_any_number_of_ranks() {
    // Neither 3 ranks nor 5 divide 12 shards of 67 members.
    for (ranks, drop_last) in [(3, false), (5, true)] {
        runtime().block_on(async {
            let mut data = Sharded::new(ranks, archives(12, 67)).await;
            data.job.config.drop_last = drop_last;
            let validation = FakeOrigin::uniform(41, 900).with_latency(LATENCY);
            data.job.config.validate = Some(VALIDATION.to_owned());
            data.validation = Some(validation.clone());
            let (delivered, _) = data.run(None).await;
            assert_eq!(delivered, data.expected());
            let ((requests, bytes), (blocks, block_bytes)) = (data.reads(), data.blocks());
            assert_eq!(requests, blocks, "{ranks} ranks");
            // Dropped samples may be at the end of a block.
            assert!(bytes <= block_bytes && (drop_last || bytes == block_bytes), "{bytes}, {block_bytes}");
            assert_eq!(validation.counts().tally().requests, 41, "{ranks} ranks");
        });
    }
}

#[test]
// semantics: RANK-23, RANK-38
fn blocks_are_read_once_after_a_resume_in_the_first_epoch() {
    runtime().block_on(async {
        let mut data = Sharded::new(4, records(16, 60, 4_000)).await;
        let mut loaders = data.start(None).await;
        let mut taken = Vec::new();
        for loader in &mut loaders {
            taken.push(data.take(loader, 5).await);
        }
        for loader in &loaders {
            loader.step_done();
        }
        let expected = data.expected();
        assert!((0..4).all(|rank| taken[rank] == expected[rank][..5 * 16]));
        // Rank 0 may not know yet how far the others are.
        tokio::time::sleep(Duration::from_secs(1)).await;
        let state = loaders[0].state();
        assert_eq!((state.epoch(), state.consumed()), (0, 4 * 5 * 16));
        drop(loaders);
        data.reads();
        data.job = Job { network: SimulatedNetwork::new(2), ..data.job };
        let (delivered, _) = data.run(Some(&state)).await;
        assert_eq!(data.reads(), data.blocks());
        for (rank, samples) in delivered.iter().enumerate() {
            assert_eq!(*samples, expected[rank][5 * 16..], "rank {rank}");
        }
    });
}

#[test]
// semantics: RANK-16, RANK-38
fn owner_of_blocks_that_ends_costs_reads_and_no_sample() {
    runtime().block_on(async {
        let data = Sharded::new(3, records(24, 60, 4_000)).await;
        let mut loaders = data.start(None).await;
        let mut taken = Vec::new();
        for loader in &mut loaders {
            taken.push(data.take(loader, 2).await);
        }
        drop(loaders.remove(1));
        let expected = data.expected();
        for (rank, loader) in [0, 2].into_iter().zip(&mut loaders) {
            let mut waited = Duration::ZERO;
            let mut ids: Vec<Delivered> = taken[rank].clone();
            loop {
                let requested = tokio::time::Instant::now();
                let batch = data.take(loader, 1).await;
                waited = waited.max(requested.elapsed());
                if batch.is_empty() {
                    break;
                }
                ids.extend(batch);
            }
            assert_eq!(ids, expected[rank], "rank {rank}");
            assert!(waited <= Duration::from_secs(2), "rank {rank}: {waited:?}");
        }
        let (requests, samples) = (data.reads().0, data.catalog.len());
        let (blocks, _) = data.blocks();
        // Both ranks read the lost owner's samples alone, until they have copies of them.
        assert!(requests <= blocks + 2 * samples / 3 + samples / 6, "{requests} requests");
    });
}

/// The first batches take seconds, because they need most blocks. Owners deliver few samples per
/// block, which looks slow. Late blocks themselves are not sent twice here.
#[test]
// semantics: RANK-18, RANK-38
fn long_waits_for_blocks_of_a_narrow_store_are_not_hedged() {
    runtime().block_on(async {
        let mut data = Sharded::new(4, records(64, 80, 4_000)).await;
        data.job.config.hedge = None;
        data.job.origin.set_bandwidth(3_000_000);
        let (delivered, seconds) = data.run(None).await;
        assert_eq!(delivered, data.expected());
        let ((requests, _), (blocks, _)) = (data.reads(), data.blocks());
        assert!(requests * 10 <= blocks * 11, "{requests} requests for {blocks} blocks");
        assert!((6.8..8.0).contains(&seconds), "{seconds} s for 20.5 MB");
    });
}

/// The caches of all ranks hold less than the data.
#[test]
// semantics: PLAN-10
fn small_caches_of_ranks_read_shards_by_extents() {
    runtime().block_on(async {
        let mut data = Sharded::new(2, records(16, 60, 4_000)).await;
        data.job.memory = vec![data.catalog.total_bytes() / 3; 2];
        let (delivered, _) = data.run(None).await;
        assert_eq!(delivered, data.expected());
        assert!(data.reads().0 > 60 * 16 / 2);
    });
}

/// Rows of compressed pages, as `make_units.py` writes them.
fn pages() -> (Vec<(String, Bytes)>, Vec<Bytes>) {
    let file = include_bytes!("../../../foreread/tests/fixtures/units.parquet");
    let row = |number: u64| (0..400_u64).map(|at| ((number * 7 + at / 16) % 251) as u8).collect();
    (vec![("units.parquet".to_owned(), Bytes::from_static(file))], (0..600).map(row).collect())
}

/// The number of pages.
const PAGES: u64 = 24;

#[test]
// semantics: FORMAT-6, RANK-38
fn ranks_read_each_unit_of_compressed_samples_once() {
    for ranks in [2, 3] {
        runtime().block_on(async {
            let data = Sharded::new(ranks, pages()).await;
            let (delivered, _) = data.run(None).await;
            assert_eq!(delivered, data.expected());
            assert_eq!(data.reads().0, PAGES, "{ranks} ranks");
        });
    }
}

/// Each rank keeps the samples that its units bring, because the caches of all do not hold the
/// data.
#[test]
// semantics: FORMAT-6, PLAN-10
fn ranks_with_little_memory_read_units_a_few_times() {
    runtime().block_on(async {
        let mut data = Sharded::new(2, pages()).await;
        data.job.config.look_ahead = 20_000;
        data.job.memory = vec![data.catalog.total_bytes() / 4; 2];
        let (delivered, _) = data.run(None).await;
        assert_eq!(delivered, data.expected());
        // 2 ranks, 2 epochs, and 25 samples per unit.
        let requests = data.reads().0;
        assert!((4 * PAGES..4 * PAGES * 6).contains(&requests), "{requests} requests");
    });
}

/// Every sample that is used twice has an owner if none is. So ranks seemed to hold all samples,
/// and their memory was left unused.
#[test]
// semantics: FORMAT-6, PLAN-10
fn ranks_use_little_memory_for_units_in_a_run_of_one_epoch() {
    runtime().block_on(async {
        let mut data = Sharded::new(2, pages()).await;
        (data.job.config.look_ahead, data.job.config.epochs) = (4_000, 1);
        data.job.memory = vec![data.catalog.total_bytes() / 5 * 2; 2];
        let (delivered, _) = data.run(None).await;
        assert_eq!(delivered.iter().map(Vec::len).sum::<usize>(), 600);
        let requests = data.reads().0;
        assert!((2 * PAGES..2 * PAGES * 4).contains(&requests), "{requests} requests");
    });
}
