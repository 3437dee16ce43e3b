//! Samples with a row of several datasets: an image and its mask.
//!
//! A sample is row `i` of the first dataset, then row `i` of the next ones, each a named field. The
//! rows stay where they are, and are parts of the sample. The price: places that could be computed
//! are stored one by one.

use std::sync::Arc;

use super::dataset::Dataset;
use super::file::File;
use super::filtered::{Part, Samples};
use super::header::Header;
use super::{rows, tree};
use crate::{ArrayType, FieldExtent, FormatError, FoundSamples};

/// The most datasets of a sample.
const MOST_DATASETS: usize = 64;

/// The most samples. Each takes some 100 bytes per dataset while a file is indexed.
const MOST_SAMPLES: u64 = 1 << 26;

/// The dataset at a path.
pub(super) async fn dataset(file: &File<'_>, path: &str) -> Result<Dataset, FormatError> {
    let path = path.trim_matches('/');
    let header: Header = tree::find(file, path).await?;
    if !Dataset::is(&header) {
        let why = format!("HDF5 path {path}: not a dataset, and only datasets are joined");
        return Err(FormatError::unsupported(header.at, why));
    }
    Dataset::parse(file, path.to_owned(), &header).await
}

/// The samples that have a row of each of these datasets, at least two. With `whole`, the only
/// sample has them whole.
pub(super) async fn index(
    file: &File<'_>,
    datasets: &[Dataset],
    whole: bool,
) -> Result<FoundSamples, FormatError> {
    let names = names(datasets)?;
    let mut lists = Vec::with_capacity(datasets.len());
    for dataset in datasets {
        lists.push(match whole {
            true => vec![rows::whole(file, dataset).await?],
            false => of_rows(file, &datasets[0], dataset).await?,
        });
    }
    let what = if whole { "whole datasets" } else { "datasets" };
    let shown: Vec<String> =
        datasets.iter().map(|dataset| format!("/{}: {}", dataset.path, dataset.described())).collect();
    let summary = format!("HDF5 {what} {}", shown.join(" and "));
    let mut found = join(lists, &names, summary);
    let array = |dataset: &Dataset| rows::array_type(dataset, whole);
    let arrays: Vec<Option<ArrayType>> = datasets.iter().map(array).collect();
    found.field_arrays =
        names.into_iter().zip(arrays).filter_map(|(name, array)| Some((name, array?))).collect();
    Ok(found)
}

/// The parts of each row. There must be as many rows as in the first dataset.
async fn of_rows(file: &File<'_>, first: &Dataset, dataset: &Dataset) -> Result<Vec<Vec<Part>>, FormatError> {
    let count = |dataset: &Dataset| dataset.shape.first().copied().unwrap_or(0);
    if count(dataset) != count(first) {
        return Err(dataset.refused(&format!(
            "it has {} rows, and {} has {}: a sample needs a row of each",
            count(dataset),
            first.path,
            count(first)
        )));
    }
    if count(dataset) > MOST_SAMPLES {
        let why = format!("it has more than {MOST_SAMPLES} rows: index its datasets separately");
        return Err(dataset.refused(&why));
    }
    rows::extents(file, dataset).await?.parts(file, dataset)
}

/// The name of each dataset as a field: the last part of its path, or all of it if two are equal.
fn names(datasets: &[Dataset]) -> Result<Vec<Arc<str>>, FormatError> {
    let last = |dataset: &Dataset| dataset.path.rsplit('/').next().unwrap_or_default().to_owned();
    let paths = || datasets.iter().map(|dataset| dataset.path.clone());
    let is_unique = |names: &[String]| {
        let mut sorted: Vec<&String> = names.iter().collect();
        sorted.sort_unstable();
        sorted.array_windows().all(|[a, b]| a != b)
    };
    let short: Vec<String> = datasets.iter().map(last).collect();
    let names = if is_unique(&short) { short } else { paths().collect() };
    if datasets.len() > MOST_DATASETS || !is_unique(&names) {
        let why = format!("a sample has at most {MOST_DATASETS} datasets, each once");
        return Err(FormatError::unsupported(0, why));
    }
    Ok(names.into_iter().map(Arc::from).collect())
}

/// Samples with the first parts of each list, then with the second ones.
fn join(lists: Vec<Vec<Vec<Part>>>, names: &[Arc<str>], summary: String) -> FoundSamples {
    let count = lists.iter().map(Vec::len).min().unwrap_or(0);
    let mut lists: Vec<_> = lists.into_iter().map(Vec::into_iter).collect();
    let (mut samples, mut fields) = (Samples::default(), Vec::with_capacity(count));
    for _ in 0..count {
        let (mut of_sample, mut offset) = (Vec::with_capacity(lists.len()), 0_u64);
        for (parts, name) in lists.iter_mut().zip(names) {
            let parts = parts.next().unwrap_or_default();
            let length = parts.iter().map(|part| part.length).sum();
            parts.into_iter().for_each(|part| samples.part(part));
            of_sample.push(FieldExtent { name: Arc::clone(name), offset, length });
            offset = offset.saturating_add(length);
        }
        samples.complete();
        fields.push(of_sample);
    }
    FoundSamples { fields: Some(fields), ..super::at(samples, summary) }
}
