//! A run under all faults of ranks: links that break, are cut and repaired, or become slow, and
//! ranks that end, crash or restart. The surviving ranks get their samples in order without long
//! waits. The origin is read again only for samples that an owner could not deliver.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use foreread::{Config, Deal, Error, Loader, SamplerKind};
use foreread_planner::{LocalPlan, Owners};
use foreread_tier_testing::{FakeOrigin, TestRandom};
use foreread_types::{DatasetId, SampleId, SampleKey};
use futures::StreamExt;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use crate::rig::{Delivered, Job, host, runtime};

/// Cases of the long run.
const CASES: u64 = 1000;

/// The longest wait of a trainer for a batch.
const STALL: Duration = Duration::from_secs(2);

/// Samples of about this size exceed the most bytes in flight on a connection.
const LARGE: u64 = 200_000;

/// Runs with samples up to this size have few of them: on a slow link each takes seconds.
const HUGE: u64 = 2_000_000;

/// The longest time from the last delivery until all ranks have ended.
const FAREWELL: Duration = Duration::from_secs(60);

/// The timeout of a run that hangs.
const HANGS: Duration = Duration::from_secs(7200);

/// A fault, and its time.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    Cut(u32, u32),
    Mend(u32, u32),
    Sever(u32, u32),
    Delay(u32, u32, Duration),
    /// Each write breaks its connection with this probability.
    Breaking(f64),
    /// A process ends, and closes its connections.
    Die(u32),
    /// A machine crashes, without closing its connections.
    Vanish(u32),
    Return(u32),
}

#[derive(Debug)]
struct Case {
    job: Job,
    /// The time per batch of each rank's trainer.
    pace: Vec<Duration>,
    faults: Vec<(Duration, Fault)>,
}

impl Case {
    fn new(number: u64) -> Self {
        let draw = &mut TestRandom::of(number);
        let ranks = 3 + draw.below(3) as u32;
        let (most, samples) = match draw.below(16) {
            0 => (HUGE, 20 + draw.below(20)),
            1..5 => (LARGE, 40 + draw.below(360)),
            _ => (1 + draw.below(3000), 40 + draw.below(360)),
        };
        let sizes: Vec<u64> = (0..samples).map(|_| draw.below(most)).collect();
        let bytes: u64 = sizes.iter().sum();
        let objects = sizes.iter().enumerate().map(|(id, size)| (format!("{:02}/{id:04}", id / 50), *size));
        let latency = Duration::from_millis(1 + draw.below(10));
        let mut config = Config::default();
        config.rank.ranks = ranks;
        config.sampler =
            [SamplerKind::Shuffle, SamplerKind::Torch, SamplerKind::Feistel][draw.below(3) as usize];
        config.seed = draw.below(1 << 40);
        config.epochs = 1 + draw.below(5);
        config.batch_size = 1 + draw.below(8);
        config.deal = [Deal::Torch, Deal::Blocks][draw.below(2) as usize];
        config.drop_last = draw.below(3) == 0;
        config.locality = draw.below(5) == 0;
        config.look_ahead = [1, 10, 1000][draw.below(3) as usize] * most;
        // Memory for a third of all samples to three times all samples.
        let memory = (0..ranks).map(|_| bytes * (10 + draw.below(90)) / (30 * u64::from(ranks))).collect();
        let steps = config.epochs * samples / (config.batch_size * u64::from(ranks)) + 1;
        // Some seconds to some minutes in total.
        let whole = Duration::from_millis(2_000 + draw.below(60_000));
        let pace = whole / steps as u32;
        let pace = (0..ranks).map(|_| pace.mul_f64(0.5 + draw.below(100) as f64 / 100.0)).collect();
        let mut faults = faults(draw, ranks, whole);
        // With large samples, a link that stays slow is worse than a cut link.
        if most >= LARGE && draw.below(2) == 0 {
            let slow = draw.below(u64::from(ranks)) as u32;
            let delay = Duration::from_millis(20 + draw.below(400));
            let others = (0..ranks).filter(|other| *other != slow);
            faults.splice(0..0, others.map(|other| (Duration::ZERO, Fault::Delay(slow, other, delay))));
        }
        let origin = FakeOrigin::new(objects).with_seed(number).with_latency(latency);
        let network = foreread_peer_testing::SimulatedNetwork::new(number);
        Self { job: Job { network, origin, config, memory }, pace, faults }
    }
}

/// The faults of a run that takes about `whole`. One run in six has none.
fn faults(draw: &mut TestRandom, ranks: u32, whole: Duration) -> Vec<(Duration, Fault)> {
    let mut all = Vec::new();
    let mut first_lives = true;
    for _ in 0..draw.below(6) {
        let at = whole.mul_f64(draw.below(1000) as f64 / 1000.0);
        let one = draw.below(u64::from(ranks)) as u32;
        let other = (one + 1 + draw.below(u64::from(ranks) - 1) as u32) % ranks;
        let end =
            at + Duration::from_millis(50 << draw.below(9)).mul_f64(1.0 + draw.below(100) as f64 / 100.0);
        match draw.below(8) {
            0 => all.extend([(at, Fault::Cut(one, other)), (end, Fault::Mend(one, other))]),
            1 => {
                for peer in (0..ranks).filter(|peer| *peer != one) {
                    all.extend([(at, Fault::Cut(one, peer)), (end, Fault::Mend(one, peer))]);
                }
            }
            2 => all.push((at, Fault::Sever(one, other))),
            3 => {
                let delay = Duration::from_millis(1 << draw.below(12));
                all.extend([
                    (at, Fault::Delay(one, other, delay)),
                    (end, Fault::Delay(one, other, Duration::ZERO)),
                ]);
            }
            4 => {
                let chance = 1.0 / (10 + draw.below(1000)) as f64;
                all.extend([(at, Fault::Breaking(chance)), (end, Fault::Breaking(0.0))]);
            }
            _ if one == 0 && draw.below(2) == 0 => {}
            kind => {
                all.push((at, if kind == 5 { Fault::Vanish(one) } else { Fault::Die(one) }));
                first_lives &= one != 0;
                if first_lives && draw.below(3) > 0 {
                    all.push((end, Fault::Return(one)));
                }
            }
        }
    }
    all.sort_by_key(|(at, _)| *at);
    all
}

/// The test's observations of a running rank.
#[derive(Debug, Default)]
struct Seen {
    started: OnceLock<Instant>,
    /// The number of received samples.
    delivered: AtomicUsize,
    /// Per step, with the time.
    batches: Mutex<Vec<(Instant, Vec<Delivered>)>>,
    done: OnceLock<Instant>,
    left: OnceLock<Instant>,
}

/// The result of a rank.
#[derive(Debug)]
struct Life {
    waited: Duration,
    report: foreread::report::Report,
    merged: Option<foreread::report::Merged>,
}

/// Runs a rank from its start to its end. Compares each received sample.
async fn live(
    job: Job,
    rank: u32,
    pace: Duration,
    seen: Arc<Seen>,
    owners: Arc<OnceLock<Owners>>,
) -> Result<Life, Error> {
    let mut loader = job.builder(rank).start_async().await?;
    seen.started.set(Instant::now()).unwrap();
    if let LocalPlan::Cluster { plan, .. } = loader.local_plan() {
        owners.get_or_init(|| plan.owners().clone());
    }
    let expected = job.expected(rank);
    let waited = train(&job, &mut loader, pace, &expected, &seen).await;
    seen.done.set(Instant::now()).unwrap();
    let merged = loader.leave_async(Duration::from_secs(600)).await?;
    seen.left.set(Instant::now()).unwrap();
    Ok(Life { waited, report: loader.report(), merged })
}

/// The longest wait for a batch.
async fn train(
    job: &Job,
    loader: &mut Loader,
    pace: Duration,
    expected: &[Delivered],
    seen: &Seen,
) -> Duration {
    let mut waited = Duration::ZERO;
    loop {
        let requested = Instant::now();
        let Some(batch) = loader.next().await else { break };
        waited = waited.max(requested.elapsed());
        let batch = batch.unwrap();
        let from = seen.delivered.load(Relaxed);
        let mut step = Vec::new();
        for (index, (id, bytes)) in batch.iter().enumerate() {
            step.push((batch.epoch(), id));
            // With locality, another rank may expect it.
            if !job.config.locality {
                assert_eq!(expected.get(from + index), step.last(), "sample {}", from + index);
            }
            assert_eq!(*bytes, job.origin.expected(id), "sample {id}");
        }
        seen.delivered.store(from + batch.len(), Relaxed);
        seen.batches.lock().unwrap().push((requested, step));
        drop(batch);
        loader.state();
        sleep(pace).await;
    }
    assert_eq!(seen.delivered.load(Relaxed), expected.len(), "it ends too early");
    waited
}

/// A started rank.
struct Running {
    seen: Arc<Seen>,
    task: JoinHandle<Result<Life, Error>>,
}

/// The results of a case.
struct Ran<'a> {
    case: &'a Case,
    owners: Owners,
    /// Per rank, the number of samples each rank had received before its first fault.
    marred: BTreeMap<u32, Vec<usize>>,
    /// Dead ranks, and restarted ranks.
    dead: BTreeSet<u32>,
    returned: Vec<u32>,
    /// Per rank, the result of its last process, if it lived to its end.
    lives: Vec<Option<Result<Life, Error>>>,
    seen: Vec<Arc<Seen>>,
    took: Duration,
}

impl Case {
    fn spawn(&self, rank: u32, owners: &Arc<OnceLock<Owners>>) -> Running {
        let seen = Arc::<Seen>::default();
        let pace = self.pace[rank as usize];
        let life = live(self.job.clone(), rank, pace, Arc::clone(&seen), Arc::clone(owners));
        Running { seen, task: tokio::spawn(life) }
    }

    async fn run(&self) -> Ran<'_> {
        let ranks = self.job.ranks();
        let owners = Arc::default();
        let mut running: Vec<Running> = (0..ranks).map(|rank| self.spawn(rank, &owners)).collect();
        let (mut marred, mut dead, mut returned) = (BTreeMap::new(), BTreeSet::new(), Vec::new());
        while running.iter().any(|rank| rank.seen.started.get().is_none()) {
            sleep(Duration::from_millis(10)).await;
        }
        let began = Instant::now();
        for (at, fault) in &self.faults {
            sleep_until(began + *at).await;
            let delivered: Vec<_> = running.iter().map(|rank| rank.seen.delivered.load(Relaxed)).collect();
            let mut mar = |rank: u32| {
                marred.entry(rank).or_insert_with(|| delivered.clone());
            };
            let network = &self.job.network;
            match *fault {
                Fault::Cut(one, other) => {
                    [one, other].into_iter().for_each(&mut mar);
                    network.cut(&host(one), &host(other));
                }
                Fault::Mend(one, other) => network.mend(&host(one), &host(other)),
                Fault::Sever(one, other) => {
                    [one, other].into_iter().for_each(&mut mar);
                    network.sever(&host(one), &host(other));
                }
                Fault::Delay(one, other, delay) => {
                    [one, other].into_iter().for_each(&mut mar);
                    network.delay(&host(one), &host(other), delay);
                }
                Fault::Breaking(chance) => {
                    (0..ranks).for_each(&mut mar);
                    network.breaking(chance);
                }
                Fault::Die(rank) | Fault::Vanish(rank) => {
                    let process = &running[rank as usize];
                    // A finished rank has left, or is about to.
                    if process.seen.done.get().is_some() || !dead.insert(rank) {
                        continue;
                    }
                    mar(rank);
                    if matches!(fault, Fault::Vanish(_)) {
                        (0..ranks).filter(|other| *other != rank).for_each(|other| {
                            network.cut(&host(rank), &host(other));
                        });
                    }
                    process.task.abort();
                }
                Fault::Return(rank) => {
                    if running[0].seen.done.get().is_some() || !dead.remove(&rank) {
                        continue;
                    }
                    (0..ranks).filter(|other| *other != rank).for_each(|other| {
                        network.mend(&host(rank), &host(other));
                    });
                    returned.push(rank);
                    running[rank as usize] = self.spawn(rank, &owners);
                }
            }
        }
        let (mut lives, mut seen) = (Vec::new(), Vec::new());
        for (rank, process) in (0..).zip(running) {
            let life = timeout(HANGS, process.task).await;
            let life = life.unwrap_or_else(|_| panic!("rank {rank} hangs, with {:?}", process.seen));
            seen.push(process.seen);
            lives.push(match life {
                Ok(life) => Some(life),
                Err(error) if error.is_cancelled() => None,
                Err(error) => std::panic::resume_unwind(error.into_panic()),
            });
        }
        let owners = owners.get().cloned().unwrap();
        Ran { case: self, owners, marred, dead, returned, lives, seen, took: began.elapsed() }
    }
}

impl Ran<'_> {
    fn check(&self) {
        let ranks = self.case.job.ranks();
        let mut last = None;
        for rank in 0..ranks {
            let (life, seen) = (&self.lives[rank as usize], &self.seen[rank as usize]);
            match life {
                None => assert!(self.dead.contains(&rank), "rank {rank}"),
                Some(Ok(life)) => {
                    assert!(life.waited <= STALL, "rank {rank} waited {:?}", life.waited);
                    assert_eq!(life.report.skipped, 0);
                    last = last.max(seen.done.get().copied());
                }
                // A restarted rank finds no other rank.
                Some(Err(error)) => {
                    assert!(self.returned.contains(&rank), "rank {rank}: {error}");
                    let over = self.dead.contains(&0) || self.seen[0].done.get().is_some();
                    assert!(over, "rank {rank}: {error}");
                }
            }
        }
        for (rank, seen) in self.seen.iter().enumerate() {
            if let (Some(left), Some(last)) = (seen.left.get(), last) {
                let late = left.saturating_duration_since(last);
                assert!(late <= FAREWELL, "rank {rank} left {late:?} after all had what they wanted");
            }
        }
        if self.case.faults.is_empty() {
            let merged = self.lives[0].as_ref().unwrap().as_ref().unwrap().merged.as_ref().unwrap();
            assert_eq!(merged.ranks, ranks);
        }
        let expected: Vec<_> = (0..ranks).map(|rank| self.case.job.expected(rank)).collect();
        let mut uses = expected.clone();
        if self.case.job.config.locality {
            self.check_steps(&expected);
            if !self.dead.is_empty() || !self.returned.is_empty() {
                return; // their unread samples are unknown
            }
            uses = (0..ranks).map(|rank| self.dealt(rank).map(|(_, sample)| sample).collect()).collect();
        }
        self.check_reads(&uses);
    }

    /// The samples of the last process of a rank, with the time of each request.
    fn dealt(&self, rank: u32) -> impl Iterator<Item = (Instant, Delivered)> + use<> {
        let batches = self.seen[rank as usize].batches.lock().unwrap().clone();
        batches
            .into_iter()
            .flat_map(|(requested, batch)| batch.into_iter().map(move |sample| (requested, sample)))
    }

    /// With locality, the ranks' shares of each step have the same union as without. The samples of
    /// dead ranks may be missing.
    fn check_steps(&self, expected: &[Vec<Delivered>]) {
        let shares: Vec<Vec<_>> = self.seen.iter().map(|seen| seen.batches.lock().unwrap().clone()).collect();
        let steps = shares.iter().map(Vec::len).max().unwrap_or(0);
        let mut at = 0;
        for step in 0..steps {
            let of_step = || shares.iter().filter_map(|share| share.get(step).map(|(_, share)| share));
            // All ranks' batches of a step have the same length.
            let length = of_step().next().map_or(0, Vec::len);
            let mut all: Vec<_> = expected.iter().flat_map(|of_rank| &of_rank[at..at + length]).collect();
            for sample in of_step().flatten() {
                let found = all.iter().position(|left| *left == sample);
                all.swap_remove(found.unwrap_or_else(|| panic!("{sample:?} is not of step {step}")));
            }
            assert!(all.is_empty() || !self.dead.is_empty(), "{all:?} are missing in step {step}");
            at += length;
        }
    }

    /// Checks the number of origin reads per sample, if each rank has the uses `uses`.
    fn check_reads(&self, uses: &[Vec<Delivered>]) {
        let job = &self.case.job;
        let owner =
            |id: SampleId| self.owners.of(SampleKey::new(DatasetId(0), id)).map(|owner| owner.store as u32);
        let mut allowed = vec![0u64; job.origin.samples() as usize];
        for (id, allowed) in allowed.iter_mut().enumerate() {
            if let Some(owner) = owner(SampleId(id as u64)) {
                let again = self.returned.iter().filter(|rank| **rank == owner).count() as u64;
                *allowed = 1 + again;
            }
        }
        for (rank, uses) in (0..).zip(uses) {
            let back = self.returned.iter().filter(|returned| **returned == rank).count() as u64;
            // Only of the last process, and until it died.
            let got: Vec<Instant> = self.dealt(rank).map(|(requested, _)| requested).collect();
            for (at, (_, id)) in uses.iter().enumerate() {
                let Some(owner) = owner(*id) else {
                    allowed[id.0 as usize] += 1 + back;
                    continue;
                };
                if owner == rank {
                    continue;
                }
                // A finished rank waits for the others as long as rank 0 gets their heartbeats, and
                // then ends.
                let left = self.seen[owner as usize].left.get();
                let requested = got.get(at).filter(|_| back == 0);
                let is_left =
                    left.is_some_and(|left| requested.is_none_or(|requested| *requested + STALL >= *left));
                let is_marred = match self.marred.get(&owner) {
                    None => is_left,
                    // Before a fault of its owner, no other rank has read it.
                    Some(had) => is_left || at >= had[rank as usize],
                };
                let again = is_left || self.marred.contains_key(&owner);
                allowed[id.0 as usize] += u64::from(is_marred) + if again { back } else { 0 };
            }
        }
        let mut read = vec![0u64; allowed.len()];
        for key in job.origin.counts().order() {
            read[key.id.0 as usize] += 1;
        }
        for (id, (read, allowed)) in read.iter().zip(&allowed).enumerate() {
            let owner = owner(SampleId(id as u64));
            assert!(read <= allowed, "sample {id} of {owner:?} was read {read} times instead of {allowed}");
        }
    }
}

impl std::fmt::Display for Ran<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let lives = || self.lives.iter().flatten().flatten();
        let peer: u64 = lives().filter_map(|life| life.report.peers).map(|peers| peers.received).sum();
        let waited = lives().map(|life| life.waited).max().unwrap_or_default();
        let read = self.case.job.origin.counts().tally().requests;
        write!(
            f,
            "{} ranks, {} faults: {} dead, {} came back; {} samples, {read} read from the origin, {peer} \
             from ranks; {:.1} s, a wait of {:.2} s",
            self.case.job.ranks(),
            self.case.faults.len(),
            self.dead.len(),
            self.returned.len(),
            self.case.job.origin.samples(),
            self.took.as_secs_f64(),
            waited.as_secs_f64()
        )
    }
}

/// Runs a case. Returns whether it passed.
fn run(number: u64) -> bool {
    let case = Case::new(number);
    // The case is only printed after a panic.
    let ran = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        runtime().block_on(async {
            let ran = case.run().await;
            println!("case {number}: {ran}");
            ran.check();
        });
    }));
    if ran.is_err() {
        println!(
            "case {number} failed: {:?} at a pace of {:?}: {:#?}",
            case.job.config, case.pace, case.faults
        );
    }
    ran.is_ok()
}

#[test]
// semantics: RANK-16
fn surviving_ranks_get_their_samples_under_any_fault() {
    let mut draw = TestRandom::new();
    let cases: Vec<u64> = match std::env::var("FOREREAD_CASE") {
        Ok(case) => vec![case.parse().unwrap()],
        Err(_) if std::env::var_os("FOREREAD_SOAK").is_some() => (0..CASES).collect(),
        Err(_) => (0..30).map(|_| draw.below(CASES)).collect(),
    };
    let failed: Vec<u64> = cases.into_iter().filter(|number| !run(*number)).collect();
    assert!(failed.is_empty(), "each alone by FOREREAD_CASE: {failed:?}");
}
