//! The disk tier, compared with a plain loop of direct reads on the same device, and in a run with
//! a slow origin.
//!
//! The tier is in the temporary directory (`TMPDIR`), whose device is measured.

mod device;
mod run;

use std::path::Path;

use anyhow::{Result, bail};
use foreread_benches::table::Figure;

pub fn figures(directory: &Path) -> Result<Vec<Figure>> {
    let mut figures = device::figures()?;
    figures.extend(run::figures(directory)?);
    Ok(figures)
}

pub fn part(args: &[String]) -> Result<()> {
    match args.split_first() {
        Some((name, rest)) if name == "device" => device::part(rest),
        Some((name, rest)) if name == "run" => run::part(rest),
        _ => bail!("expected device or run"),
    }
}
