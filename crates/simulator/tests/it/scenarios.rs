//! Tests of invalid scenario files: one line each, which begins with the field.

use foreread_simulator::Scenario;

const GOOD: &str = include_str!("../../scenarios/thesis-s1.toml");

/// The error for the valid scenario with one piece of text replaced.
fn error_of(from: &str, to: &str) -> String {
    assert!(GOOD.contains(from), "{from}");
    let error = Scenario::from_toml(&GOOD.replacen(from, to, 1)).unwrap_err();
    assert!(!error.to_string().contains('\n'), "{error}");
    error.to_string()
}

#[test]
// semantics: SIM-4
fn scenario_errors_name_the_field() {
    for (from, to, field) in [
        ("workers = 4\n", "", "cluster.workers: missing"),
        ("pfs_client = 2000\n", "", "cluster.pfs_client: missing"),
        ("sd = 0.01\n", "", "dataset.sd: missing"),
        ("workers = 4", "workers = 0", "cluster.workers: must be at least 1, found 0"),
        ("workers = 4", "workers = -4", "cluster.workers: must be at least 1, found -4"),
        ("workers = 4", "workers = 4.5", "cluster.workers: expected the number of workers as an integer"),
        ("workers = 4", "workers = 10001", "cluster.workers: must be at most dataset.samples"),
        ("compute = 100", "compute = -1", "cluster.compute: must be above 0, found -1"),
        ("compute = 100", "compute = \"fast\"", "cluster.compute: expected the MB/s"),
        ("network = 10000", "network = inf", "cluster.network: must be finite, found inf"),
        ("network = 10000", "network = nan", "cluster.network: must be finite, found NaN"),
        ("pfs_client = 2000", "pfs_client = 0", "cluster.pfs_client: must be above 0, found 0"),
        ("drop_last = true", "drop_lsat = true", "training.drop_lsat: unknown field"),
        ("capacity = 51200", "capacity = 0", "storage[1].capacity: must be above 0, found 0"),
        ("capacity = 1024\n", "capacity = -1\n", "storage[0].capacity: must be above 0, found -1"),
        ("capacity = 102400\n", "", "storage[2].capacity: missing"),
        (
            "threads = 2\nread = { 2 = 86 }",
            "threads = 0\nread = { 2 = 86 }",
            "storage[2].threads: must be at least 1, found 0",
        ),
        ("{ 2 = 86 }", "{ two = 86 }", "storage[2].read.two: expected an integer above 0"),
        ("{ 2 = 86 }", "{ 2 = -86 }", "storage[2].read.2: must be above 0, found -86"),
        ("{ 2 = 86 }", "{ 2 = 86, 02 = 87 }", "storage[2].read.2: is given twice"),
        ("{ 2 = 86 }", "{}", "storage[2].read: has no points"),
        ("[pfs]\n", "[psf]\n", "pfs: missing"),
        ("[pfs]\n", "[pfs]\nservers = []\n", "pfs.servers: expected the relative speed of each server"),
        ("[pfs]\n", "[pfs]\nservers = [1, 0]\n", "pfs.servers[1]: must be above 0, found 0"),
        ("[pfs]\n", "[pfs]\nservers = [1.5]\n", "pfs.servers[0]: must be at most 1, found 1.5"),
        ("samples = 10000", "samples = 0", "dataset.samples: must be at least 1, found 0"),
        ("samples = 10000", "samples = 99999999999", "dataset.samples: must be at most"),
        ("mean = 0.027", "mean = 0", "dataset.mean: must be above 0, found 0"),
        ("sd = 0.01", "sd = -0.01", "dataset.sd: must be at least 0, found -0.01"),
        ("batch = 100", "batch = 0", "training.batch: must be at least 1, found 0"),
        ("batch = 100", "batch = 10001", "training.batch: must be at most 10000"),
        ("epochs = 10", "epochs = 1000000", "training.epochs: times dataset.samples"),
        ("drop_last = true", "drop_last = 1", "training.drop_last: expected true or false"),
        ("\"thesis\"", "\"generous\"", "training.staging: expected \"honest\""),
        ("name = ", "nmae = ", "nmae: unknown field"),
        ("seed = 42", "seed = -1", "seed: must be at least 0, found -1"),
        ("seed = 42", "seed = 42 43", "line 4 is not valid TOML"),
    ] {
        let found = error_of(from, to);
        assert!(found.starts_with(field), "{found}\nshould begin with\n{field}");
    }
}

#[test]
fn missing_storage_error_names_the_first_class() {
    let error =
        Scenario::from_toml("[cluster]\nworkers=1\ncompute=1\npreprocess=1\nnetwork=1\npfs_client=1\n")
            .unwrap_err();
    assert_eq!(
        error.to_string(),
        "storage: missing, expected one [[storage]] for each class, the staging buffer first"
    );
}

#[test]
fn optional_fields_have_defaults() {
    let mut text = GOOD.to_owned();
    for line in ["name = \"thesis-s1\"\n", "seed = 42\n", "drop_last = true\n", "staging = \"thesis\"\n"] {
        text = text.replace(line, "");
    }
    let scenario = Scenario::from_toml(&text).unwrap();
    assert_eq!((scenario.seed, scenario.drop_last), (0, false));
    assert_eq!(scenario.staging, foreread_simulator::Accounting::Honest);
}
