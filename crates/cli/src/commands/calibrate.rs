//! `foreread calibrate`: measures the tiers of a run, and writes a file for plans.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use foreread::Registry;
use foreread::calibration::{Calibration, Point, ServerSpeed};
use foreread::size::ByteSize;
use foreread_estimate::{CalibrateOptions, CalibrateProgress, CalibrateStage, calibrate};
use foreread_settings::{Knobs, calibration};

use crate::arguments::Calibrate;
use crate::progress::{ProgressMode, WorkProgress};
use crate::{output, settings};

pub fn run(options: &Calibrate, registry: Registry) -> Result<()> {
    let Some(knobs) = settings::gather(&options.settings)? else { return Ok(()) };
    let json = settings::is_json(&knobs)?;
    let wanted = wanted(options, &knobs)?;
    if wanted.target.is_none() && wanted.disks.is_empty() {
        return Err(foreread::Error::new(
            foreread::ErrorKind::Usage,
            "there is nothing to measure: name a dataset, a directory with --disk, or both",
        )
        .into());
    }
    let path = PathBuf::from(options.settings.get("output").unwrap_or(calibration::FILE_NAME));
    calibration::check_replaceable(&path)?;
    writable(&path)?;
    let measured = calibrate(wanted, registry, show_progress(ProgressMode::of(&knobs, 0)))?;
    calibration::write(&measured, &path)?;
    if json {
        return settings::print_json(&measured);
    }
    let mut out = output::stdout();
    print(&mut out, &measured, &path)?;
    Ok(out.flush()?)
}

fn wanted(options: &Calibrate, knobs: &Knobs) -> Result<CalibrateOptions> {
    let mut wanted = CalibrateOptions::default();
    wanted.target.clone_from(&options.target);
    // Sizes, which the settings of runs have, are ignored.
    let directory =
        |text: String| PathBuf::from(text.rsplit_once('=').map_or(&*text, |(directory, _)| directory));
    wanted.disks = settings::list(knobs, "disk").into_iter().map(directory).collect();
    let seconds: f64 = knobs.value("seconds")?;
    let time = Duration::try_from_secs_f64(seconds).ok().filter(|time| *time >= Duration::from_secs(1));
    wanted.time = time.ok_or_else(|| knobs.refuse("seconds", "must be at least 1"))?;
    wanted.origin_bytes = knobs.value::<ByteSize>("origin-bytes")?.0;
    if wanted.origin_bytes == 0 {
        return Err(knobs.refuse("origin-bytes", "must be at least 1").into());
    }
    wanted.config = foreread_settings::config_of(knobs, &["origin-limit", "origin-parallelism"])?;
    Ok(wanted)
}

/// Checks before half a minute of measuring that the result can be written.
fn writable(path: &Path) -> Result<()> {
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    tempfile::NamedTempFile::new_in(directory)
        .with_context(|| format!("{} cannot be written", path.display()))?;
    Ok(())
}

/// Shows the progress of listing, and then each figure. A log gets no figures: they are in the
/// report.
fn show_progress(show: ProgressMode) -> impl FnMut(CalibrateProgress) + Send + 'static {
    let mut listing = Some(WorkProgress::new(show, "listing", 0, "samples"));
    move |progress| {
        let what = match progress.stage {
            CalibrateStage::Listing(samples) => {
                listing.iter_mut().for_each(|work| work.at(samples));
                return;
            }
            CalibrateStage::Origin => "storage".to_owned(),
            CalibrateStage::Large => "storage, large reads".to_owned(),
            CalibrateStage::Server(name) => format!("storage, {name}"),
            CalibrateStage::Disk(directory) => format!("disk {}", directory.display()),
        };
        listing = None;
        if let Some(point) = progress.point.filter(|_| show == ProgressMode::Bar) {
            eprintln!("{what}: {}", figure(&point));
        }
    }
}

fn figure(point: &Point) -> String {
    let margin = if point.spread < 1.0 {
        format!("+-{:.0} %", (100.0 * point.spread).ceil())
    } else {
        "too few samples for an error margin".to_owned()
    };
    let rate = ByteSize(point.bytes_per_second);
    format!("{:>5} reads at once: {rate}/s, {margin} ({} samples)", point.parallelism, point.samples)
}

fn print(out: &mut impl Write, measured: &Calibration, path: &Path) -> Result<()> {
    if let Some(origin) = &measured.origin {
        writeln!(
            out,
            "storage      {}: samples of {} on average; latency of one read {:.1} ms",
            origin.url,
            ByteSize(origin.sample_bytes),
            1e3 * origin.latency_seconds
        )?;
        rates(out, &origin.read, origin.best())?;
        if let Some(large) = &origin.large {
            writeln!(out, "             by large reads of {}:", ByteSize(large.bytes))?;
            rates(out, &large.read, large.best())?;
        }
    }
    if let Some(servers) = measured.origin.as_ref().and_then(|origin| origin.servers.as_ref()) {
        print_servers(out, &servers.server)?;
    }
    for disk in &measured.disk {
        let write = ByteSize(disk.write_bytes_per_second);
        writeln!(out, "disk         {}: {write}/s written", disk.directory)?;
        rates(out, &disk.read, disk.best())?;
    }
    if let Some(memory) = &measured.memory {
        writeln!(
            out,
            "memory       {}/s copied by one thread, +-{:.0} %",
            ByteSize(memory.bytes_per_second),
            (100.0 * memory.spread).ceil()
        )?;
    }
    if path == Path::new(calibration::FILE_NAME) {
        writeln!(out, "written to {}; `plan` and `load` find it here", path.display())?;
    } else {
        let path = path.display();
        writeln!(out, "written to {path}; `plan` and `load` read it with --calibration {path}")?;
    }
    Ok(())
}

/// The slowest servers that the text lists. The file has all.
const LISTED_SERVERS: usize = 4;

fn print_servers(out: &mut impl Write, servers: &[ServerSpeed]) -> Result<()> {
    let best = |server: &ServerSpeed| server.best().map_or(0, |best| best.bytes_per_second);
    let mut servers: Vec<&ServerSpeed> = servers.iter().collect();
    servers.sort_by_key(|server| best(server));
    let Some(median) = servers.get(servers.len() / 2).map(|server| best(server)) else { return Ok(()) };
    writeln!(out, "             by {} servers: median {}/s; slowest:", servers.len(), ByteSize(median))?;
    for server in servers.iter().take(LISTED_SERVERS) {
        match server.best() {
            Some(point) if point.samples > 0 => {
                writeln!(out, "             {:<8}{}", server.name, figure(&point))?;
            }
            _ => writeln!(out, "             {:<8}has not answered", server.name)?,
        }
    }
    Ok(())
}

fn rates(out: &mut impl Write, points: &[Point], best: Option<Point>) -> Result<()> {
    for point in points {
        let mark = if best == Some(*point) { "  <- within 5 % of the best" } else { "" };
        writeln!(out, "             {}{mark}", figure(point))?;
    }
    Ok(())
}
