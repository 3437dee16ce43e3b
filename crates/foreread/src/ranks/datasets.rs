//! Datasets in a group: rank 0 opens and lists them, the other ranks open the result.

use foreread_dataset::{Catalog, Format};
use foreread_tier::OpenContext;
use foreread_types::DatasetIdentity;

use foreread_open::credentials::credentials_proof;
use foreread_open::error::{Error, Result, ended};
use foreread_open::origin::{OpenDataset, lineage};
use foreread_open::origin_policy::OriginPolicy;
use foreread_open::registry::Registry;
use foreread_open::storage::StorageOptions;
use foreread_open::target::{Target, TargetSpec};

/// Opens the origin of a catalog that rank 0 has listed or found. Rank 0 has computed its identity,
/// because the data's location may look different on this node.
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
    // Where the data's location looks different, a grown dataset has a cache of its own.
    let is_alike = catalog.identity(store.place()) == identity;
    let lineage = lineage(&catalog, identity, store.place()).filter(|_| is_alike);
    let (origin, limit) = shared.wrap(store);
    let credentials = credentials_proof(&**backend);
    Ok(OpenDataset { catalog, identity, lineage, listed: false, file: None, origin, limit, credentials })
}

/// The name of `targets`, equal on ranks with equal targets: the name of `catalog` if they can mean
/// it.
pub(super) async fn names(targets: &TargetSpec, catalog: &Catalog, context: &OpenContext) -> Result<String> {
    let known = format!("{} (catalog {})", catalog.base_url(), catalog.fingerprint());
    let (targets, format, base) = (targets.clone(), catalog.format(), catalog.base_url().to_owned());
    // Reads files and whole catalogs, while this rank's heartbeats continue.
    let looking = context.runtime.spawn_blocking(move || {
        let own = match (targets.catalog, &targets.names[..]) {
            (Some(own), _) => Some(own),
            (None, [one]) if Catalog::is_catalog_file(one) => Some(Catalog::open(one)?),
            _ => None,
        };
        Ok::<_, Error>(match own {
            Some(own) => (own.base_url().to_owned(), Some(own.fingerprint())),
            None => (place_of(&targets.names, format, &base)?, None),
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

/// Checks that `targets` exist if they do not name `catalog`. A missing dataset is another error
/// than a different one.
pub(super) async fn seek(
    targets: &TargetSpec,
    catalog: &Catalog,
    registry: &Registry,
    context: &OpenContext,
    shared: &OriginPolicy,
) -> Result<()> {
    let (named, format, base) = (targets.clone(), catalog.format(), catalog.base_url().to_owned());
    let looking = context.runtime.spawn_blocking(move || match &named.names[..] {
        _ if named.catalog.is_some() => Ok(None),
        [one] if Catalog::is_catalog_file(one) => Ok(None), // it has been read
        names => place_of(names, format, &base).map(Some),
    });
    let Some(url) = looking.await.map_err(ended)?? else { return Ok(()) };
    if !is_same_place(&url, catalog.base_url()) {
        registry.find(&url)?.open(&url, &shared.options(&targets.storage), context).await?;
    }
    Ok(())
}

/// The location of these names. Rank 0 knew the format of the samples, or found it after it had
/// chosen the location `base`.
fn place_of(names: &[String], format: Format, base: &str) -> Result<String> {
    let detected = Target::of(names, None)?.url;
    match is_same_place(&detected, base) {
        true => Ok(detected),
        false => Ok(Target::of(names, Some(format))?.url),
    }
}

/// Whether two URLs differ only in slashes at their ends.
fn is_same_place(one: &str, other: &str) -> bool {
    one.trim_end_matches('/') == other.trim_end_matches('/')
}
