//! `cargo xtask soak`: long test runs, before a release or overnight.
//!
//! First all suites with many more cases per property test. Then, one by one, the tests that do
//! more when `FOREREAD_SOAK` is set. They print their progress. Tests that need a tool run where it
//! is installed. The Python package's soak tests have their own table (`package`).
//!
//! Decision: the dev profile, as in every other run. It is optimised and keeps the overflow checks
//! and debug assertions that a long run should trigger. Long runs are ordinary tests, so every run
//! of the suites has a short version of each. The price is this table, which a test compares with
//! the sources.

use std::path::Path;
use std::process::Command;

use anyhow::{Result, bail};

use crate::cargo::{self, run_tests};
use crate::package::SOAKS;
use crate::seed::Seed;
use crate::steps::{TestRun, prepare, suites};
use crate::summary::{StepOutcome, Summary};
use crate::workspace::Workspace;
use crate::{dist, formats, unchanged};

/// The variable that selects long runs.
const VARIABLE: &str = "FOREREAD_SOAK";

/// Arguments of `soak`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Random cases for each property test (an ordinary run has 256)
    #[arg(long, value_name = "N", default_value_t = 10_000)]
    cases: u32,
    /// Run only the soaks whose name contains this
    #[arg(long, value_name = "SUBSTRING")]
    only: Option<String>,
}

/// A test with a long version.
#[derive(Debug)]
struct Long {
    /// The long version's work.
    name: &'static str,
    /// Its file: `PACKAGE'S FOLDER/tests/TARGET/MODULE.rs` or `.../tests/TARGET.rs`. For a module
    /// of the library `.../tests/MODULE/mod.rs` or `.../src/MODULE.rs`.
    file: &'static str,
    test: &'static str,
}

/// All suites, with many cases.
const PROPERTIES: &str = "property tests";
/// An example that takes ten seconds and 2.5 GB: PyTorch's order at the size from which it shuffles
/// otherwise.
const LARGE: &str = "torch's large path";

const LONG: &[Long] = &[
    Long {
        name: "a thousand ranks get a catalog of 50 MiB",
        file: "backends/peer/tests/meet/thousand.rs",
        test: "thousand_ranks_meet_by_8_messages_each_and_a_catalog_a_node",
    },
    Long {
        name: "20,000 simulated meetings with faults",
        file: "backends/peer/src/meet/tests/mod.rs",
        test: "ranks_start_with_equal_values_or_name_the_cause",
    },
    Long {
        name: "5,000 simulated clusters with faults",
        file: "backends/peer/tests/simulation/mod.rs",
        test: "simulated_ranks_get_every_sample_within_bounds",
    },
    Long {
        name: "the engine against its model, 100,000 runs",
        file: "crates/loader/tests/core/main.rs",
        test: "random_runs_and_interleavings_match_the_model",
    },
    Long {
        name: "workers that share an engine, killed 200 times",
        file: "crates/store/tests/it/processes.rs",
        test: "workers_killed_at_any_moment_harm_no_server",
    },
    Long {
        name: "resuming at 20,000 random points",
        file: "crates/foreread/tests/endurance/resume.rs",
        test: "resume_at_random_points_equals_the_uninterrupted_run",
    },
    Long {
        name: "1,000 runs of ranks whose network and machines fail",
        file: "crates/foreread/tests/ranks/faults.rs",
        test: "surviving_ranks_get_their_samples_under_any_fault",
    },
    Long {
        name: "a thousand ranks in one process",
        file: "crates/foreread/tests/ranks/thousand.rs",
        test: "thousand_ranks_meet_plan_and_step_in_two_gibibytes",
    },
    Long {
        name: "PyTorch's order, 3,000 cases",
        file: "integration-tests/tests/it/needs_torch.rs",
        test: "order_equals_distributed_sampler_for_random_cases",
    },
    Long {
        name: "100 epochs of a trainer that keeps samples",
        file: "crates/foreread/tests/held_samples.rs",
        test: "held_samples_cost_at_most_a_huge_page_each",
    },
    Long {
        name: "300 runs ended by signals, resumed to their end",
        file: "integration-tests/tests/it/state.rs",
        test: "run_terminated_anywhere_resumes",
    },
    Long {
        name: "500 kills of a disk tier",
        file: "backends/local/tests/disk/kill.rs",
        test: "killed_process_leaves_only_whole_samples",
    },
    Long {
        name: "500 kills of a run with a disk tier",
        file: "integration-tests/tests/it/disk.rs",
        test: "killed_run_leaves_only_whole_samples",
    },
    Long {
        name: "60 garbled indexes",
        file: "integration-tests/tests/it/disk_faults.rs",
        test: "garbled_index_costs_its_samples",
    },
    Long {
        name: "80 times damage under a run",
        file: "integration-tests/tests/it/disk_faults.rs",
        test: "damaged_files_during_a_run_cost_reads_only",
    },
    Long {
        name: "24 GiB through 1 GiB of memory and 4 GiB of disk",
        file: "integration-tests/tests/it/endurance.rs",
        test: "resources_stay_flat_over_epochs_larger_than_the_caches",
    },
    Long {
        name: "each fault of a bucket alone, at 1 %, 10 % and in bursts",
        file: "integration-tests/tests/it/s3_faults.rs",
        test: "each_fault_alone_is_survived",
    },
    Long {
        name: "simulated clusters of up to 1,024 workers and 90 epochs",
        file: "crates/simulator/tests/it/properties.rs",
        test: "foreread_reads_the_lower_bound_at_scale",
    },
    Long {
        name: "the table of several jobs with one cache",
        file: "crates/simulator/tests/it/several_jobs.rs",
        test: "several_jobs_read_as_tabulated",
    },
    Long {
        name: "equal jobs against MIN, 48 cases of 20,000 samples",
        file: "crates/simulator/tests/it/several_jobs.rs",
        test: "next_use_is_close_to_min_for_equal_jobs",
    },
    Long {
        name: "2,000 faults around an agent and its jobs",
        file: "integration-tests/tests/it/agent_faults.rs",
        test: "jobs_are_complete_whatever_happens_to_their_agent",
    },
    Long {
        name: "eight nodes with a limit of 200 MB/s",
        file: "integration-tests/tests/it/needs_network/cluster.rs",
        test: "eight_nodes_hold_one_limit_whatever_happens_to_control",
    },
    Long {
        name: "four nodes of agents with one cache, 450,000 samples",
        file: "integration-tests/tests/it/control/one_cache.rs",
        test: "eight_jobs_read_what_one_cache_would",
    },
    Long {
        name: "a thousand agents for 40 seconds",
        file: "integration-tests/tests/it/control/many_agents.rs",
        test: "thousand_agents_cost_little_time_and_memory",
    },
    Long {
        name: "3,000 rounds of random operations on a node's store",
        file: "crates/store/src/host/stress.rs",
        test: "requests_are_answered_whatever_happens_to_jobs_and_limits",
    },
    Long {
        name: "1,000 random programs that are unchanged, with and without copies",
        file: "integration-tests/tests/it/unchanged.rs",
        test: "random_programs_see_what_they_see_without_copies",
    },
    Long {
        name: "100 hosts of unchanged programs, killed while they copy",
        file: "integration-tests/tests/it/unchanged.rs",
        test: "killed_hosts_leave_whole_copies_only",
    },
];

impl Long {
    /// `cargo test` for this test alone, with its output shown.
    fn command(&self, workspace: &Workspace) -> Command {
        let in_library = self.file.split_once("/src/");
        let (folder, place) = in_library.or_else(|| self.file.split_once("/tests/")).unwrap_or_default();
        let package = match folder.rsplit('/').next() {
            Some("foreread") | None => "foreread".to_owned(),
            Some(name) => format!("foreread-{name}"),
        };
        let target = place.split('/').next().unwrap_or_default();
        let module = Path::new(place).file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
        let (of, test) = match module {
            _ if in_library.is_some() => {
                let path = place.trim_end_matches(".rs").trim_end_matches("/mod").replace('/', "::");
                (vec!["--lib"], format!("{path}::{}", self.test))
            }
            "main" => (vec!["--test", target], self.test.to_owned()),
            "mod" => (vec!["--lib"], format!("{target}::{}", self.test)),
            module if !place.contains('/') => (vec!["--test", module], self.test.to_owned()),
            module => (vec!["--test", target], format!("{module}::{}", self.test)),
        };
        let end = ["--", "--nocapture", "--include-ignored", "--exact", &test];
        cargo::cargo(workspace, ["test", "--package", &package].into_iter().chain(of).chain(end))
    }
}

/// Runs the chosen soaks. True if none failed.
pub fn run(args: &Args) -> Result<bool> {
    let workspace = Workspace::load()?;
    let seed = Seed::choose()?;
    println!("{seed}");
    let chosen = |name: &str| args.only.as_ref().is_none_or(|only| name.contains(&**only));
    let of_package = || SOAKS.iter().filter(|soak| chosen(soak.name));
    let names: Vec<&str> = [PROPERTIES]
        .into_iter()
        .chain(LONG.iter().map(|long| long.name))
        .chain(SOAKS.iter().map(|soak| soak.name))
        .chain([LARGE, formats::SOAK, unchanged::SOAK, dist::SOAK])
        .collect();
    let count = names.iter().filter(|name| chosen(name)).count();
    if count == 0 {
        bail!("no soak's name contains what was given; they are: {}", names.join("; "));
    }
    let of = TestRun { workspace: &workspace, seed, all: true, packages: &[] };
    let cases = args.cases.to_string();
    let mut summary = Summary::default();
    let mut begun = 0;
    let mut heading = |name: &str| {
        begun += 1;
        format!("soak {begun} of {count}: {name} (seed {})", seed.number())
    };
    let out = &mut std::io::stdout().lock();
    if chosen(PROPERTIES) {
        let mut missing = Vec::new();
        summary.step(&heading(PROPERTIES), |results| {
            let (mut command, prepared) = suites(&of)?;
            missing = prepared.missing.clone();
            command.env_remove(VARIABLE).env("PROPTEST_CASES", &cases);
            Ok(StepOutcome::Ran(run_tests(&mut command, results, out)?))
        });
        for (need, tests) in missing {
            summary.skip(format!("tests in {}: {}", tests.module, need.line()));
        }
    }
    for long in LONG.iter().filter(|long| chosen(long.name)) {
        summary.step(&heading(long.name), |results| {
            let mut command = long.command(&workspace);
            command.env(VARIABLE, "1").env("PROPTEST_CASES", &cases);
            let prepared = prepare(&of, &mut command, |tests| long.file.contains(tests.module))?;
            if let Some((need, _)) = prepared.missing.first() {
                return Ok(StepOutcome::Skipped(need.line()));
            }
            let before = results.passed;
            let succeeded = run_tests(&mut command, results, out)?;
            if results.passed + results.failed == before {
                bail!("there is no test {} in {}", long.test, long.file);
            }
            Ok(StepOutcome::Ran(succeeded))
        });
    }
    for soak in of_package() {
        summary.step(&heading(soak.name), |results| soak.run(&of, VARIABLE, results));
    }
    if chosen(LARGE) {
        summary.step(&heading(LARGE), |_| {
            let example = ["run", "--package", "foreread-oracle", "--example", "torch_large_vector"];
            Ok(StepOutcome::Ran(cargo::run(&mut cargo::cargo(&workspace, example))?))
        });
    }
    if chosen(formats::SOAK) {
        summary.step(&heading(formats::SOAK), |results| formats::check(&of, VARIABLE, results));
    }
    if chosen(unchanged::SOAK) {
        summary.step(&heading(unchanged::SOAK), |results| unchanged::check(&of, results));
    }
    if chosen(dist::SOAK) {
        summary.step(&heading(dist::SOAK), |results| dist::check(&of, results));
    }
    print!("\n{}", summary.summary(seed));
    Ok(summary.succeeded())
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;
    use crate::cargo::shown;

    fn root() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
    }

    #[test]
    fn tests_of_the_table_exist() {
        for long in LONG {
            let text = std::fs::read_to_string(root().join(long.file)).unwrap();
            assert!(text.contains(&format!("fn {}()", long.test)), "{} in {}", long.test, long.file);
        }
    }

    #[test]
    fn files_with_long_tests_are_in_the_table() {
        let mut pending: Vec<PathBuf> =
            ["crates", "backends", "integration-tests"].map(|folder| root().join(folder)).into();
        let mut found = 0;
        while let Some(path) = pending.pop() {
            if path.is_dir() {
                pending.extend(std::fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path()));
                continue;
            }
            let name = path.strip_prefix(root()).unwrap().to_str().unwrap().to_owned();
            // `support.rs` reads the variable for the tests of its directory. Formats have a table.
            if !name.ends_with(".rs") || name.ends_with("/support.rs") || name.starts_with(formats::TESTS) {
                continue;
            }
            let text = std::fs::read_to_string(&path).unwrap();
            let is_test = name.contains("/tests/");
            if is_test && [VARIABLE, "is_soak()", " times("].iter().any(|word| text.contains(word)) {
                assert!(LONG.iter().any(|long| long.file == name), "{name} is not in the table of soaks");
                found += 1;
            }
        }
        assert!(found > 5, "{found} files were found: are they read otherwise now?");
    }

    #[test]
    fn soak_runs_one_test_and_shows_its_output() {
        let workspace =
            Workspace { root: root(), target: PathBuf::from("target"), features: vec![], packages: vec![] };
        let long = Long { name: "x", file: "backends/local/tests/disk/kill.rs", test: "it" };
        assert_eq!(
            shown(&long.command(&workspace)),
            "cargo test --package foreread-local --test disk -- --nocapture --include-ignored \
             --exact kill::it"
        );
        let long = Long { name: "x", file: "crates/foreread/tests/a/main.rs", test: "it" };
        assert!(
            shown(&long.command(&workspace))
                .contains("--package foreread --test a -- --nocapture --include-ignored --exact it")
        );
        let long = Long { name: "x", file: "crates/a/tests/b.rs", test: "it" };
        assert!(
            shown(&long.command(&workspace))
                .contains("--package foreread-a --test b -- --nocapture --include-ignored --exact it")
        );
        let long = Long { name: "x", file: "crates/a/src/b/tests/mod.rs", test: "it" };
        assert!(
            shown(&long.command(&workspace))
                .contains("--package foreread-a --lib -- --nocapture --include-ignored --exact b::tests::it")
        );
        let long = Long { name: "x", file: "integration-tests/tests/it/b.rs", test: "it" };
        assert!(shown(&long.command(&workspace)).contains("--package foreread-integration-tests --test it "));
    }
}
