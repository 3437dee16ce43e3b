//! Opens a dataset: its catalog, and its origin with the layers around it.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use foreread_dataset::{CATALOG_NAME, Catalog, DatasetErrorKind, Format, IndexOptions, IndexProgress};
use foreread_layers::Limit;
use foreread_local::disk::DatasetLineage;
use foreread_tier::{OpenContext, OriginTier};
use foreread_types::{DatasetIdentity, setting};

use crate::credentials::credentials_proof;
use crate::error::{Error, ErrorKind, Result, ended};
#[cfg(feature = "tables")]
use crate::inventory::with_inventory;
use crate::origin_policy::OriginPolicy;
use crate::registry::Registry;
use crate::target::{Target, TargetSpec, absolute, is_named_as_shard};

/// The suffixes of tables and lists, which name samples and are none.
const TABLES: &[&str] = &["csv", "tsv", "txt", "json", "jsonl", "ndjson", "xlsx"];

/// An open dataset.
#[derive(Clone, Debug)]
pub struct OpenDataset {
    /// Its samples.
    pub catalog: Catalog,
    /// The identity of its bytes, for caches and other ranks.
    pub identity: DatasetIdentity,
    /// The caches on disks that it continues, if the catalog has grown.
    pub lineage: Option<DatasetLineage>,
    /// Whether it was just listed, in contrast to a catalog that was found.
    pub listed: bool,
    /// The catalog's file, if it was opened from one.
    pub file: Option<PathBuf>,
    /// Its storage, in its layers.
    pub origin: Arc<dyn OriginTier>,
    /// The limit on parallel reads, if any.
    pub limit: Option<Limit>,
    /// A proof of the environment's credentials for its storage.
    pub credentials: String,
}

impl OpenDataset {
    /// Warns about caches on disks that later runs will not find, because this listing has no
    /// stable identity.
    pub fn warn_of_lost_caches(&self) {
        if !self.listed || self.catalog.keeps_identity() {
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
/// origin. The origin of a catalog is the origin that it was made from. Otherwise the origin
/// contains a catalog or is listed. `format` is the format of samples, if set.
pub async fn open(
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
    let credentials = credentials_proof(&**backend);
    Ok(OpenDataset { catalog, identity, lineage, listed, file, origin, limit, credentials })
}

/// The caches that a dataset with this identity continues.
pub fn lineage(catalog: &Catalog, identity: DatasetIdentity, place: &str) -> Option<DatasetLineage> {
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
pub async fn index(
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
