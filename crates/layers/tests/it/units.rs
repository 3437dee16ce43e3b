//! Stored units that samples share, read through all layers.

use std::io::Write;
use std::sync::Arc;

use bytes::Bytes;
use flate2::Compression;
use flate2::write::ZlibEncoder;
use foreread_layers::{Neighbour, Stack, UnitContents, Units};
use foreread_tier::{ErrorKind, OriginTier, ReadRequest, Span, StoredPart};
use foreread_tier_testing::{FailingTier, FakeOrigin, Fault, NEVER, When};
use foreread_types::{DatasetId, Decoder, Recipe, SampleId, SampleKey, SplitMix64, Tick};
use futures::future::join_all;
use tokio::time::timeout;

/// The bytes of a sample.
const LENGTH: u64 = 1000;

/// Samples per unit.
const PER_UNIT: u64 = 10;

fn sample(id: u64) -> Vec<u8> {
    (0..LENGTH).map(|at| (at / 16 * 7 + id) as u8).collect()
}

fn key(id: u64) -> SampleKey {
    SampleKey::new(DatasetId(0), SampleId(id))
}

/// An object of compressed units, and where they lie.
#[derive(Clone, Debug)]
struct Data {
    origin: FakeOrigin,
    units: Vec<std::ops::Range<u64>>,
}

impl Data {
    fn of(units: u64) -> Self {
        let (mut bytes, mut places) = (Vec::new(), Vec::new());
        for unit in 0..units {
            let start = bytes.len() as u64;
            let mut writer = ZlibEncoder::new(&mut bytes, Compression::fast());
            (unit * PER_UNIT..(unit + 1) * PER_UNIT).for_each(|id| writer.write_all(&sample(id)).unwrap());
            writer.finish().unwrap();
            places.push(start..bytes.len() as u64);
        }
        Self { origin: FakeOrigin::of_contents([("shard", Bytes::from(bytes))]), units: places }
    }

    fn part(&self, id: u64) -> StoredPart {
        let start = id % PER_UNIT * LENGTH;
        StoredPart {
            object: None,
            stored: self.units[(id / PER_UNIT) as usize].clone(),
            recipe: Recipe::new([Decoder::Zlib], PER_UNIT * LENGTH).unwrap(),
            delivered: start..start + LENGTH,
        }
    }

    fn request(&self, id: u64, due: u64) -> Arc<ReadRequest> {
        let span = Span::Made([self.part(id)].into());
        Arc::new(ReadRequest::new(key(id), self.origin.object(SampleId(0)), span, Tick(due)))
    }

    fn reads(&self) -> usize {
        self.origin.counts().order().len()
    }

    fn samples(&self) -> u64 {
        self.units.len() as u64 * PER_UNIT
    }
}

/// Samples that are used in a cycle.
#[derive(Debug)]
struct Cycle {
    data: Data,
    order: Vec<u64>,
}

impl UnitContents for Cycle {
    fn neighbours(&self, key: SampleKey, part: u32) -> Vec<Neighbour> {
        let first = key.id.0 / PER_UNIT * PER_UNIT;
        let others = (first..first + PER_UNIT).filter(|id| *id != key.id.0);
        let neighbour = |id| Neighbour { key: self::key(id), part, delivered: self.data.part(id).delivered };
        others.map(neighbour).collect()
    }

    fn next_use(&self, key: SampleKey, after: Tick) -> Option<Tick> {
        let place = self.order.iter().position(|id| *id == key.id.0)? as u64;
        let (cycle, length) = (after.0 / self.order.len() as u64, self.order.len() as u64);
        let next = cycle * length + place;
        Some(Tick(if next > after.0 { next } else { next + length }))
    }
}

fn shuffled(samples: u64, seed: u64) -> Vec<u64> {
    let mut random = SplitMix64(seed);
    let mut order: Vec<u64> = (0..samples).collect();
    (1..samples).rev().for_each(|at| order.swap(at as usize, random.below(at + 1) as usize));
    order
}

#[tokio::test]
// semantics: FORMAT-6
async fn samples_that_are_requested_together_share_one_read() {
    let data = Data::of(3);
    let layered = Stack::new(0).wrap(Arc::new(data.origin.clone()));
    let reads = (0..data.samples()).rev().map(|id| layered.read(data.request(id, id)));
    let reads: Vec<_> = reads.collect();
    for (answer, id) in join_all(reads).await.into_iter().zip((0..data.samples()).rev()) {
        assert!(answer.unwrap() == sample(id), "{id}");
    }
    assert_eq!(data.reads(), 3);
}

#[tokio::test]
// semantics: FORMAT-6
async fn memory_keeps_what_a_read_unit_brings() {
    for (memory, expected) in [(10 << 20, 20..=20), (40_000, 21..=70), (0, 200..=200)] {
        let data = Data::of(20);
        let units = Units::new(memory);
        let layered = Stack::new(0).with_units(units.clone()).wrap(Arc::new(data.origin.clone()));
        let order = shuffled(data.samples(), 1);
        units.begin_run(Arc::new(Cycle { data: data.clone(), order: order.clone() }));
        for (due, id) in order.iter().enumerate() {
            let answer = layered.read(data.request(*id, due as u64)).await.unwrap();
            assert!(answer == sample(*id), "{id}");
            assert!(units.kept_bytes() <= memory);
        }
        assert!(expected.contains(&data.reads()), "{memory}: {} reads", data.reads());
        let counts = units.counts();
        assert_eq!((counts.read, counts.read + counts.kept), (data.reads() as u64, data.samples()));
    }
}

#[tokio::test]
// semantics: FORMAT-6
async fn samples_that_another_tier_delivered_leave_the_memory() {
    let data = Data::of(4);
    let units = Units::new(12 * (LENGTH + 256) * 4 / 3);
    let layered = Stack::new(0).with_units(units.clone()).wrap(Arc::new(data.origin.clone()));
    units.begin_run(Arc::new(Cycle { data: data.clone(), order: (0..data.samples()).collect() }));
    layered.read(data.request(0, 0)).await.unwrap();
    let kept = units.kept_bytes();
    assert_eq!(kept, 9 * (LENGTH + 256));
    // The samples 1 to 9 were delivered by another tier, and 10 is next.
    layered.read(data.request(10, 10)).await.unwrap();
    assert_eq!(units.kept_bytes(), kept, "the new unit's samples have the room of the old one's");
    let before = data.reads();
    layered.read(data.request(19, 19)).await.unwrap();
    assert_eq!(data.reads(), before);
}

#[tokio::test]
// semantics: FORMAT-6
async fn dropped_reads_leave_the_unit_to_the_others() {
    let data = Data::of(1);
    let layered = Stack::new(0).wrap(Arc::new(data.origin.clone()));
    let (first, second) = (layered.read(data.request(0, 0)), layered.read(data.request(1, 1)));
    drop(first);
    assert!(second.await.unwrap() == sample(1));
    assert_eq!(data.reads(), 1);
    // All are dropped: the next one reads it again.
    drop(layered.read(data.request(2, 2)));
    assert!(layered.read(data.request(3, 3)).await.unwrap() == sample(3));
}

#[tokio::test]
// semantics: FORMAT-6
async fn failed_unit_is_read_again_by_the_next_use() {
    let data = Data::of(1);
    let failing: Arc<dyn OriginTier> = Arc::new(
        FailingTier::new(Arc::new(data.origin.clone()))
            .on(When::Read(0), Fault::Error(ErrorKind::Denied))
            .on(When::Read(1), Fault::Flip),
    );
    let layered = Stack::bare().wrap(failing);
    let reads = [layered.read(data.request(0, 0)), layered.read(data.request(1, 1))];
    for answer in join_all(reads).await {
        assert_eq!(answer.unwrap_err().kind(), ErrorKind::Denied);
    }
    // Damaged on the way, and read once more.
    assert!(layered.read(data.request(2, 2)).await.unwrap() == sample(2));
    assert_eq!(data.reads(), 2);
}

/// A sample of several units held its first units while it waited for the others.
#[tokio::test(start_paused = true)]
// semantics: FORMAT-6
async fn samples_of_several_units_wait_for_no_other_unit() {
    for memory in [1, 60_000, 10 << 20] {
        let data = Data::of(8);
        let units = Units::new(memory);
        let layered = Stack::new(0).with_units(units).wrap(Arc::new(data.origin.clone()));
        let reads = (0..PER_UNIT).map(|id| {
            let parts: Vec<StoredPart> = (0..8).map(|unit| data.part(unit * PER_UNIT + id)).collect();
            let object = data.origin.object(SampleId(0));
            layered.read(Arc::new(ReadRequest::new(key(id), object, Span::Made(parts.into()), Tick(id))))
        });
        let answers = timeout(NEVER, join_all(reads)).await.expect("no deadlock");
        for (id, answer) in (0..PER_UNIT).zip(answers) {
            let expected: Vec<u8> = (0..8).flat_map(|unit| sample(unit * PER_UNIT + id)).collect();
            assert!(answer.unwrap() == expected, "{id}");
        }
        assert!(data.reads() >= 8);
    }
}

/// Dropped reads left one entry each, for the rest of the process.
#[tokio::test]
// semantics: FORMAT-6
async fn reads_of_an_earlier_run_leave_nothing() {
    let data = Data::of(4);
    let units = Units::new(1 << 20);
    let layered = Stack::new(0).with_units(units.clone()).wrap(Arc::new(data.origin.clone()));
    let cycle = || Arc::new(Cycle { data: data.clone(), order: (0..data.samples()).collect() });
    units.begin_run(cycle());
    let (dropped, read) = (layered.read(data.request(0, 0)), layered.read(data.request(10, 30)));
    assert_eq!(units.in_flight(), 2);
    drop(dropped);
    assert_eq!(units.in_flight(), 1);
    // The ticks of its neighbours are those of another order now.
    units.begin_run(cycle());
    assert!(read.await.unwrap() == sample(10));
    assert_eq!((units.in_flight(), units.kept_bytes()), (0, 0));
}

/// Dropped decodes kept their places until a thread came, which waited for another decode.
#[test]
// semantics: FORMAT-6
fn dropped_decodes_free_their_places() {
    let runtime = tokio::runtime::Builder::new_multi_thread().max_blocking_threads(1).enable_all().build();
    let (runtime, (free, held)) = (runtime.unwrap(), std::sync::mpsc::channel::<()>());
    let thread = runtime.spawn_blocking(move || held.recv().is_err());
    runtime.block_on(async {
        let data = Data::of(200);
        let layered = Stack::new(0).with_units(Units::new(1 << 30)).wrap(Arc::new(data.origin.clone()));
        for unit in 0..199 {
            let mut read = layered.read(data.request(unit * PER_UNIT, 0));
            tokio::task::yield_now().await; // with a new budget, one poll is enough
            assert!(futures::poll!(&mut read).is_pending(), "no thread decodes");
            assert_eq!((data.reads() as u64, data.origin.counts().tally().in_flight), (unit + 1, 0));
        }
        let read = timeout(NEVER, layered.read(data.request(1990, 0))).await;
        assert!(read.expect("the reading task decodes").unwrap() == sample(1990));
    });
    drop(free);
    assert!(runtime.block_on(thread).unwrap());
}

/// Units wait for memory, and none for ever.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
// semantics: FORMAT-6
async fn reads_of_many_tasks_are_right_in_any_memory() {
    for memory in [1, 30_000, 200_000] {
        let data = Data::of(30);
        let units = Units::new(memory);
        let layered = Stack::new(0).with_units(units.clone()).wrap(Arc::new(data.origin.clone()));
        let order = shuffled(data.samples(), 2);
        units.begin_run(Arc::new(Cycle { data: data.clone(), order: order.clone() }));
        let tasks = (0..8_u64).map(|task| {
            let (data, layered, order) = (data.clone(), Arc::clone(&layered), order.clone());
            tokio::spawn(async move {
                let mut random = SplitMix64(task);
                for due in (task..600).step_by(8) {
                    let id = order[(due % data.samples()) as usize];
                    let read = layered.read(data.request(id, due));
                    if random.below(5) == 0 {
                        drop(read);
                        continue;
                    }
                    assert!(read.await.unwrap() == sample(id), "{id}");
                }
            })
        });
        for task in join_all(tasks).await {
            task.unwrap();
        }
        assert!(units.kept_bytes() <= memory);
    }
}
