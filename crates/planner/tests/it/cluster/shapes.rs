//! Tests of uneven clusters, shared nodes, second copies, predictions and invalid inputs.

use std::sync::Arc;

use foreread_oracle::{Deal, Explicit, Run, Sequential, Shuffle};
use foreread_planner::{
    CacheStore, Cluster, Curve, Level, Origin, PLANNER_VERSION, Price, Ranks, Resource, plan_cluster,
    plan_cluster_and_copies, predict,
};
use foreread_types::{DatasetId, Footprint, Rank, Sizes, StoreId};

use super::{equal, key, replay, run, stores, train};

#[test]
fn samples_of_a_small_node_go_to_others() {
    // The third node has no disk and little memory, the fourth has neither.
    let cluster = stores(vec![vec![200, 400], vec![200, 400], vec![50], vec![]]);
    let run = run(vec![train(Shuffle::new(1000, 2).unwrap(), 5)], 20, 4);
    let sizes = [Sizes::uniform(1000, 1)];
    let plan = plan_cluster(&run, &sizes, &cluster).unwrap();
    let owned: Vec<u64> = plan.stores().iter().map(|store| store.owned.samples).collect();
    assert_eq!(owned.iter().sum::<u64>(), 1000);
    assert!(owned[2] <= 50 && owned[3] == 0);
    assert_eq!(plan.origin_bytes(), plan.floor());
    assert_eq!(replay(&run, &sizes, &cluster, &plan).origin_bytes, 1000);
}

#[test]
fn ranks_of_a_node_share_its_tiers() {
    let mut cluster = stores(vec![vec![500], vec![500]]);
    cluster.ranks = Ranks::Table(Arc::from([1, 0, 1, 0, 0, 0]));
    let run = run(vec![train(Shuffle::new(1000, 2).unwrap(), 5)], 30, 6);
    let sizes = [Sizes::uniform(1000, 1)];
    let plan = plan_cluster(&run, &sizes, &cluster).unwrap();
    assert_eq!(plan.stores().iter().map(|store| store.ranks).collect::<Vec<_>>(), [4, 2]);
    let found = replay(&run, &sizes, &cluster, &plan);
    assert_eq!(found.origin_bytes, 1000);
    // Half of the samples are local to two thirds of the ranks, and half to one third.
    let local = found.local as f64 / found.uses as f64;
    assert!((0.48..0.54).contains(&local), "{local}");
    let forecast = plan.stores().iter().map(|store| store.local.samples).sum::<u64>();
    assert!(forecast.abs_diff(found.local) < found.uses / 50, "{forecast}, replayed {}", found.local);
}

/// Replays the runs of all ranks. Counts local uses, including those of second copies from the
/// second use in a store on.
fn local_uses(samples: u64, epochs: u64, cluster: &Cluster) -> u64 {
    let ranks = cluster.stores.len() as u32;
    let sizes = [Sizes::uniform(samples, 1)];
    let (mut local, mut forecast, mut print) = (0, 0, None);
    for rank in 0..ranks {
        let phases = vec![train(Shuffle::new(samples, 2).unwrap(), 5)];
        let schedule = run(phases, epochs, ranks).schedule().clone();
        let run = Run::new(schedule, Deal::Torch, ranks, Rank(rank)).unwrap();
        let plan = plan_cluster(&run, &sizes, cluster).unwrap();
        assert_eq!(*print.get_or_insert(plan.fingerprint()), plan.fingerprint());
        let (same, copies) = plan_cluster_and_copies(&run, &sizes, cluster).unwrap();
        assert_eq!(same, plan);
        let own: Vec<_> = copies.iter().filter(|copy| copy.store == rank as usize).collect();
        assert!(own.iter().all(|copy| plan.copies().level(copy.key) == Some(copy.level)));
        let store = &plan.stores()[rank as usize];
        assert_eq!(own.len() as u64, store.copies.samples);
        let held = (0..samples).filter(|&id| plan.local(rank as usize, key(0, id)).is_some()).count();
        assert!(held as u64 <= cluster.stores[rank as usize].capacity());
        assert_eq!(plan.origin_bytes(), samples);
        let mut seen = vec![false; samples as usize];
        let mut of_rank = 0u64;
        for pass in run.passes() {
            let stream = run.stream(&pass).unwrap();
            for id in (0..stream.len()).map(|index| stream.at(index)) {
                let own = plan.owner(key(0, id.0)).is_some_and(|owner| owner.store == rank as usize);
                let copy = plan.copies().level(key(0, id.0)).is_some();
                assert!(!(own && copy), "{id} is kept twice in a store");
                of_rank += u64::from(own || copy && seen[id.0 as usize]);
                seen[id.0 as usize] = true;
            }
        }
        local += of_rank;
        forecast += store.local.samples;
        // As many copies as other ranks expect.
        let other = Run::new(run.schedule().clone(), Deal::Torch, ranks, Rank((rank + 1) % ranks)).unwrap();
        let other = plan_cluster(&other, &sizes, cluster).unwrap();
        let expected = other.stores()[rank as usize].copies.samples;
        assert!(expected <= store.copies.samples + 1, "{expected}, chosen {}", store.copies.samples);
    }
    let uses = samples * epochs;
    assert!(forecast.abs_diff(local) <= uses / 100, "forecast {forecast}, played {local} of {uses}");
    local
}

#[test]
// semantics: PLAN-1
fn free_space_takes_second_copies_until_it_is_full() {
    let (samples, epochs) = (3000u64, 12);
    for (ranks, each, expected) in [
        // All uses except the first of each copy.
        (2, 3000, 0.90..0.93),
        (3, 3000, 0.82..0.85),
        (3, 1500, 0.48..0.54),
        (3, 1000, 0.36..0.42),
    ] {
        let local = local_uses(samples, epochs, &equal(ranks, each));
        let share = local as f64 / (samples * epochs) as f64;
        assert!(expected.contains(&share), "{ranks} ranks, {each} each: {share}");
    }
}

/// Copies of samples that are read early serve more uses than copies of low sample numbers.
#[test]
// semantics: PLAN-5
fn second_copies_are_the_samples_that_a_store_reads_first() {
    let (samples, epochs, ranks) = (4000u64, 20, 16u32);
    let share = |each| local_uses(samples, epochs, &equal(ranks, each)) as f64 / (samples * epochs) as f64;
    // Each of the 500 copies is used 18 / 16 times more. Any other copy would be used 19 / 16
    // times, minus a possible first use: 0.48 times.
    let gained = (share(750) - share(250)) * (samples * epochs) as f64 / (500.0 * f64::from(ranks));
    assert!((1.05..1.15).contains(&gained), "{gained} uses a copy");
}

#[test]
fn constant_readers_own_their_samples() {
    // A validation set is dealt the same way in every epoch, so all of its uses are local.
    let mut validation = train(Sequential::new(90).unwrap(), 5);
    validation.dataset = DatasetId(1);
    let run = run(vec![train(Shuffle::new(300, 2).unwrap(), 5), validation], 5, 3);
    let sizes = [Sizes::uniform(300, 10), Sizes::uniform(90, 10)];
    let cluster = equal(3, 2000);
    let plan = plan_cluster(&run, &sizes, &cluster).unwrap();
    let pass = run.pass(1).unwrap();
    let stream = run.stream(&pass).unwrap();
    for rank in 0..3 {
        let stream = stream.of_rank(Rank(rank)).unwrap();
        for index in 0..stream.len() {
            let owner = plan.owner(key(1, stream.at(index).0)).unwrap();
            assert_eq!(owner.store, rank as usize);
        }
    }
}

#[test]
// semantics: PLAN-9
fn predictions_add_up_and_name_the_limit() {
    const MB: u64 = 1_000_000;
    let (samples, ranks, epochs) = (4000u64, 4u32, 3u64);
    let sizes = [Sizes::uniform(samples, 100_000)];
    let run = run(vec![train(Shuffle::new(samples, 2).unwrap(), 32)], epochs, ranks);
    let mut cluster = equal(ranks, 60 * MB);
    cluster.origin = Origin {
        clients: Curve::new(vec![(1, 66 * MB), (4, 100 * MB)]).unwrap(),
        price: Some(Price { request_nano: 400, gigabyte_nano: 90_000_000 }),
        ..Origin::default()
    };
    let plan = plan_cluster(&run, &sizes, &cluster).unwrap();
    let forecasts = plan.predict(&run, &cluster).unwrap();
    // 400 MB, then 160 MB, at 100 MB/s over four ranks.
    let seconds: Vec<f64> = forecasts.iter().map(|epoch| epoch.seconds()).collect();
    assert!((seconds[0] - 4.0).abs() < 0.01 && (seconds[1] - 1.6).abs() < 0.01, "{seconds:?}");
    assert!(forecasts.iter().all(|epoch| epoch.limiting == Resource::OriginBandwidth));
    let bytes: u64 = forecasts.iter().map(|epoch| epoch.requests.bytes).sum();
    assert!(bytes.abs_diff(plan.origin_bytes()) < 1000);
    assert_eq!(forecasts[0].requests.samples, samples);
    assert_eq!(forecasts[0].price_nano, Some(4000 * 400 + 36_000_000));
    for epoch in &forecasts {
        let levels: u64 = epoch.levels.iter().map(|level| level.samples).sum();
        let delivered = levels + epoch.peers.samples + epoch.origin.samples;
        assert!(delivered.abs_diff(samples) <= 8, "{epoch:?}");
    }
    // One resource after the other becomes the narrowest.
    let limit = |change: &dyn Fn(&mut Cluster)| {
        let mut slower = cluster.clone();
        change(&mut slower);
        plan.predict(&run, &slower).unwrap()[1].limiting
    };
    assert_eq!(limit(&|cluster| cluster.origin.client_bytes_per_second = MB), Resource::OriginClient);
    assert_eq!(limit(&|cluster| cluster.origin.latency_ns = 1_000_000_000), Resource::OriginRequests);
    assert_eq!(limit(&|cluster| cluster.network.bytes_per_second = MB), Resource::Network);
    assert_eq!(limit(&|cluster| cluster.trainer.preprocess = MB), Resource::Preprocessing);
    assert_eq!(limit(&|cluster| cluster.trainer.compute = MB), Resource::Compute);
    assert_eq!(limit(&|cluster| cluster.trainer.staging = Curve::flat(MB)), Resource::Staging);
    let disk = limit(&|cluster| {
        cluster.stores.iter_mut().for_each(|store| store.levels[0].read = Curve::flat(MB));
    });
    assert!(matches!(disk, Resource::Level(_)));
    // Two stores on one node reach each other without the network.
    let near = {
        let mut near = cluster.clone();
        near.stores.iter_mut().for_each(|store| store.node = 0);
        near.network.bytes_per_second = MB;
        plan.predict(&run, &near).unwrap()[1].busy[&Resource::Network]
    };
    assert_eq!(near, 0);
}

#[test]
fn cluster_of_one_rank_predicts_as_its_plan() {
    let sizes = [Sizes::uniform(1000, 100_000)];
    let run = run(vec![train(Shuffle::new(1000, 2).unwrap(), 32)], 4, 1);
    let levels = vec![
        Level::new("memory", 20_000_000, Footprint::EXACT),
        Level::new("disk", 30_000_000, Footprint::EXACT),
    ];
    let mut cluster = Cluster::single(CacheStore::new(StoreId(0), levels));
    cluster.origin.client_bytes_per_second = 10_000_000;
    let alone = foreread_planner::plan(&run, &sizes, &cluster).unwrap();
    let cluster_plan = plan_cluster(&run, &sizes, &cluster).unwrap();
    assert_eq!(alone.origin_bytes(), cluster_plan.origin_bytes());
    assert_eq!(alone.floor(), cluster_plan.floor());
    let (alone, cluster_plan) =
        (predict(&alone, &run, &cluster).unwrap(), cluster_plan.predict(&run, &cluster).unwrap());
    for (alone, cluster_plan) in alone.iter().zip(&cluster_plan) {
        assert_eq!(alone.limiting, Resource::OriginClient);
        assert_eq!((alone.nanoseconds, alone.limiting), (cluster_plan.nanoseconds, cluster_plan.limiting));
        assert_eq!(
            (alone.levels, alone.origin, alone.requests),
            (cluster_plan.levels, cluster_plan.origin, cluster_plan.requests)
        );
    }
    assert_eq!(alone[1].levels.map(|level| level.samples), [200, 300, 0]);
    assert_eq!(alone[1].seconds(), 5.0);
}

#[test]
fn invalid_clusters_are_errors_that_name_the_field() {
    let run = run(vec![train(Shuffle::new(10, 2).unwrap(), 5)], 2, 4);
    let sizes = [Sizes::uniform(10, 1)];
    let refused = |change: &dyn Fn(&mut Cluster), text: &str| {
        let mut cluster = equal(4, 10);
        change(&mut cluster);
        let error = plan_cluster(&run, &sizes, &cluster).unwrap_err();
        assert!(error.to_string().starts_with(text), "{error}");
    };
    refused(&|cluster| cluster.ranks = Ranks::PerStore(0), "ranks.per_store is 0");
    refused(&|cluster| cluster.stores.truncate(3), "ranks gives rank 3 an unknown store");
    refused(&|cluster| cluster.ranks = Ranks::Table(Arc::from([0, 1])), "ranks has 2 entries");
    refused(&|cluster| cluster.stores[2].id = StoreId(1), "stores has two entries of id 1");
    refused(&|cluster| cluster.stores[1].levels[0].threads = 0, "stores[1].levels[0].threads is 0");
    refused(&|cluster| cluster.network.in_flight = 0, "network.in_flight is 0");
    refused(&|cluster| cluster.origin.in_flight = 0, "origin.in_flight is 0");
    refused(&|cluster| cluster.trainer.compute = 0, "trainer.compute is 0");
    let cluster = equal(4, 10);
    let plan = plan_cluster(&run, &sizes, &cluster).unwrap();
    let error = plan.predict(&run, &stores(vec![vec![1]; 5])).unwrap_err();
    assert!(error.to_string().starts_with("stores has 5 entries and the plan was made for 4"), "{error}");
}

#[test]
// semantics: PLAN-2
fn cluster_plans_are_equal_on_every_machine() {
    let lengths: Vec<u64> =
        (0..3000u64).map(|id| 1000 + id.wrapping_mul(0x9e37_79b9_7f4a_7c15) % 9000).collect();
    let sizes = [Sizes::table(&lengths)];
    let plan = |ranks: u32, each: u64, epochs| {
        let run = run(vec![train(Shuffle::new(3000, 11).unwrap(), 5)], epochs, ranks);
        plan_cluster(&run, &sizes, &equal(ranks, each)).unwrap().fingerprint().to_string()
    };
    // A change of these values changes the agreement of ranks of different releases. Then
    // PLANNER_VERSION must change too.
    let found = [plan(4, 2_000_000, 9), plan(4, 6_000_000, 9), plan(300, 30_000, 9)];
    assert_eq!(
        (PLANNER_VERSION, found),
        (
            2,
            [
                "741fb587a38acdcab184981d7ad237d7",
                "985056a7736557a28e205a954f331c8a",
                "2468dca8c4ca246a9ee6ec2996d4ae06",
            ]
            .map(str::to_owned)
        )
    );
}

#[test]
fn explicit_orders_with_repeats_are_counted_too() {
    let orders = (0..6u64).map(|epoch| (0..60).map(|at| (at * at + epoch * 3) % 50).collect()).collect();
    let run = run(vec![train(Explicit::new(80, orders).unwrap(), 5)], 6, 3);
    let sizes = [Sizes::uniform(80, 10)];
    let cluster = equal(3, 70);
    let plan = plan_cluster(&run, &sizes, &cluster).unwrap();
    assert_eq!(replay(&run, &sizes, &cluster, &plan).origin_bytes, plan.origin_bytes());
    assert!(plan.origin_bytes() >= plan.floor());
}
