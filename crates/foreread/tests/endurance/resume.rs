//! Resuming: after any state the run delivers the same samples as without the interruption.

use std::sync::Arc;

use foreread::{Builder, Config, Loader, Memory, Registry, SamplerKind, State};
use foreread_tier_testing::{FakeOrigin, TestRandom};
use tokio::runtime::Runtime;

use crate::rig::Fakes;

/// Resumes of each run.
const RESUMES: u64 = 25;

/// A delivered sample: its pass, counted from the first start, and its id. Its bytes have been
/// compared.
type Delivered = (u64, u64);

/// A random run.
#[derive(Debug)]
struct Case {
    config: Config,
    train: FakeOrigin,
    validation: Option<FakeOrigin>,
}

fn origin(draw: &mut TestRandom, seed: u64, most: u64) -> FakeOrigin {
    let samples = 1 + draw.below(most);
    FakeOrigin::new((0..samples).map(|id| (format!("{:02}/{id:04}", id / 10), id * 37 % 400))).with_seed(seed)
}

impl Case {
    fn new(draw: &mut TestRandom) -> Self {
        let kinds = [SamplerKind::Shuffle, SamplerKind::Torch, SamplerKind::Feistel, SamplerKind::Sequential];
        let (train, validation) = (origin(draw, 1, 80), (draw.below(2) == 0).then(|| origin(draw, 2, 20)));
        let mut config = Config::default();
        config.sampler = kinds[draw.below(4) as usize];
        config.seed = draw.below(1 << 40);
        config.epochs = 1 + draw.below(4);
        config.validate = validation.as_ref().map(|_| "fake://validation".to_owned());
        config.drop_last = draw.below(2) == 0;
        let case = Self { config, train, validation };
        case.with_other_settings(draw)
    }

    /// The same run with another batch size, memory and look-ahead.
    fn with_other_settings(&self, draw: &mut TestRandom) -> Self {
        let mut config = self.config.clone();
        config.batch_size = 1 + draw.below(20);
        config.memory = Memory::Bytes([0, 10_000, 1_000_000][draw.below(3) as usize]);
        config.look_ahead = [0, 3000, 1 << 20][draw.below(3) as usize];
        Self { config, train: self.train.clone(), validation: self.validation.clone() }
    }

    fn phases(&self) -> u64 {
        1 + u64::from(self.validation.is_some())
    }

    fn registry(&self) -> Registry {
        let mut fakes = Fakes::default().with("fake://train", Arc::new(self.train.clone()));
        if let Some(validation) = &self.validation {
            fakes = fakes.with("fake://validation", Arc::new(validation.clone()));
        }
        fakes.registry()
    }

    fn builder(&self, runtime: &Runtime) -> Builder {
        let builder = Loader::builder_with("fake://train", self.config.clone());
        builder.registry(self.registry()).runtime(runtime.handle().clone())
    }

    /// All samples of a loader, one entry per batch, each with the state after it. Compares the
    /// bytes.
    fn deliver(&self, loader: Loader) -> Vec<(Vec<Delivered>, State)> {
        let mut all = Vec::new();
        for batch in &loader {
            let batch = batch.unwrap();
            let phase = u64::from(batch.dataset().0);
            let origin = if phase == 0 { &self.train } else { self.validation.as_ref().unwrap() };
            let ids = batch.iter().map(|(id, bytes)| {
                assert_eq!(*bytes, origin.expected(id), "sample {id} of dataset {phase}");
                (batch.epoch() * self.phases() + phase, id.0)
            });
            let ids = ids.collect();
            drop(batch);
            all.push((ids, loader.state()));
        }
        all
    }

    /// The samples that the run must deliver from `consumed` samples of pass `first` on, in the
    /// simplest way.
    fn expected(&self, first: u64, consumed: usize) -> Vec<Delivered> {
        let mut all = Vec::new();
        for pass in first..self.config.epochs * self.phases() {
            let training = pass.is_multiple_of(self.phases());
            let mut ids: Vec<u64> = match (&self.validation, training) {
                (Some(validation), false) => (0..validation.samples()).collect(),
                _ => {
                    let Config { sampler, seed, .. } = self.config;
                    let sampler = foreread::order::sampler(sampler, self.train.samples(), seed).unwrap();
                    let order = sampler.order(pass / self.phases()).unwrap();
                    (0..order.len()).map(|at| order.at(at).0).collect()
                }
            };
            if pass == first {
                ids.drain(..consumed);
            }
            if training && self.config.drop_last {
                ids.truncate(ids.len() - ids.len() % self.config.batch_size as usize);
            }
            all.extend(ids.into_iter().map(|id| (pass, id)));
        }
        all
    }
}

/// The position of a run after some batches: the pass, and the number of its consumed samples.
fn position(case: &Case, taken: &[(Vec<Delivered>, State)], batches: usize) -> (u64, usize) {
    let Some(last) = batches.checked_sub(1) else { return (0, 0) };
    let (pass, _) = taken[last].0[0];
    let of_pass = |batch: &&(Vec<Delivered>, State)| batch.0[0].0 == pass;
    match taken.get(batches).filter(of_pass) {
        // The pass's last batch: samples that `drop_last` drops do not count.
        None => (pass + 1, 0),
        Some(_) => {
            let before = taken[..batches].iter().filter(of_pass).count();
            (pass, before * case.config.batch_size as usize)
        }
    }
}

#[test]
// semantics: STATE-2
fn resume_at_random_points_equals_the_uninterrupted_run() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let mut draw = TestRandom::new();
    let points = if std::env::var_os("FOREREAD_SOAK").is_some() { 20_000 } else { 1000 };
    let mut compared = 0;
    for run in 0..points / RESUMES {
        let case = Case::new(&mut draw);
        let loader = case.builder(&runtime).start().unwrap();
        let start = loader.state();
        let taken = case.deliver(loader);
        let whole: Vec<Delivered> = taken.iter().flat_map(|(ids, _)| ids.clone()).collect();
        assert_eq!(whole, case.expected(0, 0), "{:?}", case.config);
        let ends: Vec<usize> = (1..=taken.len())
            .filter(|&batches| taken.get(batches).is_none_or(|next| next.0[0].0 != taken[batches - 1].0[0].0))
            .collect();
        for _ in 0..RESUMES {
            let mut batches = draw.below(taken.len() as u64 + 1) as usize;
            if draw.below(4) == 0 && !ends.is_empty() {
                // Near the last batch of a pass.
                batches = (ends[draw.below(ends.len() as u64) as usize] + draw.below(2) as usize)
                    .saturating_sub(draw.below(2) as usize)
                    .min(taken.len());
            }
            let state = batches.checked_sub(1).map_or(&start, |last| &taken[last].1);
            // As in a file.
            let state: State = serde_json::from_str(&serde_json::to_string(state).unwrap()).unwrap();
            let after = if draw.below(2) == 0 {
                case.with_other_settings(&mut draw)
            } else {
                let mut same = case.with_other_settings(&mut draw);
                same.config.batch_size = case.config.batch_size;
                same
            };
            let (pass, consumed) = position(&case, &taken, batches);
            let resumed = after.deliver(after.builder(&runtime).resume(state).start().unwrap());
            let resumed: Vec<Delivered> = resumed.into_iter().flat_map(|(ids, _)| ids).collect();
            let reported = || {
                format!(
                    "run {run} of seed {}: after {batches} batches of {:?}, then {:?}",
                    draw.seed, case.config, after.config
                )
            };
            assert_eq!(resumed, after.expected(pass, consumed), "{}", reported());
            if after.config.batch_size == case.config.batch_size {
                let before: usize = taken[..batches].iter().map(|(ids, _)| ids.len()).sum();
                assert_eq!(resumed, whole[before..], "{}", reported());
            }
            compared += 1;
        }
        if (run + 1).is_multiple_of(100) {
            println!("{compared} of {points} points");
        }
    }
    assert_eq!(compared, points);
}
