//! Ranks of one process that share a cache with disks, one run after another.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail by panicking, too")]

use std::collections::HashMap;
use std::fs;
use std::path::Path;
use std::sync::Barrier;

use foreread::ranks::Meeting;
use foreread::report::Report;
use foreread::{Config, Disk, Loader, Memory, RankOf};

const SAMPLES: u64 = 100;

/// One run of two ranks, whose loaders are closed or dropped.
fn run(data: &Path, disk: &Path, meet: &Path, closes: bool) -> Vec<Report> {
    // The cache ends with the first rank, if that is dropped.
    let all_are_done = Barrier::new(2);
    let rank = |rank: u32| {
        let values = [
            ("RANK", rank.to_string()),
            ("WORLD_SIZE", "2".to_owned()),
            ("FOREREAD_MEET", meet.display().to_string()),
        ];
        let values = HashMap::from(values);
        let disk = Disk { directory: disk.to_owned(), bytes: 50_000_000, shared: false };
        let mut config = Config::default();
        (config.rank, config.epochs) = (RankOf { rank, ranks: 2 }, 3);
        (config.memory, config.disk, config.look_ahead) = (Memory::Bytes(20_000), vec![disk], 50_000);
        let meeting = Meeting::of(&config, &|name| values.get(name).cloned()).unwrap().unwrap();
        let loader = Loader::builder_with(data.to_str().unwrap(), config).peers(meeting).start().unwrap();
        let delivered: u64 = loader.batches().map(|batch| batch.unwrap().samples().count() as u64).sum();
        assert_eq!(delivered, 3 * SAMPLES / 2);
        all_are_done.wait();
        if closes { loader.close().unwrap() } else { loader.report() }
    };
    std::thread::scope(|scope| {
        let rank = &rank;
        let ranks = [0, 1].map(|number| scope.spawn(move || rank(number)));
        ranks.map(|rank| rank.join().unwrap()).into()
    })
}

/// Guards against this fault: the next loader of the process found the directory in use, and wrote
/// nothing.
#[test]
// semantics: RANK-39
fn next_run_of_a_process_owns_the_disk_again() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    let (data, disk) = (path("data"), path("disk"));
    for name in ["data", "meet"] {
        fs::create_dir(path(name)).unwrap();
    }
    for number in 0..SAMPLES {
        fs::write(data.join(number.to_string()), vec![number as u8; 10_000]).unwrap();
    }
    for round in 0..4 {
        let reports = run(&data, &disk, &path("meet"), round % 2 == 0);
        let read: u64 = reports.iter().map(|report| report.origin_requests).sum();
        let report = reports[0].disk.as_ref().unwrap();
        assert!(report.capacity_bytes > 0, "round {round}: another loader owns the directory");
        // On a busy machine, a rank may read some samples by itself.
        let (least, most) = if round == 0 { (SAMPLES, SAMPLES * 12 / 10) } else { (0, SAMPLES / 5) };
        assert!((least..=most).contains(&read), "round {round}: {read} reads");
        assert!(report.held_bytes > SAMPLES * 10_000 * 8 / 10, "round {round}: {report:?}");
        assert!(reports[1].disk.is_none());
    }
}
