//! An inventory in place of a listing: the objects of an origin, from a table.
//!
//! A listing of a bucket takes a request per thousand keys, one after another: minutes for many
//! millions. Its owner may have a list already, such as AWS's daily inventory. An origin with an
//! inventory lists that, and reads as before. Millions of objects are not kept in memory: each
//! listing reads the inventory's files again, one after another. The price: objects that came since
//! are not seen, and an object that is gone or has changed is an error when it is read.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use foreread_dataset::DatasetErrorKind;
use foreread_tables::{InventoryManifest, InventoryObject, InventoryParts, TableKind, inventory};
use foreread_tier::{
    ErrorKind as TierErrorKind, LayoutsFuture, Object, OpenContext, OriginTier, ReadFuture, ReadRequest,
    Tier, TierError, TierProfile, Version, check_path,
};
use foreread_types::setting;
use futures::future::BoxFuture;
use futures::stream::{self, BoxStream};
use futures::{StreamExt, TryStreamExt};
use tokio::runtime::Handle;

use crate::error::{Error, Result, ended};
use crate::origin_policy::OriginPolicy;
use crate::registry::Registry;
use crate::storage::StorageOptions;
use crate::tables::{self, kind};
use crate::target::absolute;

/// An origin whose objects are known.
#[derive(Debug)]
pub struct InventoryOrigin {
    inner: Arc<dyn OriginTier>,
    profile: TierProfile,
    objects: KnownObjects,
}

/// The objects of an inventory.
enum KnownObjects {
    /// By path.
    Held(Arc<[Object]>),
    Read(Arc<InventoryFiles>),
}

impl fmt::Debug for KnownObjects {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Held(objects) => write!(f, "{} objects", objects.len()),
            Self::Read(files) => write!(f, "{} files of an inventory", files.files.len()),
        }
    }
}

impl Tier for InventoryOrigin {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn profile(&self) -> &TierProfile {
        &self.profile
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
        let (prefix, after) = (prefix.to_owned(), after.unwrap_or("").to_owned());
        let is_listed = move |object: &Object| object.path.starts_with(&prefix) && *object.path > *after;
        match &self.objects {
            KnownObjects::Held(objects) => {
                let objects = Arc::clone(objects);
                let listed = (0..objects.len()).map(move |at| objects[at].clone()).filter(is_listed);
                stream::iter(listed.map(Ok)).boxed()
            }
            KnownObjects::Read(files) => {
                let failed = |error: Error| {
                    TierError::new(TierErrorKind::Invalid, "inventory").with_detail(error.to_string())
                };
                let parts = InventoryFiles::parts(files).map_err(failed);
                let objects = parts.map_ok(|part| stream::iter(part.objects).map(Ok)).try_flatten();
                objects.try_filter(move |object| std::future::ready(is_listed(object))).boxed()
            }
        }
    }

    fn stat(&self, path: &str) -> BoxFuture<'static, Result<Object, TierError>> {
        let KnownObjects::Held(objects) = &self.objects else { return self.inner.stat(path) };
        match objects.binary_search_by(|object| (*object.path).cmp(path)) {
            Ok(at) => Box::pin(std::future::ready(Ok(objects[at].clone()))),
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

/// The files of an inventory, which are read when their objects are wanted.
struct InventoryFiles {
    place: String,
    /// The manifest that names them, or the format of the only one.
    kind: InventoryKind,
    files: Vec<InventoryFile>,
    /// Whether keys are those of a bucket. Files have no ETags.
    is_bucket: bool,
    /// The directory of the origin in the bucket.
    prefix: String,
    runtime: Handle,
    /// Whether keys that no origin has were reported.
    is_reported: AtomicBool,
}

enum InventoryKind {
    Manifest(InventoryManifest),
    Table(TableKind),
}

/// A file of an inventory: its URL, its bytes if they were read, and where it is.
struct InventoryFile {
    name: String,
    bytes: Option<Bytes>,
    origin: Arc<dyn OriginTier>,
}

/// The objects in some rows.
struct InventoryPart {
    objects: Vec<Object>,
    /// The number of rows, including rows below other directories.
    rows: usize,
}

impl InventoryFiles {
    /// All objects below the prefix, part by part.
    fn parts(files: &Arc<Self>) -> BoxStream<'static, Result<InventoryPart>> {
        let state = (Arc::clone(files), 0_usize, None::<InventoryParts>);
        let next = async |(files, mut next, mut parts): (Arc<Self>, usize, Option<InventoryParts>)| loop {
            if let Some(mut open) = parts.take() {
                let parsing = files.runtime.spawn_blocking(move || (open.next(), open));
                let (part, open) = parsing.await.map_err(ended)?;
                if let Some(part) = part {
                    let part = files.part(part?);
                    return Ok(Some((part, (files, next, Some(open)))));
                }
            }
            let Some(file) = files.files.get(next) else { return Ok(None) };
            next += 1;
            let bytes = match &file.bytes {
                Some(bytes) => bytes.clone(),
                None => tables::read_file(&*file.origin, &file.name).await?,
            };
            let (parser, name) = (Arc::clone(&files), file.name.clone());
            let opening = files.runtime.spawn_blocking(move || match &parser.kind {
                InventoryKind::Manifest(manifest) => manifest.objects(&name, bytes),
                InventoryKind::Table(kind) => inventory(&name, *kind, bytes),
            });
            parts = Some(opening.await.map_err(ended)??);
        };
        stream::try_unfold(state, next).boxed()
    }

    /// The objects of these rows that the origin may have.
    fn part(&self, found: Vec<InventoryObject>) -> InventoryPart {
        let (rows, mut objects, mut unusable) = (found.len(), Vec::new(), None);
        let known = |object: InventoryObject| InventoryObject {
            etag: object.etag.filter(|_| self.is_bucket),
            ..object
        };
        for object in found.into_iter().filter_map(|object| of_prefix(known(object), &self.prefix)) {
            match check_path(&object.path) {
                Ok(()) => objects.push(object),
                Err(_) => unusable = Some(object.path),
            }
        }
        if let Some(path) = unusable
            && !self.is_reported.swap(true, Ordering::Relaxed)
        {
            let place = &self.place;
            tracing::warn!("{place}: keys that are no paths of files are left out, such as {path:?}");
        }
        InventoryPart { objects, rows }
    }
}

/// `origin`, which was opened at `url`, with the objects of the inventory at `place`. At most
/// `most` of them are kept in memory.
pub async fn with_inventory(
    origin: Arc<dyn OriginTier>,
    url: &str,
    (place, most): (&str, usize),
    storage: &StorageOptions,
    registry: &Registry,
    context: &OpenContext,
    shared: &OriginPolicy,
) -> Result<Arc<dyn OriginTier>> {
    let place = absolute(place);
    let (bucket, prefix) = parts(url);
    let storage = shared.options(storage);
    let open = async |place: &str| tables::open_parent(place, &storage, registry, context, shared).await;
    let parent = open(&place).await?;
    let bytes = tables::read_file(&*parent, &place).await?;
    let (kind, files) = if InventoryManifest::is_named(&place) {
        let manifest = InventoryManifest::read(&place, &bytes)?;
        if bucket.is_some_and(|bucket| bucket.rsplit('/').next() != Some(&*manifest.bucket)) {
            let message =
                format!("{place} is the inventory of the bucket {}, and not of {url}", manifest.bucket);
            return Err(Error::dataset(DatasetErrorKind::Invalid, message));
        }
        let (root, _) = parts(&place);
        let root = root.or(place.rsplit_once('/').map(|(directory, _)| directory)).unwrap_or("");
        let mut files: Vec<InventoryFile> = Vec::new();
        for file in &manifest.files {
            let name = format!("{root}/{file}");
            let directory = |name: &str| name.rsplit_once('/').map(|(directory, _)| directory.to_owned());
            let known = files.last().filter(|last| directory(&last.name) == directory(&name));
            let origin = match known {
                Some(last) => Arc::clone(&last.origin),
                None => open(&name).await?,
            };
            files.push(InventoryFile { name, bytes: None, origin });
        }
        (InventoryKind::Manifest(manifest), files)
    } else {
        let file = InventoryFile { name: place.clone(), bytes: Some(bytes), origin: parent };
        (InventoryKind::Table(kind(&place)?), vec![file])
    };
    let files = Arc::new(InventoryFiles {
        place: place.clone(),
        kind,
        files,
        is_bucket: bucket.is_some(),
        prefix: prefix.to_owned(),
        runtime: context.runtime.clone(),
        is_reported: AtomicBool::new(false),
    });
    let objects = known_objects(&files, url, most).await?;
    // It has an order of its own, and an unfinished listing of it is not worth a file.
    let profile = origin.profile().clone().with_listing_in_order(false);
    Ok(Arc::new(InventoryOrigin { inner: origin, profile, objects }))
}

/// The objects of an inventory, in memory if there are at most `most`.
async fn known_objects(files: &Arc<InventoryFiles>, url: &str, most: usize) -> Result<KnownObjects> {
    let (place, mut objects, mut total) = (&files.place, Vec::new(), 0);
    let mut parts = InventoryFiles::parts(files);
    while let Some(part) = parts.try_next().await? {
        total += part.rows;
        objects.extend(part.objects);
        if objects.len() > most {
            tracing::info!(place, "lists an inventory of more than {most} objects");
            return Ok(KnownObjects::Read(Arc::clone(files)));
        }
    }
    if objects.is_empty() {
        let message = format!(
            "{place}: none of its {total} objects is below {url}; check {} and the URL",
            setting("inventory")
        );
        return Err(Error::dataset(DatasetErrorKind::Empty, message));
    }
    objects.sort_unstable_by(|one, other| one.path.cmp(&other.path));
    if let Some([twice, _]) = objects.array_windows().find(|[one, other]| one.path == other.path) {
        let message = format!("{place}: the object {} is there twice", twice.path);
        return Err(Error::dataset(DatasetErrorKind::Invalid, message));
    }
    tracing::info!(place, objects = objects.len(), total, "lists an inventory");
    Ok(KnownObjects::Held(objects.into()))
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
