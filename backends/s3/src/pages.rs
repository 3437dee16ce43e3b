//! One page of a listing.
//!
//! S3's pages are asked for and taken apart here: `object_store` takes the `/` off a place-holder's name, so that it
//! looks like an empty object, and refuses a whole page for one odd name on it. Requests are signed by it.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use foreread_tier::{ErrorKind, TierError};
use object_store::aws::{AwsAuthorizer, AwsCredential};
use object_store::client::{HttpClient, HttpRequest, HttpRequestBody};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Deserialize;

use crate::credentials::Credentials;
use crate::error::{Action, Place};

/// What a query may not have in it as it is; signatures are made of the same.
const QUERY: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');

/// A key, as a listing tells it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) key: String,
    pub(crate) size: u64,
    pub(crate) tag: Option<String>,
}

/// What is asked for.
#[derive(Clone, Debug)]
pub(crate) struct Ask<'a> {
    pub(crate) prefix: &'a str,
    /// Keys beyond this one.
    pub(crate) after: &'a str,
    /// Where the page before this one has ended.
    pub(crate) token: Option<&'a str>,
}

/// What came.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Page {
    /// In the order of their bytes.
    pub(crate) entries: Vec<Entry>,
    /// Where the next page begins, if there is one.
    pub(crate) token: Option<String>,
}

/// Who can be asked for pages.
#[async_trait]
pub(crate) trait Pages: fmt::Debug + Send + Sync + 'static {
    async fn page(&self, ask: &Ask<'_>) -> Result<Page, TierError>;

    /// Whether a listing may begin anywhere, at little cost.
    fn begins_anywhere(&self) -> bool;
}

/// `ListObjectsV2`.
#[derive(Debug)]
pub(crate) struct S3Pages {
    pub(crate) client: HttpClient,
    /// What every request's address begins with.
    pub(crate) address: String,
    pub(crate) region: String,
    pub(crate) request_payer: bool,
    pub(crate) credentials: Option<Arc<Credentials>>,
    pub(crate) place: Place,
}

#[async_trait]
impl Pages for S3Pages {
    async fn page(&self, ask: &Ask<'_>) -> Result<Page, TierError> {
        let Some(credentials) = &self.credentials else { return self.attempt(ask, None).await };
        let generation = credentials.generation();
        let named =
            |error: TierError| self.place.error(error.kind(), None, error.detail().unwrap_or_default());
        let first = credentials.get().await.map_err(named)?;
        match self.attempt(ask, Some(&first)).await {
            Err(error) if error.kind() == ErrorKind::Expired => {
                if !credentials.renew(generation).await.unwrap_or(false) {
                    return Err(error);
                }
                let second = credentials.get().await.map_err(|_| error)?;
                self.attempt(ask, Some(&second)).await
            }
            result => result,
        }
    }

    fn begins_anywhere(&self) -> bool {
        true
    }
}

impl S3Pages {
    fn transient(&self, why: impl AsRef<str>) -> TierError {
        self.place.error(ErrorKind::Transient, None, why)
    }

    async fn attempt(&self, ask: &Ask<'_>, credential: Option<&AwsCredential>) -> Result<Page, TierError> {
        let Ask { prefix, after, token } = ask;
        let mut query = String::from("list-type=2");
        let after = if token.is_some() { "" } else { after };
        for (name, value) in
            [("continuation-token", token.unwrap_or_default()), ("prefix", prefix), ("start-after", after)]
        {
            if !value.is_empty() {
                query.push_str(&format!("&{name}={}", utf8_percent_encode(value, QUERY)));
            }
        }
        let mut request = HttpRequest::new(HttpRequestBody::empty());
        *request.uri_mut() = format!("{}?{query}", self.address)
            .parse()
            .map_err(|_| self.place.error(ErrorKind::Invalid, None, "its name makes no address"))?;
        if let Some(credential) = credential {
            AwsAuthorizer::new(credential, "s3", &self.region)
                .with_request_payer(self.request_payer)
                .try_authorize(&mut request, None)
                .map_err(|error| self.place.of_client(Action::List, None, &error))?;
        }
        let failed = |error| {
            let error = object_store::Error::Generic { store: "S3", source: Box::new(error) };
            self.place.of_client(Action::List, None, &error)
        };
        let response = self.client.execute(request).await.map_err(failed)?;
        let document = response.into_body().bytes().await.map_err(failed)?;
        parse(&document).map_err(|why| self.transient(format!("a page of the listing makes no sense: {why}")))
    }
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Document {
    #[serde(default)]
    contents: Vec<Contents>,
    #[serde(default)]
    is_truncated: bool,
    next_continuation_token: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Contents {
    key: String,
    size: u64,
    #[serde(rename = "ETag")]
    tag: Option<String>,
}

fn parse(document: &[u8]) -> Result<Page, String> {
    let document: Document = quick_xml::de::from_reader(document).map_err(|error| {
        // The parser may show what it did not like, in lines.
        error.to_string().lines().next().unwrap_or_default().chars().take(200).collect::<String>()
    })?;
    let entry = |Contents { key, size, tag }| Entry { key, size, tag };
    let token = match (document.is_truncated, document.next_continuation_token) {
        (false, _) => None,
        (true, Some(token)) if !token.is_empty() => Some(token),
        (true, _) => return Err("it goes on and does not say where".into()),
    };
    Ok(Page { entries: document.contents.into_iter().map(entry).collect(), token })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn pages_are_taken_apart_and_nonsense_is_refused() {
        let page = "<?xml version=\"1.0\"?><ListBucketResult xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">\
            <Name>b</Name><KeyCount>2</KeyCount><IsTruncated>true</IsTruncated>\
            <Contents><Key>a &amp; b</Key><LastModified>x</LastModified><ETag>&quot;1&quot;</ETag><Size>3</Size></Contents>\
            <Contents><Key>c</Key><Size>4</Size></Contents><NextContinuationToken>next</NextContinuationToken>\
            </ListBucketResult>";
        let parsed = parse(page.as_bytes()).unwrap();
        assert_eq!(parsed.token.as_deref(), Some("next"));
        assert_eq!(parsed.entries[0], Entry { key: "a & b".into(), size: 3, tag: Some("\"1\"".into()) });
        assert_eq!(parsed.entries[1], Entry { key: "c".into(), size: 4, tag: None });
        let odd = "<ListBucketResult><Contents><Key> a\u{e9} &#x7;&lt; </Key><Size>0</Size></Contents></ListBucketResult>";
        assert_eq!(parse(odd.as_bytes()).unwrap().entries[0].key, " a\u{e9} \u{7}< ");
        let empty = parse(b"<ListBucketResult><IsTruncated>false</IsTruncated></ListBucketResult>").unwrap();
        assert_eq!(empty, Page::default());
        for broken in [
            &b""[..],
            b"<ListBucketResult><Contents>",
            b"<ListBucketResult><IsTruncated>true</IsTruncated></ListBucketResult>",
            b"<ListBucketResult><Contents><Key>a</Key><Size>-1</Size></Contents></ListBucketResult>",
            &page.as_bytes()[..200],
        ] {
            assert!(parse(broken).is_err(), "{}", String::from_utf8_lossy(broken));
        }
    }

    proptest! {
        #[test]
        fn no_document_panics(document in proptest::collection::vec(any::<u8>(), 0..400)) {
            let _ = parse(&document);
        }
    }
}
