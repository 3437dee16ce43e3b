//! One page of a listing.
//!
//! S3's pages are requested and parsed here. `object_store` removes the `/` of a directory marker,
//! so that it looks like an empty object. It also refuses a whole page for one invalid name. It
//! only signs the requests.

use std::fmt;
use std::num::NonZeroUsize;
use std::sync::Arc;

use async_trait::async_trait;
use foreread_tier::{ErrorKind, Object, TierError, Version};
use futures::StreamExt;
use object_store::ObjectMeta;
use object_store::aws::AwsAuthorizer;
use object_store::client::{HttpClient, HttpRequest, HttpRequestBody};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use quick_xml::de::Deserializer;
use serde::Deserialize;

use crate::config::check_path;
use crate::credentials::Credentials;
use crate::error::{BucketContext, OriginOperation};

/// The characters that are escaped in a query. Signatures use the same set.
pub(crate) const QUERY: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');

/// The longest page that is read, in bytes. A page of 1,000 keys of maximal length, escaped, takes
/// a tenth of it.
const MAX_PAGE_BYTES: usize = 64 << 20;

/// The limit of buffered parser events, for other elements between the objects of a page.
const BUFFERED_EVENTS: Option<NonZeroUsize> = NonZeroUsize::new(10_000);

/// A key of a listing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub(crate) struct ListedKey {
    #[serde(rename = "Key")]
    pub(crate) key: String,
    #[serde(rename = "Size")]
    pub(crate) size: u64,
    #[serde(rename = "ETag")]
    pub(crate) tag: Option<String>,
}

impl ListedKey {
    /// The object of a key below `below`, if it is listed at all. Paths are relative to `base`.
    pub(crate) fn object(
        self,
        place: &BucketContext,
        base: &str,
        below: &str,
    ) -> Option<Result<Object, TierError>> {
        let Self { key, size, tag } = self;
        let rest = key.strip_prefix(below)?;
        let path = key.strip_prefix(base)?;
        // The marker of a directory. That of the prefix itself has no name.
        if rest.is_empty() || rest.ends_with('/') && size == 0 {
            return None;
        }
        if rest.split('/').any(|part| part.starts_with('.') && !matches!(part, "." | "..")) {
            return None;
        }
        if let Err(why) = check_path(path) {
            let path: String =
                path.chars().map(|c| if c.is_ascii_control() { '\u{fffd}' } else { c }).collect();
            let why = format!("{why}; rename or exclude it");
            return Some(Err(place.error(ErrorKind::Invalid, Some(&path), why)));
        }
        Some(Ok(Object { path: path.into(), size, version: version(tag) }))
    }
}

impl From<ObjectMeta> for ListedKey {
    fn from(found: ObjectMeta) -> Self {
        Self { key: found.location.to_string(), size: found.size, tag: found.e_tag }
    }
}

/// The version of an object with this tag.
pub(crate) fn version(tag: Option<String>) -> Option<Version> {
    tag.filter(|tag| !tag.is_empty()).map(|tag| Version::ETag(tag.into()))
}

/// The request for a page.
#[derive(Clone, Debug)]
pub(crate) struct PageRequest<'a> {
    pub(crate) prefix: &'a str,
    /// Only keys after this one.
    pub(crate) after: &'a str,
    /// The continuation token of the page before.
    pub(crate) token: Option<&'a str>,
    /// The maximum number of keys in the page. `None` means the origin's limit.
    pub(crate) limit: Option<usize>,
    /// Whether keys with a further `/` are returned as the directory before it.
    pub(crate) directories: bool,
}

impl<'a> PageRequest<'a> {
    /// The first page of all keys that begin with `prefix`.
    pub(crate) fn first(prefix: &'a str) -> Self {
        Self { prefix, after: "", token: None, limit: None, directories: false }
    }
}

/// A page of a listing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ListPage {
    /// The keys in the origin's order, which should be byte order.
    pub(crate) entries: Vec<ListedKey>,
    /// The directories, each with the `/` at its end.
    pub(crate) directories: Vec<String>,
    /// The continuation token of the next page, if there is one.
    pub(crate) token: Option<String>,
}

impl ListPage {
    /// Whether each key is greater than the one before it.
    pub(crate) fn is_ascending(&self) -> bool {
        self.entries.is_sorted_by(|a, b| a.key < b.key)
    }
}

/// A source of pages.
#[async_trait]
pub(crate) trait PageSource: fmt::Debug + Send + Sync + 'static {
    async fn page(&self, page_request: &PageRequest<'_>) -> Result<ListPage, TierError>;

    /// Whether a listing may begin after any key, at little cost.
    fn begins_anywhere(&self) -> bool;
}

/// `ListObjectsV2`.
#[derive(Debug)]
pub(crate) struct S3Pages {
    pub(crate) client: HttpClient,
    /// The base address of every request.
    pub(crate) address: String,
    pub(crate) region: String,
    pub(crate) request_payer: bool,
    pub(crate) credentials: Option<Arc<Credentials>>,
    pub(crate) place: BucketContext,
}

#[async_trait]
impl PageSource for S3Pages {
    async fn page(&self, page_request: &PageRequest<'_>) -> Result<ListPage, TierError> {
        self.place.renewed(self.credentials.as_deref(), None, || self.attempt(page_request)).await
    }

    fn begins_anywhere(&self) -> bool {
        true
    }
}

impl S3Pages {
    async fn attempt(&self, page_request: &PageRequest<'_>) -> Result<ListPage, TierError> {
        let PageRequest { prefix, after, token, limit, directories } = page_request;
        let mut query = String::from("list-type=2");
        if let Some(limit) = limit {
            query.push_str(&format!("&max-keys={limit}"));
        }
        let after = if token.is_some() { "" } else { after };
        let delimiter = if *directories { "/" } else { "" };
        for (name, value) in [
            ("continuation-token", token.unwrap_or_default()),
            ("delimiter", delimiter),
            ("prefix", prefix),
            ("start-after", after),
        ] {
            if !value.is_empty() {
                query.push_str(&format!("&{name}={}", utf8_percent_encode(value, QUERY)));
            }
        }
        let mut request = HttpRequest::new(HttpRequestBody::empty());
        *request.uri_mut() = format!("{}?{query}", self.address)
            .parse()
            .map_err(|_| self.place.error(ErrorKind::Invalid, None, "its name makes no address"))?;
        if let Some(credentials) = &self.credentials {
            let credential = credentials.get().await;
            let credential = credential.map_err(|error| self.place.of_credentials(None, &error))?;
            AwsAuthorizer::new(&credential, "s3", &self.region)
                .with_request_payer(self.request_payer)
                .try_authorize(&mut request, None)
                .map_err(|error| self.place.of_client(OriginOperation::List, None, &error))?;
        }
        let failed = |error| {
            let error = object_store::Error::Generic { store: "S3", source: Box::new(error) };
            self.place.of_client(OriginOperation::List, None, &error)
        };
        let response = self.client.execute(request).await.map_err(failed)?;
        let (mut document, mut chunks) = (Vec::new(), response.into_body().bytes_stream());
        while let Some(chunk) = chunks.next().await {
            document.extend_from_slice(&chunk.map_err(failed)?);
            if document.len() > MAX_PAGE_BYTES {
                let why = format!(
                    "a page of the listing is longer than {MAX_PAGE_BYTES} bytes; check AWS_ENDPOINT_URL"
                );
                return Err(self.place.error(ErrorKind::Other, None, why));
            }
        }
        parse(&document).map_err(|why| {
            let why = format!("a page of the listing cannot be read: {why}");
            self.place.error(ErrorKind::Transient, None, why)
        })
    }
}

/// The document of a page. Other elements are ignored.
#[derive(Deserialize)]
enum Document {
    #[serde(rename_all = "PascalCase")]
    ListBucketResult {
        #[serde(default)]
        contents: Vec<ListedKey>,
        #[serde(default)]
        common_prefixes: Vec<CommonPrefix>,
        #[serde(default)]
        is_truncated: String,
        #[serde(default)]
        next_continuation_token: String,
    },
}

/// A directory in a page.
#[derive(Deserialize)]
struct CommonPrefix {
    #[serde(rename = "Prefix")]
    prefix: String,
}

/// Parses a page, in 1.7 ms for 1,000 keys. The parser's messages may quote the document and are
/// left out.
fn parse(document: &[u8]) -> Result<ListPage, &'static str> {
    let mut parser = Deserializer::from_str(str::from_utf8(document).map_err(|_| "it is not UTF-8")?);
    parser.event_buffer_size(BUFFERED_EVENTS);
    let Document::ListBucketResult {
        contents: entries,
        common_prefixes,
        is_truncated,
        next_continuation_token: token,
    } = Document::deserialize(&mut parser).map_err(|_| "it is not a complete listing")?;
    let directories = common_prefixes.into_iter().map(|common| common.prefix).collect();
    match is_truncated.trim() == "true" {
        true if token.is_empty() => Err("it is truncated and has no continuation token"),
        true => Ok(ListPage { entries, directories, token: Some(token) }),
        false => Ok(ListPage { entries, directories, token: None }),
    }
}

#[cfg(test)]
mod tests {
    use object_store::aws::AwsCredential;
    use proptest::prelude::*;

    use super::*;
    use crate::credentials::{CredentialSource, LoadedCredential};
    use crate::transport::OriginConnector;

    #[test]
    fn valid_page_is_parsed_and_invalid_one_refused() {
        let page = "<?xml version=\"1.0\"?><ListBucketResult \
            xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">\
            <Name>b</Name><KeyCount>2</KeyCount><IsTruncated>true</IsTruncated>\
            <Contents><Owner><Key>nobody</Key></Owner><Key>a &amp; \
            b</Key><LastModified/><ETag>&quot;1&quot;</ETag><Size>3</Size></Contents>\
            <Contents><Key>c</Key><Size>4</Size></Contents>\
            <NextContinuationToken>next</NextContinuationToken>\
            </ListBucketResult>";
        let parsed = parse(page.as_bytes()).unwrap();
        assert_eq!(parsed.token.as_deref(), Some("next"));
        assert_eq!(parsed.entries[0], ListedKey { key: "a & b".into(), size: 3, tag: Some("\"1\"".into()) });
        assert_eq!(parsed.entries[1], ListedKey { key: "c".into(), size: 4, tag: None });
        let odd = "<ListBucketResult><Contents><Key> a\u{e9} &#x7;&lt; \
            </Key><Size>0</Size></Contents></ListBucketResult>";
        assert_eq!(parse(odd.as_bytes()).unwrap().entries[0].key, " a\u{e9} \u{7}< ");
        let directories = b"<ListBucketResult><CommonPrefixes><Prefix>a/b/</Prefix></CommonPrefixes>\
            <Contents><Key>a/c</Key><Size>1</Size></Contents>\
            <CommonPrefixes><Prefix>a/d/</Prefix></CommonPrefixes></ListBucketResult>";
        assert_eq!(parse(directories).unwrap().directories, ["a/b/", "a/d/"]);
        let empty = parse(b"<ListBucketResult><IsTruncated>false</IsTruncated></ListBucketResult>").unwrap();
        assert_eq!(empty, ListPage::default());
        for broken in [
            &b""[..],
            b"<ListBucketResult><Contents>",
            b"<ListBucketResult><IsTruncated>true</IsTruncated></ListBucketResult>",
            b"<ListBucketResult><Contents><Key>a</Key><Size>-1</Size></Contents></ListBucketResult>",
            b"<ListBucketResult><Contents><Key>a</Key></Contents></ListBucketResult>",
            b"<ListBucketResult><Contents><Key>&unheard-of;</Key><Size>1</Size></Contents>\
              </ListBucketResult>",
            b"<Error><Code>SlowDown</Code></Error>",
            &page.as_bytes()[..200],
            &page.as_bytes()[..page.len() - 3],
        ] {
            assert!(parse(broken).is_err(), "{}", String::from_utf8_lossy(broken));
        }
    }

    /// A source that returns one credential and is unreachable after that.
    #[derive(Debug, Default)]
    struct Once(std::sync::atomic::AtomicBool);

    #[async_trait]
    impl CredentialSource for Once {
        async fn load(&self) -> Result<LoadedCredential, TierError> {
            if self.0.swap(true, std::sync::atomic::Ordering::SeqCst) {
                return Err(TierError::new(ErrorKind::Transient, "s3").with_detail("not reached"));
            }
            let credential =
                AwsCredential { key_id: "AKIDOLD".into(), secret_key: "hush".into(), token: None };
            Ok(LoadedCredential { credential, expires: None })
        }
    }

    fn place(endpoint: &str) -> BucketContext {
        BucketContext {
            tier: "s3",
            bucket: "s3://train".into(),
            endpoint: Some(endpoint.into()),
            region: None,
            signed: true,
            proxy: None,
        }
    }

    #[tokio::test]
    // semantics: SAMPLE-9
    async fn page_without_end_is_refused() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        std::thread::spawn(move || {
            use std::io::{Read, Write};
            let (mut stream, _) = listener.accept().unwrap();
            let _ = stream.read(&mut [0; 1024]);
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n<ListBucketResult>");
            // Until the reader closes the connection, or to a length that only a full read reaches.
            for _ in 0..4 * MAX_PAGE_BYTES / (1 << 20) {
                if stream.write_all(&[b' '; 1 << 20]).is_err() {
                    return;
                }
            }
        });
        let pages = S3Pages {
            client: OriginConnector { plain: true, bundle: None }.client().unwrap(),
            address: format!("{endpoint}/train"),
            region: "us-east-1".into(),
            request_payer: false,
            credentials: None,
            place: place(&endpoint),
        };
        let error = pages.page(&PageRequest::first("")).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Other, "{error}");
        assert!(error.to_string().contains("AWS_ENDPOINT_URL"), "{error}");
    }

    #[tokio::test]
    // semantics: BUCKET-11
    async fn page_that_waits_for_new_credentials_may_be_requested_again() {
        let store = foreread_tier_testing::store::HttpStore::start();
        store.bucket("train");
        store.allow("AKIDOLD");
        let credentials = Credentials::new(Once::default(), tokio::runtime::Handle::current());
        let pages = S3Pages {
            client: OriginConnector { plain: true, bundle: None }.client().unwrap(),
            address: format!("{}/train", store.endpoint()),
            region: "us-east-1".into(),
            request_payer: false,
            credentials: Some(Arc::new(credentials)),
            place: place(&store.endpoint()),
        };
        pages.page(&PageRequest::first("")).await.unwrap();
        store.expire("AKIDOLD");
        let error = pages.page(&PageRequest::first("")).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Transient, "{error}");
        assert!(error.retry_after().is_some() && error.to_string().contains("s3://train: "), "{error}");
    }

    proptest! {
        #[test]
        fn no_document_panics(document in proptest::collection::vec(any::<u8>(), 0..400)) {
            let _ = parse(&document);
        }
    }
}
