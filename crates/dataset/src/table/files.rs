//! The files that a table names: their sizes and versions.
//!
//! Decision: a table with sizes is believed, and no request is made. A changed file is then noticed
//! when it is read. Without sizes an origin that lists in order (an object store) lists the common
//! directory of the files once, a request for each thousand keys. Any other origin gets a request
//! for each file. So a directory with a million other files costs nothing. The price: a listing of
//! a bucket of which the table names a small part.

use std::collections::HashMap;
use std::sync::Arc;

use arrow_array::Array;
use foreread_tier::{ErrorKind, Object, OriginTier, TierError, Version};
use foreread_types::setting;
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use xxhash_rust::xxh3::Xxh3;

use super::TableRows;
use crate::catalog_file::fingerprint::hash_text;
use crate::list::selection::{SelectedNames, Selection};
use crate::list::{REQUESTED, incomplete, list_selected};
use crate::{DatasetError, IndexOptions, IndexProgress};

/// Up to this number of files have a request each, wherever they are.
const FEW: usize = 64;

/// No file.
pub(super) const MISSING: u32 = u32::MAX;

/// The distinct files of a table.
#[derive(Debug)]
pub(crate) struct TableFiles {
    pub(crate) objects: Vec<Object>,
    /// The files of each row, or [`MISSING`]: as many for each as rows have.
    pub(crate) of_row: Vec<u32>,
}

impl TableFiles {
    /// Whether all files of each row exist. `width` is their number.
    pub(super) fn complete(&self, width: usize) -> impl Iterator<Item = bool> {
        self.of_row.chunks(width).map(|files| !files.contains(&MISSING))
    }
}

/// The distinct paths of rows, and the number of each row's.
struct DistinctPaths<'a> {
    paths: Vec<&'a str>,
    /// A row of each.
    rows: Vec<usize>,
    of_row: Vec<u32>,
    numbers: HashMap<&'a str, u32>,
}

impl<'a> DistinctPaths<'a> {
    /// `columns` have the paths of all rows, field by field.
    fn of(columns: &[Vec<&'a str>]) -> Self {
        let rows = columns.first().map_or(0, Vec::len);
        let mut distinct = Self {
            paths: Vec::new(),
            rows: Vec::new(),
            of_row: Vec::with_capacity(rows * columns.len()),
            numbers: HashMap::with_capacity(rows * columns.len()),
        };
        for (row, path) in (0..rows).flat_map(|row| columns.iter().map(move |paths| (row, paths[row]))) {
            let next = distinct.paths.len() as u32;
            let number = *distinct.numbers.entry(path).or_insert(next);
            if number == next {
                distinct.paths.push(path);
                distinct.rows.push(row);
            }
            distinct.of_row.push(number);
        }
        distinct
    }
}

/// The files of `columns`, which have the rows' paths below `base_url`, field by field.
pub(super) async fn find(
    origin: &dyn OriginTier,
    base_url: &str,
    rows: &TableRows,
    columns: &[Vec<&str>],
    options: &IndexOptions,
    progress: &mut (impl FnMut(IndexProgress) + Send),
) -> Result<TableFiles, DatasetError> {
    if u32::try_from(rows.len() * columns.len()).is_err() {
        return Err(rows.invalid("it names more than 4,294,967,295 files; index parts of it"));
    }
    let distinct = DistinctPaths::of(columns);
    let found = match &rows.sizes {
        Some(_) => from_table(rows, &distinct)?,
        None if origin.profile().lists_in_order && distinct.paths.len() > FEW => {
            listed(origin, base_url, &distinct, options, progress).await?
        }
        None => asked(origin, base_url, &distinct, progress).await?,
    };
    let mut numbers = vec![MISSING; found.len()];
    let mut objects = Vec::with_capacity(found.len());
    for (number, object) in numbers.iter_mut().zip(found) {
        if let Some(object) = object {
            *number = objects.len() as u32;
            objects.push(object);
        }
    }
    let of_row: Vec<u32> = distinct.of_row.iter().map(|number| numbers[*number as usize]).collect();
    let files = TableFiles { objects, of_row };
    let incomplete = (0..).zip(files.complete(columns.len())).filter(|(_, is_complete)| !is_complete);
    let missing: Vec<usize> = incomplete.map(|(row, _)| row).collect();
    if !missing.is_empty() {
        let what =
            format!("{} of {} rows name files that do not exist below {base_url}", missing.len(), rows.len());
        // A missing file of a sample with several files.
        let absent = |row: usize| {
            let numbers = &files.of_row[row * columns.len()..][..columns.len()];
            let at = numbers.iter().position(|number| *number == MISSING).unwrap_or(0);
            columns.get(at).and_then(|paths| paths.get(row)).copied()
        };
        let which = rows.named_by(&missing, absent);
        if !options.skip_missing {
            let skip = setting("on-missing").to("skip");
            return Err(rows.invalid(format!("{what}: {which}; correct them, or leave them out with {skip}")));
        }
        tracing::warn!("{}: {what}, and are left out: {which}", rows.name);
    }
    let objects = &files.objects;
    let bytes = objects.iter().fold(0, |sum: u64, object| sum.saturating_add(object.size));
    let samples = (rows.len() - missing.len()) as u64;
    let skipped = missing.len() as u64;
    progress(IndexProgress {
        objects: objects.len() as u64,
        bytes,
        samples,
        skipped,
        ..IndexProgress::default()
    });
    Ok(files)
}

/// The files with the sizes and ETags of their rows.
fn from_table(rows: &TableRows, distinct: &DistinctPaths<'_>) -> Result<Vec<Option<Object>>, DatasetError> {
    let Some(sizes) = &rows.sizes else { return Ok(Vec::new()) };
    let tag = |row: usize| rows.tags.as_ref().filter(|tags| tags.is_valid(row)).map(|tags| tags.value(row));
    let without: Vec<usize> = (0..rows.len()).filter(|row| sizes.is_null(*row)).collect();
    if !without.is_empty() {
        return Err(rows.invalid(format!("{} rows have no size: {}", without.len(), rows.named(&without))));
    }
    for (row, number) in distinct.of_row.iter().enumerate() {
        let first = distinct.rows[*number as usize];
        if sizes.value(first) != sizes.value(row) || tag(first) != tag(row) {
            let (first, row) = (rows.row(first), rows.row(row));
            return Err(rows.invalid(format!("{first} and {row} give one file two sizes or ETags")));
        }
    }
    let file = |(path, row): (&&str, &usize)| {
        let version = tag(*row).map(|tag| Version::ETag(tag.trim_matches('"').into()));
        Some(Object { path: Arc::from(*path), size: sizes.value(*row), version })
    };
    Ok(distinct.paths.iter().zip(&distinct.rows).map(file).collect())
}

/// The files of a listing of their common directory.
async fn listed(
    origin: &dyn OriginTier,
    base_url: &str,
    distinct: &DistinctPaths<'_>,
    options: &IndexOptions,
    progress: &mut (impl FnMut(IndexProgress) + Send),
) -> Result<Vec<Option<Object>>, DatasetError> {
    let mut digest = Xxh3::new();
    distinct.paths.iter().for_each(|path| hash_text(&mut digest, 1, path));
    let mut selection = Selection::Names(SelectedNames {
        names: distinct.paths.iter().copied().collect(),
        digest: digest.digest128(),
        directory: common_directory(&distinct.paths),
    });
    let found = list_selected(origin, base_url, &mut selection, options.partial.as_deref(), progress).await?;
    let mut files = vec![None; distinct.paths.len()];
    for object in found.objects {
        if let Some(number) = distinct.numbers.get(&*object.path) {
            files[*number as usize] = Some(object);
        }
    }
    Ok(files)
}

/// The directory that contains all paths, without its slash. Empty for the top.
fn common_directory(paths: &[&str]) -> String {
    let mut common =
        paths.first().and_then(|path| path.rsplit_once('/')).map_or("", |(directory, _)| directory);
    for path in paths {
        while !common.is_empty() && path.strip_prefix(common).is_none_or(|rest| !rest.starts_with('/')) {
            common = common.rsplit_once('/').map_or("", |(directory, _)| directory);
        }
    }
    common.to_owned()
}

/// The files by their names, some at once.
async fn asked(
    origin: &dyn OriginTier,
    base_url: &str,
    distinct: &DistinctPaths<'_>,
    progress: &mut (impl FnMut(IndexProgress) + Send),
) -> Result<Vec<Option<Object>>, DatasetError> {
    let mut files = vec![None; distinct.paths.len()];
    let mut so_far = IndexProgress::default();
    let (mut first, mut errors) = (None::<TierError>, 0);
    let (mut waiting, mut requested) = (distinct.paths.iter().enumerate(), FuturesUnordered::new());
    loop {
        while requested.len() < REQUESTED
            && let Some((number, path)) = waiting.next()
        {
            let answer = origin.stat(path);
            requested.push(async move { (number, answer.await) });
        }
        let Some((number, answer)) = requested.next().await else { break };
        match answer {
            Ok(object) => {
                so_far.objects += 1;
                so_far.samples += 1;
                so_far.bytes = so_far.bytes.saturating_add(object.size);
                progress(so_far);
                // The origin may spell the path in another way. The table's is the sample's.
                files[number] = Some(Object { path: Arc::from(distinct.paths[number]), ..object });
            }
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => {
                errors += 1;
                first.get_or_insert(error);
            }
        }
    }
    match first {
        Some(first) => Err(incomplete(base_url, errors, first)),
        None => Ok(files),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn common_directory_ends_at_slashes() {
        for (paths, directory) in [
            (&["a/1", "a/2"][..], "a"),
            (&["a/b/1", "a/bc/1"], "a"),
            (&["a/b/1", "a/b/c/1"], "a/b"),
            (&["a/1", "b/1"], ""),
            (&["1"], ""),
        ] {
            assert_eq!(common_directory(paths), directory);
        }
    }
}
