//! Draws and writes plots.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use foreread::report::{History, Report};
use foreread_plot::Timeline;
use foreread_simulator::Comparison;

use crate::commands::demo::DemoRun;
use crate::output;
use crate::progress::{ProgressMode, WorkProgress};

/// Writes the plot of a run: its rates and stalls over time.
pub fn run(path: &Path, title: &str, report: &Report, history: &History) -> Result<()> {
    write(path, &report.plot(title, history)?)
}

/// Writes the plots of a comparison. The second one runs more simulations.
pub fn comparison(path: &Path, compared: &Comparison, show: ProgressMode) -> Result<()> {
    write(path, &compared.bars()?)?;
    let label = format!("cache sizes of {}", compared.scenario().name);
    let Some((bound, sweeps)) = WorkProgress::watch(show, label, "batches", |tell| compared.sweep(tell))?
    else {
        output::complain("the scenario has no cache class, so there is no plot of time against cache size");
        return Ok(());
    };
    write(&cache_plot(path), &compared.against_cache(bound, &sweeps)?)
}

/// Writes the plot of a demo: when the trainer of each row computes and when it waits.
pub fn timeline(path: &Path, title: &str, note: &str, rows: &[DemoRun]) -> Result<()> {
    let rows = rows.iter().map(DemoRun::timeline).collect();
    let timeline = Timeline { title: title.to_owned(), note: note.to_owned(), rows };
    write(path, &timeline.svg()?)
}

fn write(path: &Path, svg: &str) -> Result<()> {
    std::fs::write(path, svg).with_context(|| format!("{} cannot be written", path.display()))
}

/// `FILE.svg` and `FILE-cache.svg`.
fn cache_plot(path: &Path) -> PathBuf {
    let stem = path.file_stem().unwrap_or_default().to_string_lossy();
    let extension = path.extension().map_or_else(String::new, |text| format!(".{}", text.to_string_lossy()));
    path.with_file_name(format!("{stem}-cache{extension}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn second_plot_is_next_to_the_first() {
        for (path, second) in [("a/b.svg", "a/b-cache.svg"), ("b", "b-cache"), ("x.y.svg", "x.y-cache.svg")] {
            assert_eq!(cache_plot(Path::new(path)), Path::new(second));
        }
    }
}
