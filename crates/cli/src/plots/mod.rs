//! The files of `--plot`.
//!
//! Without the feature `plot`, the option is refused before the work.

#[cfg_attr(not(feature = "plot"), path = "missing.rs")]
mod drawn;

use std::path::{Path, PathBuf};

use anyhow::Result;
use foreread::{Error, ErrorKind};
use foreread_settings::Knobs;

pub use drawn::{comparison, run, timeline};

/// The file for plots, if one is set. Checked before the work, which may take hours.
pub fn file(knobs: &Knobs) -> Result<Option<PathBuf>> {
    let Some((path, _)) = knobs.get("plot") else { return Ok(None) };
    let path = PathBuf::from(path);
    check_writable(&path)?;
    Ok(Some(path))
}

/// The file of a rank: `%r` in the name stands for the rank. Without it, rank 0 alone has one.
pub fn file_of(rank: u32, knobs: &Knobs) -> Result<Option<PathBuf>> {
    let path = file(knobs)?.map(|path| path.to_string_lossy().into_owned());
    let path = path.filter(|path| rank == 0 || path.contains("%r"));
    Ok(path.map(|path| PathBuf::from(path.replace("%r", &rank.to_string()))))
}

/// Refuses a file that cannot be written, and any file if this build has no plots.
pub fn check_writable(path: &Path) -> Result<()> {
    if cfg!(not(feature = "plot")) {
        let message = "--plot: this build of foreread has no plots; build it with the feature plot";
        return Err(Error::new(ErrorKind::Usage, message).into());
    }
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    let is_there = directory.is_none_or(Path::is_dir);
    if path.is_dir() || !is_there || path.file_name().is_none() {
        let message = format!("--plot {}: give a file in a directory that exists", path.display());
        return Err(Error::new(ErrorKind::Usage, message).into());
    }
    Ok(())
}
