//! `foreread cache`: lists disk caches, and removes unused ones.

use std::io::Write;
use std::path::Path;
use std::time::{Duration, SystemTime};

use anyhow::Result;
use foreread::cache::{self, CacheEntry, CleanRule};
use foreread::size::ByteSize;
use foreread::{Error, ErrorKind};

use crate::arguments::Cache;
use crate::output;

const DAY: f64 = 86_400.0;

pub fn run(options: &Cache) -> Result<()> {
    match options {
        Cache::List { directory } => list(directory),
        Cache::Clean { directory, older_than, dataset } => clean(directory, *older_than, dataset.as_deref()),
    }
}

fn list(directory: &Path) -> Result<()> {
    let entries = cache::list(directory).map_err(Error::from)?;
    let mut out = output::stdout();
    writeln!(out, "{:32}  {:>12}  {:>12}  {:>12}  use", "catalog", "samples", "bytes", "last used")?;
    for entry in entries {
        let in_use = user(&entry).unwrap_or_else(|| "none".to_owned());
        let old = if entry.is_old {
            format!(", of an earlier version: {}", entry.path.display())
        } else {
            String::new()
        };
        writeln!(
            out,
            "{}  {:>12}  {:>12}  {:>7.1} days  {in_use}{old}",
            entry.identity,
            entry.samples,
            ByteSize(entry.bytes).to_string(),
            unused_days(&entry),
        )?;
    }
    Ok(out.flush()?)
}

/// The user of a cache, if there is one.
fn user(entry: &CacheEntry) -> Option<String> {
    match entry.owner {
        Some(process) => Some(format!("process {process}")),
        None => entry.in_use.then(|| "in use".to_owned()),
    }
}

/// The days since its last use.
fn unused_days(entry: &CacheEntry) -> f64 {
    SystemTime::now().duration_since(entry.last_used).unwrap_or_default().as_secs_f64() / DAY
}

fn clean(directory: &Path, older_than: Option<f64>, dataset: Option<&str>) -> Result<()> {
    let usage = |message: String| Error::new(ErrorKind::Usage, message);
    let mut rule = CleanRule::default();
    if let Some(days) = older_than {
        let age = Duration::try_from_secs_f64(days * DAY);
        rule.older_than = Some(
            age.map_err(|_| usage(format!("--older-than {days}: expected a number of days, at least 0")))?,
        );
    }
    if let Some(text) = dataset {
        let identity = text.parse();
        rule.identity = Some(identity.map_err(|error| usage(format!("--dataset {text}: {error}")))?);
    }
    rule.all = older_than.is_none() && dataset.is_none();
    let mut out = output::stdout();
    let removed = cache::clean(directory, &rule).map_err(Error::from)?;
    for gone in &removed {
        writeln!(out, "removed {}, {}", gone.identity, ByteSize(gone.bytes))?;
        for left in &gone.left {
            writeln!(out, "kept {}: not a cache file, or not removable", left.display())?;
        }
    }
    let mut skipped = cache::list(directory).map_err(Error::from)?;
    skipped.retain(|entry| {
        rule.identity.is_none_or(|identity| identity == entry.identity)
            && removed.iter().all(|gone| gone.path != entry.path)
    });
    for entry in &skipped {
        let why = match (user(entry), older_than) {
            (Some(user), _) => user,
            (None, Some(days)) => format!("used {:.1} days ago, not {days}", unused_days(entry)),
            (None, None) => "in use".to_owned(),
        };
        writeln!(out, "skipped {}: {why}", entry.identity)?;
    }
    if removed.is_empty() && skipped.is_empty() {
        writeln!(out, "nothing to remove: no such cache")?;
    }
    Ok(out.flush()?)
}
