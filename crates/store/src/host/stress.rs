//! Random operations on a store, and faults of its queues that once were.

use std::num::{NonZeroU64, NonZeroUsize};
use std::sync::mpsc;

use bytes::Bytes;
use foreread_tier::TierError;
use foreread_tier_testing::{NEVER, until};

use super::test_rig::{LENGTH, Rig, TAKEN, TestOrigin, content, order};
use super::*;

fn weight(weight: u32) -> NonZeroU32 {
    NonZeroU32::new(weight).unwrap()
}

/// The reads of another job before a job has its 20 samples, whose convoy it has left and joined.
fn reads_before_the_laggard(leader_ends: bool) -> usize {
    let rig = Rig::new(2000, 10, 0);
    rig.origin.parallelism.store(1, Ordering::Relaxed);
    let (leader, laggard) = (rig.store.add_job(true), rig.store.add_job(true));
    let other = rig.store.add_job(false);
    for job in [leader, laggard, other] {
        rig.store.set_weight(job, weight(1000));
    }
    let ids: Vec<u64> = (0..1000).collect();
    rig.announce(leader, 0, &ids);
    rig.announce(laggard, 0, &ids);
    let mut open = vec![rig.request(leader, 0, &[0])];
    until("the first read begins", || rig.origin.reads() == 1);
    open.push(rig.request(leader, 500, &[500]));
    // So far behind that it takes turns by itself.
    open.push(rig.request(laggard, 1, &(1..21).collect::<Vec<_>>()));
    if leader_ends {
        rig.store.end_job(leader);
    }
    open.push(rig.request(laggard, 21, &[21]));
    open.push(rig.request(other, 0, &(1000..2000).collect::<Vec<_>>()));
    loop {
        let reads = rig.origin.reads.lock().unwrap().clone();
        if reads.iter().filter(|id| (1..21).contains(*id)).count() == 20 {
            return reads.iter().filter(|id| **id >= 1000).count();
        }
        assert!(reads.len() < 1000, "the laggard starves");
        rig.origin.gate.add_permits(1);
        until("the next read begins", || rig.origin.reads() > reads.len());
    }
}

/// Reads that waited stayed in the convoy that their job had left, at a weight of nothing.
#[test]
fn job_that_joins_its_convoy_again_does_not_starve() {
    for leader_ends in [false, true] {
        let others = reads_before_the_laggard(leader_ends);
        assert!(others <= 25, "{others} reads of another job, leader ends: {leader_ends}");
    }
}

/// A convoy had the number of its first job, which could then never leave it.
#[test]
fn any_job_far_behind_takes_turns_by_itself() {
    for first_is_ahead in [true, false] {
        let rig = Rig::new(3000, 10, 0);
        rig.origin.parallelism.store(1, Ordering::Relaxed);
        let jobs = [rig.store.add_job(true), rig.store.add_job(true)];
        let ids: Vec<u64> = (0..3000).collect();
        for job in jobs {
            rig.store.set_weight(job, weight(1000));
            rig.announce(job, 0, &ids);
        }
        let (ahead, behind) = if first_is_ahead { (jobs[0], jobs[1]) } else { (jobs[1], jobs[0]) };
        let mut open = vec![rig.request(ahead, 2000, &[2000])];
        until("the first read begins", || rig.origin.reads() == 1);
        open.push(rig.request(ahead, 2001, &(2001..2101).collect::<Vec<_>>()));
        open.push(rig.request(behind, 0, &(0..200).collect::<Vec<_>>()));
        for done in 1..=100 {
            rig.origin.gate.add_permits(1);
            until("the next read begins", || rig.origin.reads() > done);
        }
        let of_ahead = rig.origin.reads.lock().unwrap().iter().filter(|id| **id >= 2000).count();
        assert!((45..=56).contains(&of_ahead), "{of_ahead} of 101, first is ahead: {first_is_ahead}");
    }
}

#[test]
fn orders_and_convoys_end_with_their_jobs() {
    let rig = Rig::new(100, 10, 1 << 20);
    let stays = rig.store.add_job(true);
    rig.announce(stays, 0, &(0..100).rev().collect::<Vec<_>>());
    for round in 0..200 {
        let jobs = [rig.store.add_job(true), rig.store.add_job(true)];
        for job in jobs {
            rig.announce(job, round, &(0..100).collect::<Vec<_>>());
            rig.get(job, round + 90, &[round % 100]);
            rig.get(job, round, &[(round + 50) % 100]);
        }
        jobs.into_iter().for_each(|job| rig.store.end_job(job));
    }
    let state = lock(&rig.store.0.state);
    assert_eq!((state.convoys.len(), state.jobs.len()), (1, 1));
    assert!(state.origins[0].is_idle(), "{:?}", state.origins);
}

/// Each read that the end of the runtime had dropped began another one, in the depth of the stack.
#[test]
fn runtime_may_end_while_thousands_of_reads_wait() {
    let rig = Rig::new(20_000, 10, 0);
    rig.origin.parallelism.store(8, Ordering::Relaxed);
    let job = rig.store.add_job(false);
    let open = rig.request(job, 0, &(0..20_000).collect::<Vec<_>>());
    until("reads begin", || rig.origin.reads() == 8);
    rig.end_runtime();
    let ended = open.recv_timeout(NEVER).unwrap();
    assert!(ended.1.is_err());
}

/// Draws of one round.
struct Draw(u64);

impl Draw {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

/// A job with its open requests, and its position.
struct OpenJob {
    job: StoreJob,
    requests: Vec<(SampleKey, mpsc::Receiver<Result<Bytes, TierError>>)>,
    due: u64,
}

/// Three datasets of two origins.
struct Datasets {
    rig: Rig,
    origins: [Arc<TestOrigin>; 3],
    sizes: [(DatasetId, u64); 3],
}

impl Datasets {
    fn new() -> Self {
        let rig = Rig::new(300, 40, 0);
        let add = |samples, name| {
            let origin = TestOrigin::new(0);
            let sizes = Sizes::uniform(samples, LENGTH);
            let dataset = rig.store.add_dataset(&sizes, Arc::clone(&origin) as _, name).unwrap();
            (origin, (dataset, samples))
        };
        let ((second, of_second), (third, of_third)) = (add(200, "test"), add(100, "other"));
        let origins = [Arc::clone(&rig.origin), second, third];
        let sizes = [(rig.dataset, 300), of_second, of_third];
        Self { rig, origins, sizes }
    }

    fn step(&self, draw: &mut Draw, jobs: &mut Vec<OpenJob>) {
        let store = &self.rig.store;
        let (dataset, samples) = self.sizes[draw.below(3) as usize];
        let origin = &self.origins[draw.below(3) as usize];
        let at = draw.below(jobs.len().max(1) as u64) as usize;
        match draw.below(16) {
            0 => {
                let kind = draw.below(4);
                let job = if kind == 0 { store.add_filling_job() } else { store.add_job(kind == 1) };
                if kind == 1 {
                    let ids = order(samples, draw.below(2), 0);
                    store
                        .announce(job, dataset, Tick(0), NonZeroU32::MIN, ids.into_iter().map(SampleId))
                        .unwrap();
                }
                store.set_weight(job, weight(1 + draw.below(2000) as u32));
                jobs.push(OpenJob { job, requests: Vec::new(), due: 0 });
            }
            1 if jobs.len() > 2 => store.end_job(jobs.swap_remove(at).job),
            2 => {
                let limits = OriginLimits {
                    bytes_per_second: NonZeroU64::new(draw.below(3) * 1_000_000),
                    parallelism: NonZeroUsize::new(draw.below(5) as usize),
                };
                store.set_origin(["test", "other"][draw.below(2) as usize], limits);
            }
            3 => {
                origin.parallelism.store(draw.below(9) as usize, Ordering::Relaxed);
                origin.block.store([0, 5, 20, 50][draw.below(4) as usize], Ordering::Relaxed);
                origin.in_units.store(draw.below(2) == 0, Ordering::Relaxed);
            }
            4 => origin.fails.store(draw.below(3) == 0, Ordering::Relaxed),
            5 => store.set_capacity(draw.below(80) * TAKEN),
            6 => {
                let ids: Vec<_> = (0..draw.below(30)).map(|_| SampleId(draw.below(samples))).collect();
                store.set_on_disk(dataset, &ids, draw.below(2) == 0);
            }
            7 => {
                let cap = if draw.below(2) == 0 { u64::MAX } else { draw.below(40) * TAKEN };
                let bounds = CacheBounds { floor: draw.below(20) * TAKEN, cap };
                store.set_dataset(dataset, weight(1 + draw.below(5) as u32), bounds);
            }
            8 if !jobs.is_empty() => {
                let (first, ids) = (Tick(draw.below(3) * samples), order(samples, draw.below(2), 0));
                store
                    .announce(jobs[at].job, dataset, first, NonZeroU32::MIN, ids.into_iter().map(SampleId))
                    .unwrap();
            }
            9 if !jobs.is_empty() => store.restart(jobs[at].job),
            10 | 11 => {
                self.origins.iter().for_each(|origin| origin.gate.add_permits(draw.below(20) as usize))
            }
            _ if !jobs.is_empty() => self.request(draw, &mut jobs[at]),
            _ => {}
        }
    }

    fn request(&self, draw: &mut Draw, open: &mut OpenJob) {
        if draw.below(10) == 0 {
            open.due = draw.below(300);
        }
        let mut requests = Vec::new();
        for _ in 0..draw.below(40) {
            let (dataset, samples) = self.sizes[draw.below(3) as usize];
            let key = SampleKey::new(dataset, SampleId(draw.below(samples)));
            let (sender, receiver) = mpsc::channel();
            // The receiver may have ended with its job.
            let answer = Box::new(move |received| drop(sender.send(received)));
            requests.push(StoreRequest { key, due: Tick(open.due), answer });
            open.requests.push((key, receiver));
            open.due += 1;
        }
        self.rig.store.request(open.job, requests);
    }
}

/// Every request of a living job is answered, by the right bytes or an error, and nothing is left.
fn stress(seed: u64) {
    let (datasets, mut draw, mut jobs) = (Datasets::new(), Draw(seed), Vec::new());
    let store = &datasets.rig.store;
    for _ in 0..400 {
        datasets.rig.now.fetch_add(draw.below(20_000_000), Ordering::Relaxed);
        datasets.step(&mut draw, &mut jobs);
        let state = lock(&store.0.state);
        assert!(state.cache.held_bytes() <= state.capacity, "seed {seed}");
    }
    datasets.origins.iter().for_each(|origin| origin.gate.add_permits(1 << 20));
    for open in &jobs {
        for (key, receiver) in &open.requests {
            let received = receiver.recv_timeout(NEVER);
            let received = received.unwrap_or_else(|_| panic!("seed {seed}: {key}: {:?}", store.status()));
            assert!(received.is_err() || received.unwrap() == content(key.id), "seed {seed}: {key}");
        }
    }
    jobs.into_iter().for_each(|open| store.end_job(open.job));
    until("all reads end", || store.status().reading == 0);
    until("all queues are empty", || lock(&store.0.state).origins.iter().all(|origin| origin.is_idle()));
    let state = lock(&store.0.state);
    let residents: u64 = (0..3).map(|dataset| state.cache.residents(DatasetId(dataset)).0).sum();
    assert_eq!(
        (residents, state.jobs.len(), state.convoys.len()),
        (state.samples.len() as u64, 0, 0),
        "seed {seed}"
    );
    assert!(state.samples.iter().all(|(key, bytes)| *bytes == content(key.id)), "seed {seed}");
}

#[test]
// semantics: AGENT-3
fn requests_are_answered_whatever_happens_to_jobs_and_limits() {
    let rounds = if std::env::var_os("FOREREAD_SOAK").is_some() { 3000 } else { 150 };
    (1..=rounds).for_each(stress);
}
