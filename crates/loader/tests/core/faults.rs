//! Named tests for faults that were found once.

use foreread_loader::core::{CacheLevel, Config, Core, CoreAction, CoreEvent};
use foreread_loader::{OnError, ReadSource};
use foreread_oracle::Deal;
use foreread_planner::Retention;
use foreread_types::{Footprint, Tick};

use crate::scenario::{CacheSpec, FaultRates, PhaseSpec, SampleOrder, Scenario};
use crate::world::{RunEnd, World};

/// One dataset, read completely in each of `epochs` epochs, without any fault.
fn plain(sizes: Vec<u64>, draw: SampleOrder, epochs: u64) -> Scenario {
    Scenario {
        datasets: vec![sizes],
        phases: vec![PhaseSpec { dataset: 0, draw, batch_size: Some(4), drop_last: false }],
        epochs,
        deal: Deal::Torch,
        world_size: 1,
        rank: 0,
        resume: None,
        caches: Vec::new(),
        look_ahead: 100_000,
        on_error: OnError::Fail,
        warm: false,
        faults: FaultRates::default(),
        hold: 1,
        stop: None,
        seed: 1,
    }
}

fn cache(ready: bool, capacity: u64) -> CacheSpec {
    CacheSpec { ready, capacity, footprint: Footprint::EXACT }
}

#[test]
fn endless_horizon_delays_no_issue_for_ever() {
    // Nearly all fit at once, so that for some seeds all gaps together do.
    let mut scenario = plain(vec![1000; 20], SampleOrder::Explicit(30), 3);
    scenario.caches = vec![cache(true, 17_000)];
    let endless = (0..1000).map(|seed| Scenario { seed, ..scenario.clone() }).find(|scenario| {
        scenario.plan(&scenario.run()).retention() == Retention::Threshold { horizon: u64::MAX }
    });
    let scenario = endless.expect("a plan whose horizon has no end");
    assert_eq!(World::new(&scenario).play().unwrap().end, RunEnd::Complete);
}

#[test]
fn uses_that_share_one_read_store_it_once() {
    let mut scenario = plain(vec![100; 3], SampleOrder::Explicit(60), 1);
    scenario.caches = vec![cache(false, 1_000)];
    let mut world = World::new(&scenario);
    world.play().unwrap();
    assert!(world.stored.values().all(|&times| times == 1), "{:?}", world.stored);
}

#[test]
fn unreadable_copy_is_replaced() {
    let mut scenario = plain(vec![100; 8], SampleOrder::Sequential, 5);
    scenario.look_ahead = 0;
    scenario.caches = vec![cache(false, 1_000)];
    // Every other copy is bad. If it stayed, its sample would be read in all epochs instead of
    // some.
    scenario.faults.broken = 50;
    let mut world = World::new(&scenario);
    world.play().unwrap();
    assert!(world.read.values().any(|times| (2..5).contains(times)), "{:?}", world.read);
}

/// A moment without memory, or an unresponsive disk, once emptied the cache for good.
#[test]
// semantics: DISK-17
fn failed_cache_read_keeps_the_copy() {
    let mut scenario = plain(vec![100; 8], SampleOrder::Sequential, 5);
    scenario.look_ahead = 0;
    scenario.caches = vec![cache(false, 1_000)];
    // No read succeeds, and none reports an invalid copy, so samples that were stored once stay.
    scenario.faults.hiccup = 100;
    let mut world = World::new(&scenario);
    world.play().unwrap();
    assert!(world.read.values().all(|&times| times == 5), "{:?}", world.read);
    assert_eq!(world.removed, 0);
}

#[test]
fn failure_is_followed_by_no_action() {
    for seed in 0..200 {
        let mut scenario = plain(vec![10; 6], SampleOrder::Shuffle, 4);
        (scenario.seed, scenario.faults.bad) = (seed, 20);
        World::new(&scenario).play().unwrap();
    }
}

/// The actions caused by an event.
fn actions(core: &mut Core, event: CoreEvent) -> Vec<CoreAction> {
    let mut actions = Vec::new();
    core.on(event, &mut actions);
    actions
}

/// A cache's read that the catalog could not locate ended the run although the origin's read
/// succeeded.
#[test]
// semantics: SAMPLE-20
fn unlocated_cache_read_leaves_the_policy_to_the_origin() {
    let mut scenario = plain(vec![100; 4], SampleOrder::Sequential, 1);
    scenario.caches = vec![cache(false, 1_000)];
    let run = scenario.run();
    let levels = vec![CacheLevel { source: ReadSource::Disk, read: Footprint::EXACT }];
    let config = Config { look_ahead: 100_000, on_error: OnError::Skip, levels, warm: false };
    for (of_origin, is_end) in [(CoreEvent::Failed(Tick(0)), false), (CoreEvent::Unlocated(Tick(0)), true)] {
        let mut core = Core::new(config.clone(), run.clone(), scenario.plan(&run), scenario.sizes());
        let mut on = |event: CoreEvent| actions(&mut core, event);
        on(CoreEvent::Proceed);
        let stream = run.stream(&run.pass(0).unwrap()).unwrap();
        on(CoreEvent::Dealt { pass: 0, stream });
        on(CoreEvent::Proceed);
        for tick in (0..4).map(Tick) {
            on(CoreEvent::Stored(tick));
        }
        let read = on(CoreEvent::Unlocated(Tick(0)));
        assert!(matches!(read[..], [CoreAction::Read { tick: Tick(0), .. }]), "{read:?}");
        for tick in (1..4).map(Tick) {
            on(CoreEvent::Arrived(tick));
        }
        on(of_origin);
        let end = on(CoreEvent::Proceed);
        assert_eq!(end.iter().any(|action| matches!(action, CoreAction::Fail { .. })), is_end, "{end:?}");
        assert_eq!(end.iter().any(|action| matches!(action, CoreAction::Hand { .. })), !is_end, "{end:?}");
    }
}
