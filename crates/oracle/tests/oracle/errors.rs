//! Every error has one line that names the value and a remedy.

use std::sync::Arc;

use foreread_oracle::*;
use foreread_types::{DatasetId, Fingerprint, Rank};

fn phase(sampler: impl Sampler + 'static) -> Phase {
    Phase {
        kind: PhaseKind::Train,
        dataset: DatasetId(0),
        sampler: Arc::new(sampler),
        batch_size: Some(2),
        drop_last: false,
    }
}

fn schedule(samples: u64) -> Arc<Schedule> {
    Arc::new(Schedule::new(2, vec![phase(Sequential::new(samples).unwrap())]).unwrap())
}

fn fails<T>(result: Result<T, OracleError>, expected: &str) {
    let error = result.err().unwrap();
    let text = error.to_string();
    assert!(text.contains(expected) && !text.contains('\n'), "{text}");
}

#[test]
fn invalid_arguments_are_errors() {
    let huge = (1 << 63) + 1;
    fails(Sequential::new(huge), "9223372036854775809 samples");
    fails(Feistel::new(huge, 0), "9223372036854775809 samples");
    fails(Explicit::new(3, vec![]), "no explicit orders");
    fails(Explicit::new(3, vec![vec![0], vec![3]]), "sample 3 in the order of epoch 1");
    fails(Explicit::new(3, vec![vec![0], vec![]]), "epoch 1 has 0 samples");
    fails(Explicit::new(3, vec![vec![0]]).unwrap().order(1), "epoch 1: explicit orders");
    let two = || Arc::new(Sequential::new(2).unwrap());
    fails(Subset::new(3, [0, 3].into(), two()), "sample 3 in position 1 of the chosen");
    fails(Subset::new(3, [0, 1, 2].into(), two()), "3 samples are chosen and their sampler");
    fails(Order::table(3, vec![0, 9]), "sample 9 in position 1");
    fails(Dealing::new(Deal::Torch, 0, None, false), "world size 0");
    fails(Dealing::new(Deal::Torch, 1, Some(0), false), "batch size 0");
    fails("round".parse::<Deal>(), "\"round\"");
    assert_eq!("blocks".parse::<Deal>().map(|deal| deal.to_string()), Ok("blocks".to_owned()));
}

#[test]
fn invalid_schedules_and_runs_are_errors() {
    fails(Schedule::new(1, vec![]), "without phases");
    let known = Explicit::new(3, vec![vec![0]]).unwrap();
    fails(Schedule::new(2, vec![phase(known)]), "for 1 epochs");
    let phases = vec![phase(Sequential::new(3).unwrap()), phase(Sequential::new(4).unwrap())];
    fails(Schedule::new(2, phases), "dataset 0 has 4 samples in phase 1 and 3 before");
    fails(Run::new(schedule(3), Deal::Torch, 2, Rank(2)), "rank 2 of 2");
    fails(Run::new(schedule(3), Deal::Torch, 0, Rank(0)), "world size 0");
    let endless = Arc::new(Schedule { epochs: u64::MAX, phases: schedule(3).phases.clone() });
    fails(Run::new(endless, Deal::Torch, 1, Rank(0)), "run too long");
}

#[test]
fn invalid_positions_are_errors() {
    let good = Run::new(schedule(3), Deal::Torch, 1, Rank(0)).unwrap().start();
    let resume = |position| Run::resume(schedule(3), Deal::Torch, 1, Rank(0), &position);
    fails(
        resume(Position { schedule: Fingerprint(1), ..good }),
        "belongs to schedule 00000000000000000000000000000001",
    );
    fails(resume(Position { consumed: 4, ..good }), "consumed 4 of a pass of 3");
    fails(resume(Position { phase: 1, ..good }), "lies in phase 1");
    fails(resume(Position { epoch: u64::MAX, phase: 0, consumed: 3, ..good }), "run too long");
    let text = serde_json::to_string(&good).unwrap();
    assert_eq!(serde_json::from_str::<Position>(&text).unwrap(), good);
    for (from, to, expected) in
        [("\"version\":1", "\"version\":2", "version 2"), ("schedule\":\"", "schedule\":\"x", "damaged")]
    {
        let error = serde_json::from_str::<Position>(&text.replace(from, to)).unwrap_err();
        assert!(error.to_string().contains(expected), "{error}");
    }
}

/// A sampler whose order has another length than `len` gives an error, not a wrong stream.
#[test]
fn sampler_that_breaks_its_contract_is_an_error() {
    #[derive(Debug)]
    struct Liar;
    impl Sampler for Liar {
        fn population(&self) -> u64 {
            5
        }
        fn len(&self) -> u64 {
            5
        }
        fn is_distinct(&self) -> bool {
            true
        }
        fn order(&self, epoch: u64) -> Result<Order, OracleError> {
            if epoch == 0 { Order::identity(4) } else { Err(OracleError::custom("the file is gone")) }
        }
        fn fingerprint(&self) -> Fingerprint {
            Fingerprinter::new("liar 1").finish()
        }
    }
    let schedule = Arc::new(Schedule::new(2, vec![phase(Liar)]).unwrap());
    let run = Run::new(schedule, Deal::Torch, 1, Rank(0)).unwrap();
    fails(run.stream(&run.pass(0).unwrap()), "has 4 samples, its sampler's `len` is 5");
    fails(run.stream(&run.pass(1).unwrap()), "the file is gone");
}

/// Guards against a panic: the size of such an id was looked up.
#[test]
// semantics: FAIL-20
fn custom_order_with_an_id_beyond_the_dataset_is_an_error() {
    /// 3,000 samples, the last of which has an id of twice the maximum.
    #[derive(Debug)]
    struct TooFar;
    impl ComputedOrder for TooFar {
        fn population(&self) -> u64 {
            3000
        }
        fn len(&self) -> u64 {
            3000
        }
        fn is_distinct(&self) -> bool {
            true
        }
        fn fill(&self, from: u64, step: u64, out: &mut [foreread_types::SampleId]) {
            for (slot, nth) in out.iter_mut().zip(0..) {
                let id = from + nth * step;
                slot.0 = if id == 2999 { 6000 } else { id };
            }
        }
        fn next(&self, _: foreread_types::SampleId, _: u64) -> Option<u64> {
            None
        }
    }
    /// A sampler of 3,000 samples with such an order in epoch 0, and one of another dataset in
    /// epoch 1.
    #[derive(Debug)]
    struct Odd;
    impl Sampler for Odd {
        fn population(&self) -> u64 {
            3000
        }
        fn len(&self) -> u64 {
            3000
        }
        fn is_distinct(&self) -> bool {
            true
        }
        fn order(&self, epoch: u64) -> Result<Order, OracleError> {
            let other = || Order::table(5000, (1000..4000).collect());
            if epoch == 0 { Order::custom(Arc::new(TooFar)) } else { other() }
        }
        fn fingerprint(&self) -> Fingerprint {
            Fingerprinter::new("odd 1").finish()
        }
    }
    let schedule = Arc::new(Schedule::new(2, vec![phase(Odd)]).unwrap());
    let run = Run::new(schedule, Deal::Torch, 1, Rank(0)).unwrap();
    let beyond = |pass| run.stream(&run.pass(pass).unwrap());
    fails(beyond(0), "sample 6000 in position 2999 of the order: the dataset has samples 0 to 3000");
    fails(beyond(1), "sample 3000 in position 2000 of the order: the dataset has samples 0 to 3000");
}
