//! Scenario files that make no sense: one line each, which begins with the field.
#![allow(clippy::unwrap_used, reason = "a test that cannot set itself up fails by panicking")]

use foreread_simulator::{Scenario, SimulateErrorKind};

const GOOD: &str = include_str!("../scenarios/thesis-s1.toml");

/// The complaint about the good scenario with one piece of text replaced.
fn complaint(from: &str, to: &str) -> String {
    assert!(GOOD.contains(from), "{from}");
    let error = Scenario::from_toml(&GOOD.replacen(from, to, 1)).unwrap_err();
    assert!(!error.to_string().contains('\n'), "{error}");
    error.to_string()
}

#[test]
// semantics: SIM-4
fn complaints_name_the_field() {
    for (from, to, field) in [
        ("workers = 4\n", "", "cluster.workers: is missing"),
        ("pfs_client = 2000\n", "", "cluster.pfs_client: is missing"),
        ("sd = 0.01\n", "", "dataset.sd: is missing"),
        ("workers = 4", "workers = 0", "cluster.workers: is 0"),
        ("workers = 4", "workers = -4", "cluster.workers: is -4"),
        ("workers = 4", "workers = 4.5", "cluster.workers: is float, not a whole number"),
        ("workers = 4", "workers = 10001", "cluster.workers: is 10001, but dataset.samples is 10000"),
        ("compute = 100", "compute = -1", "cluster.compute: is -1; it is above 0"),
        ("compute = 100", "compute = \"fast\"", "cluster.compute: is string, not a number"),
        ("network = 10000", "network = inf", "cluster.network: is inf"),
        ("network = 10000", "network = nan", "cluster.network: is NaN"),
        ("pfs_client = 2000", "pfs_client = 0", "cluster.pfs_client: is 0"),
        ("drop_last = true", "drop_lsat = true", "training.drop_lsat: is not a field"),
        ("capacity = 51200", "capacity = 0", "storage[1].capacity: is 0; it is above 0"),
        ("capacity = 1024\n", "capacity = -1\n", "storage[0].capacity: is -1"),
        ("capacity = 102400\n", "", "storage[2].capacity: is missing"),
        ("threads = 2\nread = { 2 = 86 }", "threads = 0\nread = { 2 = 86 }", "storage[2].threads: is 0"),
        ("{ 2 = 86 }", "{ two = 86 }", "storage[2].read.two: the key is not a whole number"),
        ("{ 2 = 86 }", "{ 2 = -86 }", "storage[2].read.2: is -86"),
        ("{ 2 = 86 }", "{ 2 = 86, 02 = 87 }", "storage[2].read.2: is given twice"),
        ("{ 2 = 86 }", "{}", "storage[2].read: has no points"),
        ("[pfs]\n", "[psf]\n", "pfs: is missing"),
        ("samples = 10000", "samples = 0", "dataset.samples: is 0"),
        ("samples = 10000", "samples = 99999999999", "dataset.samples: is 99999999999; it is at most"),
        ("mean = 0.027", "mean = 0", "dataset.mean: is 0"),
        ("sd = 0.01", "sd = -0.01", "dataset.sd: is -0.01; it is at least 0"),
        ("batch = 100", "batch = 0", "training.batch: is 0"),
        ("batch = 100", "batch = 10001", "training.batch: is 10001 and drop_last is true"),
        ("epochs = 10", "epochs = 1000000", "training.epochs: times dataset.samples"),
        ("drop_last = true", "drop_last = 1", "training.drop_last: is integer, not true or false"),
        ("\"thesis\"", "\"generous\"", "training.staging: is \"generous\""),
        ("name = ", "nmae = ", "nmae: is not a field"),
        ("seed = 42", "seed = -1", "seed: is -1"),
        ("seed = 42", "seed = 42 43", "line 4 is not TOML"),
    ] {
        let found = complaint(from, to);
        assert!(found.starts_with(field), "{found}\nshould begin with\n{field}");
    }
}

#[test]
fn a_file_without_storage_says_what_the_first_is() {
    let error =
        Scenario::from_toml("[cluster]\nworkers=1\ncompute=1\npreprocess=1\nnetwork=1\npfs_client=1\n")
            .unwrap_err();
    assert_eq!(error.kind(), SimulateErrorKind::Field);
    assert_eq!(
        error.to_string(),
        "storage: is missing; give one [[storage]] for each class, the staging buffer first"
    );
}

#[test]
fn what_may_be_left_out_has_its_default() {
    let mut text = GOOD.to_owned();
    for line in ["name = \"thesis-s1\"\n", "seed = 42\n", "drop_last = true\n", "staging = \"thesis\"\n"] {
        text = text.replace(line, "");
    }
    let scenario = Scenario::from_toml(&text).unwrap();
    assert_eq!((scenario.seed, scenario.drop_last), (0, false));
    assert_eq!(scenario.staging, foreread_simulator::Accounting::Honest);
}
