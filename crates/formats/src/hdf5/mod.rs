//! HDF5: rows of a dataset, sequences of a dataset, or the datasets of a group.
//!
//! The parser reads superblock, headers, links and chunk indexes, and returns where each sample
//! lies. A sample is one piece of the file, or a slice of a compressed chunk that is decoded when
//! it is read. A row may have up to 64 of them. Other datasets are refused, with the command that
//! rewrites them.
//!
//! Decision: the format is read by our own code. The C library reads from files only, and it
//! returns wrong coordinates of chunks where an unlimited dimension is not first. The price is
//! about 3,000 lines. They are tested against values that h5py reads.

mod btree1;
mod btree2;
mod checksum;
mod choice;
mod chunk;
mod chunk_layout;
mod cursor;
mod dataset;
mod datatype;
mod file;
mod filtered;
mod fractal_heap;
mod global_heap;
mod group;
mod header;
mod joined;
mod labels;
mod link;
mod options;
mod pieces;
mod rows;
mod tree;
mod values;

use choice::Choice;
use chunk::Chunks;
use dataset::{Dataset, Layout};
use file::File;
use filtered::{Part, Samples};
use futures::{StreamExt, TryStreamExt};
pub use options::Hdf5Options;

use rows::Rows;

use crate::{ArrayType, Extents, FileSource, FormatError, FoundSamples, ValueColumn};

/// Datasets of a group whose places are found at once.
const AT_ONCE: usize = 32;

/// A dataset of a file, for reports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DatasetInfo {
    /// The path from the root group, without the first slash.
    pub path: String,
    /// NumPy's name of the type, or a description of a type that NumPy does not have.
    pub dtype: String,
    /// The lengths of the dimensions.
    pub shape: Vec<u64>,
    /// The layout: `contiguous`, `compact`, or the shape and the index of chunks.
    pub layout: String,
    /// The filters in the order of writing.
    pub filters: Vec<String>,
}

/// A chunk of a dataset.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chunk {
    /// The coordinates of its first element.
    pub coordinates: Vec<u64>,
    /// Its offset in the file in bytes.
    pub address: u64,
    /// Its length in the file in bytes.
    pub size: u64,
    /// Bit `i`: filter `i` was not applied.
    pub filter_mask: u32,
}

/// Finds the samples of a file.
///
/// # Errors
/// [`Unsupported`](crate::FormatErrorKind::Unsupported) if there are several candidates, or if a
/// sample is not one piece of the file. [`Damaged`](crate::FormatErrorKind::Damaged) and
/// [`Unread`](crate::FormatErrorKind::Unread) as everywhere.
pub async fn index(source: &dyn FileSource, options: &Hdf5Options) -> Result<FoundSamples, FormatError> {
    let file = File::open(source).await?;
    match choice::choose(&file, options).await? {
        Choice::Rows { dataset, labels, .. } if !options.joined.is_empty() => {
            let mut datasets = vec![*dataset];
            for path in &options.joined {
                datasets.push(joined::dataset(&file, path).await?);
            }
            let is_field = |label: &Dataset| datasets.iter().any(|dataset| dataset.at == label.at);
            let labels: Vec<Dataset> = labels.into_iter().filter(|label| !is_field(label)).collect();
            let mut found = joined::index(&file, &datasets, options.whole).await?;
            let samples = if options.whole { None } else { datasets[0].shape.first().copied() };
            let paths: Vec<String> = datasets.iter().map(|dataset| format!("/{}", dataset.path)).collect();
            add_labels(&file, options, &labels, samples, &mut found).await?;
            Ok(found.with_chosen(format!("datasets {}", paths.join(" and ")), path(&labels)))
        }
        Choice::Group(group) if !options.joined.is_empty() => {
            let why = format!("HDF5 group /{}: a field of a sample is a dataset, not a group", group.path);
            Err(FormatError::unsupported(0, why))
        }
        Choice::Rows { dataset, labels, notes } if options.whole => {
            let parts = rows::whole(&file, &dataset).await?;
            let mut found = at(samples([parts]), summary("whole dataset", &dataset));
            found.array = rows::array_type(&dataset, true);
            found.notes = notes;
            add_labels(&file, options, &labels, None, &mut found).await?;
            Ok(found.with_chosen(chosen(&dataset), path(&labels)))
        }
        Choice::Rows { dataset, labels, notes } => {
            let mut found = match rows::extents(&file, &dataset).await? {
                Rows::Stored(extents) => FoundSamples::at(extents, summary("dataset", &dataset)),
                Rows::Made(samples) => at(samples, summary("dataset", &dataset)),
            };
            found.array = rows::array_type(&dataset, false);
            found.notes = notes;
            add_labels(&file, options, &labels, dataset.shape.first().copied(), &mut found).await?;
            Ok(found.with_chosen(chosen(&dataset), path(&labels)))
        }
        Choice::Group(group) => of_group(&file, &group).await,
    }
}

/// The datasets of a file.
///
/// # Errors
/// Those of [`index`], except that there is nothing to choose.
pub async fn datasets(source: &dyn FileSource) -> Result<Vec<DatasetInfo>, FormatError> {
    let file = File::open(source).await?;
    let groups = tree::walk(&file).await?;
    Ok(groups.iter().flat_map(|group| &group.datasets).map(info).collect())
}

/// The chunks of the dataset at `path`, in the order of their coordinates. Chunks that were never
/// written are missing.
///
/// # Errors
/// [`Unsupported`](crate::FormatErrorKind::Unsupported) if there is no such dataset or it has no
/// chunks. Others as in [`index`].
pub async fn chunks(source: &dyn FileSource, path: &str) -> Result<Vec<Chunk>, FormatError> {
    let file = File::open(source).await?;
    let header = tree::find(&file, path).await?;
    if !Dataset::is(&header) {
        return Err(FormatError::unsupported(header.at, format!("HDF5 path {path}: not a dataset")));
    }
    let dataset = Dataset::parse(&file, path.to_owned(), &header).await?;
    let Layout::Chunked(layout) = &dataset.layout else {
        return Err(dataset.refused("it has no chunks"));
    };
    let Chunks { grid, stored } = Chunks::read(&file, &dataset, layout).await?;
    let chunk = |chunk: &chunk_layout::Stored| Chunk {
        coordinates: grid.index(chunk.number).iter().zip(&layout.lengths).map(|(&i, &l)| i * l).collect(),
        address: chunk.at,
        size: chunk.size,
        filter_mask: chunk.mask,
    };
    Ok(stored.iter().map(chunk).collect())
}

/// A dataset of samples, for the comparison of files.
fn chosen(dataset: &Dataset) -> String {
    format!("dataset /{} of {}", dataset.path, dataset.datatype.name())
}

/// The path of the dataset whose values are the label.
fn path(labels: &[Dataset]) -> Option<&str> {
    labels.iter().min_by_key(|dataset| labels::rank(&dataset.path)).map(|dataset| &*dataset.path)
}

fn summary(what: &str, dataset: &Dataset) -> String {
    format!("HDF5 {what} /{}: {}", dataset.path, dataset.described())
}

/// A sample of each list of parts.
fn samples(lists: impl IntoIterator<Item = Vec<Part>>) -> Samples {
    let mut samples = Samples::default();
    for parts in lists {
        parts.into_iter().for_each(|part| samples.part(part));
        samples.complete();
    }
    samples
}

/// The findings, with the number of stored bytes. Samples may share some.
fn at(samples: Samples, mut summary: String) -> FoundSamples {
    let (extents, made) = samples.finish();
    if let Some(made) = &made {
        let units = extents.iter().zip(&made.rows).map(|(extent, made)| (extent.0, made.stored));
        let more = made.more.iter().map(|part| (part.offset, part.made.stored));
        let mut units: Vec<(u64, u64)> = units.chain(more).collect();
        units.sort_unstable();
        units.dedup();
        let stored = units.iter().map(|unit| unit.1).fold(0, u64::saturating_add);
        if made.recipes.is_empty() {
            summary.push_str(", in several pieces each");
        } else {
            summary.push_str(&format!(", compressed to {stored} bytes"));
        }
    }
    FoundSamples { made, ..FoundSamples::at(Extents::Rows(extents), summary) }
}

fn info(dataset: &Dataset) -> DatasetInfo {
    let layout = match &dataset.layout {
        Layout::Contiguous(_) => "contiguous".into(),
        Layout::Compact(_) => "compact".into(),
        Layout::Refused(why) => (*why).into(),
        Layout::Chunked(layout) => {
            let lengths: Vec<String> = layout.lengths.iter().map(u64::to_string).collect();
            format!("chunks of {}, {}", lengths.join(" x "), layout.index.name())
        }
    };
    DatasetInfo {
        path: dataset.path.clone(),
        dtype: dataset.datatype.name(),
        shape: dataset.shape.clone(),
        layout,
        filters: dataset.filters.iter().map(dataset::Filter::name).collect(),
    }
}

/// Reads labels of `samples` samples, or with `None` of one sample. Labels that were found
/// by their name and cannot be read are mentioned in the summary.
async fn add_labels(
    file: &File<'_>,
    options: &Hdf5Options,
    labels: &[Dataset],
    samples: Option<u64>,
    found: &mut FoundSamples,
) -> Result<(), FormatError> {
    found.summary.extend(found.notes.iter().flat_map(|note| [", ", note]));
    // The usual name comes first, and its values are the label.
    let first = labels.iter().min_by_key(|dataset| labels::rank(&dataset.path)).map(|dataset| dataset.at);
    for dataset in labels {
        let name = match first == Some(dataset.at) {
            true => "label",
            false => dataset.path.rsplit('/').next().unwrap_or_default(),
        };
        match labels::read(file, dataset, samples).await {
            Ok(values) => found.columns.push(ValueColumn { name: name.to_owned(), values }),
            Err(error) if options.labels.is_none() && error.kind() == crate::FormatErrorKind::Unsupported => {
                let note = format!("no labels: {}", error.why());
                found.summary.push_str(&format!(", {note}"));
                found.notes.push(note);
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Each dataset of a group is a sample.
async fn of_group(file: &File<'_>, group: &tree::Group) -> Result<FoundSamples, FormatError> {
    // A list, because a lazy iterator over borrowed datasets makes a future that no thread can
    // take.
    let wholes: Vec<_> = group.datasets.iter().map(|dataset| rows::whole(file, dataset)).collect();
    let wholes = futures::stream::iter(wholes).buffered(AT_ONCE).try_collect::<Vec<_>>().await?;
    let name = |dataset: &Dataset| dataset.path.rsplit('/').next().unwrap_or_default().to_owned();
    let summary = format!("HDF5 group /{}: {} datasets", group.path, wholes.len());
    let mut found = at(samples(wholes), summary);
    found.keys = Some(group.datasets.iter().map(name).collect());
    found.array = common_type(&group.datasets);
    found.skipped = group.skipped;
    Ok(found.with_chosen(format!("group /{}", group.path), None))
}

/// The type of all datasets, if they differ in the first dimension at most.
fn common_type(datasets: &[Dataset]) -> Option<ArrayType> {
    let mut common = rows::array_type(datasets.first()?, true)?;
    for dataset in datasets {
        common = common.with(&rows::array_type(dataset, true)?)?;
    }
    Some(common)
}
