//! Dropped reads, reads that outlive their tier, and tiers that are dropped while they write.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use foreread_local::disk::{Access, DiskTier, WhenOwned};
use foreread_tier::{Buffer, Buffers, CacheTier, ErrorKind, HeapBuffers, ReadRequest, Sample, Span};
use foreread_tier_testing::{KnownSample, ReadAll};
use foreread_types::{DatasetId, Tick};
use futures::StreamExt;

use crate::rig::{config, datasets, known, open, open_as, read, run, sample, store};

fn requests(known: &[KnownSample]) -> Vec<ReadRequest> {
    let request =
        |known: &KnownSample| ReadRequest::new(known.key, known.object.clone(), Span::Whole, Tick(0));
    known.iter().map(request).collect()
}

fn fill(tier: &DiskTier, count: u64, size: u64) -> Vec<KnownSample> {
    let known: Vec<KnownSample> = (0..count).map(|id| sample(id, size)).collect();
    run(async {
        for known in &known {
            store(tier, known).await.unwrap().unwrap();
        }
    });
    known
}

/// Counts the executed reads: the allocations of whole blocks.
#[derive(Debug, Default)]
struct Counting(AtomicUsize);

impl Buffers for Counting {
    fn allocate(&self, length: usize, align: usize) -> Option<Buffer> {
        self.0.fetch_add(usize::from(align == 4096), Ordering::Relaxed);
        HeapBuffers.allocate(length, align)
    }
}

/// Neighbours that are requested together are one read, and each sample has memory of its own.
#[test]
// semantics: DISK-25
fn small_neighbours_are_read_together() {
    let directory = tempfile::tempdir().unwrap();
    let buffers = Arc::new(Counting::default());
    let tier =
        DiskTier::open(config(directory.path(), 64 << 20), &datasets(), Arc::clone(&buffers) as _).unwrap();
    let known = fill(&tier, 400, 1000);
    // In any order. Large samples of the same burst are read alone.
    let large: Vec<KnownSample> = (400..410).map(|id| sample(id, 20_000)).collect();
    run(async {
        for known in &large {
            store(&tier, known).await.unwrap().unwrap();
        }
    });
    let mut mixed: Vec<KnownSample> = known.iter().rev().cloned().collect();
    mixed.extend(large);
    run(async {
        let answers: Vec<_> = tier.read_all(requests(&mixed)).collect().await;
        assert_eq!(answers.len(), mixed.len());
        for answer in answers {
            assert_eq!(answer.result.unwrap(), mixed[answer.tag as usize].content);
        }
    });
    // 400 KB in pieces of 128 KiB.
    assert_eq!(buffers.0.swap(0, Ordering::Relaxed), 4 + 10);
    // Samples that do not lie next to each other are read alone.
    let apart: Vec<KnownSample> = known.iter().step_by(20).cloned().collect();
    run(async {
        let answers: Vec<_> = tier.read_all(requests(&apart)).collect().await;
        assert!(answers.iter().all(|answer| answer.result.is_ok()));
    });
    assert_eq!(buffers.0.load(Ordering::Relaxed), apart.len());
}

/// A dropped, removed or damaged neighbour costs the others nothing.
#[test]
fn fault_of_a_record_does_not_reach_its_neighbours() {
    let directory = tempfile::tempdir().unwrap();
    let tier = open(directory.path(), 64 << 20);
    let known = fill(&tier, 60, 1000);
    let segment = crate::rig::place(directory.path(), 1).join("00000.segment");
    let file = std::fs::File::options().write(true).open(segment).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, &[0xff; 3], 4096 + 7 * 1024).unwrap();
    file.sync_all().unwrap();
    run(async {
        tier.remove(vec![known[20].key]).await;
        let read = |known: &KnownSample| {
            let request = ReadRequest::new(known.key, known.object.clone(), Span::Whole, Tick(0));
            foreread_tier::Tier::read(&tier, Arc::new(request))
        };
        let mut reads: Vec<_> = known.iter().map(read).collect();
        // The first one, which stands for the others.
        drop(reads.remove(0));
        for (result, known) in futures::future::join_all(reads).await.into_iter().zip(&known[1..]) {
            match known.key.id.0 {
                7 => assert_eq!(result.unwrap_err().kind(), ErrorKind::Corrupt),
                20 => assert_eq!(result.unwrap_err().kind(), ErrorKind::Absent),
                _ => assert_eq!(result.unwrap(), known.content),
            }
        }
    });
    assert_eq!(tier.counts().corrupt, 1);
}

#[test]
fn queued_read_whose_future_is_dropped_is_not_executed() {
    let directory = tempfile::tempdir().unwrap();
    let buffers = Arc::new(Counting::default());
    let tier =
        DiskTier::open(config(directory.path(), 64 << 20), &datasets(), Arc::clone(&buffers) as _).unwrap();
    let known = fill(&tier, 400, 100_000);
    let all: Vec<KnownSample> = known.iter().cycle().take(4000).cloned().collect();
    run(async {
        drop(tier.read_all(requests(&all)));
        // It is queued after them, so its answer means that they were skipped.
        assert_eq!(read(&tier, &known[3]).await.unwrap(), known[3].content);
    });
    let read = buffers.0.load(Ordering::Relaxed);
    assert!(read < 2000, "{read} of 4000 dropped reads were executed");
}

#[test]
fn reads_that_outlive_their_tier_are_answered() {
    let directory = tempfile::tempdir().unwrap();
    let tier = open(directory.path(), 64 << 20);
    let known = fill(&tier, 400, 100_000);
    let streams: Vec<_> = known.chunks(50).map(|known| (known, tier.read_all(requests(known)))).collect();
    drop(tier);
    let (mut right, mut closed) = (0, 0);
    run(async {
        for (known, mut answers) in streams {
            while let Some(answer) = answers.next().await {
                match answer.result {
                    Ok(bytes) => {
                        assert_eq!(bytes, known[answer.tag as usize].content);
                        right += 1;
                    }
                    Err(error) => {
                        assert_eq!(error.kind(), ErrorKind::Closed, "{error}");
                        closed += 1;
                    }
                }
            }
        }
    });
    assert_eq!(right + closed, 400);
    assert!(closed > 0, "all 400 were read before the tier was dropped");
}

/// A panic of the allocator costs only the reads that called it.
#[test]
fn panic_in_the_allocator_is_the_error_of_its_read() {
    #[derive(Debug)]
    struct Exploding(AtomicUsize);
    impl Buffers for Exploding {
        fn allocate(&self, length: usize, align: usize) -> Option<Buffer> {
            let number = self.0.fetch_add(1, Ordering::Relaxed);
            assert!(number % 3 != 1, "no memory for number {number}");
            HeapBuffers.allocate(length, align)
        }
    }
    let directory = tempfile::tempdir().unwrap();
    let buffers = Arc::new(Exploding(AtomicUsize::new(0)));
    let tier = DiskTier::open(config(directory.path(), 64 << 20), &datasets(), buffers).unwrap();
    let known = fill(&tier, 30, 50_000);
    run(async {
        let answers: Vec<_> = tier.read_all(requests(&known)).collect().await;
        let failed = answers.iter().filter(|answer| answer.result.is_err()).count();
        assert_eq!((answers.len(), failed), (30, 10));
        assert_eq!(tier.counts().corrupt, 0, "the records are as good as before");
    });
}

/// A program near its memory limit once lost its cache.
#[test]
// semantics: DISK-17
fn record_is_kept_when_no_memory_is_left_to_read_it() {
    #[derive(Debug)]
    struct Scarce(AtomicUsize);
    impl Buffers for Scarce {
        fn allocate(&self, length: usize, align: usize) -> Option<Buffer> {
            let is_there = self.0.fetch_add(1, Ordering::Relaxed) > 0;
            if is_there { HeapBuffers.allocate(length, align) } else { None }
        }
    }
    let directory = tempfile::tempdir().unwrap();
    let buffers = Arc::new(Scarce(AtomicUsize::new(0)));
    let tier = DiskTier::open(config(directory.path(), 64 << 20), &datasets(), buffers).unwrap();
    let known = fill(&tier, 1, 50_000);
    run(async {
        let error = read(&tier, &known[0]).await.unwrap_err();
        assert!(!error.kind().is_loss() && error.to_string().contains("no memory"), "{error}");
        assert_eq!(read(&tier, &known[0]).await.unwrap(), known[0].content);
        assert_eq!(tier.counts().corrupt, 0);
    });
}

/// The threads of a dropped tier finish its writes, and the next tier waits for them.
#[test]
// semantics: DISK-21
fn tier_dropped_while_it_writes_loses_nothing() {
    let directory = tempfile::tempdir().unwrap();
    for round in 1..=3 {
        let tier = open_as(config(directory.path(), 256 << 20).when_owned(WhenOwned::Refuse)).unwrap();
        assert_eq!(tier.access(), [Access::Owner]);
        assert_eq!(tier.stored(DatasetId(0)).samples, (round - 1) * 60);
        run(async {
            for id in (round - 1) * 60..round * 60 {
                let known = sample(id, 500_000);
                let room = tier.reserve(tier.footprint().of(500_000)).unwrap();
                // Started and never awaited.
                let sample = Sample::uncharged(known.content.clone());
                let _ = futures::poll!(Box::pin(tier.store(room, known.key, sample)));
            }
        });
        assert_eq!(tier.counts().skipped, 0);
        drop(tier);
    }
}

#[test]
fn flush_waits_for_queued_samples() {
    let directory = tempfile::tempdir().unwrap();
    let tier = open(directory.path(), 64 << 20);
    run(async {
        for id in 0..100 {
            let known = known(id);
            let room = tier.reserve(tier.footprint().of(known.object.size)).unwrap();
            let sample = Sample::uncharged(known.content.clone());
            let _ = futures::poll!(Box::pin(tier.store(room, known.key, sample)));
        }
        tier.flush().await;
    });
    assert_eq!((tier.stored(DatasetId(0)).samples, tier.counts().written), (100, 100));
}
