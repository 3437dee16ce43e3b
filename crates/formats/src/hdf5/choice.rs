//! Which datasets of a file are samples, and which are labels.

use foreread_types::setting;

use super::dataset::Dataset;
use super::datatype::Element;
use super::file::File;
use super::options::Hdf5Options;
use super::tree::{self, Group};
use super::{group, header, labels};
use crate::FormatError;

/// Up to this many datasets with equal first dimensions are fields of rows, not samples.
const MOST_FIELDS: usize = 16;

/// Datasets that an error names.
const MOST_NAMED: usize = 8;

/// The kind of the samples.
pub(super) enum Choice {
    /// Rows of a dataset, or all of it.
    Rows {
        /// The dataset.
        dataset: Box<Dataset>,
        /// Datasets with its labels.
        labels: Vec<Dataset>,
        /// Why datasets that have names of labels are none.
        notes: Vec<String>,
    },
    /// The datasets of a group.
    Group(Group),
}

/// Chooses by the options, or the only candidate.
pub(super) async fn choose(file: &File<'_>, options: &Hdf5Options) -> Result<Choice, FormatError> {
    let (mut choice, candidates) = match &options.dataset {
        Some(path) => by_path(file, path.trim_matches('/')).await?,
        None => {
            let groups = tree::walk(file).await?;
            let missing = tree::missing(file, &groups).await?;
            only_one(groups, missing.as_deref(), options)?
        }
    };
    match (&mut choice, &options.labels) {
        (Choice::Group(group), Some(_)) => {
            let why = format!("HDF5 group {}: labels are for rows of one dataset", group.path);
            return Err(FormatError::unsupported(0, why));
        }
        (Choice::Group(group), None) if options.whole => {
            let why = format!("HDF5 group {}: a file that is one sample needs one dataset", group.path);
            return Err(FormatError::unsupported(0, why));
        }
        (Choice::Group(_), None) => {}
        (Choice::Rows { dataset, labels, .. }, Some(path)) => {
            let header = tree::find(file, path).await?;
            if !Dataset::is(&header) {
                let why = format!("HDF5 path {path}: not a dataset of labels");
                return Err(FormatError::unsupported(header.at, why));
            }
            let found = Dataset::parse(file, path.trim_matches('/').to_owned(), &header).await?;
            if !labels::fits(&found, samples(dataset, options)) {
                return Err(found.refused(&format!(
                    "not labels of {} ({}): expected as many rows, of at most 64 values",
                    dataset.path,
                    dataset.described()
                )));
            }
            labels.push(found);
        }
        (Choice::Rows { dataset, labels, notes }, None) => {
            let is_named = |other: &Dataset| {
                other.at != dataset.at
                    && parent(&other.path) == parent(&dataset.path)
                    && labels::is_name(&other.path)
            };
            let is_label = |other: &Dataset| labels::fits(other, samples(dataset, options));
            let (found, others): (Vec<_>, Vec<_>) =
                candidates.into_iter().filter(is_named).partition(is_label);
            if found.is_empty() {
                notes.extend(others.iter().take(1).map(|other| not_labels(other, dataset)));
            }
            labels.extend(found);
        }
    }
    Ok(choice)
}

/// The note about a dataset that has the name of labels.
fn not_labels(other: &Dataset, samples: &Dataset) -> String {
    format!(
        "no labels: dataset /{} ({}) does not have one for each row of /{} ({})",
        other.path,
        other.described(),
        samples.path,
        samples.described()
    )
}

/// The path of the group of a dataset.
fn parent(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |(parent, _)| parent)
}

/// The number of labels: one per row, or `None` for one of the file.
fn samples(dataset: &Dataset, options: &Hdf5Options) -> Option<u64> {
    if options.whole { None } else { Some(dataset.shape.first().copied().unwrap_or(0)) }
}

/// The object at a path, and the datasets next to it that have names of labels.
async fn by_path(file: &File<'_>, path: &str) -> Result<(Choice, Vec<Dataset>), FormatError> {
    let header = tree::find(file, path).await?;
    if Dataset::is(&header) {
        let dataset = Dataset::parse(file, path.to_owned(), &header).await?;
        let (parent, _) = path.rsplit_once('/').unwrap_or_default();
        let mut candidates = Vec::new();
        for link in group::links(file, &tree::find(file, parent).await?).await? {
            if let (true, super::link::LinkTarget::Object(at)) = (labels::is_name(&link.name), link.target) {
                let header = header::read_one(file, at).await?;
                if Dataset::is(&header) {
                    let path = tree::joined(parent, &link.name);
                    candidates.push(Dataset::parse(file, path, &header).await?);
                }
            }
        }
        return Ok((rows(dataset), candidates));
    }
    if !group::is_group(&header) {
        let why = format!("HDF5 path {path}: neither a dataset nor a group");
        return Err(FormatError::unsupported(header.at, why));
    }
    let (group, _) = tree::list(file, path.to_owned(), &header).await?;
    let refused = |why: &str| {
        Err(FormatError::unsupported(
            header.at,
            format!("HDF5 group /{path}: {why}: choose by {}", setting("field").to("NAME")),
        ))
    };
    match &group {
        Group { external: Some(name), .. } => refused(&format!("{name} is a link to another file")),
        Group { groups: 1.., .. } => refused("it has groups, not only datasets"),
        Group { datasets, .. } if datasets.is_empty() => refused("it has no datasets"),
        _ => Ok((Choice::Group(group), Vec::new())),
    }
}

/// The rows of a dataset, without labels so far.
fn rows(dataset: Dataset) -> Choice {
    Choice::Rows { dataset: Box::new(dataset), labels: Vec::new(), notes: Vec::new() }
}

/// The only candidate of a file, and all datasets. `missing` is a link whose dataset is not in the
/// file, and which may be that of the samples.
fn only_one(
    groups: Vec<Group>,
    missing: Option<&str>,
    options: &Hdf5Options,
) -> Result<(Choice, Vec<Dataset>), FormatError> {
    let all: Vec<&Dataset> = groups.iter().flat_map(|group| &group.datasets).collect();
    let chosen_labels = options.labels.as_deref().map(|path| path.trim_matches('/'));
    let is_label = |dataset: &Dataset| match chosen_labels {
        Some(path) => dataset.path == path,
        None => labels::is_name(&dataset.path),
    };
    let usable = |dataset: &&&Dataset| {
        let element = &dataset.datatype.element;
        let usable = matches!(element, Element::Number(_) | Element::Opaque | Element::Sequence(_));
        usable && !dataset.shape.is_empty()
    };
    let candidates: Vec<&Dataset> = all.iter().filter(usable).copied().collect();
    let images: Vec<&Dataset> = candidates.iter().copied().filter(|dataset| !is_label(dataset)).collect();
    // A file of nothing but labels has them as samples. With other datasets, whose type is not
    // supported, the labels would pass for the samples.
    let chosen = match (&images[..], &candidates[..]) {
        ([one], _) => Some(*one),
        ([], [one]) if all.len() == 1 => Some(*one),
        _ => None,
    };
    if let (Some(_), Some(missing)) = (chosen, missing) {
        let field = setting("field").to("NAME");
        let why = format!("the HDF5 file has several datasets, and {missing}: choose one by {field}");
        return Err(FormatError::unsupported(0, why));
    }
    if let Some(dataset) = chosen {
        return Ok((rows(dataset.clone()), all.into_iter().cloned().collect()));
    }
    let named = |datasets: &[&Dataset]| {
        let named = datasets.iter().take(MOST_NAMED);
        let named: Vec<String> =
            named.map(|dataset| format!("{} ({})", dataset.path, dataset.described())).collect();
        let more = datasets.len().saturating_sub(MOST_NAMED);
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        named.join(", ") + &more
    };
    let why = if all.is_empty() {
        let missing = missing.map(|missing| format!(", and {missing}")).unwrap_or_default();
        format!("the HDF5 file has no datasets{missing}")
    } else if images.is_empty() {
        format!("the HDF5 file has no dataset of rows of numbers or bytes: {}", named(&all))
    } else {
        format!(
            "the HDF5 file has several datasets: choose one by {}, several by more of them, or a group of \
             samples: {}",
            setting("field").to("NAME"),
            named(&candidates)
        )
    };
    let with_datasets = groups.iter().filter(|group| !group.datasets.is_empty()).count();
    let group = groups.into_iter().find(|group| !group.datasets.is_empty());
    match group {
        Some(group) if with_datasets == 1 && is_samples(&group) && !group.datasets.iter().any(is_label) => {
            Ok((Choice::Group(group), Vec::new()))
        }
        _ => Err(FormatError::unsupported(0, why)),
    }
}

/// Whether the datasets of a group look like samples, not like fields of rows: they have one type
/// and rank, and are many or differ in the first dimension.
fn is_samples(group: &Group) -> bool {
    let datasets = &group.datasets;
    let Some(first) = datasets.first() else { return false };
    let alike = |dataset: &Dataset| {
        let element = &dataset.datatype.element;
        *element == first.datatype.element && dataset.shape.len() == first.shape.len()
    };
    let fields = datasets.len() <= MOST_FIELDS
        && datasets.iter().all(|dataset| dataset.shape.first() == first.shape.first());
    datasets.len() > 1
        && group.groups == 0
        && group.external.is_none()
        && datasets.iter().all(alike)
        && !fields
}
