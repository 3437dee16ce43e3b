//! Handles requests.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::header::{
    ACCEPT_RANGES, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, ETAG, HeaderValue,
    IF_MATCH, LAST_MODIFIED, RANGE,
};
use hyper::{HeaderMap, Method, Request, Response, StatusCode};
use percent_encoding::percent_decode_str;
use tokio::sync::Semaphore;

use super::access::Access;
use super::answer::S3Error;
use super::body::{AnswerBody, BodyEnd, ConnectionClosed};
use super::bucket::{Bucket, BucketKeys, ListQuery, StoredObject};
use super::content::Content;
use super::counters::{CountedRequest, Kind, RequestCounters};
use super::faults::{Fault, Faults};
use super::xml;
use crate::ceiling::RateCeiling;

/// The state shared by all connections.
pub(super) struct StoreShared {
    pub(super) buckets: RwLock<BTreeMap<String, Bucket>>,
    pub(super) counters: Arc<RequestCounters>,
    pub(super) faults: Faults,
    pub(super) access: Access,
    pub(super) ceiling: RwLock<Option<RateCeiling>>,
    pub(super) latency: AtomicU64, // nanoseconds
    /// The requests that are processed at once. The others wait.
    pub(super) places: RwLock<Option<Arc<Semaphore>>>,
    pub(super) tags: AtomicU64,
    /// Whether new objects get no tag.
    pub(super) untagged: AtomicBool,
}

type StoreAnswer = Result<Response<AnswerBody>, ConnectionClosed>;

/// A parsed request.
struct StoreRequest<'a> {
    kind: Kind,
    bucket: String,
    key: String,
    query: BTreeMap<String, String>,
    headers: &'a HeaderMap,
}

impl<'a> StoreRequest<'a> {
    /// `None` if an escape is not UTF-8.
    fn of(request: &'a Request<Incoming>) -> Option<Self> {
        let path = request.uri().path().strip_prefix('/').unwrap_or_default();
        let (bucket, key) = path.split_once('/').unwrap_or((path, ""));
        let decode = |text: &str| percent_decode_str(text).decode_utf8().ok().map(String::from);
        let (bucket, key) = (decode(bucket)?, decode(key)?);
        let mut query = BTreeMap::new();
        for pair in request.uri().query().unwrap_or_default().split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            query.insert(decode(name)?, decode(&value.replace('+', " "))?);
        }
        let kind = match *request.method() {
            Method::GET if key.is_empty() && query.contains_key("location") => Kind::Other,
            Method::GET if key.is_empty() => Kind::List,
            Method::GET => Kind::Get,
            Method::HEAD => Kind::Head,
            Method::PUT => Kind::Put,
            _ => Kind::Other,
        };
        Some(Self { kind, bucket, key, query, headers: request.headers() })
    }

    fn param(&self, name: &str) -> &str {
        self.query.get(name).map_or("", String::as_str)
    }
}

impl StoreShared {
    pub(super) async fn serve(&self, request: Request<Incoming>) -> StoreAnswer {
        let Some(parsed) = StoreRequest::of(&request) else {
            let counted = self.counters.start(Kind::Other);
            return self.refuse(&S3Error::InvalidArgument("Not UTF-8"), counted);
        };
        let mut counted = self.counters.start(parsed.kind);
        if self.ceiling.read().unwrap_or_else(PoisonError::into_inner).as_ref().is_some_and(|c| !c.admits()) {
            self.counters.lock().refused += 1;
            return self.refuse(&S3Error::SlowDown(None), counted);
        }
        let fault = self.faults.judge(parsed.kind, &parsed.key);
        self.counters.lock().faults += u64::from(fault.is_some());
        let latency = Duration::from_nanos(self.latency.load(Relaxed));
        let added = match fault {
            Some(Fault::Late(time) | Fault::StallHeaders(time)) => time,
            _ => Duration::ZERO,
        };
        // A hanging connection is not being processed.
        let hangs = matches!(fault, Some(Fault::StallHeaders(_) | Fault::StallBody(_)));
        let places = self.places.read().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(places) = places.filter(|_| !hangs) {
            counted.place = places.acquire_owned().await.ok();
        }
        if latency + added > Duration::ZERO {
            tokio::time::sleep(latency + added).await;
        }
        let refusal = match fault {
            Some(Fault::Close) => return Err(ConnectionClosed),
            Some(Fault::Internal) => Some(S3Error::InternalError),
            Some(Fault::SlowDown(after)) => Some(S3Error::SlowDown(after)),
            Some(Fault::Expired) => Some(S3Error::ExpiredToken),
            _ => None,
        };
        let refusal = refusal.or_else(|| self.admit(&parsed).err());
        if let Some(refusal) = refusal {
            return self.refuse(&refusal, counted);
        }
        let (kind, object) =
            (parsed.kind, (parsed.kind == Kind::Put).then(|| (parsed.bucket.clone(), parsed.key.clone())));
        let encoded = parsed.headers.contains_key(CONTENT_ENCODING);
        if let Some((bucket, key)) = object {
            return match request.into_body().collect().await {
                Ok(_) if encoded || key.is_empty() => self.refuse(&S3Error::NotImplemented, counted),
                Ok(body) => self.reply(self.put(&bucket, &key, body.to_bytes()), kind, counted),
                Err(_) => Err(ConnectionClosed),
            };
        }
        let done = match parsed.kind {
            Kind::Get | Kind::Head => self.object(&parsed, fault),
            Kind::List => self.list(&parsed),
            Kind::Other if parsed.query.contains_key("location") => Ok(ObjectReply::text(
                "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n\
                 <LocationConstraint xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\"/>",
            )),
            Kind::Put | Kind::Other => Err(S3Error::NotImplemented),
        };
        self.reply(done, kind, counted)
    }

    fn reply(&self, done: Result<ObjectReply, S3Error>, kind: Kind, counted: CountedRequest) -> StoreAnswer {
        match done {
            Ok(reply) if kind == Kind::Get => Ok(reply.send(counted).map(AnswerBody::counted)),
            Ok(reply) => Ok(reply.send(counted)),
            Err(refusal) => self.refuse(&refusal, counted),
        }
    }

    fn refuse(&self, refusal: &S3Error, counted: CountedRequest) -> StoreAnswer {
        let (response, text) = refusal.answer();
        let body = Bytes::from(text);
        let range = 0..body.len() as u64;
        Ok(response.map(|()| AnswerBody::new(Arc::new(body), range, BodyEnd::Whole, counted)))
    }

    /// Whether the request is permitted.
    fn admit(&self, parsed: &StoreRequest<'_>) -> Result<(), S3Error> {
        let signed_for = self.access.check(parsed.headers)?;
        let buckets = self.buckets.read().unwrap_or_else(PoisonError::into_inner);
        let bucket = buckets.get(&parsed.bucket).ok_or(S3Error::NoSuchBucket)?;
        let denied = match parsed.kind {
            Kind::List => bucket.list_denied,
            Kind::Get | Kind::Head => bucket.read_denied,
            Kind::Put | Kind::Other => false,
        };
        match &bucket.region {
            Some(region) if signed_for.is_some_and(|signed| signed != *region) => {
                Err(S3Error::PermanentRedirect(region.clone()))
            }
            _ if denied => Err(S3Error::AccessDenied),
            _ => Ok(()),
        }
    }

    fn object(&self, parsed: &StoreRequest<'_>, fault: Option<Fault>) -> Result<ObjectReply, S3Error> {
        let stored = {
            let buckets = self.buckets.read().unwrap_or_else(PoisonError::into_inner);
            buckets
                .get(&parsed.bucket)
                .and_then(|bucket| bucket.find(&parsed.key))
                .ok_or(S3Error::NoSuchKey)?
        };
        let StoredObject { mut content, mut tag } = stored;
        if fault == Some(Fault::Replaced) {
            tag = "\"7265706c61636564\"".into();
            content = Arc::new(Bytes::from(vec![0; content.size() as usize]));
        }
        if let Some(expected) = parsed.headers.get(IF_MATCH)
            && expected.as_bytes() != tag.as_bytes()
            && expected.as_bytes() != b"*"
        {
            return Err(S3Error::PreconditionFailed);
        }
        let size = content.size();
        let range_header = parsed.headers.get(RANGE).and_then(|value| value.to_str().ok());
        let (range, partial) = match range_header {
            Some(text) => (range_of(text, size).ok_or(S3Error::InvalidRange)?, true),
            None => (0..size, false),
        };
        let length = range.end - range.start;
        let mut reply = ObjectReply::new(content, range.clone());
        let headers = reply.response.headers_mut();
        if let Ok(tag) = HeaderValue::from_str(&tag)
            && !tag.is_empty()
        {
            headers.insert(ETAG, tag);
        }
        headers.insert(LAST_MODIFIED, HeaderValue::from_static("Thu, 01 Jan 2026 00:00:00 GMT"));
        headers.insert(ACCEPT_RANGES, HeaderValue::from_static("bytes"));
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("binary/octet-stream"));
        if partial {
            let text = format!("bytes {}-{}/{size}", range.start, range.end.saturating_sub(1));
            headers.insert(CONTENT_RANGE, HeaderValue::try_from(text).map_err(|_| S3Error::InvalidRange)?);
        }
        headers.insert(CONTENT_LENGTH, HeaderValue::from(length));
        if partial {
            *reply.response.status_mut() = StatusCode::PARTIAL_CONTENT;
        }
        if parsed.kind == Kind::Head {
            reply.range = 0..0;
            return Ok(reply);
        }
        match fault {
            Some(Fault::CloseInBody) if length > 0 => reply.end = BodyEnd::Close(length / 2),
            Some(Fault::StallBody(time)) => reply.end = BodyEnd::Stall(length / 2, time),
            Some(Fault::Half) => {
                reply.range.end -= length - length / 2;
                reply.response.headers_mut().insert(CONTENT_LENGTH, HeaderValue::from(length / 2));
            }
            _ => {}
        }
        Ok(reply)
    }

    fn list(&self, parsed: &StoreRequest<'_>) -> Result<ObjectReply, S3Error> {
        let token = parsed.param("continuation-token");
        let after = match token {
            "" => parsed.param("start-after").to_owned(),
            token => {
                xml::name_of(token).ok_or(S3Error::InvalidArgument("The continuation token is incorrect"))?
            }
        };
        let max_keys = match parsed.param("max-keys") {
            "" => 1000,
            text => text.parse().map_err(|_| S3Error::InvalidArgument("max-keys is not a number"))?,
        };
        let query = ListQuery {
            prefix: parsed.param("prefix").to_owned(),
            delimiter: parsed.param("delimiter").to_owned(),
            after,
            continues: !token.is_empty(),
            max_keys: max_keys.min(1000),
        };
        let buckets = self.buckets.read().unwrap_or_else(PoisonError::into_inner);
        let page = buckets.get(&parsed.bucket).ok_or(S3Error::NoSuchBucket)?.list(&query);
        self.counters.lock().listed += page.lines.len() as u64;
        let encoded = parsed.param("encoding-type") == "url";
        Ok(ObjectReply::text(xml::page(&parsed.bucket, &query, &page, encoded)))
    }

    fn put(&self, bucket: &str, key: &str, content: Bytes) -> Result<ObjectReply, S3Error> {
        let tag = self.store(bucket, key, Arc::new(content))?;
        let mut reply = ObjectReply::text("");
        if let Ok(tag) = HeaderValue::from_str(&tag) {
            reply.response.headers_mut().insert(ETAG, tag);
        }
        Ok(reply)
    }

    /// Stores an object under a new tag.
    pub(super) fn store(
        &self,
        bucket: &str,
        key: &str,
        content: Arc<dyn Content>,
    ) -> Result<Arc<str>, S3Error> {
        let tag: Arc<str> = match self.untagged.load(Relaxed) {
            true => "".into(),
            false => format!("\"{:016x}\"", self.tags.fetch_add(1, Relaxed)).into(),
        };
        let mut buckets = self.buckets.write().unwrap_or_else(PoisonError::into_inner);
        match &mut buckets.get_mut(bucket).ok_or(S3Error::NoSuchBucket)?.keys {
            BucketKeys::Map(map) => {
                map.insert(key.into(), StoredObject { content, tag: Arc::clone(&tag) });
                Ok(tag)
            }
            BucketKeys::Numbered(_) => Err(S3Error::NotImplemented),
        }
    }
}

/// An answer that is not a refusal.
struct ObjectReply {
    response: Response<()>,
    content: Arc<dyn Content>,
    range: Range<u64>,
    end: BodyEnd,
}

impl ObjectReply {
    fn new(content: Arc<dyn Content>, range: Range<u64>) -> Self {
        Self { response: Response::new(()), content, range, end: BodyEnd::Whole }
    }

    fn text(text: impl Into<Bytes>) -> Self {
        let text = text.into();
        let length = text.len() as u64;
        let mut reply = Self::new(Arc::new(text), 0..length);
        reply.response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/xml"));
        reply
    }

    fn send(self, counted: CountedRequest) -> Response<AnswerBody> {
        let Self { response, content, range, end } = self;
        response.map(|()| AnswerBody::new(content, range, end, counted))
    }
}

/// The bytes of a `Range` header. `None` if it is invalid or selects none.
fn range_of(text: &str, size: u64) -> Option<Range<u64>> {
    let (first, last) = text.strip_prefix("bytes=")?.split_once('-')?;
    let range = match (first, last) {
        ("", suffix) => size.saturating_sub(suffix.parse().ok()?)..size,
        (first, "") => first.parse().ok()?..size,
        (first, last) => first.parse().ok()?..last.parse::<u64>().ok()?.saturating_add(1).min(size),
    };
    (range.start < range.end).then_some(range)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn range_headers_are_parsed() {
        for (text, range) in [
            ("bytes=0-0", Some(0..1)),
            ("bytes=3-", Some(3..10)),
            ("bytes=-4", Some(6..10)),
            ("bytes=8-99", Some(8..10)),
        ] {
            assert_eq!(range_of(text, 10), range, "{text}");
        }
        for text in ["bytes=10-", "bytes=5-4", "bytes=x-", "lines=0-1", "bytes=-0"] {
            assert_eq!(range_of(text, 10), None, "{text}");
        }
    }
}
