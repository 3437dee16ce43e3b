//! Files that the storage has moved to an archive, for example to tape.
//!
//! The first read of such a file waits until it is restored, for minutes or hours. So these files
//! are counted and named before the first batch. On request ([`Config::recall`]) they are restored
//! in the background in the order of their first use: one byte of each is read, by threads apart
//! from those of the run. The price is that a run which starts at once may wait for its first
//! files.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use foreread_open::error::{Result, ended};
use foreread_open::origin::OpenDataset;
use foreread_open::registry::Registry;
use foreread_open::size::ByteSize;
use foreread_oracle::Run;
use foreread_tier::{Object, OpenContext, OpenOptions, OriginTier, ReadRequest, Span};
use foreread_types::{DatasetId, SampleId, SampleKey, Tick, setting};
use futures::StreamExt;

use crate::config::Config;

/// Files that are restored at once.
const RECALLS: usize = 8;

/// The paths that a message lists.
const LISTED: usize = 3;

/// The time between two messages about progress.
const PROGRESS: Duration = Duration::from_secs(60);

/// An archive may take days.
const RECALL_PATIENCE: Duration = Duration::from_secs(7 * 24 * 3600);

/// The released files of a dataset that a run restores.
#[derive(Debug)]
pub(crate) struct ReleasedFiles {
    dataset: DatasetId,
    /// The first sample of each file.
    files: BTreeMap<SampleId, Object>,
    origin: Arc<dyn OriginTier>,
}

/// Warns about released files of the datasets. Returns them if they are to be restored. The
/// datasets were opened with `options`.
pub(crate) async fn check(
    opened: &[OpenDataset],
    config: &Config,
    registry: &Registry,
    options: &OpenOptions,
    context: &OpenContext,
) -> Result<Vec<ReleasedFiles>> {
    let mut released = Vec::new();
    for (number, dataset) in (0..).zip(opened) {
        let dataset = (DatasetId(number), dataset);
        released.extend(check_one(dataset, config, registry, options.clone(), context).await?);
    }
    Ok(released)
}

async fn check_one(
    (dataset, of): (DatasetId, &OpenDataset),
    config: &Config,
    registry: &Registry,
    mut options: OpenOptions,
    context: &OpenContext,
) -> Result<Option<ReleasedFiles>> {
    let catalog = of.catalog.clone();
    if !catalog.has_servers() {
        return Ok(None);
    }
    // Reads the names of files from the catalog's file.
    let indexed = context.runtime.spawn_blocking(move || {
        let mut files: BTreeMap<SampleId, Object> = BTreeMap::new();
        let mut seen = BTreeSet::new();
        for id in (0..catalog.len()).map(SampleId).filter(|id| catalog.is_released(*id)) {
            let object = catalog.entry(id)?.object;
            if let Some(number) = catalog.number(id).filter(|_| seen.insert(Arc::clone(&object.path))) {
                files.insert(SampleId(number), object);
            }
        }
        Ok::<_, foreread_dataset::DatasetError>(files)
    });
    let mut files = indexed.await.map_err(ended)??;
    // They may have been restored since.
    let paths = files.values().map(|object| Arc::clone(&object.path)).collect();
    let Some(layouts) = of.origin.layouts(paths).filter(|_| !files.is_empty()) else { return Ok(None) };
    let mut layouts = layouts.await.into_iter();
    files.retain(|_, _| layouts.next().flatten().is_none_or(|layout| layout.is_released()));
    if files.is_empty() {
        return Ok(None);
    }
    // A plan reads nothing, and so restores nothing.
    let recall = config.recall && !config.plan_only;
    warn(of.catalog.base_url(), &files, recall);
    if !recall {
        return Ok(None);
    }
    // Half of the threads may wait for silent files.
    (options.parallelism, options.patience) = (Some(2 * RECALLS), Some(RECALL_PATIENCE));
    let url = of.catalog.base_url();
    let origin = registry.find(url)?.open(url, &options, context).await?;
    Ok(Some(ReleasedFiles { dataset, files, origin }))
}

fn warn(url: &str, files: &BTreeMap<SampleId, Object>, recall: bool) {
    let bytes = files.values().fold(0u64, |sum, object| sum.saturating_add(object.size));
    let some: Vec<&str> = files.values().take(LISTED).map(|object| &*object.path).collect();
    let more = if files.len() > LISTED { ", ..." } else { "" };
    let remedy = match recall {
        true => "they are restored in the background",
        false => &format!(
            "the first read of each waits until it is restored. Run `lfs hsm_restore FILE` for each \
                 before, or set {}",
            setting("recall")
        ),
    };
    tracing::warn!(
        "{url}: {} files ({}) were released to an archive: {}{more}; {remedy}",
        files.len(),
        ByteSize(bytes),
        some.join(", "),
    );
}

impl ReleasedFiles {
    /// Restores all files, in the order in which `run` reads them first. Ends with the files, or
    /// when it is dropped.
    pub(crate) async fn recall(self, run: Run) {
        let Self { dataset, files, origin } = self;
        let (total, ids) = (files.len(), files.keys().copied().collect());
        // Computing an epoch's order takes long for many samples.
        let ordered = tokio::task::spawn_blocking(move || by_first_use(&run, dataset, ids)).await;
        let order: Vec<SampleId> = ordered.unwrap_or_else(|_| files.keys().copied().collect());
        let reads = order.into_iter().zip(0u64..).filter_map(|(id, place)| {
            let object = files.get(&id)?.clone();
            // An empty file has nothing to restore.
            (object.size > 0).then(|| {
                let path = Arc::clone(&object.path);
                let request =
                    ReadRequest::new(SampleKey::new(dataset, id), object, Span::Range(0..1), Tick(place));
                let read = origin.read(Arc::new(request));
                async move { (path, read.await) }
            })
        });
        let mut reads = futures::stream::iter(reads).buffer_unordered(RECALLS);
        let (mut done, mut failed, mut shown) = (0usize, 0usize, Instant::now());
        while let Some((path, result)) = reads.next().await {
            match result {
                Ok(_) => done += 1,
                Err(error) => {
                    failed += 1;
                    tracing::warn!(%path, %error, "not restored");
                }
            }
            if shown.elapsed() >= PROGRESS {
                shown = Instant::now();
                tracing::warn!("restored {done} of {total} files from the archive");
            }
        }
        tracing::warn!("restored {done} of {total} files from the archive, {failed} failed");
    }
}

/// The samples `ids` in the order in which the first pass over their dataset uses them. Samples
/// that it does not use come last.
fn by_first_use(run: &Run, dataset: DatasetId, ids: Vec<SampleId>) -> Vec<SampleId> {
    let mut left: BTreeSet<SampleId> = ids.into_iter().collect();
    let mut ordered = Vec::with_capacity(left.len());
    let pass = run.passes().find(|pass| pass.dataset == dataset);
    if let Some(stream) = pass.and_then(|pass| run.stream(&pass).ok()) {
        // Of all ranks, because one restores for all.
        let order = stream.order();
        let used = (0..order.len()).map(|position| order.at(position));
        ordered.extend(used.filter(|id| left.remove(id)));
    }
    ordered.extend(left);
    ordered
}
