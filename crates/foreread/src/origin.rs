//! Opens a dataset: its catalog, and its origin with the layers around it.

use std::num::{NonZeroU32, NonZeroU64, NonZeroUsize};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use foreread_dataset::{CATALOG_NAME, Catalog, DatasetErrorKind, Format, IndexOptions, IndexProgress};
use foreread_layers::{AdaptivePolicy, Bandwidth, Limit, Meter, Stack, Units};
use foreread_local::disk::DatasetLineage;
use foreread_tier::{OpenContext, OpenOptions, OriginTier, TierProfile};
use foreread_types::{DatasetIdentity, setting};

use crate::config::Config;
use crate::error::{Error, ErrorKind, Result};
#[cfg(feature = "tables")]
use crate::inventory::with_inventory;
use crate::planned::Planned;
use crate::registry::Registry;
use crate::runtime::ended;
use crate::storage::StorageOptions;
use crate::target::{Target, TargetSpec, is_named_as_shard};
use crate::units::unit_memory;

/// The suffixes of tables and lists, which name samples and are none.
const TABLES: &[&str] = &["csv", "tsv", "txt", "json", "jsonl", "ndjson", "xlsx"];

/// The limits and policies that all origins of a run share.
#[derive(Clone, Debug)]
pub(crate) struct OriginPolicy {
    pub(crate) meter: Meter,
    stack: Stack,
    /// The most parallel reads, if the user has set a number.
    parallelism: Option<usize>,
    /// The user's number, for directories.
    fixed: Option<Limit>,
    patience: Option<Duration>,
}

impl OriginPolicy {
    pub(crate) fn new(config: &Config, context: &OpenContext) -> Self {
        // The first limit is a batch: the samples of the trainer's first batch are requested at
        // once.
        let first = NonZeroUsize::new(config.batch_size.min(256) as usize).unwrap_or(NonZeroUsize::MIN);
        // A measured number is better: the one with the highest throughput.
        let measured = config.calibration.as_ref().and_then(|known| known.origin.as_ref()?.best());
        let measured = measured.and_then(|best| NonZeroUsize::new(best.parallelism as usize));
        let first = measured.unwrap_or(first);
        let most = config.origin_parallelism.and_then(NonZeroUsize::new);
        let policy = most.map_or_else(AdaptivePolicy::default, AdaptivePolicy::up_to).beginning_at(first);
        let meter = Meter::new();
        // Ranks that fail at the same time must not retry at the same time.
        let seed = config.seed ^ (u64::from(config.rank) << 32);
        let stack = Stack::new(seed)
            .with_bandwidth(config.origin_limit.and_then(NonZeroU64::new).map(Bandwidth::new))
            .with_limit(Some(Limit::adaptive(policy)))
            .with_retry(config.retry_policy())
            .with_deadline(config.deadline)
            .with_hedge(config.hedge)
            .with_hedge_within_limit(most.is_some())
            .with_buffers(Arc::clone(&context.buffers))
            .with_meter(meter.clone());
        let fixed = most.map(Limit::new);
        Self { meter, stack, parallelism: config.origin_parallelism, fixed, patience: config.patience }
    }

    /// The same with another meter.
    #[cfg(feature = "agent")]
    pub(crate) fn with_meter(self, meter: Meter) -> Self {
        Self { stack: self.stack.with_meter(meter.clone()), meter, ..self }
    }

    /// The same with another limit in bytes per second.
    #[cfg(feature = "agent")]
    pub(crate) fn with_bandwidth(self, bandwidth: Bandwidth) -> Self {
        Self { stack: self.stack.with_bandwidth(Some(bandwidth)), ..self }
    }

    /// The stored units that samples share.
    pub(crate) fn units(&self) -> &Units {
        &self.stack.units
    }

    /// Gives the memory of a plan to the samples of stored units.
    pub(crate) fn set_unit_memory(&self, planned: &Planned) {
        if let Some(units) = &planned.units {
            self.stack.units.set_limit(unit_memory(units.memory_bytes, planned.config.look_ahead));
        }
    }

    /// A policy without adaptation and retries, within the user's limits. For measurements of an
    /// origin.
    pub(crate) fn raw(config: &Config, context: &OpenContext) -> Self {
        let raw = Self::new(config, context);
        let stack = raw.stack.with_limit(None).with_merge(None).with_hedge(None).with_deadline(None);
        Self { stack, ..raw }
    }

    /// The options that a backend opens a dataset with.
    pub(crate) fn options(&self, storage: &StorageOptions) -> OpenOptions {
        let mut options = OpenOptions::default();
        options.parallelism = self.parallelism;
        options.patience = self.patience;
        options.settings = storage.to_settings();
        options
    }

    /// Wraps `origin` in its layers. `foreread_layers` documents their order and the reasons. Also
    /// returns the limit on parallel reads.
    ///
    /// Directories find their own parallelism, because their threads report waits. One in the page
    /// cache does not answer late, and is read at memory's speed. One on a network file system
    /// waits for its servers itself.
    pub(crate) fn wrap(&self, origin: Arc<dyn OriginTier>) -> (Arc<dyn OriginTier>, Option<Limit>) {
        let TierProfile { kernel_cached, patience, .. } = *origin.profile();
        if !kernel_cached && patience.is_none() {
            return (self.stack.wrap(origin), self.stack.limit.clone());
        }
        let stack = self.guarded(origin.profile()).with_limit(self.fixed.clone());
        (stack.wrap(origin), self.fixed.clone())
    }

    /// The layers without those that a directory must not have.
    fn guarded(&self, profile: &TierProfile) -> Stack {
        let stack = self.stack.clone();
        if !profile.kernel_cached && profile.patience.is_none() {
            return stack;
        }
        let retry = match profile.patience {
            Some(patience) => {
                let patience = patience.max(stack.retry.patience);
                stack.retry.with_patience(patience).with_attempts(NonZeroU32::MAX)
            }
            None => stack.retry,
        };
        stack.with_hedge(None).with_deadline(None).with_retry(retry)
    }

    /// Wraps `origin` for reading the headers in shards. It tolerates failures of the store and
    /// obeys the user's bandwidth limit. Its reads do not count as the run's.
    pub(crate) fn for_index(&self, origin: &Arc<dyn OriginTier>) -> Arc<dyn OriginTier> {
        let stack = self.guarded(origin.profile());
        stack.with_meter(Meter::new()).with_limit(None).wrap(Arc::clone(origin))
    }
}

/// An open dataset.
#[derive(Clone, Debug)]
pub(crate) struct OpenDataset {
    pub(crate) catalog: Catalog,
    /// The identity of its bytes, for caches and other ranks.
    pub(crate) identity: DatasetIdentity,
    /// The caches on disks that it continues, if the catalog has grown.
    pub(crate) lineage: Option<DatasetLineage>,
    /// Whether it was just listed, in contrast to a catalog that was found.
    pub(crate) listed: bool,
    /// The catalog's file, if it was opened from one.
    #[cfg_attr(not(feature = "peer"), expect(dead_code, reason = "other ranks open it, too"))]
    pub(crate) file: Option<PathBuf>,
    pub(crate) origin: Arc<dyn OriginTier>,
    /// The limit on parallel reads, if any.
    pub(crate) limit: Option<Limit>,
}

/// Separates the orders of these datasets from their bytes: catalogs become whole ones, whose
/// numbers caches use, and the settings get the samples of parts. Returns the catalogs as they
/// were.
pub(crate) fn widen(opened: &mut [OpenDataset], config: &mut Config) -> Vec<Catalog> {
    let named: Vec<Catalog> = opened.iter().map(|dataset| dataset.catalog.clone()).collect();
    config.chosen = named.iter().map(|catalog| catalog.numbers().cloned()).collect();
    opened.iter_mut().for_each(|dataset| dataset.catalog = dataset.catalog.with_gone());
    named
}

impl OpenDataset {
    /// Warns about caches on disks that later runs will not find, because this listing has no
    /// stable identity.
    pub(crate) fn warn_of_lost_caches(&self, config: &Config) {
        if config.disk.is_empty() || !self.listed || self.catalog.keeps_identity() {
            return;
        }
        let url = self.catalog.base_url();
        tracing::warn!(
            "{url}: its files cannot be identified in later runs (they have no versions, the same time for \
             most of them, a time before 1980, or are on several file systems). The next run will not use \
             the disk's copies. To use them, save a catalog with `foreread index {url} -o FILE` and load \
             that"
        );
    }
}

/// Opens the dataset that `targets` name: a catalog, the URL or path of an origin, or shards of an
/// origin. The origin of a catalog is the one that it was made from. Otherwise the origin contains
/// a catalog or is listed. `format` is the format of samples, if set.
pub(crate) async fn open(
    targets: &TargetSpec,
    format: Option<Format>,
    registry: &Registry,
    context: &OpenContext,
    shared: &OriginPolicy,
    progress: impl FnMut(IndexProgress) + Send,
) -> Result<OpenDataset> {
    let mut file = None;
    let catalog = match (&targets.catalog, &targets.names[..]) {
        (Some(catalog), _) => Some(catalog.clone()),
        (None, [one]) => {
            let path = PathBuf::from(one);
            let is_catalog = move || path.is_file() && !is_shard(&path, format);
            match context.runtime.spawn_blocking(is_catalog).await.map_err(ended)? {
                true => {
                    file = Some(absolute(one).into());
                    Some(open_catalog(Path::new(one), context).await?)
                }
                false => None,
            }
        }
        _ => None,
    };
    let target = match &catalog {
        Some(catalog) => Target { url: catalog.base_url().to_owned(), objects: Vec::new() },
        None => {
            // Reads files, which takes long on a slow file server.
            let names = targets.names.clone();
            context.runtime.spawn_blocking(move || Target::of(&names, format)).await.map_err(ended)??
        }
    };
    let backend = registry.find(&target.url)?;
    let store = backend.open(&target.url, &shared.options(&targets.storage), context).await?;
    let (catalog, listed) = match catalog {
        Some(catalog) => (catalog, false),
        None => found(target, format, &*shared.for_index(&store), progress).await?,
    };
    if let Some(format) = format.filter(|format| *format != catalog.format()) {
        let (base, is, configured) = (catalog.base_url(), catalog.format().name(), format.name());
        return Err(Error::usage(format!(
            "the catalog of {base} has the format {is}, but {} is set; leave it out, or index \
             the data again",
            setting("format").to(configured)
        )));
    }
    let identity = catalog.identity(store.place());
    let lineage = lineage(&catalog, identity, store.place());
    let (origin, limit) = shared.wrap(store);
    Ok(OpenDataset { catalog, identity, lineage, listed, file, origin, limit })
}

/// The caches that a dataset with this identity continues.
pub(crate) fn lineage(catalog: &Catalog, identity: DatasetIdentity, place: &str) -> Option<DatasetLineage> {
    let pieces = catalog.lineage(place);
    if pieces.is_empty() {
        return None;
    }
    let existing = catalog.whole();
    let gone = existing.numbers().map_or_else(Vec::new, |ids| {
        (0..catalog.with_gone().len()).filter(|id| ids.binary_search(id).is_err()).collect()
    });
    Some(DatasetLineage { identity, pieces, gone })
}

/// The catalog in an origin, or a listing of it, and which of the two it is. Named shards are
/// always listed.
async fn found(
    target: Target,
    format: Option<Format>,
    origin: &dyn OriginTier,
    progress: impl FnMut(IndexProgress) + Send,
) -> Result<(Catalog, bool)> {
    let Target { url, objects } = target;
    if objects.is_empty()
        && let Some(catalog) = Catalog::stored(origin, &url).await?
    {
        let samples = catalog.len();
        tracing::info!(url, samples, "uses the dataset's {CATALOG_NAME}, without listing");
        return Ok((catalog, false));
    }
    let mut options = IndexOptions::default().naming(objects);
    options.format = format;
    Ok((Catalog::index(origin, &url, &options, progress).await?, true))
}

/// Whether a file is a shard and not a catalog. Its content decides, because a catalog may have the
/// name of an Arrow file. The error for any other file is that of an invalid catalog.
fn is_shard(file: &Path, format: Option<Format>) -> bool {
    let named = is_named_as_shard(&file.to_string_lossy());
    (named || format.is_some_and(Format::is_packed)) && !Catalog::is_catalog_file(file)
}

async fn open_catalog(path: &Path, context: &OpenContext) -> Result<Catalog> {
    let owned = path.to_owned();
    let opened = context.runtime.spawn_blocking(move || Catalog::open(owned)).await;
    let opened = opened
        .map_err(|error| Error::new(ErrorKind::System, format!("the catalog was not opened: {error}")))?;
    opened.map_err(|error| match error.kind() {
        DatasetErrorKind::NotACatalog => {
            if let Some(error) = table_error(path) {
                return error;
            }
            let message = format!(
                "{} is neither a directory nor a catalog made by `foreread index`; name the directory of the \
                 samples, or set {} if it is a shard",
                path.display(),
                setting("format")
            );
            Error::dataset(DatasetErrorKind::NotACatalog, message)
        }
        _ => Error::from(error),
    })
}

/// The error for a file that lists samples, such as `train.csv`, if its name shows that.
fn table_error(path: &Path) -> Option<Error> {
    let suffix = path.extension()?.to_str()?.to_ascii_lowercase();
    if !TABLES.contains(&&*suffix) {
        return None;
    }
    let message = format!(
        "{} is a table or a list of samples: make a catalog of it by an index with {}, and load that ({} \
         takes it as one sample)",
        path.display(),
        setting("table").to(&path.to_string_lossy()),
        setting("format").to("files")
    );
    Some(Error::dataset(DatasetErrorKind::Unsupported, message))
}

/// Makes a relative path absolute, so that a catalog is valid in every directory. Returns anything
/// else unchanged. The backend of `file` understands `file:/directory`, too.
pub(crate) fn absolute(target: &str) -> String {
    let file = target.get(..6).is_some_and(|start| start.eq_ignore_ascii_case("file:/"));
    if file || target.contains("://") {
        return target.to_owned();
    }
    match std::path::absolute(target) {
        Ok(path) => path.to_string_lossy().into_owned(),
        Err(_) => target.to_owned(),
    }
}

/// Whether all of these names are below one directory.
fn is_one_directory(objects: &[String]) -> bool {
    let first = |name: &String| Some(name.split_once('/')?.0.to_owned());
    let Some(class) = objects.first().and_then(first) else { return false };
    objects.iter().all(|name| first(name).as_ref() == Some(&class))
}

/// Lists the dataset of `targets` into a catalog.
///
/// # Errors
/// If it cannot be opened or listed, or contains no sample.
pub(crate) async fn index(
    targets: &TargetSpec,
    inventory: Option<&str>,
    options: IndexOptions,
    registry: &Registry,
    context: &OpenContext,
    shared: &OriginPolicy,
    progress: impl FnMut(IndexProgress) + Send,
) -> Result<Catalog> {
    let names = targets.names.clone();
    let format = options.format.or(options.format_options.is_tokens().then_some(Format::Tokens));
    let Target { url, objects } =
        context.runtime.spawn_blocking(move || Target::of(&names, format)).await.map_err(ended)??;
    if let [only] = &objects[..]
        && options.format.is_none()
        && let Some(error) = table_error(&Path::new(&url).join(only))
    {
        return Err(error);
    }
    let storage = shared.options(&targets.storage);
    let (url, objects, origin) = match registry.find(&url)?.open(&url, &storage, context).await {
        Err(error) if error.kind() == foreread_tier::ErrorKind::Denied && is_one_directory(&objects) => {
            // Its parent, which has the classes, may be closed.
            let class = objects[0].split_once('/').map_or("", |(class, _)| class).to_owned();
            let inner = format!("{}/{class}", url.trim_end_matches('/'));
            tracing::warn!("{inner}: samples have no labels, because {url} cannot be opened: {error}");
            let objects = objects.iter().map(|name| name[class.len() + 1..].to_owned()).collect();
            let origin = registry.find(&inner)?.open(&inner, &storage, context).await?;
            (inner, objects, origin)
        }
        opened => (url, objects, opened?),
    };
    #[cfg(feature = "tables")]
    let origin = match inventory {
        Some(place) => {
            let storage = &targets.storage;
            let inventory = (place, options.most_in_memory());
            with_inventory(origin, &url, inventory, storage, registry, context, shared).await?
        }
        None => origin,
    };
    #[cfg(not(feature = "tables"))]
    let _ = inventory;
    let options = options.naming(objects);
    Ok(Catalog::index(&*shared.for_index(&origin), &url, &options, progress).await?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_stay_and_relative_paths_become_absolute() {
        for target in ["/data", "s3://bucket/x", "file:///data", "file:/data", "FILE:/data"] {
            assert_eq!(absolute(target), target);
        }
        let here = std::env::current_dir().unwrap();
        for target in ["data", "file:data", "ünïcödé"] {
            assert_eq!(Path::new(&absolute(target)), here.join(target));
        }
    }
}
