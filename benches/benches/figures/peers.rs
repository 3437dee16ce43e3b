//! Other loaders over the same directory, in the same run, where they are there.
//!
//! `FOREREAD_TEST_PYTHON_TORCH` names a Python that can import torch; without it nothing here is measured.

use std::path::Path;
use std::process::Command;

use anyhow::Result;
use foreread_benches::share;
use foreread_benches::table::{Asked, Figure};
use serde::Deserialize;

#[derive(Debug, Deserialize)]
struct Found {
    name: String,
    rate: f64,
    cpu: f64,
}

pub fn figures(directory: &Path) -> Result<Vec<Figure>> {
    let Some(python) = std::env::var_os("FOREREAD_TEST_PYTHON_TORCH") else { return Ok(Vec::new()) };
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("peers/directory.py");
    let found: Vec<Found> = share::ask_of(Command::new(python).arg(script).arg(directory))?;
    let figure = |found: Found| {
        Figure::new(format!("- {}", found.name), Asked::Nothing, found.rate, "samples/s")
            .note(format!("{:.1} us CPU a sample, all processes", found.cpu))
    };
    Ok(found.into_iter().map(figure).collect())
}
