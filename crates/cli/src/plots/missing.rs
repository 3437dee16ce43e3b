//! A build without plots. [`super::check_writable`] refuses before these functions are called.

use std::path::Path;

use anyhow::{Result, bail};
use foreread::report::{History, Report};
use foreread_simulator::Comparison;

use crate::commands::demo::DemoRun;
use crate::progress::ProgressMode;

pub fn run(path: &Path, _: &str, _: &Report, _: &History) -> Result<()> {
    bail!("{} cannot be drawn in this build", path.display())
}

pub fn comparison(path: &Path, _: &Comparison, _: ProgressMode) -> Result<()> {
    bail!("{} cannot be drawn in this build", path.display())
}

pub fn timeline(path: &Path, _: &str, _: &str, _: &[DemoRun]) -> Result<()> {
    bail!("{} cannot be drawn in this build", path.display())
}
