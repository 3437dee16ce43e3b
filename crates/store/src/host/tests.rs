use std::num::{NonZeroU64, NonZeroUsize};
use std::sync::mpsc;

use foreread_tier::ErrorKind;
use foreread_tier_testing::{NEVER, until};

use super::test_rig::*;
use super::*;

#[test]
// semantics: AGENT-2
fn four_jobs_read_half_with_memory_for_a_fifth() {
    // 10 us to 10 ms a sample.
    [10_000, 300_000, 10_000_000].into_iter().for_each(four_jobs_at);
}

fn four_jobs_at(ns_per_sample: u64) {
    const SAMPLES: u64 = 2000;
    let rig = Rig::new(SAMPLES, SAMPLES / 5, 1 << 20);
    let jobs = [0, 1, 2, 3].map(|number| (number, rig.store.add_job(true)));
    for (number, job) in jobs {
        for epoch in 0..3 {
            rig.announce(job, epoch * SAMPLES, &order(SAMPLES, number, epoch));
        }
    }
    let mut before = 0;
    for epoch in 0..4 {
        let orders = jobs.map(|(number, _)| order(SAMPLES, number, epoch));
        for at in (0..SAMPLES as usize).step_by(10) {
            for ((_, job), order) in jobs.iter().zip(&orders) {
                rig.get(*job, epoch * SAMPLES + at as u64, &order[at..at + 10]);
            }
            rig.now.fetch_add(10 * ns_per_sample, Ordering::Relaxed);
        }
        for (number, job) in jobs {
            rig.announce(job, (epoch + 3) * SAMPLES, &order(SAMPLES, number, epoch + 3));
        }
        let reads = rig.origin.reads() - before;
        before += reads;
        let share = reads as f64 / (4 * SAMPLES) as f64;
        println!("{ns_per_sample} ns a sample, epoch {epoch}: {share:.3} of each epoch");
        let most = if epoch == 0 { 0.7 } else { 0.51 };
        assert!(share < most, "epoch {epoch}: {share:.3} of each epoch at {ns_per_sample} ns");
        let status = rig.store.status();
        assert!(status.held_bytes <= status.capacity && status.samples <= SAMPLES / 5, "{status:?}");
    }
    assert_eq!(rig.store.status().counts.reads, rig.origin.reads() as u64);
}

#[test]
// semantics: AGENT-2
fn one_job_never_evicts() {
    let rig = Rig::new(100, 30, 1 << 20);
    let job = rig.store.add_job(true);
    (0..3).for_each(|epoch| rig.announce(job, epoch * 100, &order(100, 7, epoch)));
    for epoch in 0..5 {
        let before = rig.origin.reads();
        rig.get(job, epoch * 100, &order(100, 7, epoch));
        rig.announce(job, (epoch + 3) * 100, &order(100, 7, epoch + 3));
        assert_eq!(rig.origin.reads() - before, if epoch == 0 { 100 } else { 70 }, "epoch {epoch}");
    }
}

/// Guards against this fault: samples without an owner took the room of owned ones, which ranks of
/// other nodes then had read again.
#[test]
// semantics: AGENT-25
fn samples_that_a_rank_owns_stay_for_the_ranks_that_it_serves() {
    let rig = Rig::new(100, 40, 1 << 20);
    let job = rig.store.add_job(true);
    let owned = |id: u64| id < 40;
    // The rank itself and a rank that it serves: each uses every second sample.
    let announce = |epoch| {
        let announced = |id| if owned(id) { SampleId(id) } else { EpochUses::HOLE };
        let ids = order(100, 7, epoch).into_iter().map(announced);
        let two = NonZeroU32::new(2).unwrap();
        rig.store.announce(job, rig.dataset, Tick(epoch * 50), two, ids).unwrap();
    };
    (0..3).for_each(announce);
    for epoch in 0..5 {
        let before = rig.origin.reads();
        let mut expected = 0;
        for (at, pair) in (0..).zip(order(100, 7, epoch).chunks(2)) {
            rig.get(job, epoch * 50 + at, &pair[..1]);
            expected += usize::from(epoch == 0 || !owned(pair[0]));
            // The other rank requests owned samples only.
            if owned(pair[1]) {
                rig.get(job, epoch * 50 + at, &pair[1..]);
                expected += usize::from(epoch == 0);
            }
        }
        assert_eq!(rig.origin.reads() - before, expected, "epoch {epoch}");
        announce(epoch + 3);
    }
}

#[test]
// semantics: AGENT-3
fn cold_jobs_with_one_order_read_each_sample_once() {
    let rig = Rig::new(100, 1, 0);
    let jobs = [(); 4].map(|()| rig.store.add_job(false));
    let ids: Vec<u64> = (0..100).collect();
    let received = jobs.map(|job| rig.request(job, 0, &ids));
    assert_eq!((rig.origin.reads(), rig.store.status().reading), (100, 100));
    rig.origin.gate.add_permits(100);
    for receiver in received {
        assert!(receiver.iter().all(|(id, bytes)| bytes.unwrap() == content(SampleId(id))));
    }
    assert_eq!((rig.origin.reads(), rig.store.status().counts.joined), (100, 300));
}

#[test]
fn failed_read_is_an_error_for_all_and_is_tried_again() {
    let rig = Rig::new(10, 10, 0);
    rig.origin.fails.store(true, Ordering::Relaxed);
    let job = rig.store.add_job(false);
    let received = [(); 2].map(|()| rig.request(job, 0, &[3]));
    rig.origin.gate.add_permits(100);
    for receiver in received {
        assert_eq!(receiver.recv().unwrap().1.unwrap_err().kind(), ErrorKind::NotFound);
    }
    assert_eq!((rig.store.status().held_bytes, rig.store.status().samples), (0, 0));
    rig.origin.fails.store(false, Ordering::Relaxed);
    rig.get(job, 0, &[3]);
    rig.get(job, 0, &[3]);
    assert_eq!((rig.origin.reads(), rig.store.status().held_bytes), (2, TAKEN));
    let unknown = rig.request(job, 0, &[10]).recv().unwrap().1.unwrap_err();
    assert_eq!(unknown.kind(), ErrorKind::Invalid);
}

#[test]
fn requests_wait_for_the_first_order() {
    let rig = Rig::new(10, 10, 1 << 20);
    let job = rig.store.add_job(true);
    let received = rig.request(job, 0, &[1, 2, 3]);
    assert!(received.try_recv().is_err() && rig.origin.reads() == 0);
    rig.announce(job, 0, &[1, 2, 3]);
    assert_eq!(received.iter().count(), 3);
    // A job that leaves drops its requests.
    let leaving = rig.store.add_job(true);
    let received = rig.request(leaving, 0, &[4]);
    rig.store.end_job(leaving);
    assert!(received.recv().is_err());
    assert_eq!((rig.origin.reads(), rig.store.status().jobs.len()), (3, 1));
}

/// A warming had ended when its last samples had room, and not when they were there.
#[test]
// semantics: AGENT-12
fn samples_that_are_being_read_are_not_held() {
    let rig = Rig::new(100, 100, 0);
    let job = rig.store.add_filling_job();
    let held = || {
        let state = &rig.store.totals().datasets[0];
        (state.kept_samples, state.held_samples)
    };
    let ids: Vec<u64> = (0..10).collect();
    let received = rig.request(job, 0, &ids);
    assert_eq!((rig.store.status().reading, held()), (10, (0, 0)));
    rig.origin.gate.add_permits(4);
    assert_eq!(received.iter().take(4).count(), 4);
    assert_eq!(held(), (4, 4));
    rig.origin.gate.add_permits(6);
    assert_eq!(received.iter().count(), 6);
    assert_eq!(held(), (10, 10));
}

#[test]
// semantics: AGENT-4
fn held_samples_of_evicted_residents_stay_and_count_no_more() {
    let rig = Rig::new(100, 10, 1 << 20);
    let job = rig.store.add_job(false);
    let held: Vec<_> = rig.request(job, 0, &(0..10).collect::<Vec<_>>()).iter().collect();
    assert_eq!(rig.store.status().samples, 10);
    rig.store.set_capacity(3 * TAKEN);
    let status = rig.store.status();
    assert_eq!((status.samples, status.held_bytes), (3, 3 * TAKEN));
    assert!(held.into_iter().all(|(id, bytes)| bytes.unwrap() == content(SampleId(id))));
    rig.store.set_capacity(0);
    assert_eq!((rig.store.status().samples, rig.store.status().held_bytes), (0, 0));
    rig.get(job, 0, &[1, 2]);
}

#[test]
fn ended_job_leaves_its_samples_to_others() {
    let rig = Rig::new(100, 50, 1 << 20);
    let ids: Vec<u64> = (0..100).collect();
    let first = rig.store.add_job(true);
    rig.announce(first, 0, &ids);
    rig.announce(first, 100, &ids);
    rig.get(first, 0, &ids);
    rig.store.end_job(first);
    assert_eq!(rig.store.status().samples, 50);
    let second = rig.store.add_job(true);
    rig.announce(second, 0, &ids);
    rig.announce(second, 100, &ids);
    rig.get(second, 0, &ids);
    assert_eq!(rig.origin.reads(), 150, "half was there");
}

/// Reads of a job that has ended delayed the next job by seconds.
#[test]
// semantics: AGENT-4
fn reads_of_an_ended_job_end_unless_others_wait() {
    let rig = Rig::new(100, 100, 0);
    let (first, second) = (rig.store.add_job(false), rig.store.add_job(false));
    let gone = rig.request(first, 0, &(0..50).collect::<Vec<_>>());
    let joined = rig.request(second, 0, &[7, 60]);
    assert_eq!(rig.store.status().reading, 51);
    rig.store.end_job(first);
    assert!(gone.recv().is_err());
    until("reads that no other job waits for end", || rig.store.status().reading <= 2);
    rig.origin.gate.add_permits(100);
    let received: Vec<u64> = joined.iter().map(|(id, bytes)| bytes.map(|_| id).unwrap()).collect();
    assert_eq!(received.len(), 2);
    assert_eq!((rig.store.status().samples, rig.store.status().held_bytes), (2, 2 * TAKEN));
}

/// The samples that were read, in the order of their reads.
fn read_order(rig: &Rig) -> Vec<u64> {
    rig.origin.reads.lock().unwrap().clone()
}

#[test]
fn reads_of_jobs_follow_weights() {
    let rig = Rig::new(1000, 0, 0);
    rig.origin.parallelism.store(1, Ordering::Relaxed);
    let jobs: Vec<StoreJob> = (0..3).map(|_| rig.store.add_job(false)).collect();
    for (&job, weight) in jobs.iter().zip([1, 2, 4]) {
        rig.store.set_weight(job, NonZeroU32::new(weight).unwrap());
    }
    let all: Vec<_> = (0..3)
        .map(|at| rig.request(jobs[at as usize], 0, &(at * 300..at * 300 + 300).collect::<Vec<_>>()))
        .collect();
    assert_eq!(rig.store.status().origins[0].reading, 1);
    assert_eq!(rig.store.status().origins[0].queued, 899);
    // A new weight holds for reads that wait already.
    let served = |count: usize, before: usize| {
        rig.origin.gate.add_permits(count);
        until("the next read begins", || read_order(&rig).len() > before + count);
        let read = read_order(&rig);
        [0, 1, 2].map(|job| read[before..before + count].iter().filter(|id| *id / 300 == job).count())
    };
    let [first, second, third] = served(140, 0);
    assert!(first.abs_diff(20) <= 2 && second.abs_diff(40) <= 2 && third.abs_diff(80) <= 2);
    rig.store.set_weight(jobs[0], NonZeroU32::new(10).unwrap());
    let [first, second, third] = served(160, 140);
    assert!(
        first.abs_diff(100) <= 5 && second.abs_diff(20) <= 3 && third.abs_diff(40) <= 3,
        "{first} {second} {third}"
    );
    rig.origin.gate.add_permits(1000);
    let received: usize = all.iter().map(|answers| answers.iter().count()).sum();
    assert_eq!((received, rig.store.status().counts.reads), (900, 900));
}

#[test]
fn limits_of_an_origin_change_what_is_under_way() {
    let rig = Rig::new(1000, 0, 0);
    let job = rig.store.add_job(false);
    let limits = |parallelism, rate| OriginLimits {
        parallelism: NonZeroUsize::new(parallelism),
        bytes_per_second: NonZeroU64::new(rate),
    };
    rig.store.set_origin("test", limits(7, 0));
    let all = rig.request(job, 0, &(0..100).collect::<Vec<_>>());
    assert_eq!(rig.store.status().origins[0].reading, 7);
    rig.store.set_origin("test", limits(20, 0));
    assert_eq!(rig.store.status().origins[0].reading, 20);
    // Lower ones hold as soon as reads have ended.
    rig.store.set_origin("test", limits(20, 60 * TAKEN));
    rig.origin.gate.add_permits(18);
    until("18 reads are counted", || rig.store.status().counts.reads >= 18);
    assert_eq!(rig.store.status().origins[0].reading, 3);
    rig.store.set_origin("other", limits(1, 1));
    rig.store.set_origin("test", OriginLimits::default());
    assert_eq!(rig.store.status().origins[0].reading, 82);
    rig.origin.gate.add_permits(82);
    assert_eq!(all.iter().count(), 100);
}

#[test]
fn read_that_waits_ends_with_its_only_job() {
    let rig = Rig::new(100, 100, 0);
    rig.store
        .set_origin("test", OriginLimits { parallelism: NonZeroUsize::new(2), ..OriginLimits::default() });
    let (first, second) = (rig.store.add_job(false), rig.store.add_job(false));
    let gone = rig.request(first, 0, &(0..50).collect::<Vec<_>>());
    let joined = rig.request(second, 0, &[1, 40]);
    rig.store.end_job(first);
    assert!(gone.recv().is_err());
    rig.origin.gate.add_permits(100);
    assert_eq!(joined.iter().filter(|(_, received)| received.is_ok()).count(), 2);
    until("all reads end", || rig.store.status().reading == 0);
    // Reads of the first job that had begun may have ended in time. Samples of waiting reads are
    // not residents.
    let status = rig.store.status();
    assert!(status.samples <= 4 && status.held_bytes == status.samples * TAKEN, "{status:?}");
    rig.get(second, 0, &(0..100).collect::<Vec<_>>());
}

#[test]
fn jobs_of_one_order_share_a_turn_and_the_last_one_is_first() {
    let rig = Rig::new(400, 400, 0);
    rig.store
        .set_origin("test", OriginLimits { parallelism: NonZeroUsize::new(1), ..OriginLimits::default() });
    let jobs: Vec<StoreJob> = (0..3).map(|_| rig.store.add_job(true)).collect();
    let (same, other) = (order(400, 0, 0), order(400, 1, 0));
    rig.announce(jobs[0], 0, &same);
    rig.announce(jobs[1], 0, &same);
    rig.announce(jobs[2], 0, &other);
    let ahead = rig.request(jobs[0], 100, &same[100..150]);
    let behind = rig.request(jobs[1], 0, &same[..50]);
    rig.origin.gate.add_permits(51);
    until("51 reads are counted", || rig.store.status().counts.reads >= 51);
    // The first read had begun. Then come those of the job behind.
    // An answer comes after its read was counted.
    let answered = || behind.recv_timeout(NEVER).is_ok();
    assert_eq!((0..50).take_while(|_| answered()).count(), 50);
    let expected = rig.store.status().jobs[&jobs[0]].expected_hit_share.unwrap();
    assert!((0.0..=1.0).contains(&expected), "{expected}");
    rig.origin.gate.add_permits(49);
    assert_eq!(ahead.iter().count(), 50);
}

#[test]
fn counts_are_those_of_jobs_and_datasets() {
    let rig = Rig::new(100, 100, 1000);
    let (first, second) = (rig.store.add_job(false), rig.store.add_job(false));
    rig.get(first, 0, &(0..60).collect::<Vec<_>>());
    rig.get(second, 0, &(20..100).collect::<Vec<_>>());
    let status = rig.store.status();
    let of = |job| status.jobs[&job].counts;
    assert_eq!((of(first).reads, of(first).hits, of(second).reads, of(second).hits), (60, 0, 40, 40));
    let dataset = &status.datasets[0];
    assert_eq!((dataset.counts.reads, dataset.held_samples, dataset.held_bytes), (100, 100, 100 * TAKEN));
    assert_eq!((status.origins[0].read_bytes, status.jobs[&first].waiting), (100 * LENGTH, 0));
}

#[test]
// semantics: AGENT-27
fn first_use_reads_its_block_into_free_room() {
    let rig = Rig::new(400, 400, 1000);
    rig.origin.block.store(20, Ordering::Relaxed);
    let job = rig.store.add_job(true);
    rig.announce(job, 0, &order(400, 0, 0));
    let ids = order(400, 0, 0);
    for (at, batch) in (0..).zip(ids.chunks(10)) {
        rig.get(job, at * 10, batch);
    }
    assert_eq!(*rig.origin.block_reads.lock().unwrap(), [20; 20]);
    let status = rig.store.status();
    assert_eq!((rig.origin.reads(), status.samples, status.counts.reads), (400, 400, 400));
    assert_eq!(status.origins[0].read_bytes, 400 * LENGTH);
}

#[test]
// semantics: AGENT-27
fn blocks_are_not_read_for_room_that_others_need() {
    // A second job would evict samples that the first one has not used.
    let rig = Rig::new(400, 200, 1 << 20);
    rig.origin.block.store(20, Ordering::Relaxed);
    let jobs = [rig.store.add_job(true), rig.store.add_job(true)];
    jobs.iter().zip(0..).for_each(|(job, number)| rig.announce(*job, 0, &order(400, number, 0)));
    rig.get(jobs[0], 0, &order(400, 0, 0)[..50]);
    assert!(rig.origin.block_reads.lock().unwrap().is_empty());
    // One job alone has all room, until it is full.
    rig.store.end_job(jobs[1]);
    let ids = order(400, 0, 0);
    (5..40).for_each(|at| rig.get(jobs[0], at * 10, &ids[at as usize * 10..][..10]));
    let blocks = rig.origin.block_reads.lock().unwrap().clone();
    assert!((3..=9).contains(&blocks.len()) && rig.origin.reads() <= 400, "{blocks:?}");
    // A few samples of other blocks that stay are read alone.
    assert!(blocks.iter().all(|samples| *samples >= 10), "{blocks:?}");
}

#[test]
// semantics: AGENT-27
fn block_of_a_job_that_ends_serves_others() {
    let rig = Rig::new(400, 400, 0);
    rig.origin.block.store(20, Ordering::Relaxed);
    let (first, second) = (rig.store.add_job(true), rig.store.add_job(true));
    rig.announce(first, 0, &order(400, 0, 0));
    rig.announce(second, 0, &order(400, 1, 0));
    let gone = rig.request(first, 0, &[7]);
    let joined = rig.request(second, 0, &[13]);
    rig.store.end_job(first);
    assert!(gone.recv().is_err());
    rig.origin.gate.add_permits(20);
    assert!(joined.iter().all(|(_, received)| received.unwrap() == content(SampleId(13))));
    // Failures of samples that no request waits for leave nothing.
    rig.origin.fails.store(true, Ordering::Relaxed);
    rig.origin.gate.add_permits(1000);
    assert!(rig.request(second, 1, &[20]).recv().unwrap().1.is_err());
    // It was read with its block, and then alone. The block is not read again.
    let blocks = || rig.origin.block_reads.lock().unwrap().len();
    assert_eq!((blocks(), rig.origin.reads()), (2, 41));
    assert!(rig.request(second, 2, &[21]).recv().unwrap().1.is_err());
    assert_eq!((blocks(), rig.origin.reads()), (2, 42));
    until("all reads end", || rig.store.status().reading == 0);
    assert_eq!(rig.store.status().samples, 20);
}

/// One slow block kept all reads of its origin from beginning, also those of other datasets.
#[test]
fn other_reads_begin_while_a_block_is_slow() {
    let rig = Rig::new(400, 1200, 0);
    let (small, of_small) = (TestOrigin::new(1000), Sizes::uniform(100, LENGTH));
    let other = rig.store.add_dataset(&of_small, Arc::clone(&small) as _, "test").unwrap();
    rig.origin.block.store(200, Ordering::Relaxed);
    let (first, second) = (rig.store.add_job(false), rig.store.add_job(false));
    // Both blocks have more than an eighth of the memory, so the second one waits.
    let slow = rig.request(first, 0, &[7, 207]);
    assert_eq!(*rig.origin.block_reads.lock().unwrap(), [200]);
    let (sender, received) = mpsc::channel();
    let answer = Box::new(move |received| sender.send(received).unwrap());
    let key = SampleKey::new(other, SampleId(5));
    rig.store.request(second, vec![StoreRequest { key, due: Tick(0), answer }]);
    assert_eq!(received.recv_timeout(NEVER).unwrap().unwrap(), content(SampleId(5)));
    rig.origin.gate.add_permits(400);
    assert_eq!(slow.iter().filter(|(_, received)| received.is_ok()).count(), 2);
    assert_eq!(*rig.origin.block_reads.lock().unwrap(), [200, 200]);
}
