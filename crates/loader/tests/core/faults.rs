//! Named tests for faults that were found once.

use std::time::Duration;

use foreread_loader::core::{CacheLevel, Config, Core, CoreAction, CoreEvent, OriginPace};
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
        together: false,
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
    // No read succeeds, and none reports an invalid copy, so what was stored once stays.
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

/// A hedge that the catalog could not locate made its sample a failed one, which the policy left
/// out.
#[test]
// semantics: SAMPLE-20
fn unlocated_hedge_ends_the_run_if_its_owner_failed() {
    let mut scenario = plain(vec![100; 16], SampleOrder::Shuffle, 2);
    (scenario.world_size, scenario.together) = (2, true);
    scenario.caches = vec![cache(true, 10_000)];
    let run = scenario.run();
    let levels = vec![CacheLevel { source: ReadSource::Memory, read: Footprint::EXACT }];
    let config = Config { look_ahead: 100_000, on_error: OnError::Skip, levels, warm: false };
    let origin = OriginPace { latency: Duration::from_millis(1), bytes_per_second: 1e9 };
    let is_request = |action: &CoreAction| matches!(action, CoreAction::RequestPeer { .. });
    let [unlocated, failed]: [fn(Tick) -> CoreEvent; 2] = [CoreEvent::HedgeUnlocated, CoreEvent::HedgeFailed];
    // Where the hedge fails first, the following read decides.
    for (hedge, owner_first, is_end) in
        [(unlocated, true, true), (failed, true, false), (unlocated, false, false)]
    {
        let mut core = Core::new(config.clone(), run.clone(), scenario.plan(&run), scenario.sizes());
        let mut on = |event: CoreEvent| actions(&mut core, event);
        on(CoreEvent::Proceed);
        let mut opened = Vec::new();
        for pass in 0..2 {
            let stream = run.stream(&run.pass(pass).unwrap()).unwrap();
            on(CoreEvent::Dealt { pass, stream });
            opened.extend(on(CoreEvent::Proceed));
        }
        // Samples that are not in memory are requested or read.
        for at in 0..opened.len() {
            if let CoreAction::Find { tick, .. } = opened[at] {
                opened.extend(on(CoreEvent::Absent(tick)));
            }
        }
        let requested: Vec<Tick> =
            opened.iter().filter(|action| is_request(action)).filter_map(about).collect();
        let slow = *requested.first().expect("a sample of the other rank's");
        for tick in opened.iter().filter(|action| !is_request(action)).filter_map(about).chain(requested) {
            if tick != slow {
                on(CoreEvent::Arrived(tick));
            }
        }
        on(CoreEvent::Proceed);
        (0..slow.0 / 4).for_each(|_| drop(on(CoreEvent::Taken)));
        on(CoreEvent::Waiting);
        let hedges = on(CoreEvent::WaitedLong { waited: Duration::from_secs(10), origin });
        assert!(matches!(hedges[..], [CoreAction::Hedge { tick, .. }] if tick == slow), "{hedges:?}");
        if owner_first {
            assert!(on(CoreEvent::Failed(slow)).is_empty(), "the hedge is its read now");
            on(hedge(slow));
        } else {
            on(hedge(slow));
            assert!(
                matches!(on(CoreEvent::Failed(slow))[..], [CoreAction::Read { tick, .. }] if tick == slow)
            );
            on(CoreEvent::Failed(slow));
        }
        let end = on(CoreEvent::Proceed);
        assert_eq!(end.iter().any(|action| matches!(action, CoreAction::Fail { .. })), is_end, "{end:?}");
        assert_eq!(end.iter().any(|action| matches!(action, CoreAction::Hand { .. })), !is_end, "{end:?}");
    }
}

/// The actions caused by an event.
fn actions(core: &mut Core, event: CoreEvent) -> Vec<CoreAction> {
    let mut actions = Vec::new();
    core.on(event, &mut actions);
    actions
}

/// The use that a read is for.
fn about(action: &CoreAction) -> Option<Tick> {
    match action {
        CoreAction::RequestPeer { tick, .. } | CoreAction::Read { tick, .. } => Some(*tick),
        _ => None,
    }
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
