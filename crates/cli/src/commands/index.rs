//! `foreread index`: a dataset's catalog.

use std::io::Write;
use std::path::Path;

use anyhow::Result;
use foreread::{ByteSize, Catalog, Error, ErrorKind, IndexOptions, Loader};

use crate::arguments::Index;
use crate::{output, progress, settings};

pub fn run(options: &Index) -> Result<()> {
    let knobs = settings::gather(options.given())?;
    if options.explain {
        return settings::explain(&knobs);
    }
    if !matches!(knobs.get("format"), None | Some(("auto" | "files", _))) {
        return Err(knobs.refuse("format", "it is auto or files").into());
    }
    let mut index = IndexOptions::default();
    index.include = settings::list(&knobs, "include");
    index.exclude = settings::list(&knobs, "exclude");
    let path = match knobs.get("output") {
        Some((path, _)) => path.to_owned(),
        None => default_name(&options.target),
    };
    refuse_to_replace(Path::new(&path))?;
    let catalog = Loader::builder(&options.target).index(index, progress::listing(&options.target))?;
    catalog.save(Path::new(&path)).map_err(Error::from)?;
    let mut out = output::stdout();
    writeln!(
        out,
        "{path}: {} samples, {}, {} labels, fingerprint {}",
        catalog.len(),
        ByteSize(catalog.total_bytes()),
        catalog.labels().len(),
        catalog.fingerprint()
    )?;
    Ok(out.flush()?)
}

/// A catalog may take a catalog's place, and nothing else's.
fn refuse_to_replace(path: &Path) -> Result<()> {
    if path.exists() && !Catalog::is_catalog_file(path) {
        let message =
            format!("{} is there and is no catalog; name another file with --output", path.display());
        return Err(Error::new(ErrorKind::Usage, message).into());
    }
    Ok(())
}

/// The last part of the target's path, in the working directory.
fn default_name(target: &str) -> String {
    let name = target.trim_end_matches('/').rsplit('/').next().unwrap_or_default();
    let name = if matches!(name, "" | "." | "..") { "catalog" } else { name };
    format!("{name}.foreread")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_name_is_the_datasets() {
        for (target, name) in [
            ("/data/train/", "train.foreread"),
            ("s3://bucket/images", "images.foreread"),
            (".", "catalog.foreread"),
            ("/", "catalog.foreread"),
        ] {
            assert_eq!(default_name(target), name);
        }
    }
}
