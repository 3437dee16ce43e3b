//! Whole processes against the figures that were asked for.

mod local_directory;

use anyhow::{Result, bail};
use foreread_benches::{files, share, table};

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if let Some((first, rest)) = args.split_first()
        && first == share::PART
    {
        return part(rest);
    }
    let directory = tempfile::tempdir()?;
    files::make(directory.path(), 4000, 80_000, 120_000)?;
    table::print(&local_directory::figures(directory.path())?);
    Ok(())
}

fn part(args: &[String]) -> Result<()> {
    match args.split_first() {
        Some((name, rest)) if name == "local_directory" => local_directory::part(rest),
        _ => bail!("there is no part {args:?}"),
    }
}
