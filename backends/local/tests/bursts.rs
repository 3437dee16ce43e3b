//! Bursts of reads of the pool and of both readers of the disk tier: start, cancellation and
//! wake-ups.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot continue fails")]

use std::fs;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, mpsc};
use std::task::{Context, Poll, Wake, Waker};

use foreread_local::disk::{DatasetOnDisk, DiskConfig, DiskReader, DiskTier};
use foreread_local::{LocalConfig, LocalOrigin};
use foreread_tier::{Buffer, Buffers, CacheTier, HeapBuffers, Object, ReadRequest, Sample, Span, Tier};
use foreread_tier_testing::{KnownSample, NEVER, TestRandom, content, until};
use foreread_types::{DatasetId, DatasetIdentity, SampleId, SampleKey, Tick};
use tempfile::TempDir;

#[derive(Debug, Default)]
struct Counted(AtomicUsize);

impl Buffers for Counted {
    fn allocate(&self, capacity: usize, align: usize) -> Option<Buffer> {
        self.0.fetch_add(1, SeqCst);
        HeapBuffers.allocate(capacity, align)
    }
}

fn known(count: u64, size: u64) -> Vec<KnownSample> {
    let one = |id: u64| {
        let path = format!("{id:05}");
        let content = content(9, &path, size + id % 13);
        let object = Object { path: path.into(), size: size + id % 13, version: None };
        KnownSample { key: SampleKey::new(DatasetId(0), SampleId(id)), object, content }
    };
    (0..count).map(one).collect()
}

fn request(known: &KnownSample) -> Arc<ReadRequest> {
    let object = known.object.clone();
    Arc::new(ReadRequest::new(known.key, object, Span::Whole, Tick(0)))
}

/// A tier with its name, its memory and its directory.
type Named = (&'static str, Arc<dyn Tier>, Arc<Counted>, TempDir);

/// The directory origin, and the disk tier with threads and with a ring, each with its buffers.
fn tiers(known: &[KnownSample]) -> Vec<Named> {
    let mut tiers: Vec<Named> = Vec::new();
    let directory = tempfile::tempdir().unwrap();
    for known in known {
        fs::write(directory.path().join(&*known.object.path), &known.content).unwrap();
    }
    let buffers = Arc::new(Counted::default());
    let origin =
        LocalOrigin::open(directory.path(), LocalConfig::default(), Arc::clone(&buffers) as _).unwrap();
    tiers.push(("local", Arc::new(origin), buffers, directory));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    for (name, reader) in [("threads", DiskReader::Threads), ("ring", DiskReader::Ring)] {
        let directory = tempfile::tempdir().unwrap();
        let config = DiskConfig::new([(directory.path().to_owned(), 256 << 20)]).with_reader(reader);
        let dataset = DatasetOnDisk { identity: DatasetIdentity(1), samples: 8000, bytes: 1 << 30 };
        let buffers = Arc::new(Counted::default());
        let tier = match DiskTier::open(config, &[dataset], Arc::clone(&buffers) as _) {
            Ok(tier) => tier,
            Err(error) => {
                println!("skipped {name}: {error}");
                continue;
            }
        };
        runtime.block_on(async {
            for known in known {
                let room = tier.reserve(tier.footprint().of(known.object.size)).unwrap();
                tier.store(room, known.key, Sample::uncharged(known.content.clone())).await.unwrap();
            }
        });
        tiers.push((name, Arc::new(tier), buffers, directory));
    }
    tiers
}

fn wait<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    runtime.block_on(async { tokio::time::timeout(NEVER, future).await.expect("it hangs") })
}

/// A submitted burst is read without a poll, and not before.
#[test]
fn burst_starts_at_submit_without_a_poll() {
    let known = known(10, 20_000);
    for ((name, tier, buffers, _directory), (_, other, ..)) in tiers(&known).into_iter().zip(tiers(&known)) {
        buffers.0.store(0, SeqCst);
        let reads: Vec<_> = known.iter().map(|known| tier.read(request(known))).collect();
        // Meanwhile an equal tier reads all of them, one by one.
        for known in &known {
            assert_eq!(wait(other.read(request(known))).unwrap(), known.content, "{name}");
        }
        assert_eq!(buffers.0.load(SeqCst), 0, "{name}: held back");
        tier.submit();
        until("all reads begin", || buffers.0.load(SeqCst) == 10);
        for (read, known) in reads.into_iter().zip(&known) {
            assert_eq!(wait(read).unwrap(), known.content, "{name}");
        }
    }
}

/// A future that is dropped before the burst ends cancels its read.
#[test]
fn read_dropped_before_submit_is_not_executed() {
    let known = known(10, 20_000);
    for (name, tier, buffers, _directory) in tiers(&known) {
        buffers.0.store(0, SeqCst);
        let reads: Vec<_> = known.iter().map(|known| tier.read(request(known))).collect();
        drop(reads);
        tier.submit();
        let last = tier.read(request(&known[3]));
        assert_eq!(wait(last).unwrap(), known[3].content);
        assert_eq!(buffers.0.load(SeqCst), 1, "{name}");
    }
}

/// Dropping the future of a running read harms no other read.
#[test]
fn read_dropped_in_flight_harms_no_other() {
    let known = known(300, 60_000);
    for (name, tier, _, _directory) in tiers(&known) {
        for round in 0..200usize {
            let mut reads: Vec<_> = known.iter().map(|known| Some(tier.read(request(known)))).collect();
            tier.submit();
            for _ in 0..round * 50 {
                std::hint::spin_loop();
            }
            reads
                .iter_mut()
                .enumerate()
                .filter(|(at, _)| (at + round) % 3 > 0)
                .for_each(|(_, read)| *read = None);
            for (read, known) in reads.into_iter().zip(&known) {
                if let Some(read) = read {
                    assert!(wait(read).unwrap() == known.content, "{name}");
                }
            }
        }
    }
}

/// Threads, tasks, drops, polls without submit and submits without polls.
#[test]
fn reads_of_many_tasks_on_many_threads_are_answered() {
    let known = Arc::new(known(200, 20_000));
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(6).enable_all().build().unwrap();
    for (name, tier, _, _directory) in tiers(&known) {
        let tasks: Vec<_> = (0..12u64)
            .map(|task| {
                let (tier, known) = (Arc::clone(&tier), Arc::clone(&known));
                runtime.spawn(async move {
                    let mut draw = TestRandom::of(task);
                    let mut next = move |below: u64| draw.below(below);
                    for _ in 0..400 {
                        let count = 1 + next(60);
                        let mut reads: Vec<_> = (0..count)
                            .map(|_| next(200) as usize)
                            .map(|at| (at, tier.read(request(&known[at]))))
                            .collect();
                        if next(3) == 0 {
                            let keep = next(count) as usize;
                            reads.truncate(keep);
                        }
                        if next(2) == 0 {
                            tier.submit();
                        }
                        if next(4) == 0 {
                            tokio::task::yield_now().await;
                            let keep = next(count) as usize;
                            reads.truncate(keep);
                        }
                        let reads = futures::future::join_all(reads.into_iter().map(|(at, read)| {
                            let known = Arc::clone(&known);
                            async move { assert!(read.await.unwrap() == known[at].content) }
                        }));
                        tokio::time::timeout(NEVER, reads).await.expect("it hangs");
                    }
                })
            })
            .collect();
        for task in tasks {
            runtime.block_on(task).unwrap_or_else(|error| panic!("{name}: {error}"));
        }
    }
}

/// Counts wake-ups of the sleeping task: the first after each poll.
struct Task {
    woken: Mutex<bool>,
    times: AtomicUsize,
    thread: mpsc::Sender<()>,
}

impl Wake for Task {
    fn wake(self: Arc<Self>) {
        let mut woken = self.woken.lock().unwrap();
        if !std::mem::replace(&mut *woken, true) {
            self.times.fetch_add(1, SeqCst);
            let _ = self.thread.send(());
        }
    }
}

/// Counts the wake-ups of one task that polls a whole burst, as the driver does.
#[test]
fn task_is_woken_rarely() {
    let known = known(640, 4000);
    for (name, tier, _, _directory) in tiers(&known) {
        let mut worst = 0;
        for _ in 0..20 {
            let (thread, wakes) = mpsc::channel();
            let task = Arc::new(Task { woken: Mutex::default(), times: AtomicUsize::new(0), thread });
            let waker = Waker::from(Arc::clone(&task));
            let mut reads: Vec<_> = known.iter().map(|known| Some(tier.read(request(known)))).collect();
            tier.submit();
            let mut left = reads.len();
            while left > 0 {
                *task.woken.lock().unwrap() = false;
                for (read, known) in reads.iter_mut().zip(&known) {
                    let Some(future) = read else { continue };
                    if let Poll::Ready(answer) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
                        assert!(answer.unwrap() == known.content);
                        *read = None;
                        left -= 1;
                    }
                }
                if left > 0 {
                    let woken = wakes.recv_timeout(NEVER);
                    woken.unwrap_or_else(|_| panic!("{name}: {left} of 640 are never answered"));
                }
            }
            worst = worst.max(task.times.load(SeqCst));
        }
        println!("{name}: woken {worst} times at most for 640 reads");
        // One wake-up per read would be as many as reads, in each of twenty rounds.
        assert!(worst <= 640, "{name}: woken {worst} times");
    }
}

/// Reads that outlive the tier and were neither submitted nor polled.
#[test]
fn unsubmitted_reads_of_a_dropped_tier_are_answered() {
    let known = known(10, 20_000);
    for (name, tier, _, _directory) in tiers(&known) {
        let reads: Vec<_> = known.iter().map(|known| tier.read(request(known))).collect();
        drop(tier);
        for read in reads {
            let answer = futures::FutureExt::now_or_never(read);
            assert!(answer.is_some_and(|answer| answer.is_err()), "{name}");
        }
    }
}

/// An absurd length next to a read with a deferred wake-up: sums of lengths overflow (debug
/// builds).
#[test]
fn absurd_length_harms_no_other() {
    let known = known(3, 5000);
    for (name, tier, _, _directory) in tiers(&known) {
        let absent = |size: u64| {
            let object = Object { path: "nothing".into(), size, version: None };
            let key = SampleKey::new(DatasetId(0), SampleId(7777));
            Arc::new(ReadRequest::new(key, object, Span::Whole, Tick(0)))
        };
        let reads: Vec<_> =
            [absent(100), absent(u64::MAX), absent(100)].map(|request| tier.read(request)).into();
        let good = tier.read(request(&known[1]));
        tier.submit();
        assert!(wait(futures::future::join_all(reads)).iter().all(Result::is_err), "{name}");
        assert_eq!(wait(good).unwrap(), known[1].content, "{name}");
    }
}
