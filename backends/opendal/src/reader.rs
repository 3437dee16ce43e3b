//! Reading one sample: one request, into memory of exactly its length.
//!
//! * The request is conditional on the indexed version (`If-Match` or `If-Unmodified-Since`), where
//!   the origin supports that. The version in the answer is compared too.
//! * The memory has the length from the catalog. A longer answer is abandoned at once, so an object
//!   that grew to a terabyte costs an error and not the process.
//! * The price is a copy of every byte, because the HTTP library returns parts of its buffers,
//!   which must not be kept.

use std::ops::Bound;
use std::sync::Arc;

use bytes::Bytes;
use foreread_tier::{Buffers, ErrorKind, ReadRequest, Span, TierError, Version, unix_nanoseconds};
use futures::TryStreamExt;
use opendal::options::ReaderOptions;
use opendal::{BytesRange, Metadata, Operator};

use crate::error::from_opendal;

/// Reads objects of one operator.
#[derive(Debug)]
pub(crate) struct ObjectReader {
    name: &'static str,
    operator: Operator,
    buffers: Arc<dyn Buffers>,
}

impl ObjectReader {
    pub(crate) fn new(name: &'static str, operator: Operator, buffers: Arc<dyn Buffers>) -> Self {
        Self { name, operator, buffers }
    }

    pub(crate) fn name(&self) -> &'static str {
        self.name
    }

    /// The sample's bytes, of exactly the requested length.
    pub(crate) async fn read(&self, request: &ReadRequest) -> Result<Bytes, TierError> {
        let path = &*request.object.path;
        check_path(self.name, path)?;
        let failed = |error: opendal::Error| from_opendal(self.name, path, &error);
        let (range, wanted) = self.extent(request)?;
        let mut buffer = self.buffers.allocate_for(request.lifetime, wanted, 1).ok_or_else(|| {
            let error = TierError::new(ErrorKind::Other, self.name).with_object(path);
            error.with_detail(format!("cannot allocate {wanted} bytes"))
        })?;
        let reader = self.operator.reader_options(path, self.conditions(request)).await.map_err(failed)?;
        let mut stream = reader.clone().into_stream(range).await.map_err(failed)?;
        let mut first = true;
        while let Some(part) = stream.try_next().await.map_err(failed)? {
            if std::mem::take(&mut first) {
                self.compare(request, reader.metadata())?;
            }
            if part.len() > wanted - buffer.filled() {
                return Err(self.too_long(request, reader.metadata()));
            }
            for bytes in part {
                buffer.extend(&bytes);
            }
        }
        self.compare(request, reader.metadata())?;
        if buffer.filled() < wanted {
            return Err(TierError::changed(
                self.name,
                path,
                format!("{} bytes instead of {wanted}", buffer.filled()),
            ));
        }
        Ok(buffer.freeze())
    }

    /// The range of the request, and its length.
    fn extent(&self, request: &ReadRequest) -> Result<(BytesRange, usize), TierError> {
        let path = &*request.object.path;
        let range = request.range().map_err(|why| TierError::invalid(self.name, path, why))?;
        let range = match request.span {
            Span::Whole => (Bound::Unbounded, Bound::Unbounded),
            Span::Range(_) | Span::Made(_) => (Bound::Included(range.start), Bound::Excluded(range.end)),
        };
        let wanted = usize::try_from(request.len())
            .map_err(|_| TierError::invalid(self.name, path, "too long for the address space"))?;
        Ok((BytesRange::from(range), wanted))
    }

    /// The conditions of the request.
    fn conditions(&self, request: &ReadRequest) -> ReaderOptions {
        let capability = self.operator.info().capability();
        let mut options = ReaderOptions::default();
        match &request.object.version {
            Some(Version::ETag(tag)) if capability.read_with_if_match && self.is_comparable(tag) => {
                options.if_match = Some(tag.to_string());
            }
            Some(Version::Modified(time)) if capability.read_with_if_unmodified_since => {
                let (seconds, rest) = (time.div_euclid(1_000_000_000), time.rem_euclid(1_000_000_000));
                options.if_unmodified_since = opendal::raw::Timestamp::new(seconds, rest as i32).ok();
            }
            _ => {}
        }
        options
    }

    /// Whether the origin can compare with an ETag. Weak tags never match, and a WebDAV server that
    /// lists tags without quotes does not accept them in this form.
    fn is_comparable(&self, tag: &str) -> bool {
        let is_web = matches!(self.name, "http" | "webdav");
        tag.starts_with('"') || (!is_web && !tag.starts_with("W/"))
    }

    /// Checks that the answer, as far as it has a version, is of the indexed object.
    fn compare(&self, request: &ReadRequest, found: Option<&Metadata>) -> Result<(), TierError> {
        let Some(found) = found else { return Ok(()) };
        let object = &request.object;
        if found.is_file() && found.content_length() != object.size {
            let why = format!("{} bytes instead of {}", found.content_length(), object.size);
            return Err(TierError::changed(self.name, &object.path, why));
        }
        let same = match &object.version {
            Some(Version::ETag(tag)) => found.etag().is_none_or(|etag| opaque(etag) == opaque(tag)),
            Some(Version::Modified(time)) => {
                found.last_modified().is_none_or(|modified| nanoseconds(modified) == *time)
            }
            _ => true,
        };
        let why = "replaced since it was indexed";
        if same { Ok(()) } else { Err(TierError::changed(self.name, &object.path, why)) }
    }

    fn too_long(&self, request: &ReadRequest, found: Option<&Metadata>) -> TierError {
        let path = &*request.object.path;
        match (&request.span, found) {
            // The object has its indexed length, so the server has sent the whole object.
            (Span::Range(_), Some(_)) => {
                let error = TierError::new(ErrorKind::Unsupported, self.name).with_object(path);
                error.with_detail("the server does not support ranges; only whole files can be samples there")
            }
            _ => TierError::changed(self.name, path, format!("more than {} bytes", request.len())),
        }
    }
}

/// Refuses invalid paths, and paths that OpenDAL would change.
pub(crate) fn check_path(tier: &str, path: &str) -> Result<(), TierError> {
    foreread_tier::check_path(path).map_err(|why| TierError::invalid(tier, path, why))?;
    if path.trim() != path {
        let why = "the path begins or ends with a space, which OpenDAL removes";
        return Err(TierError::invalid(tier, path, why));
    }
    Ok(())
}

/// The value of an ETag, without the quotes that some listings omit.
fn opaque(tag: &str) -> &str {
    tag.strip_prefix("W/").unwrap_or(tag).trim_matches('"')
}

/// A modification time in the unit of versions.
pub(crate) fn nanoseconds(time: opendal::raw::Timestamp) -> i64 {
    let time = time.into_inner();
    unix_nanoseconds(time.as_second(), time.subsec_nanosecond())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_paths_are_refused() {
        for path in ["", "/a", "a/", "a//b", "../a", "a/./b", " a", "a "] {
            assert_eq!(check_path("x", path).unwrap_err().kind(), ErrorKind::Invalid, "{path:?}");
        }
        for path in ["a", "a b/c", "...", "a/.b", "ä%20"] {
            assert!(check_path("x", path).is_ok(), "{path:?}");
        }
    }

    #[test]
    fn tags_compare_without_quotes_and_weak_mark() {
        assert_eq!(opaque("W/\"a\""), opaque("a"));
        assert_eq!(opaque("\"a\""), "a");
    }
}
