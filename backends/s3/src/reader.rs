//! Reading one sample: one GET.
//!
//! The body is written into a buffer of exactly the sample's length. The buffer is allocated after
//! the response's length is known. So a wrong catalog causes an error and not the allocation. The
//! indexed version is sent as `If-Match`. The ETag of the response is checked too, for origins that
//! ignore `If-Match`.
//!
//! A response of another length means that the object has changed. If its ETag is unchanged, the
//! response was truncated, and the same request may succeed later.

use std::future::ready;
use std::sync::Arc;

use bytes::Bytes;
use foreread_tier::{Buffers, ErrorKind, Object, ReadRequest, Span, TierError, Version};
use futures::{StreamExt, stream};
use object_store::path::Path;
use object_store::{GetOptions, GetRange, GetResult, ObjectStore, ObjectStoreExt};

use crate::config::{BucketPrefix, check_path};
use crate::credentials::Credentials;
use crate::error::{BucketContext, OriginOperation};
use crate::lister::{ObjectStream, is_directory_name};
use crate::pages::ListedKey;

/// Reads objects below one prefix.
#[derive(Debug)]
pub(crate) struct ObjectReader {
    pub(crate) store: Arc<dyn ObjectStore>,
    pub(crate) credentials: Option<Arc<Credentials>>,
    pub(crate) place: BucketContext,
    pub(crate) location: BucketPrefix,
    pub(crate) buffers: Arc<dyn Buffers>,
}

impl ObjectReader {
    /// Reads one sample.
    ///
    /// # Cancel safety
    /// Dropping the future cancels the request.
    pub(crate) async fn read(&self, request: &ReadRequest) -> Result<Bytes, TierError> {
        let (path, options) = self.prepare(request)?;
        let attempt = || self.attempt(&path, options.clone(), request);
        self.place.renewed(self.credentials.as_deref(), Some(&request.object.path), attempt).await
    }

    /// Lists the objects below a directory, in the origin's order.
    pub(crate) fn list(&self, prefix: &str, after: Option<&str>) -> ObjectStream {
        let prefix = prefix.strip_suffix('/').unwrap_or(prefix);
        let (directory, below) = match self.parse(prefix) {
            Ok(directory) => (Some(directory), format!("{prefix}/")),
            Err(_) if prefix.is_empty() => (None, String::new()),
            Err(error) => return stream::iter([Err(error)]).boxed(),
        };
        let (place, after) = (self.place.clone(), after.unwrap_or_default().to_owned());
        let found = self.store.list(directory.as_ref()).filter_map(move |found| {
            let object = match found {
                Ok(found) => ListedKey::from(found).object(&place, "", &below),
                Err(error) => Some(Err(place.of_client(OriginOperation::List, None, &error))),
            };
            let is_after = |found: &Result<Object, TierError>| match found {
                Ok(object) => *object.path > *after,
                Err(_) => true,
            };
            ready(object.filter(is_after))
        });
        found.boxed()
    }

    /// The names of the directories directly below the location.
    pub(crate) async fn directories(&self) -> Result<Vec<String>, TierError> {
        let found = self.store.list_with_delimiter(None).await;
        let found = found.map_err(|error| self.place.of_client(OriginOperation::List, None, &error))?;
        let names = found.common_prefixes.iter().map(ToString::to_string);
        Ok(names.filter(|name| is_directory_name(name)).collect())
    }

    fn parse(&self, path: &str) -> Result<Path, TierError> {
        let invalid = |why: &str| self.place.error(ErrorKind::Invalid, Some(path), why);
        check_path(path).map_err(invalid)?;
        Path::parse(self.location.key(path)).map_err(|error| invalid(&error.to_string()))
    }

    /// The metadata of an object, from a read of its first byte.
    pub(crate) async fn stat(&self, path: &Arc<str>) -> Result<Object, TierError> {
        let key = self.parse(path)?;
        let attempt = || async {
            let failed = |error| self.place.of_client(OriginOperation::Read, Some(path), &error);
            let options = GetOptions { range: Some(GetRange::Bounded(0..1)), ..GetOptions::default() };
            let answer = match self.store.get_opts(&key, options).await.map_err(failed) {
                // An empty object has no first byte.
                Err(error) if matches!(error.kind(), ErrorKind::Changed | ErrorKind::Other) => {
                    self.store.get_opts(&key, GetOptions::default()).await.map_err(failed)?
                }
                answer => answer?,
            };
            let version = answer.meta.e_tag.map(|tag| Version::ETag(tag.into()));
            Ok(Object { path: Arc::clone(path), size: answer.meta.size, version })
        };
        self.place.renewed(self.credentials.as_deref(), Some(path), attempt).await
    }

    fn error(&self, request: &ReadRequest, kind: ErrorKind, why: impl AsRef<str>) -> TierError {
        self.place.error(kind, Some(&request.object.path), why)
    }

    /// The parameters of the request, if the request is valid.
    fn prepare(&self, request: &ReadRequest) -> Result<(Path, GetOptions), TierError> {
        let object = &request.object;
        let path = self.parse(&object.path)?;
        let mut options = GetOptions::default();
        match &object.version {
            None => {}
            Some(Version::ETag(tag)) => options.if_match = Some(format!("\"{}\"", bare(tag))),
            Some(_) => {
                let why = "the catalog has modification times of files; index the bucket";
                return Err(self.error(request, ErrorKind::Invalid, why));
            }
        }
        let range = request.range().map_err(|why| self.error(request, ErrorKind::Invalid, why))?;
        if request.span != Span::Whole {
            options.range = Some(GetRange::Bounded(range));
        }
        Ok((path, options))
    }

    async fn attempt(
        &self,
        path: &Path,
        options: GetOptions,
        request: &ReadRequest,
    ) -> Result<Bytes, TierError> {
        let failed = |error: object_store::Error| {
            self.place.of_client(OriginOperation::Read, Some(&request.object.path), &error)
        };
        let answer = match self.store.get_opts(path, options).await.map_err(failed) {
            // A range beyond the end has no error kind in `object_store`.
            Err(error) if error.kind() == ErrorKind::Other && request.span != Span::Whole => {
                let head = self.store.head(path).await;
                let changed = head.is_ok_and(|found| found.size != request.object.size);
                return Err(if changed {
                    self.error(request, ErrorKind::Changed, "another size")
                } else {
                    error
                });
            }
            answer => answer?,
        };
        self.compare(request, &answer)?;
        let length = usize::try_from(request.len()).ok();
        let memory = |length| self.buffers.allocate_for(request.lifetime, length, 1);
        let Some(mut buffer) = length.and_then(memory) else {
            let why = format!("there is no memory for its {} bytes", request.len());
            return Err(self.error(request, ErrorKind::Other, why));
        };
        let mut chunks = answer.into_stream();
        while let Some(chunk) = chunks.next().await {
            let chunk = chunk.map_err(failed)?;
            if chunk.len() > buffer.capacity() - buffer.filled() {
                return Err(self.error(request, ErrorKind::Transient, "more bytes came than were announced"));
            }
            buffer.extend(&chunk);
        }
        let missing = buffer.capacity() - buffer.filled();
        if missing > 0 {
            return Err(self.error(
                request,
                ErrorKind::Transient,
                format!("the answer ended {missing} bytes early"),
            ));
        }
        Ok(buffer.freeze())
    }

    /// Checks that the response has the indexed version and the expected length.
    fn compare(&self, request: &ReadRequest, answer: &GetResult) -> Result<(), TierError> {
        let object = &request.object;
        let same = match (&object.version, &answer.meta.e_tag) {
            (Some(Version::ETag(expected)), Some(tag)) => Some(bare(expected) == bare(tag)),
            _ => None,
        };
        if same.is_none() && matches!(object.version, Some(Version::ETag(_))) {
            let why = "the answer has no ETag, so the object's version is unknown";
            return Err(self.error(request, ErrorKind::Unsupported, why));
        }
        if same == Some(false) {
            return Err(self.error(request, ErrorKind::Changed, "another ETag; index it again"));
        }
        let expected = match &request.span {
            Span::Whole => 0..object.size,
            Span::Range(range) => range.clone(),
            Span::Made(_) => return Err(self.error(request, ErrorKind::Invalid, "decoded bytes")),
        };
        let size = answer.meta.size;
        if size == object.size && answer.range == expected {
            return Ok(());
        }
        if same == Some(true) {
            let got = answer.range.end.saturating_sub(answer.range.start);
            let why =
                format!("the storage announced {got} bytes instead of {} of the same ETag", request.len());
            return Err(self.error(request, ErrorKind::Transient, why));
        }
        let why = format!("{size} bytes instead of {}; index it again", object.size);
        Err(self.error(request, ErrorKind::Changed, why))
    }
}

/// A tag without its quotes. Origins write quotes in headers and not always in listings.
fn bare(tag: &str) -> &str {
    tag.strip_prefix('"').and_then(|tag| tag.strip_suffix('"')).unwrap_or(tag)
}
