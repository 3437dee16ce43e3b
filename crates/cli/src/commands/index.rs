//! `foreread index`: builds a dataset's catalog.

use std::io::Write;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use anyhow::Result;
use foreread::dataset::{IndexOptions, IndexProgress, forget_listing};
use foreread::size::ByteSize;
use foreread::{Catalog, Error, ErrorKind, Format, Loader, Registry};

use crate::arguments::Index;
use crate::progress::ProgressMode;
use crate::{output, progress, settings};

pub fn run(options: &Index, registry: Registry) -> Result<()> {
    let knobs = settings::gather(options.given())?;
    if options.explain {
        return settings::explain(&knobs);
    }
    let mut index = IndexOptions::default();
    index.include = settings::list(&knobs, "include");
    index.exclude = settings::list(&knobs, "exclude");
    index.format = foreread_settings::format(&knobs)?;
    index.name = options.name.clone();
    // Never from the environment or a file, because the file that it names is replaced.
    let path = options.output.clone().unwrap_or_else(|| default_name(&options.targets));
    refuse_to_replace(Path::new(&path))?;
    refuse_missing_directory(Path::new(&path))?;
    let partial = format!("{path}.partial");
    index.partial = Some(partial.clone().into());
    let (first, more) =
        options.targets.split_first().map_or(("", &[][..]), |(first, more)| (first.as_str(), more));
    let builder = Loader::builder(first).registry(registry);
    let builder = more.iter().fold(builder, |builder, shard| builder.shard(shard));
    let last = Arc::new(Mutex::new(IndexProgress::default()));
    let mut shown = progress::listing(ProgressMode::of(&knobs, 0)?, first);
    let tell = {
        let last = Arc::clone(&last);
        move |progress| {
            *last.lock().unwrap_or_else(PoisonError::into_inner) = progress;
            shown(progress);
        }
    };
    let began = Instant::now();
    let catalog = builder.index(index, tell)?;
    let took = began.elapsed();
    // Another file may have appeared meanwhile.
    refuse_to_replace(Path::new(&path))?;
    catalog.save(Path::new(&path)).map_err(Error::from)?;
    forget_listing(Path::new(&partial));
    let mut out = output::stdout();
    writeln!(
        out,
        "{path}: {} samples, {}, {} labels, fingerprint {}",
        catalog.len(),
        ByteSize(catalog.total_bytes()),
        catalog.labels().len(),
        catalog.fingerprint()
    )?;
    let last = *last.lock().unwrap_or_else(PoisonError::into_inner);
    if last.resumed > 0 {
        writeln!(out, "resumed: {} objects were already listed", last.resumed)?;
    }
    if last.resumed_shards > 0 {
        writeln!(out, "resumed: {} shards were already indexed", last.resumed_shards)?;
    }
    if catalog.format() != Format::Files {
        writeln!(out, "{}", cost(catalog.format(), &last, took.as_secs_f64()))?;
    }
    Ok(out.flush()?)
}

/// The cost of indexing shards.
fn cost(format: Format, last: &IndexProgress, seconds: f64) -> String {
    let skipped = match last.skipped {
        0 => String::new(),
        1 => "; 1 member is not a sample".to_owned(),
        more => format!("; {more} members are not samples"),
    };
    format!(
        "indexed {} of {} in {seconds:.1} s with {} request{}, {} read{skipped}",
        ByteSize(last.bytes),
        format.name(),
        last.requests,
        if last.requests == 1 { "" } else { "s" },
        ByteSize(last.bytes_read),
    )
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
