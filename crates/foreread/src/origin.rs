//! Opening a dataset: its catalog and its origin with the layers around it.

use std::num::{NonZeroU64, NonZeroUsize};
use std::path::Path;
use std::sync::Arc;

use foreread_dataset::{Catalog, IndexOptions, Progress};
use foreread_layers::{Limit, Limited, Meter, Metered, RetryPolicy, Retrying, Throttle, Throttled};
use foreread_tier::{Context, OpenOptions, OriginTier};

use crate::config::Config;
use crate::error::{Error, ErrorKind, Result};
use crate::registry::Registry;

/// What the origins of one run share: the user's limits are on all of them together.
#[derive(Clone, Debug)]
pub(crate) struct Shared {
    pub(crate) meter: Meter,
    throttle: Option<Throttle>,
    limit: Option<Limit>,
    options: OpenOptions,
}

impl Shared {
    pub(crate) fn new(config: &Config) -> Self {
        let mut options = OpenOptions::default();
        options.parallelism = config.origin_parallelism;
        Self {
            meter: Meter::new(),
            throttle: config.origin_limit.and_then(NonZeroU64::new).map(Throttle::new),
            limit: config.origin_parallelism.and_then(NonZeroUsize::new).map(Limit::new),
            options,
        }
    }

    /// `origin` in its layers; their order and its reasons are in `foreread_layers`.
    fn wrap(&self, origin: Arc<dyn OriginTier>, seed: u64) -> Arc<dyn OriginTier> {
        let mut tier: Arc<dyn OriginTier> = Arc::new(Metered::with_meter(origin, self.meter.clone()));
        if let Some(throttle) = &self.throttle {
            tier = Arc::new(Throttled::with_throttle(tier, throttle.clone()));
        }
        if let Some(limit) = &self.limit {
            tier = Arc::new(Limited::with_limit(tier, limit.clone()));
        }
        Arc::new(Retrying::new(tier, RetryPolicy::default(), seed).with_meter(&self.meter))
    }
}

/// An open dataset.
#[derive(Clone, Debug)]
pub(crate) struct Opened {
    pub(crate) catalog: Catalog,
    pub(crate) origin: Arc<dyn OriginTier>,
}

/// Opens `target`: a catalog file, whose origin is the one that it was made from, or the URL or path of an origin,
/// which is then listed.
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
    let origin = backend.open(&url, &shared.options, context).await?;
    let catalog = match catalog {
        Some(catalog) => catalog,
        None => Catalog::index(&*origin, &url, &IndexOptions::default(), progress).await?,
    };
    let seed = context.seed;
    Ok(Opened { catalog, origin: shared.wrap(origin, seed) })
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

/// A relative path made absolute, so that a catalog means the same wherever it is used; anything else as it is.
pub(crate) fn absolute(target: &str) -> String {
    if target.contains("://") {
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
    let origin = registry.find(&url)?.open(&url, &OpenOptions::default(), context).await?;
    Ok(Catalog::index(&*origin, &url, options, progress).await?)
}
