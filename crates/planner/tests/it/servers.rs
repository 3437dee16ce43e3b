//! Tests of placements by storage server: even remaining times, and plans that ignore servers where
//! that costs little.

use foreread_oracle::{Run, Sequential, Shuffle};
use foreread_planner::{
    Cluster, Level, Origin, OriginServers, Plan, Resource, Retention, ServerSpeed, Trainer, plan, predict,
};
use foreread_types::{DatasetId, Footprint, SampleId, SampleKey, Sizes};
use proptest::prelude::*;

use crate::common::{MB, cluster, level, phase, run, speed, with_servers};

fn is_kept(plan: &Plan, id: usize) -> bool {
    plan.placement().level(SampleKey::new(DatasetId(0), SampleId(id as u64))).is_some()
}

/// Nanoseconds of each server in an epoch after the first, for samples with known servers.
fn remaining(plan: &Plan, lengths: &[u64], speeds: &[ServerSpeed], table: &[u16]) -> Vec<u128> {
    let mut times = vec![0u128; speeds.len()];
    for (id, (&bytes, &server)) in lengths.iter().zip(table).enumerate() {
        if let Some(speed) = speeds.get(usize::from(server)).filter(|_| !is_kept(plan, id)) {
            times[usize::from(server)] += u128::from(speed.latency_ns)
                + u128::from(bytes) * 1_000_000_000 / u128::from(speed.bytes_per_second);
        }
    }
    times
}

fn most(times: &[u128]) -> u128 {
    times.iter().copied().max().unwrap_or(0)
}

fn shuffled(samples: usize, epochs: u64) -> Run {
    run(epochs, vec![phase(0, Shuffle::new(samples as u64, 7).unwrap())])
}

/// 16 servers of 100 MB/s, the fourth twenty times slower, and caches for half of 1,600 samples.
fn one_slow() -> (Run, Vec<u64>, Vec<ServerSpeed>, Vec<u16>, Cluster) {
    let lengths = vec![100_000; 1600];
    let mut speeds = vec![speed(100 * MB); 16];
    speeds[3] = speed(5 * MB);
    let table: Vec<u16> = (0..1600).map(|id| id % 16).collect();
    let cluster = cluster(vec![level(80 * MB)]);
    (shuffled(1600, 5), lengths, speeds, table, cluster)
}

#[test]
// semantics: HPC-10
fn slow_server_costs_little_with_its_samples_kept() {
    let (run, lengths, speeds, table, ignoring) = one_slow();
    let sizes = [Sizes::table(&lengths)];
    let even = with_servers(ignoring.clone(), &speeds, &table);
    let [even, ignoring] = [&even, &ignoring].map(|cluster| plan(&run, &sizes, cluster).unwrap());
    let slowest = |plan: &Plan| most(&remaining(plan, &lengths, &speeds, &table));
    // 50 samples of 20 ms, and 54 of 1 ms: all 100 of the slow server are kept.
    assert_eq!((slowest(&ignoring), slowest(&even)), (1_000_000_000, 54_000_000));
    assert!(slowest(&even) * 3 < slowest(&ignoring));
    assert_eq!(even.origin_bytes(), ignoring.origin_bytes());
    let gain = even.server_gain().unwrap();
    assert_eq!((gain.ignoring_servers_ns, gain.epoch_ns), (1_000_000_000, 54_000_000));
    assert!(ignoring.server_gain().is_none());
    assert_eq!(even.summary().server_gain, Some(gain));
}

#[test]
fn forecast_names_the_slowest_server_as_limit() {
    let (run, lengths, speeds, table, cluster) = one_slow();
    let sizes = [Sizes::table(&lengths)];
    let cluster = with_servers(cluster, &speeds, &table);
    let plan = plan(&run, &sizes, &cluster).unwrap();
    let epochs = predict(&plan, &run, &cluster).unwrap();
    assert!(epochs.iter().all(|epoch| epoch.limiting == Resource::OriginServer));
    let times: Vec<u64> = epochs.iter().map(|epoch| epoch.nanoseconds).collect();
    // The first epoch reads 100 samples of 20 ms from the slow server.
    assert_eq!(times, [2_000_000_000, 54_000_000, 54_000_000, 54_000_000, 54_000_000]);
}

#[test]
// semantics: HPC-10
fn servers_are_ignored_if_something_else_limits() {
    let (run, lengths, speeds, table, cluster) = one_slow();
    let sizes = [Sizes::table(&lengths)];
    let usual = plan(&run, &sizes, &cluster).unwrap();
    // A trainer of 160 MB/s takes as long as the slow server: nothing can be gained.
    let trainer = Trainer { compute: 160 * MB, ..Trainer::default() };
    let limited = Cluster { trainer, ..with_servers(cluster.clone(), &speeds, &table) };
    let limited = plan(&run, &sizes, &limited).unwrap();
    assert_eq!((limited.placement(), limited.server_gain()), (usual.placement(), None));
    assert_eq!(limited.fingerprint(), usual.fingerprint());
    // 80 MB at 81 MB/s for the client: 988 ms instead of 1,000.
    let origin = Origin { client_bytes_per_second: 81 * MB, ..Origin::default() };
    let limited = Cluster { origin, ..with_servers(cluster, &speeds, &table) };
    assert!(plan(&run, &sizes, &limited).unwrap().server_gain().is_none());
}

#[test]
fn samples_that_come_and_go_ignore_servers() {
    let (_, lengths, speeds, table, cluster) = one_slow();
    let weights = vec![1.0; lengths.len()];
    let drawn = foreread_oracle::Weighted::new(&weights, lengths.len() as u64, 1).unwrap();
    let run = run(20, vec![phase(0, drawn)]);
    let plan = plan(&run, &[Sizes::table(&lengths)], &with_servers(cluster, &speeds, &table)).unwrap();
    assert!(matches!(plan.retention(), Retention::Threshold { .. }), "{:?}", plan.retention());
    assert!(plan.server_gain().is_none());
}

#[test]
fn validation_samples_count_at_their_servers() {
    let lengths = vec![MB; 40];
    let sizes = [Sizes::table(&lengths), Sizes::table(&lengths)];
    let phases = vec![phase(0, Shuffle::new(40, 7).unwrap()), phase(1, Sequential::new(40).unwrap())];
    // All training samples are on a slow server, all validation samples on a fast one.
    let servers =
        OriginServers::new(vec![speed(MB), speed(100 * MB)], vec![vec![0; 40].into(), vec![1; 40].into()]);
    let cluster = Cluster { servers: Some(servers), ..cluster(vec![level(30 * MB)]) };
    let found = plan(&run(3, phases), &sizes, &cluster).unwrap();
    // By worth, training samples have the lower numbers, and are kept anyway.
    assert!(found.server_gain().is_none() && is_kept(&found, 29) && !is_kept(&found, 30));
    let swapped =
        OriginServers::new(vec![speed(MB), speed(100 * MB)], vec![vec![1; 40].into(), vec![0; 40].into()]);
    let phases = vec![phase(0, Shuffle::new(40, 7).unwrap()), phase(1, Sequential::new(40).unwrap())];
    let cluster = Cluster { servers: Some(swapped), ..cluster };
    let found = plan(&run(3, phases), &sizes, &cluster).unwrap();
    assert!(found.server_gain().is_some() && !is_kept(&found, 0));
    assert_eq!((found.datasets()[0].origin_bytes, found.datasets()[1].origin_bytes), (120 * MB, 60 * MB));
}

#[test]
fn server_without_speed_is_an_error() {
    let (run, lengths, _, table, cluster) = one_slow();
    let error = |speeds: &[ServerSpeed]| {
        let cluster = with_servers(cluster.clone(), speeds, &table);
        plan(&run, &[Sizes::table(&lengths)], &cluster).unwrap_err()
    };
    for error in [error(&[speed(0)]), error(&[])] {
        assert!(error.to_string().starts_with("servers.bytes_per_second is 0"), "{error}");
    }
}

/// Lengths, the server of each sample (the last number: unknown), and the speed of each server.
type Spread = (Vec<u64>, Vec<u16>, Vec<ServerSpeed>);

fn spread() -> impl Strategy<Value = Spread> {
    (1usize..7).prop_flat_map(|servers| {
        let samples = prop::collection::vec((1u64..300_000, 0..=servers as u16), 1..400);
        let speed = (0u64..20 * MB, MB..500 * MB)
            .prop_map(|(latency_ns, bytes_per_second)| ServerSpeed { latency_ns, bytes_per_second });
        (samples, prop::collection::vec(speed, servers)).prop_map(|(samples, speeds)| {
            let (lengths, table) = samples.into_iter().unzip();
            (lengths, table, speeds)
        })
    })
}

proptest! {
    #[test]
    // semantics: HPC-10
    fn placement_by_server_is_never_slower((lengths, table, speeds) in spread(), share in 0u64..=100) {
        let total: u64 = lengths.iter().sum();
        let memory = Level::new("memory", total * share / 150, Footprint::new(16, 1));
        let disk = Level::new("disk", total * share / 300, Footprint::new(16, 4096));
        let ignoring = cluster(vec![memory, disk]);
        let even = with_servers(ignoring.clone(), &speeds, &table);
        let (run, sizes) = (shuffled(lengths.len(), 3), [Sizes::table(&lengths)]);
        let [by_server, usual] = [&even, &ignoring].map(|cluster| plan(&run, &sizes, cluster).unwrap());
        prop_assert_eq!(&plan(&run, &sizes, &even).unwrap(), &by_server);
        for (found, described) in by_server.levels().iter().zip(&even.stores[0].levels) {
            prop_assert!(found.footprint <= described.capacity);
        }
        let kept: u64 = (0..lengths.len()).filter(|&id| is_kept(&by_server, id)).map(|id| lengths[id]).sum();
        prop_assert_eq!(kept, by_server.levels().iter().map(|level| level.bytes).sum::<u64>());
        prop_assert_eq!(by_server.origin_bytes(), 3 * total - 2 * kept);
        let time = |plan: &Plan| most(&remaining(plan, &lengths, &speeds, &table));
        match by_server.server_gain() {
            None => prop_assert_eq!(by_server.placement(), usual.placement()),
            Some(gain) => {
                prop_assert!(gain.epoch_ns <= gain.ignoring_servers_ns / 10 * 9 + 9);
                prop_assert!(time(&by_server) <= u128::from(gain.epoch_ns) + 1);
            }
        }
        // Samples of unknown servers are predicted, too, and not timed here.
        let known = table.iter().all(|&server| usize::from(server) < speeds.len());
        prop_assert!(!known || time(&by_server) <= time(&usual));
    }

    #[test]
    fn remaining_times_differ_by_one_sample(
        table in prop::collection::vec(0u16..5, 10..500),
        rates in prop::collection::vec(1u64..50, 5),
        share in 1u64..100,
    ) {
        let lengths = vec![MB; table.len()];
        let speeds: Vec<ServerSpeed> = rates.iter().map(|rate| speed(rate * MB)).collect();
        let room = lengths.len() as u64 * share / 100 * MB;
        let cluster = with_servers(cluster(vec![level(room)]), &speeds, &table);
        let plan = plan(&shuffled(lengths.len(), 3), &[Sizes::table(&lengths)], &cluster).unwrap();
        prop_assume!(plan.server_gain().is_some());
        let times = remaining(&plan, &lengths, &speeds, &table);
        for (server, &left) in times.iter().enumerate() {
            let keeps = (0..table.len()).any(|id| usize::from(table[id]) == server && is_kept(&plan, id));
            let one = 1_000_000_000 / u128::from(rates[server]);
            prop_assert!(!keeps || left + one >= most(&times), "{:?}", times);
        }
    }

    #[test]
    fn equal_servers_give_the_usual_plan(servers in 1u16..9, rounds in 10usize..60, share in 0u64..=100) {
        let table: Vec<u16> = (0..rounds * usize::from(servers)).map(|id| id as u16 % servers).collect();
        let lengths = vec![1000; table.len()];
        let usual = cluster(vec![level(lengths.iter().sum::<u64>() * share / 100)]);
        let speeds = vec![speed(MB); usize::from(servers)];
        let (run, sizes) = (shuffled(lengths.len(), 3), [Sizes::table(&lengths)]);
        let found = plan(&run, &sizes, &with_servers(usual.clone(), &speeds, &table)).unwrap();
        let usual = plan(&run, &sizes, &usual).unwrap();
        prop_assert_eq!((found.placement(), found.fingerprint()), (usual.placement(), usual.fingerprint()));
    }
}
