//! The soak of the file formats: the real writers write files with new seeds, and the parsers'
//! tests read them.
//!
//! The tree has small fixtures of each writer, made by recipes. Here each recipe runs with several
//! seeds, for which it also writes files of random shapes. Then the same tests run on these files,
//! with many more damaged copies.
//!
//! Decision: the writers are in two environments. LitData, MDS, Megatron and MXNet depend on all of
//! PyTorch and on clouds' clients. So they are installed without dependencies, next to Debian's
//! PyTorch. The price is a list of what they do import.

use anyhow::{Context, Result};

use crate::cargo::{self, run, run_tests};
use crate::install;
use crate::needs::{NEEDS, NeedSource};
use crate::results::Results;
use crate::steps::TestRun;
use crate::summary::StepOutcome;

/// The soak's name.
pub const SOAK: &str = "formats: new files of all writers";

/// The step name of the writers.
pub const STEP: &str = "soak --only formats";

/// Where its tests are.
pub const TESTS: &str = "crates/formats/tests/";

/// The variable with the folder of the written files.
const FIXTURES: &str = "FOREREAD_FIXTURES";

/// Seeds per run.
const SEEDS: u64 = 3;

/// The writers' environments, below the target directory.
const WRITERS_AT: &str = "writers";
const TABLES_AT: &str = "writers-of-tables";

/// The writers of HDF5, LMDB, Arrow and Parquet.
pub const WRITERS: NeedSource = NeedSource::Environment {
    directory: WRITERS_AT,
    with_system: false,
    packages: &[
        "h5py==3.16.0",
        "hdf5plugin==7.1.0",
        "lmdb==3.0.0",
        "pyarrow==26.0.1",
        "datasets==5.2.0",
        "duckdb==2.0.1",
        "pillow==13.0.0",
        "numpy==2.4.6",
    ],
};

/// The writers of LitData, MDS, Megatron and MXNet, and HDF5 of samples with several parts.
pub const TABLES: NeedSource = NeedSource::Environment {
    directory: TABLES_AT,
    with_system: true,
    packages: &[
        "--no-deps",
        "litdata==0.2.76",
        "mosaicml-streaming==0.13.0",
        "megatron-core==0.16.1",
        "mxnet==1.9.1",
        "h5py==3.16.0",
        "pyarrow==17.0.0",
        "lightning-utilities==0.15.3",
        "boto3==1.44.8",
        "botocore==1.44.8",
        "jmespath==1.1.0",
        "s3transfer==0.19.3",
        "brotli==1.2.1",
        "filelock==4.3.1",
        "packaging==26.4",
        "tqdm==4.70.1",
        "xxhash==4.1.0",
        "zstd==1.5.7.2",
    ],
};

/// A script that writes fixtures.
#[derive(Debug)]
struct Recipe {
    script: &'static str,
    environment: &'static str,
}

const RECIPES: &[Recipe] = &[
    Recipe { script: "make_lmdb.py", environment: WRITERS_AT },
    Recipe { script: "make_hdf5.py", environment: WRITERS_AT },
    Recipe { script: "make_filters.py", environment: WRITERS_AT },
    Recipe { script: "make_columnar.py", environment: WRITERS_AT },
    Recipe { script: "make_tables.py", environment: TABLES_AT },
    Recipe { script: "make_parts.py", environment: TABLES_AT },
];

/// Writes files and runs the tests on them. `variable` selects long runs.
pub fn check(of: &TestRun<'_>, variable: &str, results: &mut Results) -> Result<StepOutcome> {
    let missing = || NEEDS.iter().find(|need| need.step == STEP && need.find(of.workspace).is_none());
    if missing().is_some() {
        // A failed installation is detected below.
        let _ = install::everything(of.workspace, &[STEP]);
    }
    if let Some(need) = missing() {
        return Ok(StepOutcome::Skipped(need.line()));
    }
    for round in 0..SEEDS {
        let seed = of.seed.number().wrapping_add(round).to_string();
        let folder = tempfile::tempdir().context("cannot make a folder for the writers")?;
        for recipe in RECIPES {
            let python = of.workspace.environment(recipe.environment).join("bin/python");
            let mut write = std::process::Command::new(python);
            write.arg(of.workspace.root.join(TESTS).join("fixtures").join(recipe.script));
            write.args(["--seed", &seed, "--out"]).arg(folder.path());
            if !run(&mut write)? {
                return Ok(StepOutcome::Ran(false));
            }
        }
        let arguments = ["test", "--package", "foreread-formats", "--test", "it"];
        let mut tests = cargo::cargo(of.workspace, arguments);
        of.seed.export(&mut tests);
        tests.env(FIXTURES, folder.path()).env(variable, "1");
        if !run_tests(&mut tests, results, &mut std::io::stdout().lock())? {
            return Ok(StepOutcome::Ran(false));
        }
    }
    Ok(StepOutcome::Ran(true))
}

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};

    use super::*;

    fn folder() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(TESTS)
    }

    fn names(folder: &Path, is_wanted: impl Fn(&Path) -> bool) -> Vec<String> {
        let files = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        let mut names: Vec<String> = files
            .filter(|path| is_wanted(path))
            .map(|path| path.file_name().unwrap().to_str().unwrap().to_owned())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn every_recipe_of_the_tree_runs() {
        let scripts =
            names(&folder().join("fixtures"), |path| path.extension().is_some_and(|end| end == "py"));
        let mut listed: Vec<_> = RECIPES.iter().map(|recipe| recipe.script).collect();
        listed.sort_unstable();
        assert_eq!(scripts, listed);
    }

    #[test]
    fn tests_read_the_variable_of_the_folder() {
        let kit = std::fs::read_to_string(folder().join("it/kit/mod.rs")).unwrap();
        assert!(kit.contains(FIXTURES), "the tests read another variable");
    }
}
