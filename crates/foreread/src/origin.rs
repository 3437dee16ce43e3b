//! Opening a dataset: its catalog and its origin with the layers around it.

use std::num::{NonZeroU64, NonZeroUsize};
use std::path::Path;
use std::sync::Arc;

use foreread_dataset::{CATALOG_NAME, Catalog, IndexOptions, Progress};
use foreread_layers::{AdaptivePolicy, Limit, Meter, Stack, Throttle};
use foreread_tier::{Context, OpenOptions, OriginTier};

use crate::config::Config;
use crate::error::{Error, ErrorKind, Result};
use crate::registry::Registry;

/// What the origins of one run share: the user's limits are on all of them together.
#[derive(Clone, Debug)]
pub(crate) struct Shared {
    pub(crate) meter: Meter,
    stack: Stack,
    options: OpenOptions,
}

impl Shared {
    pub(crate) fn new(config: &Config) -> Self {
        let mut options = OpenOptions::default();
        options.parallelism = config.origin_parallelism;
        // The first guess is a batch: what the trainer waits for first is asked for at once.
        let first = NonZeroUsize::new(config.batch_size.min(256) as usize).unwrap_or(NonZeroUsize::MIN);
        // A better one is what turned out best when it was measured.
        let measured = config.calibration.as_ref().and_then(|known| known.origin.as_ref()?.best());
        let measured = measured.and_then(|best| NonZeroUsize::new(best.parallelism as usize));
        let first = measured.unwrap_or(first);
        let most = config.origin_parallelism.and_then(NonZeroUsize::new);
        let policy = most.map_or_else(AdaptivePolicy::default, AdaptivePolicy::up_to).beginning_at(first);
        let meter = Meter::new();
        // Ranks that fail together must not try again together.
        let seed = config.seed ^ (u64::from(config.rank) << 32);
        let stack = Stack::new(seed)
            .with_throttle(config.origin_limit.and_then(NonZeroU64::new).map(Throttle::new))
            .with_limit(Some(Limit::adaptive(policy)))
            .with_meter(meter.clone());
        Self { meter, stack, options }
    }

    /// The same without what adapts or repeats: for measuring an origin as it is, within the user's limits.
    pub(crate) fn raw(config: &Config) -> Self {
        let Self { meter, stack, options } = Self::new(config);
        Self { meter, stack: stack.with_limit(None).with_hedge(None).with_deadline(None), options }
    }

    /// `origin` for finding its samples: tried again and limited as reads of samples are, and not counted among them.
    fn finding(&self, origin: &Arc<dyn OriginTier>) -> Arc<dyn OriginTier> {
        let uncounted = Self { stack: self.stack.clone().with_meter(Meter::new()), ..self.clone() };
        uncounted.wrap(Arc::clone(origin)).0
    }

    /// `origin` in its layers; their order and its reasons are in `foreread_layers`. A directory whose pages this
    /// machine's kernel keeps finds its own parallelism (its threads say when they wait), does not answer late, and is
    /// read at memory's speed: it gets only what the user asked for. Beside it the limit on what is under way.
    fn wrap(&self, origin: Arc<dyn OriginTier>) -> (Arc<dyn OriginTier>, Option<Limit>) {
        if !origin.profile().kernel_cached {
            return (self.stack.wrap(origin), self.stack.limit.clone());
        }
        let fixed = self.options.parallelism.and_then(NonZeroUsize::new).map(Limit::new);
        let stack = self.stack.clone().with_hedge(None).with_deadline(None).with_limit(fixed.clone());
        (stack.wrap(origin), fixed)
    }
}

/// An open dataset.
#[derive(Clone, Debug)]
pub(crate) struct Opened {
    pub(crate) catalog: Catalog,
    pub(crate) origin: Arc<dyn OriginTier>,
    /// How many reads may be under way, where that is limited.
    pub(crate) limit: Option<Limit>,
}

/// Opens `target`: a catalog file, whose origin is the one that it was made from, or the URL or path of an origin,
/// which has a catalog in it or is listed.
pub(crate) async fn open(
    target: &str,
    registry: &Registry,
    context: &Context,
    shared: &Shared,
    progress: impl FnMut(Progress) + Send,
) -> Result<Opened> {
    let path = Path::new(target);
    let catalog = if path.is_file() { Some(open_catalog(path, context).await?) } else { None };
    let url = match &catalog {
        Some(catalog) => catalog.base_url().to_owned(),
        None => absolute(target),
    };
    let backend = registry.find(&url)?;
    let store = backend.open(&url, &shared.options, context).await?;
    let catalog = match catalog {
        Some(catalog) => catalog,
        None => match Catalog::stored(&*shared.finding(&store), &url).await? {
            Some(catalog) => {
                let samples = catalog.len();
                tracing::info!(url, samples, "uses the {CATALOG_NAME} that lies there; nothing is listed");
                catalog
            }
            None => {
                Catalog::index(&*shared.finding(&store), &url, &IndexOptions::default(), progress).await?
            }
        },
    };
    let (origin, limit) = shared.wrap(store);
    Ok(Opened { catalog, origin, limit })
}

async fn open_catalog(path: &Path, context: &Context) -> Result<Catalog> {
    if !Catalog::is_catalog_file(path) {
        let message =
            format!("{} is neither a directory nor a catalog made by `foreread index`", path.display());
        return Err(Error::new(ErrorKind::Dataset, message));
    }
    let path = path.to_owned();
    let opened = context.runtime.spawn_blocking(move || Catalog::open(path)).await;
    opened
        .map_err(|error| Error::new(ErrorKind::System, format!("the catalog was not opened: {error}")))?
        .map_err(Error::from)
}

/// A relative path made absolute, so that a catalog means the same wherever it is used; anything else as it is. The
/// backend of `file` understands `file:/directory` too.
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

/// Lists `target` into a catalog.
///
/// # Errors
/// If it cannot be opened or listed, or nothing in it is a sample.
pub async fn index(
    target: &str,
    options: &IndexOptions,
    registry: &Registry,
    context: &Context,
    progress: impl FnMut(Progress) + Send,
) -> Result<Catalog> {
    let url = absolute(target);
    let shared = Shared::new(&Config::default());
    let origin = registry.find(&url)?.open(&url, &OpenOptions::default(), context).await?;
    Ok(Catalog::index(&*shared.finding(&origin), &url, options, progress).await?)
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
