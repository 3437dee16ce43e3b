//! Datasets that a table lists: where the table is read from, and where its files are.

use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use foreread_dataset::{Catalog, DatasetErrorKind, IndexOptions, IndexProgress, TableRows};
use foreread_tables::{SampleTable, TableKind, TableOptions};
use foreread_tier::{ErrorKind as TierErrorKind, OpenContext, OpenOptions, OriginTier, ReadRequest, Span};
use foreread_types::{SampleKey, Tick, setting};

use crate::error::{Error, ErrorKind, Result, ended};
use crate::origin_policy::OriginPolicy;
use crate::registry::Registry;
use crate::target::{TargetSpec, absolute};

/// A table: in a file, or in memory.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum TableSource {
    /// The path or the URL of a file. Its name's ending is its format.
    At(String),
    /// Read already.
    Read(SampleTable),
}

/// Indexes the rows of a table. A target without a name stands for the location that the table's
/// paths have in common, or the directory of its file.
pub async fn index(
    targets: &TargetSpec,
    (source, table_options): (TableSource, TableOptions),
    options: IndexOptions,
    registry: &Registry,
    context: &OpenContext,
    shared: &OriginPolicy,
    progress: impl FnMut(IndexProgress) + Send,
) -> Result<Catalog> {
    refuse(&options)?;
    let storage = shared.options(&targets.storage);
    let mut directory = None;
    let given = match source {
        TableSource::Read(table) => Given::Read(table),
        TableSource::At(place) => {
            let place = absolute(&place);
            let kind = kind(&place)?;
            let bytes = read(&place, &storage, registry, context, shared).await?;
            directory = Some(split(&place).0.to_owned());
            Given::Bytes(place, kind, bytes)
        }
    };
    let (has_tags, chosen) = (table_options.etag.is_some(), table_options);
    let rows = context.runtime.spawn_blocking(move || given.rows(&chosen)).await.map_err(ended)??;
    let url = location(&targets.names, &rows, directory)?;
    if has_tags && !url.contains("://") {
        let etag = setting("etag");
        return Err(Error::usage(format!(
            "{etag} is of objects in a bucket, and {url} has files; leave it out"
        )));
    }
    let origin = registry.find(&url)?.open(&url, &storage, context).await?;
    Ok(Catalog::of_table(&*shared.for_index(&origin), &url, &rows, &options, progress).await?)
}

/// The content of the file at a place, by the options of its origin.
async fn read(
    place: &str,
    storage: &OpenOptions,
    registry: &Registry,
    context: &OpenContext,
    shared: &OriginPolicy,
) -> Result<Bytes> {
    let origin = open_parent(place, storage, registry, context, shared).await?;
    read_file(&*origin, place).await
}

/// The directory of the file at a place, for reads.
pub async fn open_parent(
    place: &str,
    storage: &OpenOptions,
    registry: &Registry,
    context: &OpenContext,
    shared: &OriginPolicy,
) -> Result<Arc<dyn OriginTier>> {
    let (parent, _) = split(place);
    let origin = registry.find(parent)?.open(parent, storage, context).await?;
    Ok(shared.for_index(&origin))
}

/// The content of the file at a place in this directory.
pub async fn read_file(directory: &dyn OriginTier, place: &str) -> Result<Bytes> {
    let object = directory.stat(split(place).1).await.map_err(|error| match error.kind() {
        TierErrorKind::NotFound => error.with_detail(format!(
            "{place} is not there; paths of tables are relative to the working directory"
        )),
        _ => error,
    })?;
    let request = ReadRequest::new(SampleKey::default(), object, Span::Whole, Tick(0));
    Ok(directory.read(Arc::new(request)).await?.to_vec().into())
}

/// The directory and the name of the file at a place.
fn split(place: &str) -> (&str, &str) {
    let (parent, name) = place.rsplit_once('/').unwrap_or(("", place));
    (if parent.is_empty() { "/" } else { parent }, name)
}

/// A table, or its bytes.
enum Given {
    Read(SampleTable),
    Bytes(String, TableKind, Bytes),
}

impl Given {
    fn rows(self, options: &TableOptions) -> Result<TableRows> {
        let table = match self {
            Self::Read(table) => table,
            Self::Bytes(name, kind, bytes) => SampleTable::read(&name, kind, bytes, options)?,
        };
        Ok(table.rows(options)?)
    }
}

/// Refuses options that choose files otherwise than a table does.
fn refuse(options: &IndexOptions) -> Result<()> {
    let include = if options.include.is_empty() { "exclude" } else { "include" };
    let name = match () {
        () if !(options.include.is_empty() && options.exclude.is_empty()) => include,
        () if options.format.is_some_and(foreread_dataset::Format::is_packed) => "format",
        () => return Ok(()),
    };
    let name = setting(name);
    Err(Error::usage(format!("{name} has no effect with a table, whose rows name the files; leave it out")))
}

/// The format of the table at a place.
pub fn kind(place: &str) -> Result<TableKind> {
    TableKind::of_name(place).ok_or_else(|| {
        let message = format!(
            "{place} has the name of no table; tables end in .csv, .tsv, .jsonl, .json, .txt (each also with \
             .gz), .parquet, .arrow or .feather"
        );
        Error::dataset(DatasetErrorKind::Unsupported, message)
    })
}

/// The location of the files.
fn location(names: &[String], rows: &TableRows, directory: Option<String>) -> Result<String> {
    match names {
        [one] if !one.is_empty() => {
            let url = absolute(one);
            if Path::new(&url).is_file() {
                let message = format!("{url} is a file; name the directory of the samples");
                return Err(Error::new(ErrorKind::Usage, message));
            }
            Ok(url)
        }
        [] | [_] => match (rows.location(), directory) {
            (Some(location), _) => Ok(location),
            (None, Some(directory)) if !rows.has_absolute_paths() => Ok(directory),
            _ => Err(Error::usage(
                "the paths of the table have no location in common; name the location of the files",
            )),
        },
        _ => Err(Error::usage("name one location of the table's files")),
    }
}
