//! Whole files of a program that is not changed: the known shares of opens that find a copy, and
//! the writes that they cost.

use foreread_simulator::{FileOrder, FilesComparison, FilesOutcome, FilesPolicy, FilesScenario};
use proptest::prelude::*;

const FILES: u32 = 20_000;
const CACHES: [f64; 4] = [0.1, 0.25, 0.5, 0.75];

/// The part of the opens that LRU serves, for each of [`CACHES`], simulated by another program.
const LRU: [f64; 4] = [0.005, 0.037, 0.151, 0.406];

fn scenario(cache: f64) -> FilesScenario {
    let text = format!("seed = 1\n[files]\nfiles = {FILES}\nmean = 0.1\ncache = {cache}\nepochs = 5");
    FilesScenario::from_toml(&format!("{text}\nseconds = 3600")).unwrap()
}

/// The bound of origin bytes, and each policy's figures.
fn outcomes(scenario: &FilesScenario) -> (f64, [FilesOutcome; 3]) {
    let compared = FilesComparison::run(scenario.clone(), &FilesPolicy::ALL, 1, &mut |_, _| ()).unwrap();
    (compared.bound() as f64, compared.outcomes().to_vec().try_into().unwrap())
}

fn near(found: f64, expected: f64, within: f64, what: &str) {
    assert!((found - expected).abs() <= within, "{what}: {found:.4}, expected {expected} within {within}");
}

#[test]
// semantics: SIM-8
fn unknown_order_is_served_as_tabulated() {
    let all = 1e5 * f64::from(FILES);
    for (cache, lru) in CACHES.into_iter().zip(LRU) {
        let (bound, [ahead, fixed, recent]) = outcomes(&scenario(cache));
        println!("{cache}: {:.4} {:.4} {:.4}; {ahead:?}", ahead.served, fixed.served, recent.served);
        near(ahead.served, cache + cache * (1.0 / cache).ln(), 0.01, "copies ahead");
        near(fixed.served, cache, 1e-9, "a fixed part");
        near(recent.served, lru, 0.01, "LRU");
        near(bound / all, 1.0 - cache, 1e-9, "bound");
        // Copies cost no reads: each file is read once per epoch, by the program or for its copy.
        near(ahead.origin_bytes / bound, 1.0, 0.01, "reads of copies ahead");
        near(fixed.origin_bytes / bound, 1.0, 1e-9, "reads of a fixed part");
        assert_eq!(fixed.written_bytes, 0.0);
        near(recent.written_bytes, recent.origin_bytes, 1e-3, "LRU writes what it reads");
        // A fixed part would not serve the files that are copied ahead.
        near(ahead.written_bytes / all, cache * (1.0 / cache).ln(), 0.01, "writes");
        assert!(ahead.written_bytes <= all * (1.0 - cache) && ahead.refused == 0.0);
    }
}

#[test]
// semantics: SIM-8
fn known_or_equal_order_is_served_nearly_whole() {
    for order in [FileOrder::Known, FileOrder::Equal] {
        for cache in CACHES {
            let (bound, [ahead, fixed, _]) = outcomes(&FilesScenario { order, ..scenario(cache) });
            println!("{order:?} {cache}: {ahead:?}, bound {bound}");
            assert!(ahead.served > 0.95, "{order:?}, {cache}: {}", ahead.served);
            near(fixed.served, cache, 1e-9, "a fixed part");
            assert!(ahead.origin_bytes < 1.1 * bound, "{order:?}, {cache}");
        }
    }
}

#[test]
// semantics: SIM-8
fn budget_of_writes_bounds_writes_and_serves_a_fixed_part() {
    for order in FileOrder::ALL {
        for cache in CACHES {
            for seconds in [600.0, 21_600.0, 86_400.0] {
                let writes_per_day = Some(0.5);
                let limited = FilesScenario { order, seconds, writes_per_day, ..scenario(cache) };
                let (bound, [ahead, fixed, recent]) = outcomes(&limited);
                let what = format!("{order:?}, {cache}, {seconds} s");
                println!("{what}: {:.4}, LRU {:.4}", ahead.served, recent.served);
                let capacity = 1e5 * cache * f64::from(FILES);
                // The budget's gain while the first epoch filled the cache is spent later.
                let most = 0.5 * capacity * 5.0 / 4.0 + 1e5;
                for outcome in [&ahead, &fixed, &recent] {
                    assert!(outcome.written_bytes_per_day <= most, "{what}: {outcome:?}, at most {most}");
                }
                assert!(
                    ahead.served_by_epoch[1..].iter().all(|&served| served >= cache),
                    "{what}: {ahead:?}"
                );
                assert!(ahead.origin_bytes >= bound && recent.refused > 0.0, "{what}");
            }
        }
    }
    let free = outcomes(&FilesScenario { writes_per_day: Some(1e9), ..scenario(0.5) }).1;
    assert_eq!(free, outcomes(&scenario(0.5)).1);
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// Any number of files, any cache and budget.
    #[test]
    // semantics: SIM-2, SIM-8
    fn whole_files_keep_bound_budget_and_fixed_part(
        files in 1_u32..400,
        cache in 0.0..=1.0f64,
        order in prop::sample::select(FileOrder::ALL.to_vec()),
        writes_per_day in prop::option::of(0.0..100.0f64),
        epochs in 2_u32..6,
        seed in any::<u64>(),
    ) {
        let scenario = FilesScenario { files, cache, order, writes_per_day, epochs, seed, ..scenario(0.5) };
        let (bound, outcomes) = outcomes(&scenario);
        let capacity = (cache * f64::from(files)).round() * 1e5;
        let days = f64::from(epochs) * scenario.seconds / 86_400.0;
        for outcome in outcomes {
            prop_assert!(outcome.origin_bytes >= bound - 1.0, "{outcome:?}, bound {bound}");
            let later = outcome.written_bytes * f64::from(epochs - 1);
            let most = writes_per_day.map_or(f64::INFINITY, |per_day| capacity * (1.0 + per_day * days));
            prop_assert!(later <= most + 1.0, "{outcome:?}, at most {most}");
            // Files that are opened again soon at the end of an epoch are taken for one use. In
            // tiny datasets, no epoch is seen to begin.
            if outcome.policy == FilesPolicy::CopiesAhead && files >= 24 {
                let fixed = capacity / 1e5 / f64::from(files);
                let is_served = outcome.served_by_epoch[1..].iter().all(|&served| served >= fixed - 1e-9);
                prop_assert!(is_served, "{outcome:?}, a fixed part serves {fixed}");
                let few = f64::from(files / 10 + 2).min(14.0) * 1e5;
                let is_close = outcome.origin_bytes <= bound * 1.01 + few;
                prop_assert!(is_close || writes_per_day.is_some(), "{outcome:?}, bound {bound}");
            }
        }
    }
}

#[test]
fn cache_for_all_files_reads_and_writes_nothing_later() {
    let (bound, all) = outcomes(&scenario(1.0));
    assert_eq!(bound, 0.0);
    for outcome in all {
        assert_eq!((outcome.served, outcome.origin_bytes, outcome.written_bytes), (1.0, 0.0, 0.0));
    }
}

#[test]
fn equal_file_scenarios_give_equal_figures() {
    let run = || {
        let scenario = FilesScenario { files: 500, writes_per_day: Some(0.5), ..scenario(0.25) };
        FilesComparison::run(scenario, &FilesPolicy::ALL, 2, &mut |_, _| ()).unwrap()
    };
    let (first, second) = (run(), run());
    assert_eq!(first.outcomes(), second.outcomes());
    assert_eq!(first.to_string(), second.to_string());
    assert!(first.to_string().contains("500 files, 50.0 MB, a cache for 0.25 of them, "), "{first}");
    assert_eq!(first.csv().lines().count(), 1 + FilesPolicy::ALL.len());
}

#[test]
// semantics: SIM-4
fn invalid_files_are_one_line_with_the_field() {
    let text = "[files]\nfiles = 100\nmean = 0.1\ncache = 0.2\nepochs = 3\nseconds = 60\n";
    assert!(FilesScenario::from_toml(text).is_ok());
    for (from, to, expected) in [
        ("files = 100", "files = -1", "files.files: must be at least 1"),
        ("mean = 0.1", "mean = 0", "files.mean: must be above 0"),
        ("mean = 0.1", "mean = 1e10", "files.mean: must be at most 1000000000 MB"),
        ("cache = 0.2", "cache = 1.5", "files.cache: must be at most 1, found 1.5"),
        ("epochs = 3", "epochs = 1", "files.epochs: must be at least 2, found 1"),
        ("epochs = 3", "epochs = 30000000", "files.epochs: times files.files must be at most"),
        ("seconds = 60", "", "files.seconds: missing, expected the seconds of an epoch"),
        ("seconds = 60", "seconds = 1e12", "files.seconds: times files.epochs must be at most"),
        ("epochs = 3", "epochs = 3\norder = 'any'", "files.order: expected one of unknown known equal"),
        ("epochs = 3", "epochs = 3\nwrites_per_day = -1", "files.writes_per_day: must be at least 0"),
        ("epochs = 3", "epochs = 3\nworkers = 1", "files.workers: unknown field"),
        ("[files]", "[file]", "files: missing, expected a table [files]"),
    ] {
        let error = FilesScenario::from_toml(&text.replacen(from, to, 1)).unwrap_err().to_string();
        assert!(error.starts_with(expected) && !error.contains('\n'), "{error}");
    }
}
