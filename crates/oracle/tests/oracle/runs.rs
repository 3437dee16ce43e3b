//! Tests of runs against lists: ticks, resumes at any position with other worlds, and next uses
//! over all passes.

use std::sync::Arc;

use foreread_oracle::{
    Deal, Explicit, Feistel, OracleError, Order, Pass, Phase, PhaseKind, Position, Run, Sampler, Schedule,
    Sequential, Shuffle, Weighted,
};
use foreread_types::{DatasetId, Fingerprint, Rank, SampleId, SampleKey, Tick};
use proptest::prelude::*;

use crate::{ids, read};

fn phase(dataset: u32, sampler: Arc<dyn Sampler>, batch_size: Option<u64>, drop_last: bool) -> Phase {
    let kind = if dataset == 0 { PhaseKind::Train } else { PhaseKind::Validation };
    Phase { kind, dataset: DatasetId(dataset), sampler, batch_size, drop_last }
}

/// One to three phases: a train phase, then validation passes, one of which may be empty.
fn schedules() -> impl Strategy<Value = Arc<Schedule>> {
    let batch = || prop::option::of(1u64..8);
    let train = prop_oneof![
        (1u64..80, any::<u64>()).prop_map(|(n, s)| Arc::new(Shuffle::new(n, s).unwrap()) as Arc<dyn Sampler>),
        (1u64..80, any::<u64>()).prop_map(|(n, s)| Arc::new(Feistel::new(n, s).unwrap()) as Arc<dyn Sampler>),
        (prop::collection::vec(0.1f64..2.0, 1..30), 1u64..80, any::<u64>())
            .prop_map(|(w, n, s)| Arc::new(Weighted::new(&w, n, s).unwrap()) as Arc<dyn Sampler>),
    ];
    let others = prop::collection::vec((0u64..20, batch(), any::<bool>()), 0..3);
    (train, batch(), any::<bool>(), others, 0u64..4).prop_map(
        |(sampler, batch_size, drop_last, others, epochs)| {
            let mut phases = vec![phase(0, sampler, batch_size, drop_last)];
            phases.extend(others.into_iter().zip(1..).map(|((samples, batch_size, drop_last), dataset)| {
                phase(dataset, Arc::new(Sequential::new(samples).unwrap()), batch_size, drop_last)
            }));
            Arc::new(Schedule::new(epochs, phases).unwrap())
        },
    )
}

fn deals() -> impl Strategy<Value = Deal> {
    prop_oneof![Just(Deal::Torch), Just(Deal::Blocks)]
}

/// All keys of a run in order of ticks.
fn keys(run: &Run) -> Vec<SampleKey> {
    run.passes()
        .flat_map(|pass| {
            let ids = read(&run.stream(&pass).unwrap(), 100);
            ids.into_iter().map(move |id| SampleKey::new(pass.dataset, SampleId(id)))
        })
        .collect()
}

/// The ids of a whole pass, by epoch and phase.
fn pass_keys(schedule: &Schedule, epoch: u64, phase: u32) -> Vec<u64> {
    ids(&schedule.phases[phase as usize].sampler.order(epoch).unwrap())
}

proptest! {
    #[test]
    fn passes_and_ticks_are_contiguous(
        schedule in schedules(),
        deal in deals(),
        world_size in 1u32..6,
        start in any::<prop::sample::Index>(),
        epoch in 0u64..5,
        phase in any::<prop::sample::Index>(),
    ) {
        let rank = Rank(world_size / 2);
        let phase = phase.index(schedule.phases.len());
        let position = Position {
            schedule: schedule.fingerprint(),
            epoch,
            phase: phase as u32,
            consumed: start.index(schedule.phases[phase].sampler.len() as usize + 1) as u64,
        };
        let run = Run::resume(schedule.clone(), deal, world_size, rank, &position).unwrap();
        let mut tick = 0;
        let mut number = None;
        for (index, pass) in run.passes().enumerate() {
            let this = pass.epoch * schedule.phases.len() as u64 + u64::from(pass.phase);
            prop_assert!(number.is_none_or(|before| before + 1 == this));
            number = Some(this);
            prop_assert_eq!((pass.index, pass.first_tick), (index, Tick(tick)));
            prop_assert_eq!(run.stream(&pass).unwrap().len(), pass.samples);
            prop_assert_eq!(pass.batches, pass.samples.div_ceil(pass.batch_size));
            for t in tick..tick + pass.samples {
                prop_assert_eq!(run.pass_of(Tick(t)), Some(pass));
            }
            tick += pass.samples;
            prop_assert_eq!(run.position_after(&pass, pass.batches).consumed, 0);
        }
        prop_assert_eq!(run.samples(), tick);
        prop_assert_eq!(run.pass_of(Tick(tick)), None);
        prop_assert_eq!(run.pass(run.passes().len()), None);
    }

    /// Interrupts the run anywhere and resumes it with other worlds, deals and batches, any number
    /// of times. The passes' global orders are read without a gap. Only the padding of the last
    /// step repeats samples.
    #[test]
    // semantics: ORDER-6, STATE-2
    fn resume_loses_and_repeats_no_sample(
        samples in 1u64..200,
        seed in any::<u64>(),
        parts in prop::collection::vec((1u32..8, 1u64..8, deals(), 0u64..6), 1..6),
    ) {
        let schedule = |batch| {
            let sampler: Arc<dyn Sampler> = Arc::new(Shuffle::new(samples, seed).unwrap());
            Arc::new(Schedule::new(3, vec![phase(0, sampler, Some(batch), false)]).unwrap())
        };
        let mut position = Run::new(schedule(1), Deal::Torch, 1, Rank(0)).unwrap().start();
        let mut seen = vec![Vec::new(); 3];
        let last = (3, 4, Deal::Torch, u64::MAX);
        for (world_size, batch, deal, steps) in parts.into_iter().chain([last, last, last]) {
            let run = Run::resume(schedule(batch), deal, world_size, Rank(0), &position).unwrap();
            let Some(pass) = run.pass(0) else { continue };
            let steps = steps.min(pass.batches);
            for rank in 0..world_size {
                let run = Run::resume(schedule(batch), deal, world_size, Rank(rank), &position).unwrap();
                let own = read(&run.stream(&pass).unwrap(), 9);
                seen[pass.epoch as usize].extend(own.into_iter().take((steps * batch) as usize));
            }
            position = run.position_after(&pass, steps);
            let seen = &mut seen[pass.epoch as usize];
            if position.epoch == pass.epoch {
                // In the middle of a pass: exactly the consumed positions, each once.
                let mut expected = pass_keys(run.schedule(), pass.epoch, 0);
                expected.truncate(position.consumed as usize);
                expected.sort_unstable();
                seen.sort_unstable();
                prop_assert_eq!(&*seen, &expected);
            } else {
                // At the end: all positions, and fewer padded samples than ranks.
                prop_assert!((seen.len() as u64) < samples + u64::from(world_size));
                seen.sort_unstable();
                seen.dedup();
                prop_assert!(seen.iter().copied().eq(0..samples));
            }
        }
        prop_assert_eq!((position.epoch, position.consumed), (3, 0));
    }

    /// With the same world, the resumed run reads exactly the samples of the uninterrupted run.
    #[test]
    fn resume_in_the_same_world_changes_nothing(
        schedule in schedules(),
        deal in deals(),
        world_size in 1u32..5,
        pass in any::<prop::sample::Index>(),
        batches in any::<prop::sample::Index>(),
    ) {
        for rank in (0..world_size).map(Rank) {
            let run = Run::new(schedule.clone(), deal, world_size, rank).unwrap();
            let passes: Vec<Pass> = run.passes().collect();
            if passes.is_empty() {
                return Ok(());
            }
            let pass = passes[pass.index(passes.len())];
            let batches = batches.index(pass.batches as usize + 1) as u64;
            let position = run.position_after(&pass, batches);
            let resumed = Run::resume(schedule.clone(), deal, world_size, rank, &position).unwrap();
            let delivered = pass.first_tick.0 + (batches * pass.batch_size).min(pass.samples);
            prop_assert_eq!(keys(&resumed), &keys(&run)[delivered as usize..]);
            prop_assert_eq!(resumed.start(), position);
        }
    }

    #[test]
    fn next_uses_equal_a_linear_search(
        schedule in schedules(),
        deal in deals(),
        world_size in 1u32..4,
    ) {
        let run = Run::new(schedule.clone(), deal, world_size, Rank(world_size - 1)).unwrap();
        let all = keys(&run);
        prop_assert_eq!(all.len() as u64, run.samples());
        for dataset in 0..schedule.phases.len() as u32 + 1 {
            for id in (0..40).step_by(3) {
                let key = SampleKey::new(DatasetId(dataset), SampleId(id));
                for after in (0..all.len() + 2).step_by(7) {
                    let found = all.iter().skip(after + 1).position(|&other| other == key);
                    let expected = found.map(|nth| Tick((after + 1 + nth) as u64));
                    prop_assert_eq!(run.next_use(key, Tick(after as u64)), expected);
                }
                let first = all.iter().position(|&other| other == key).map(|tick| Tick(tick as u64));
                prop_assert_eq!(run.next_use_within(key, Tick(0), Tick(u64::MAX)), first);
            }
        }
        prop_assert_eq!(run.next_use(SampleKey::default(), Tick(u64::MAX)), None);
    }
}

#[test]
fn fingerprint_covers_orders_alone() {
    let schedule = |epochs, batch, drop_last, samples, seed| {
        let sampler = Arc::new(Shuffle::new(samples, seed).unwrap());
        Schedule::new(epochs, vec![phase(0, sampler, batch, drop_last)]).unwrap().fingerprint()
    };
    let print = schedule(3, Some(4), false, 100, 7);
    assert_eq!(print, schedule(9, None, true, 100, 7));
    assert_ne!(print, schedule(3, Some(4), false, 101, 7));
    assert_ne!(print, schedule(3, Some(4), false, 100, 8));
    // The fingerprint is saved, so it must never change.
    assert_eq!(print.to_string(), "1216eb268a3ef8d2e6c5c29a4a86a39b");
}

#[test]
fn run_can_be_extended_after_its_end() {
    let schedule = |epochs| {
        let sampler = Arc::new(Shuffle::new(10, 1).unwrap());
        Arc::new(Schedule::new(epochs, vec![phase(0, sampler, Some(4), false)]).unwrap())
    };
    let run = Run::new(schedule(1), Deal::Torch, 1, Rank(0)).unwrap();
    let end = run.position_after(&run.pass(0).unwrap(), 3);
    assert_eq!((end.epoch, end.phase, end.consumed), (1, 0, 0));
    let over = Run::resume(schedule(1), Deal::Torch, 1, Rank(0), &end).unwrap();
    assert_eq!((over.passes().len(), over.samples(), over.start()), (0, 0, end));
    let longer = Run::resume(schedule(2), Deal::Torch, 1, Rank(0), &end).unwrap();
    assert_eq!(longer.pass(0).map(|pass| (pass.epoch, pass.samples)), Some((1, 10)));
}

#[test]
fn million_epochs_are_described_without_an_order() {
    let sampler = Arc::new(Shuffle::new(1 << 40, 1).unwrap());
    let schedule = Arc::new(Schedule::new(1_000_000, vec![phase(0, sampler, Some(256), true)]).unwrap());
    let run = Run::new(schedule, Deal::Torch, 64, Rank(3)).unwrap();
    assert_eq!(run.samples(), 1_000_000 << 34);
    assert_eq!(run.pass_of(Tick(999_999 << 34)).map(|pass| pass.epoch), Some(999_999));
}

#[test]
fn once_per_epoch_needs_one_rank_and_distinct_samples() {
    let once = |phases: Vec<Phase>, world_size| {
        let schedule = Arc::new(Schedule::new(1, phases).unwrap());
        Run::new(schedule, Deal::Torch, world_size, Rank(0)).unwrap().is_once_per_epoch()
    };
    let shuffle = |dataset| phase(dataset, Arc::new(Shuffle::new(10, 1).unwrap()), Some(4), true);
    assert!(once(vec![shuffle(0), shuffle(1)], 1));
    assert!(!once(vec![shuffle(0), shuffle(1)], 2));
    assert!(!once(vec![shuffle(0), shuffle(0)], 1));
    let weighted = phase(0, Arc::new(Weighted::new(&[1.0; 10], 10, 1).unwrap()), None, false);
    assert!(!once(vec![weighted], 1));
    let half = phase(0, Arc::new(Explicit::new(4, vec![vec![0, 1]]).unwrap()), None, false);
    assert!(!once(vec![half], 1));
}

/// A sampler that counts its computed orders.
#[derive(Debug)]
struct Counted(Sequential, std::sync::atomic::AtomicU64);

impl Sampler for Counted {
    fn population(&self) -> u64 {
        100
    }

    fn len(&self) -> u64 {
        self.0.len()
    }

    fn is_distinct(&self) -> bool {
        true
    }

    fn order(&self, epoch: u64) -> Result<Order, OracleError> {
        self.1.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        Order::table(100, (0..self.len()).map(|id| id + epoch % 2).collect())
    }

    fn fingerprint(&self) -> Fingerprint {
        self.0.fingerprint()
    }
}

/// Guards against computing the orders of all passes for a sample that no pass reads.
#[test]
// semantics: ID-5
fn next_use_within_a_bound_computes_no_order_beyond_it() {
    let sampler = Arc::new(Counted(Sequential::new(10).unwrap(), Default::default()));
    let train = phase(0, Arc::clone(&sampler) as Arc<dyn Sampler>, Some(4), false);
    let run = Run::new(Arc::new(Schedule::new(1000, vec![train]).unwrap()), Deal::Torch, 1, Rank(0)).unwrap();
    let key = |id| SampleKey::new(DatasetId(0), SampleId(id));
    for last in [3, 9, 25] {
        assert_eq!(run.next_use_within(key(50), Tick(0), Tick(last)), None);
    }
    assert!(sampler.1.load(std::sync::atomic::Ordering::Relaxed) <= 6);
    // Every second pass has sample 10, as its last one.
    assert_eq!(run.next_use_within(key(10), Tick(0), Tick(18)), None);
    assert_eq!(run.next_use_within(key(10), Tick(0), Tick(19)), Some(Tick(19)));
    assert_eq!(run.next_use_within(key(10), Tick(0), Tick(u64::MAX)), Some(Tick(19)));
}

/// Near the end of a pass over the training data, one reader looks at three passes in turn.
#[test]
// semantics: FORMAT-6
fn separate_run_keeps_the_orders_of_an_epoch_and_one_more() {
    let sampler = Arc::new(Counted(Sequential::new(10).unwrap(), Default::default()));
    let part = |dataset| phase(dataset, Arc::clone(&sampler) as Arc<dyn Sampler>, Some(4), false);
    let schedule = Arc::new(Schedule::new(100, vec![part(0), part(1)]).unwrap());
    let run = Run::new(schedule, Deal::Torch, 1, Rank(0)).unwrap().separate();
    let key = |dataset, id| SampleKey::new(DatasetId(dataset), SampleId(id));
    for _ in 0..50 {
        assert_eq!(run.next_use_within(key(0, 5), Tick(8), Tick(30)), Some(Tick(24)));
        assert_eq!(run.next_use_within(key(1, 5), Tick(8), Tick(19)), Some(Tick(15)));
    }
    assert_eq!(sampler.1.load(std::sync::atomic::Ordering::Relaxed), 3);
}
