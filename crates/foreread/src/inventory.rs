//! An inventory in place of a listing: the objects of an origin, from a table.
//!
//! A listing of a bucket takes a request per thousand keys, one after another: minutes for many
//! millions. Its owner may have a list already, such as AWS's daily inventory. An origin with an
//! inventory lists that, and reads as before. The price: objects that came since are not seen, and
//! one that is gone or has changed is an error when it is read.

use std::fmt;
use std::sync::Arc;

use foreread_dataset::DatasetErrorKind;
use foreread_tables::{InventoryManifest, InventoryObject, inventory};
use foreread_tier::{
    LayoutsFuture, Object, OpenContext, OriginTier, ReadFuture, ReadRequest, Tier, TierError, TierProfile,
    Version, check_path,
};
use foreread_types::setting;
use futures::future::BoxFuture;
use futures::stream::BoxStream;

use crate::error::{Error, Result};
use crate::origin::{OriginPolicy, absolute};
use crate::registry::Registry;
use crate::runtime::ended;
use crate::storage::StorageOptions;
use crate::tables::{self, kind};

/// An origin whose objects are known.
pub(crate) struct InventoryOrigin {
    inner: Arc<dyn OriginTier>,
    /// By path.
    objects: Arc<[Object]>,
}

impl fmt::Debug for InventoryOrigin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InventoryOrigin")
            .field("inner", &self.inner)
            .field("objects", &self.objects.len())
            .finish()
    }
}

impl Tier for InventoryOrigin {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn profile(&self) -> &TierProfile {
        self.inner.profile()
    }

    fn read(&self, request: Arc<ReadRequest>) -> ReadFuture {
        self.inner.read(request)
    }

    fn submit(&self) {
        self.inner.submit();
    }
}

impl OriginTier for InventoryOrigin {
    fn list(&self, prefix: &str, after: Option<&str>) -> BoxStream<'static, Result<Object, TierError>> {
        let (objects, prefix, after) =
            (Arc::clone(&self.objects), prefix.to_owned(), after.unwrap_or("").to_owned());
        let is_listed = move |object: &Object| object.path.starts_with(&prefix) && *object.path > *after;
        let listed = (0..objects.len()).map(move |at| objects[at].clone()).filter(is_listed);
        Box::pin(futures::stream::iter(listed.map(Ok)))
    }

    fn stat(&self, path: &str) -> BoxFuture<'static, Result<Object, TierError>> {
        match self.objects.binary_search_by(|object| (*object.path).cmp(path)) {
            Ok(at) => Box::pin(std::future::ready(Ok(self.objects[at].clone()))),
            // Hidden objects are not listed.
            Err(_) => self.inner.stat(path),
        }
    }

    fn layouts(&self, paths: Vec<Arc<str>>) -> Option<LayoutsFuture> {
        self.inner.layouts(paths)
    }

    fn place(&self) -> &str {
        self.inner.place()
    }
}

/// `origin`, which was opened at `url`, with the objects of the inventory at `place`.
pub(crate) async fn with_inventory(
    origin: Arc<dyn OriginTier>,
    url: &str,
    place: &str,
    storage: &StorageOptions,
    registry: &Registry,
    context: &OpenContext,
    shared: &OriginPolicy,
) -> Result<Arc<dyn OriginTier>> {
    let place = absolute(place);
    let (bucket, prefix) = parts(url);
    let storage = shared.options(storage);
    let read = async |place: &str| tables::read(place, &storage, registry, context, shared).await;
    let bytes = read(&place).await?;
    let (mut objects, mut total, mut unusable): (Vec<Object>, _, Vec<String>) = (Vec::new(), 0, Vec::new());
    let mut add = |found: Vec<InventoryObject>| {
        total += found.len();
        // Files have no ETags.
        let known = |object: InventoryObject| InventoryObject {
            etag: object.etag.filter(|_| bucket.is_some()),
            ..object
        };
        for object in found.into_iter().filter_map(|object| of_prefix(known(object), prefix)) {
            match check_path(&object.path) {
                Ok(()) => objects.push(object),
                Err(_) => unusable.push(object.path.to_string()),
            }
        }
    };
    if InventoryManifest::is_named(&place) {
        let manifest = InventoryManifest::read(&place, &bytes)?;
        if bucket.is_some_and(|bucket| bucket.rsplit('/').next() != Some(&*manifest.bucket)) {
            let message =
                format!("{place} is the inventory of the bucket {}, and not of {url}", manifest.bucket);
            return Err(Error::dataset(DatasetErrorKind::Invalid, message));
        }
        let (root, _) = parts(&place);
        let root = root.or(place.rsplit_once('/').map(|(directory, _)| directory)).unwrap_or("");
        for file in manifest.files.clone() {
            let name = format!("{root}/{file}");
            let (bytes, manifest) = (read(&name).await?, manifest.clone());
            let parsing = context.runtime.spawn_blocking(move || manifest.objects(&name, bytes));
            add(parsing.await.map_err(ended)??);
        }
    } else {
        let (kind, name) = (kind(&place)?, place.clone());
        let parsing = context.runtime.spawn_blocking(move || inventory(&name, kind, bytes));
        add(parsing.await.map_err(ended)??);
    }
    if objects.is_empty() {
        let message = format!(
            "{place}: none of its {total} objects is below {url}; check {} and the URL",
            setting("inventory")
        );
        return Err(Error::dataset(DatasetErrorKind::Empty, message));
    }
    if let Some(first) = unusable.first() {
        let count = unusable.len();
        tracing::warn!("{place}: {count} keys are no paths of files, and are left out, such as {first:?}");
    }
    objects.sort_unstable_by(|one, other| one.path.cmp(&other.path));
    if let Some([twice, _]) = objects.array_windows().find(|[one, other]| one.path == other.path) {
        let message = format!("{place}: the object {} is there twice", twice.path);
        return Err(Error::dataset(DatasetErrorKind::Invalid, message));
    }
    tracing::info!(place, objects = objects.len(), total, "lists an inventory");
    Ok(Arc::new(InventoryOrigin { inner: origin, objects: objects.into() }))
}

/// The bucket of a URL, with its scheme, and the prefix in it. A path has no bucket.
fn parts(url: &str) -> (Option<&str>, &str) {
    let Some((scheme, rest)) = url.split_once("://").filter(|(scheme, _)| *scheme != "file") else {
        return (None, "");
    };
    let bucket = rest.split('/').next().unwrap_or(rest);
    let end = scheme.len() + "://".len() + bucket.len();
    (Some(&url[..end]), url[end..].trim_matches('/'))
}

/// The object as the origin lists it, if it is below `prefix` and not hidden.
fn of_prefix(object: InventoryObject, prefix: &str) -> Option<Object> {
    let InventoryObject { key, size, etag } = object;
    let path = match prefix {
        "" => &*key,
        prefix => key.strip_prefix(prefix)?.strip_prefix('/')?,
    };
    let is_hidden = path.split('/').any(|part| part.starts_with('.'));
    if is_hidden {
        return None;
    }
    // Stores list ETags with quotes. So a listing and an inventory are one dataset.
    let version = etag.map(|tag| Version::ETag(format!("\"{tag}\"").into()));
    Some(Object { path: path.into(), size, version })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_those_of_the_bucket() {
        assert_eq!(parts("s3://b/x/y/"), (Some("s3://b"), "x/y"));
        assert_eq!(parts("s3://b"), (Some("s3://b"), ""));
        assert_eq!(parts("/data/x"), (None, ""));
        assert_eq!(parts("file:///data/x"), (None, ""));
        let of = |key: &str, prefix: &str| {
            let object = InventoryObject { key: key.to_owned(), size: 1, etag: None };
            of_prefix(object, prefix).map(|object| object.path.to_string())
        };
        assert_eq!(of("train/a/1.jpg", "train"), Some("a/1.jpg".to_owned()));
        assert_eq!(of("training/a", "train"), None);
        assert_eq!(of("train/.hidden/a", "train"), None);
        assert_eq!(of("a", ""), Some("a".to_owned()));
    }
}
