//! `foreread cache`: lists disk caches, and removes unused ones.
//!
//! Removing needs a selection: everything at once only goes by `--all`, because a cache may have
//! taken hours to fill.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::Result;
use foreread::cache::{self, CacheEntry, CleanRule};
use foreread::size::ByteSize;
use foreread::{Error, ErrorKind};
#[cfg(target_os = "linux")]
use foreread_file_cache::{file_caches, remove_file_cache};
use serde::Serialize;

use crate::arguments::{Cache, Selected};
use crate::{output, settings};

const DAY: f64 = 86_400.0;

/// The text in place of the dataset of copies that `foreread run` has made.
#[cfg(target_os = "linux")]
const WHOLE_FILES: &str = "whole files (foreread run)";

pub fn run(options: &Cache) -> Result<()> {
    match options {
        Cache::List { directory, settings } => {
            let Some(knobs) = settings::gather(settings)? else { return Ok(()) };
            list(directory, settings::is_json(&knobs)?)
        }
        Cache::Clean { directory, selected, dry_run, settings } => {
            let Some(knobs) = settings::gather(settings)? else { return Ok(()) };
            let report = clean(directory, selected, *dry_run)?;
            if settings::is_json(&knobs)? { settings::print_json(&report) } else { print(&report) }
        }
    }
}

/// One cache, as `--report json` prints it.
#[derive(Debug, Serialize)]
struct ListedCache {
    dataset: String,
    /// Where the dataset was when the cache was last written.
    #[serde(skip_serializing_if = "Option::is_none")]
    location: Option<String>,
    path: PathBuf,
    samples: u64,
    bytes: u64,
    /// Seconds since 1970.
    last_used: u64,
    in_use: bool,
    /// The process that writes it.
    #[serde(skip_serializing_if = "Option::is_none")]
    process: Option<u32>,
    /// Whether it is of an earlier version, and not used any more.
    earlier_version: bool,
}

fn list(directory: &Path, json: bool) -> Result<()> {
    let entries = cache::list(directory).map_err(Error::from)?;
    let files = list_files(directory);
    if json {
        let listed = entries.into_iter().map(|entry| ListedCache {
            dataset: entry.identity.to_string(),
            location: entry.location,
            samples: entry.samples,
            bytes: entry.bytes,
            last_used: seconds(entry.last_used),
            in_use: entry.in_use,
            process: entry.owner,
            earlier_version: entry.is_old,
            path: entry.path,
        });
        return settings::print_json(&listed.chain(files).collect::<Vec<_>>());
    }
    let mut out = output::stdout();
    writeln!(
        out,
        "{:32}  {:>9}  {:>10}  {:>12}  {:14}  location",
        "dataset", "samples", "bytes", "last used", "use"
    )?;
    for entry in entries {
        let in_use = user(&entry).unwrap_or_else(|| "none".to_owned());
        let location = if entry.is_old {
            format!("of an earlier version: {}", entry.path.display())
        } else {
            entry.location.as_deref().map_or_else(|| "unknown".to_owned(), output::one_line)
        };
        writeln!(
            out,
            "{}  {:>9}  {:>10}  {:>7.1} days  {in_use:14}  {location}",
            entry.identity,
            entry.samples,
            ByteSize(entry.bytes).to_string(),
            unused_days(entry.last_used),
        )?;
    }
    for entry in files {
        writeln!(
            out,
            "{:32}  {:>9}  {:>10}  {:>7.1} days  {:14}  {}",
            entry.dataset,
            entry.samples,
            ByteSize(entry.bytes).to_string(),
            unused_days(UNIX_EPOCH + Duration::from_secs(entry.last_used)),
            if entry.in_use { "in use" } else { "none" },
            entry.path.display(),
        )?;
    }
    Ok(out.flush()?)
}

/// Seconds since 1970.
fn seconds(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

/// The caches of whole files, as they are listed.
#[cfg(target_os = "linux")]
fn list_files(directory: &Path) -> Vec<ListedCache> {
    let listed = |entry: foreread_file_cache::FileCacheEntry| ListedCache {
        dataset: WHOLE_FILES.to_owned(),
        location: None,
        samples: entry.copies,
        bytes: entry.bytes,
        last_used: seconds(entry.last_used),
        in_use: entry.in_use,
        process: None,
        earlier_version: false,
        path: entry.path,
    };
    file_caches(directory).into_iter().map(listed).collect()
}

#[cfg(not(target_os = "linux"))]
fn list_files(_: &Path) -> Vec<ListedCache> {
    Vec::new()
}

/// The user of a cache, if there is one.
fn user(entry: &CacheEntry) -> Option<String> {
    match entry.owner {
        Some(process) => Some(format!("process {process}")),
        None => entry.in_use.then(|| "in use".to_owned()),
    }
}

/// The days since its last use.
fn unused_days(last_used: SystemTime) -> f64 {
    SystemTime::now().duration_since(last_used).unwrap_or_default().as_secs_f64() / DAY
}

/// The removed caches, as `--report json` prints them.
#[derive(Debug, Serialize)]
struct CleanReport {
    dry_run: bool,
    removed: Vec<RemovedReport>,
    skipped: Vec<SkippedReport>,
}

#[derive(Debug, Serialize)]
struct RemovedReport {
    dataset: String,
    bytes: u64,
    /// Files that stay: foreign files, and files that cannot be removed.
    kept: Vec<PathBuf>,
}

#[derive(Debug, Serialize)]
struct SkippedReport {
    dataset: String,
    why: String,
}

fn clean(directory: &Path, selected: &Selected, dry_run: bool) -> Result<CleanReport> {
    let rule = rule(selected, dry_run)?;
    let entries = cache::list(directory).map_err(Error::from)?;
    let (removed, paths): (Vec<_>, Vec<_>) = if dry_run {
        let chosen = entries.iter().filter(|entry| rule.selects(entry) && !entry.in_use);
        chosen.map(|entry| (removed(entry.identity, entry.bytes, Vec::new()), entry.path.clone())).unzip()
    } else {
        let gone = cache::clean(directory, &rule).map_err(Error::from)?;
        gone.into_iter().map(|gone| (removed(gone.identity, gone.bytes, gone.left), gone.path)).unzip()
    };
    // Later changes of other processes show only in a new list.
    let entries = if dry_run { entries } else { cache::list(directory).map_err(Error::from)? };
    let skipped = entries.iter().filter(|entry| {
        rule.identity.is_none_or(|identity| identity == entry.identity) && !paths.contains(&entry.path)
    });
    let why = |entry: &CacheEntry| match (user(entry), selected.older_than) {
        (Some(user), _) => user,
        (None, Some(days)) => format!("used {:.1} days ago, not {days}", unused_days(entry.last_used)),
        (None, None) => "in use".to_owned(),
    };
    let skipped = skipped.map(|entry| SkippedReport { dataset: entry.identity.to_string(), why: why(entry) });
    #[cfg_attr(not(target_os = "linux"), expect(unused_mut, reason = "whole files are for Linux"))]
    let mut report = CleanReport { dry_run, removed, skipped: skipped.collect() };
    #[cfg(target_os = "linux")]
    if rule.identity.is_none() {
        clean_files(directory, &rule, &mut report);
    }
    Ok(report)
}

/// Removes the caches of whole files that the rule selects.
#[cfg(target_os = "linux")]
fn clean_files(directory: &Path, rule: &CleanRule, report: &mut CleanReport) {
    for entry in file_caches(directory).into_iter().filter(|entry| entry.copies > 0) {
        let dataset = format!("{WHOLE_FILES} in {}", entry.path.display());
        let days = unused_days(entry.last_used);
        if rule.older_than.is_some_and(|age| days * DAY < age.as_secs_f64()) {
            report.skipped.push(SkippedReport { dataset, why: format!("used {days:.1} days ago") });
        } else if entry.in_use || !report.dry_run && !remove_file_cache(&entry) {
            report.skipped.push(SkippedReport { dataset, why: "in use".to_owned() });
        } else {
            report.removed.push(removed(dataset, entry.bytes, Vec::new()));
        }
    }
}

fn removed(identity: impl ToString, bytes: u64, kept: Vec<PathBuf>) -> RemovedReport {
    RemovedReport { dataset: identity.to_string(), bytes, kept }
}

/// The selected caches. A dry run without a selection is of all.
fn rule(selected: &Selected, dry_run: bool) -> Result<CleanRule> {
    let usage = |message: String| Error::new(ErrorKind::Usage, message);
    let mut rule = CleanRule::default();
    if let Some(days) = selected.older_than {
        let age = Duration::try_from_secs_f64(days * DAY);
        rule.older_than = Some(
            age.map_err(|_| usage(format!("--older-than {days}: expected a number of days, at least 0")))?,
        );
    }
    if let Some(text) = &selected.dataset {
        let identity = text.parse();
        rule.identity = Some(identity.map_err(|error| usage(format!("--dataset {text}: {error}")))?);
    }
    rule.all = selected.all;
    if rule == CleanRule::default() && dry_run {
        return Ok(CleanRule::all());
    }
    if rule == CleanRule::default() {
        let message = "no caches are selected: give --all, --older-than DAYS or --dataset IDENTITY; \
                       --dry-run alone shows what could be removed";
        return Err(usage(message.to_owned()).into());
    }
    Ok(rule)
}

fn print(report: &CleanReport) -> Result<()> {
    let mut out = output::stdout();
    let verb = if report.dry_run { "would remove" } else { "removed" };
    for gone in &report.removed {
        writeln!(out, "{verb} {}, {}", gone.dataset, ByteSize(gone.bytes))?;
        for kept in &gone.kept {
            writeln!(out, "kept {}: not a cache file, or not removable", kept.display())?;
        }
    }
    for skipped in &report.skipped {
        writeln!(out, "skipped {}: {}", skipped.dataset, skipped.why)?;
    }
    if report.removed.is_empty() && report.skipped.is_empty() {
        writeln!(out, "nothing to remove: no such cache")?;
    }
    Ok(out.flush()?)
}
