//! Datasets on the ranks of a group: rank 0 opens them, the others open what rank 0 has found.

use foreread_dataset::{Catalog, Format};
use foreread_tier::OpenContext;
use foreread_types::DatasetIdentity;

use crate::error::{Error, Result};
use crate::origin::{OpenDataset, OriginPolicy};
use crate::registry::Registry;
use crate::runtime::ended;
use crate::storage::StorageOptions;
use crate::target::{Target, TargetSpec};

/// Opens the origin of a catalog that rank 0 has made or found, and whose identity it has computed:
/// where the data lie may look different from here.
pub(super) async fn open_known(
    catalog: Catalog,
    identity: DatasetIdentity,
    storage: &StorageOptions,
    registry: &Registry,
    context: &OpenContext,
    shared: &OriginPolicy,
) -> Result<OpenDataset> {
    let backend = registry.find(catalog.base_url())?;
    let store = backend.open(catalog.base_url(), &shared.options(storage), context).await?;
    let (origin, limit) = shared.wrap(store);
    Ok(OpenDataset { catalog, identity, listed: false, file: None, origin, limit })
}

/// What `targets` name, as words that are equal on ranks that mean the same: `catalog`'s, where
/// they can mean that one.
pub(super) async fn names(targets: &TargetSpec, catalog: &Catalog, context: &OpenContext) -> Result<String> {
    let known = format!("{} (catalog {})", catalog.base_url(), catalog.fingerprint());
    let targets = targets.clone();
    // Looks at files, and reads catalogs whole, while this rank's heartbeats go on.
    let looking = context.runtime.spawn_blocking(move || {
        let own = match (targets.catalog, &targets.names[..]) {
            (Some(own), _) => Some(own),
            (None, [one]) if Catalog::is_catalog_file(one) && Format::of_shard(one).is_none() => {
                Some(Catalog::open(one)?)
            }
            _ => None,
        };
        Ok::<_, Error>(match own {
            Some(own) => (own.base_url().to_owned(), Some(own.fingerprint())),
            None => (Target::of(&targets.names)?.url, None),
        })
    });
    let (url, own) = looking.await.map_err(ended)??;
    Ok(match own {
        Some(own) if own == catalog.fingerprint() => known,
        Some(own) => format!("{url} (catalog {own})"),
        None if is_same_place(&url, catalog.base_url()) => known,
        None => url,
    })
}

/// Finds out whether what `targets` name is there, where they do not name `catalog`: what is not is
/// another mistake than what differs.
pub(super) async fn seek(
    targets: &TargetSpec,
    catalog: &Catalog,
    registry: &Registry,
    context: &OpenContext,
    shared: &OriginPolicy,
) -> Result<()> {
    let is_catalog = |target: &String| Catalog::is_catalog_file(target) && Format::of_shard(target).is_none();
    let named = targets.clone();
    let looking = context.runtime.spawn_blocking(move || match &named.names[..] {
        _ if named.catalog.is_some() => Ok(None),
        [one] if is_catalog(one) => Ok(None), // it has been read
        names => Target::of(names).map(|target| Some(target.url)),
    });
    let Some(url) = looking.await.map_err(ended)?? else { return Ok(()) };
    if !is_same_place(&url, catalog.base_url()) {
        registry.find(&url)?.open(&url, &shared.options(&targets.storage), context).await?;
    }
    Ok(())
}

/// Whether two URLs differ in nothing but slashes at their ends.
fn is_same_place(one: &str, other: &str) -> bool {
    one.trim_end_matches('/') == other.trim_end_matches('/')
}
