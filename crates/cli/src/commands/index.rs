//! `foreread index`: builds a dataset's catalog.

use std::fmt;
use std::io::Write;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use anyhow::Result;
use foreread::dataset::{FormatOptions, Grouping, IndexOptions, IndexProgress, forget_listing};
use foreread::size::ByteSize;
use foreread::table::TableSource;
use foreread::{Catalog, Error, ErrorKind, Format, Loader, Registry};
use foreread_estimate::ServerReport;
use serde::Serialize;

use crate::arguments::Index;
use crate::progress::ProgressMode;
use crate::{output, progress, settings};

pub fn run(options: &Index, registry: Registry) -> Result<()> {
    let Some(knobs) = settings::gather(&options.settings)? else { return Ok(()) };
    let json = settings::is_json(&knobs)?;
    let mut index = IndexOptions::default();
    index.include = settings::list(&knobs, "include");
    index.exclude = settings::list(&knobs, "exclude");
    index.format = foreread_settings::config_of(&knobs, &["format"])?.format;
    index.format_options = options.format.options();
    if options.table.table.is_none() {
        index.format_options.columns = options.table.column.clone();
    }
    index.name = options.name.clone();
    index.classes = options.class_names()?;
    index.grouping = options.table.grouping()?;
    index.skip_missing = options.table.skips_missing();
    let output = options.settings.get("output").map(str::to_owned);
    let output = output.or_else(|| Some(options.update.as_ref()?.to_string_lossy().into_owned()));
    let named = if options.targets.is_empty() { options.table.table.as_slice() } else { &options.targets };
    let path = output.unwrap_or_else(|| default_name(named));
    refuse_to_replace(Path::new(&path))?;
    refuse_missing_directory(Path::new(&path))?;
    let partial = format!("{path}.partial");
    index.partial = Some(partial.clone().into());
    let (first, more) =
        options.targets.split_first().map_or(("", &[][..]), |(first, more)| (first.as_str(), more));
    let builder = Loader::builder(first).registry(registry);
    let builder = more.iter().fold(builder, |builder, shard| builder.shard(shard));
    let last = Arc::new(Mutex::new(IndexProgress::default()));
    let mut shown = progress::listing(ProgressMode::of(&knobs, 0), first);
    let tell = {
        let last = Arc::clone(&last);
        move |progress| {
            *last.lock().unwrap_or_else(PoisonError::into_inner) = progress;
            shown(progress);
        }
    };
    let began = Instant::now();
    let mut growth = None;
    let catalog = match &options.table.table {
        table if let Some(file) = &options.update => {
            refuse_unused(&index, "an update, which repeats the index")?;
            let (catalog, table) =
                (Catalog::open(file).map_err(Error::from)?, table.clone().map(TableSource::At));
            let (catalog, grown) = builder.update(&catalog, table, index.partial, tell)?;
            growth = Some(GrowthReport { added: grown.added, gone: grown.gone, gone_paths: grown.names });
            catalog
        }
        None if options.table.chooses_samples() => {
            refuse_unused(&index, "a part of a catalog")?;
            part(options)?
        }
        None => match &options.inventory {
            Some(inventory) => builder.index_inventory(inventory, index, tell)?,
            None => builder.index(index, tell)?,
        },
        Some(table) => {
            let choices = &mut index.format_options;
            let label = choices.label.take();
            refuse_choices(choices)?;
            let columns = options.table.options(label.as_deref(), index.classes.take())?;
            builder.index_table(TableSource::At(table.clone()), columns, index, tell)?
        }
    };
    let took = began.elapsed();
    // Another file may have appeared meanwhile.
    refuse_to_replace(Path::new(&path))?;
    catalog.save(Path::new(&path)).map_err(Error::from)?;
    forget_listing(Path::new(&partial));
    let last = *last.lock().unwrap_or_else(PoisonError::into_inner);
    let report = IndexReport {
        catalog: path,
        format: catalog.format().name(),
        samples: catalog.len(),
        bytes: catalog.total_bytes(),
        labels: catalog.labels().len(),
        found: catalog.summary().map(str::to_owned),
        values: catalog.value_names().to_vec(),
        fingerprint: catalog.fingerprint().to_string(),
        growth,
        seconds: took.as_secs_f64(),
        resumed_objects: last.resumed,
        resumed_shards: last.resumed_shards,
        shards: (catalog.format() != Format::Files).then_some(ShardsReport {
            bytes: last.bytes,
            bytes_read: last.bytes_read,
            requests: last.requests,
            members_skipped: last.skipped,
        }),
        storage: ServerReport::of(&catalog),
    };
    if json {
        return settings::print_json(&report);
    }
    let mut out = output::stdout();
    write!(out, "{report}")?;
    if options.settings.verbose {
        writeln!(out, "fingerprint  {}", report.fingerprint)?;
    }
    Ok(out.flush()?)
}

/// The result of indexing, as `--report json` prints it.
#[derive(Debug, Serialize)]
struct IndexReport {
    catalog: String,
    format: &'static str,
    samples: u64,
    bytes: u64,
    labels: usize,
    /// The findings in the first shard.
    #[serde(skip_serializing_if = "Option::is_none")]
    found: Option<String>,
    /// The values that the catalog has of each sample.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    values: Vec<String>,
    fingerprint: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    growth: Option<GrowthReport>,
    seconds: f64,
    /// Objects and shards that an interrupted indexing had done.
    resumed_objects: u64,
    resumed_shards: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    shards: Option<ShardsReport>,
    /// The servers of the file system that hold the samples, if it has several.
    #[serde(skip_serializing_if = "Option::is_none")]
    storage: Option<ServerReport>,
}

/// The changes by an update.
#[derive(Debug, Serialize)]
struct GrowthReport {
    /// The new samples.
    added: u64,
    /// The samples that are gone, or whose files have changed.
    gone: u64,
    /// The paths of some of these.
    gone_paths: Vec<String>,
}

impl fmt::Display for GrowthReport {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{} new samples; {} are gone or have changed", self.added, self.gone)?;
        let more = if self.gone > self.gone_paths.len() as u64 { ", ..." } else { "" };
        match self.gone_paths.is_empty() {
            true => writeln!(out),
            false => writeln!(out, ": {}{more}", self.gone_paths.join(", ")),
        }
    }
}

/// The cost of indexing shards.
#[derive(Debug, Serialize)]
struct ShardsReport {
    bytes: u64,
    bytes_read: u64,
    requests: u64,
    members_skipped: u64,
}

impl fmt::Display for IndexReport {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let labels = match self.values.iter().any(|name| name == "label") {
            true => "labels in the catalog".to_owned(),
            false => format!("{} labels", self.labels),
        };
        writeln!(out, "{}: {} samples, {}, {labels}", self.catalog, self.samples, ByteSize(self.bytes))?;
        if let Some(growth) = &self.growth {
            write!(out, "{growth}")?;
        }
        if let Some(found) = &self.found {
            writeln!(out, "found {found}")?;
        }
        if !self.values.is_empty() {
            writeln!(out, "values of each sample: {}", self.values.join(", "))?;
        }
        if self.resumed_objects > 0 {
            writeln!(out, "resumed: {} objects were already listed", self.resumed_objects)?;
        }
        if self.resumed_shards > 0 {
            writeln!(out, "resumed: {} shards were already indexed", self.resumed_shards)?;
        }
        if let Some(shards) = &self.shards {
            self.write_shards(out, shards)?;
        }
        self.storage.as_ref().map_or(Ok(()), |storage| write!(out, "{storage}"))
    }
}

impl IndexReport {
    fn write_shards(&self, out: &mut fmt::Formatter<'_>, shards: &ShardsReport) -> fmt::Result {
        let entry = match self.format {
            "tar" | "zip" => "member",
            "tokens" => "window",
            _ => "row",
        };
        let skipped = match shards.members_skipped {
            0 => String::new(),
            1 => format!("; 1 {entry} is not a sample"),
            more => format!("; {more} {entry}s are not samples"),
        };
        writeln!(
            out,
            "indexed {} of {} in {:.1} s with {} request{}, {} read{skipped}",
            ByteSize(shards.bytes),
            self.format,
            self.seconds,
            shards.requests,
            if shards.requests == 1 { "" } else { "s" },
            ByteSize(shards.bytes_read),
        )
    }
}

/// Refuses options of an index for something else.
fn refuse_unused(index: &IndexOptions, what: &str) -> Result<()> {
    let given = [
        ("--include", !index.include.is_empty()),
        ("--exclude", !index.exclude.is_empty()),
        ("--classes", index.classes.is_some()),
        ("--name", index.name.is_some()),
        ("--path and --group", index.grouping != Grouping::None),
        ("options of formats", index.format.is_some() || !index.format_options.is_default()),
    ];
    match given.into_iter().find(|(_, is_given)| *is_given) {
        Some((name, _)) => {
            let message = format!("{name} has no effect on {what}; leave it out");
            Err(Error::new(ErrorKind::Usage, message).into())
        }
        None => Ok(()),
    }
}

/// A part of a catalog.
fn part(options: &Index) -> Result<Catalog> {
    let [file] = &options.targets[..] else {
        let message = "--select and --filter choose samples of one catalog, or rows of a --table";
        return Err(Error::new(ErrorKind::Usage, message).into());
    };
    let catalog = Catalog::open(file).map_err(Error::from)?;
    Ok(catalog.select(&options.table.chosen(&catalog)?).map_err(Error::from)?)
}

/// Choices within packed files are none of a table's.
fn refuse_choices(choices: &FormatOptions) -> Result<()> {
    if choices.is_default() {
        return Ok(());
    }
    let message = "options of packed formats have no effect with --table; leave them out";
    Err(Error::new(ErrorKind::Usage, message).into())
}

/// A catalog replaces only a catalog.
fn refuse_to_replace(path: &Path) -> Result<()> {
    if path.exists() && !Catalog::is_catalog_file(path) {
        let message =
            format!("{} exists and is not a catalog; name another file with --output", path.display());
        return Err(Error::new(ErrorKind::Usage, message).into());
    }
    Ok(())
}

/// Checked before an hour of listing, and not after it.
fn refuse_missing_directory(path: &Path) -> Result<()> {
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    if directory.is_some_and(|directory| !directory.is_dir()) {
        let message = format!("{}: no such directory; create it, or name another file", path.display());
        return Err(Error::new(ErrorKind::Usage, message).into());
    }
    Ok(())
}

/// The last part of the dataset's path, in the working directory. For shards it is that of their
/// directory.
fn default_name(targets: &[String]) -> String {
    let first = targets.first().map_or("", |first| first.trim_end_matches('/'));
    let shards = targets.len() > 1 || first.contains('{');
    let path = if shards {
        first.split('{').next().and_then(|path| path.rsplit_once('/')).map_or("", |it| it.0)
    } else {
        first
    };
    let name = path.rsplit('/').next().unwrap_or_default();
    let name = if matches!(name, "" | "." | "..") { "catalog" } else { name };
    format!("{name}.foreread")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn default_name_is_the_datasets() {
        for (target, name) in [
            ("/data/train/", "train.foreread"),
            ("s3://bucket/images", "images.foreread"),
            (".", "catalog.foreread"),
            ("/", "catalog.foreread"),
            ("/data/train/shard-{0..9}.tar", "train.foreread"),
            ("shard-{0..9}.tar", "catalog.foreread"),
            ("s3://bucket/a.tar", "a.tar.foreread"),
        ] {
            assert_eq!(default_name(&[target.to_owned()]), name);
        }
        assert_eq!(default_name(&["/x/a.tar".to_owned(), "/x/b.tar".to_owned()]), "x.foreread");
    }
}
