//! Reading one sample: one request, into memory of exactly its length.
//!
//! * The request itself asks whether the object is still the one that was indexed, by `If-Match` or
//!   `If-Unmodified-Since`, where the store takes that; where the answer says which object it is, that is compared too.
//! * The memory is as long as the catalog says the sample is. An answer that is longer is given up at once, so that an
//!   object which grew to a terabyte costs an error and not the process.
//! * The price is a copy of every byte: what the HTTP library hands out are parts of its own buffers, which may not be
//!   kept.

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
pub(crate) struct Reader {
    name: &'static str,
    operator: Operator,
    buffers: Arc<dyn Buffers>,
}

impl Reader {
    pub(crate) fn new(name: &'static str, operator: Operator, buffers: Arc<dyn Buffers>) -> Self {
        Self { name, operator, buffers }
    }

    pub(crate) fn name(&self) -> &'static str {
        self.name
    }

    /// The sample's bytes, exactly as many as were asked for.
    pub(crate) async fn read(&self, request: &ReadRequest) -> Result<Bytes, TierError> {
        let path = &*request.object.path;
        check_path(self.name, path)?;
        let failed = |error: opendal::Error| from_opendal(self.name, path, &error);
        let (range, wanted) = self.extent(request)?;
        let mut buffer = self.buffers.allocate(wanted, 1).ok_or_else(|| {
            let error = TierError::new(ErrorKind::Other, self.name).with_object(path);
            error.with_detail(format!("there is no memory for its {wanted} bytes"))
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

    /// What to ask for, and how many bytes that is.
    fn extent(&self, request: &ReadRequest) -> Result<(BytesRange, usize), TierError> {
        let path = &*request.object.path;
        let range = request.range().map_err(|why| TierError::invalid(self.name, path, why))?;
        let range = match request.span {
            Span::Whole => (Bound::Unbounded, Bound::Unbounded),
            Span::Range(_) => (Bound::Included(range.start), Bound::Excluded(range.end)),
        };
        let wanted = usize::try_from(request.len())
            .map_err(|_| TierError::invalid(self.name, path, "it is longer than this machine can address"))?;
        Ok((BytesRange::from(range), wanted))
    }

    /// What the store is to compare before it answers.
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

    /// Whether the store can compare with an ETag: weak ones are never equal to it, and a WebDAV server that lists its tags
    /// without quotes does not know them by that name.
    fn is_comparable(&self, tag: &str) -> bool {
        let is_web = matches!(self.name, "http" | "webdav");
        tag.starts_with('"') || (!is_web && !tag.starts_with("W/"))
    }

    /// Whether the object that answers, where it says which it is, is the one that was indexed.
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
        if same { Ok(()) } else { Err(TierError::changed(self.name, &object.path, "it was replaced since")) }
    }

    fn too_long(&self, request: &ReadRequest, found: Option<&Metadata>) -> TierError {
        let path = &*request.object.path;
        match (&request.span, found) {
            // The object is as long as it was: the server has sent all of it.
            (Span::Range(_), Some(_)) => {
                let error = TierError::new(ErrorKind::Unsupported, self.name).with_object(path);
                error.with_detail(
                    "the server does not answer with parts of objects; only whole files can be samples there",
                )
            }
            _ => TierError::changed(self.name, path, format!("more than {} bytes", request.len())),
        }
    }
}

/// Refuses what is no path below an origin, or what OpenDAL would take for another path.
pub(crate) fn check_path(tier: &str, path: &str) -> Result<(), TierError> {
    foreread_tier::check_path(path).map_err(|why| TierError::invalid(tier, path, why))?;
    if path.trim() != path {
        return Err(TierError::invalid(
            tier,
            path,
            "the path begins or ends with a blank, which this store's library drops",
        ));
    }
    Ok(())
}

/// What is in an ETag: listings give it without quotes in some stores.
fn opaque(tag: &str) -> &str {
    tag.strip_prefix("W/").unwrap_or(tag).trim_matches('"')
}

/// A modification time as a version tells it.
pub(crate) fn nanoseconds(time: opendal::raw::Timestamp) -> i64 {
    let time = time.into_inner();
    unix_nanoseconds(time.as_second(), time.subsec_nanosecond())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_that_are_not_taken() {
        for path in ["", "/a", "a/", "a//b", "../a", "a/./b", " a", "a "] {
            assert_eq!(check_path("x", path).unwrap_err().kind(), ErrorKind::Invalid, "{path:?}");
        }
        for path in ["a", "a b/c", "...", "a/.b", "ä%20"] {
            assert!(check_path("x", path).is_ok(), "{path:?}");
        }
    }

    #[test]
    fn tags_compare_without_their_dress() {
        assert_eq!(opaque("W/\"a\""), opaque("a"));
        assert_eq!(opaque("\"a\""), "a");
    }
}
