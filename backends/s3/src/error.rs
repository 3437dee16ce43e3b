//! The kind of each error of an origin.
//!
//! This module only classifies errors. The layers decide on retries. Every message names the
//! bucket, the object, if there is one, and the remedy. Messages repeat no text of an origin beyond
//! its error code (see `transport.rs`).

use foreread_tier::{ErrorKind, TierError};
use object_store::client::HttpError;

use crate::credentials::Credentials;
use crate::transport::{ConnectError, ResponseError, chain, root};

/// The operation that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OriginOperation {
    Read,
    List,
}

/// The bucket that messages name.
#[derive(Clone, Debug)]
pub(crate) struct BucketContext {
    /// The tier's name.
    pub(crate) tier: &'static str,
    /// `s3://bucket`.
    pub(crate) bucket: String,
    /// The address of the origin, if it is not the default one.
    pub(crate) endpoint: Option<String>,
    /// The region that requests are signed for, if the origin has regions.
    pub(crate) region: Option<String>,
    /// Whether requests are signed.
    pub(crate) signed: bool,
    /// The proxy of requests.
    pub(crate) proxy: Option<String>,
}

impl BucketContext {
    /// An error about an object (its path below the prefix), or about the bucket.
    pub(crate) fn error(&self, kind: ErrorKind, object: Option<&str>, why: impl AsRef<str>) -> TierError {
        let error = TierError::new(kind, self.tier);
        match object {
            Some(path) => {
                error.with_object(path).with_detail(format!("in {}: {}", self.bucket, why.as_ref()))
            }
            None => error.with_object(&*self.bucket).with_detail(why.as_ref()),
        }
    }

    /// The error of a client.
    pub(crate) fn of_client(
        &self,
        action: OriginOperation,
        object: Option<&str>,
        error: &object_store::Error,
    ) -> TierError {
        for found in chain(error) {
            if let Some(refused) = found.downcast_ref::<ResponseError>() {
                return self.of_refusal(action, object, refused);
            }
            if let Some(known) = found.downcast_ref::<TierError>() {
                return self.of_credentials(object, known);
            }
            if let Some(transport) = found.downcast_ref::<HttpError>()
                && !chain(transport).any(|cause| cause.is::<ResponseError>())
            {
                return self.of_transport(object, transport);
            }
        }
        use object_store::Error::{
            InvalidPath, NotFound, NotImplemented, NotSupported, PermissionDenied, Precondition,
            Unauthenticated,
        };
        let kind = match error {
            NotFound { .. } => ErrorKind::NotFound,
            Precondition { .. } => ErrorKind::Changed,
            PermissionDenied { .. } | Unauthenticated { .. } => ErrorKind::Denied,
            InvalidPath { .. } => ErrorKind::Invalid,
            NotSupported { .. } | NotImplemented { .. } => ErrorKind::Unsupported,
            _ => ErrorKind::Other,
        };
        let why = root(error).replace('\n', " ");
        self.error(kind, object, why)
    }

    /// The error of credentials, which names neither bucket nor object.
    pub(crate) fn of_credentials(&self, object: Option<&str>, known: &TierError) -> TierError {
        self.error(known.kind(), object, known.detail().unwrap_or_default())
            .with_retry_after(known.retry_after())
    }

    /// Runs an attempt. If its credentials have expired and new ones are available, it runs a
    /// second attempt.
    pub(crate) async fn renewed<T, F>(
        &self,
        credentials: Option<&Credentials>,
        object: Option<&str>,
        attempt: impl Fn() -> F,
    ) -> Result<T, TierError>
    where
        F: Future<Output = Result<T, TierError>>,
    {
        let Some(credentials) = credentials else { return attempt().await };
        let generation = credentials.generation();
        let error = match attempt().await {
            Err(error) if error.kind() == ErrorKind::Expired => error,
            result => return result,
        };
        let failed = match credentials.renew(generation).await {
            Ok(true) => return attempt().await,
            Ok(false) => return Err(error),
            Err(failed) => failed,
        };
        let (expired, failure) = (error.detail().unwrap_or_default(), failed.detail().unwrap_or_default());
        let kind = if failed.kind() == ErrorKind::Transient { failed.kind() } else { ErrorKind::Expired };
        let error = TierError::new(kind, self.tier).with_object(object.unwrap_or(&self.bucket));
        Err(error.with_detail(format!("{expired}; {failure}")).with_retry_after(failed.retry_after()))
    }

    /// The error of a connection that failed or was interrupted.
    pub(crate) fn of_transport(&self, object: Option<&str>, error: &HttpError) -> TierError {
        let why = root(error).replace('\n', " ");
        let severed = ConnectError::of(error);
        let at = self.endpoint.as_deref().unwrap_or("the storage");
        let check = if self.tier == "s3" { "check AWS_ENDPOINT_URL" } else { "check the endpoint" };
        let why = match (&self.proxy, severed) {
            (Some(proxy), _) => {
                format!("{why}, through the proxy {proxy}; check HTTP_PROXY, HTTPS_PROXY and NO_PROXY")
            }
            (None, ConnectError::ConnectionRefused) => {
                format!("nothing answers at {at}: {why}; is it up? {check}")
            }
            (None, ConnectError::Unknown) => format!("{at}: no such name: {why}; {check}"),
            (None, ConnectError::NotTls) => {
                format!("{at} does not speak TLS ({why}); write http:// there and set AWS_ALLOW_HTTP=true")
            }
            (None, ConnectError::Otherwise) => match &self.endpoint {
                Some(endpoint) => format!("{why} ({endpoint})"),
                None => why,
            },
        };
        let kind = if severed == ConnectError::NotTls { ErrorKind::Invalid } else { ErrorKind::Transient };
        self.error(kind, object, why)
    }

    /// The error of a response.
    pub(crate) fn of_refusal(
        &self,
        action: OriginOperation,
        object: Option<&str>,
        refused: &ResponseError,
    ) -> TierError {
        let (kind, why) = self.classify(action, refused);
        let why = why.unwrap_or_else(|| refused.to_string());
        self.error(kind, object, why).with_retry_after(refused.retry_after)
    }

    fn at(&self) -> String {
        self.endpoint.as_ref().map(|endpoint| format!(" at {endpoint}")).unwrap_or_default()
    }

    /// The kind, and an explanation if the code alone is not enough. The code of the body has
    /// priority. Any response may have the header with the bucket's region, and one status has
    /// several codes.
    fn classify(&self, action: OriginOperation, refused: &ResponseError) -> (ErrorKind, Option<String>) {
        let code = refused.code.as_deref().unwrap_or_default();
        match code {
            "NoSuchBucket" | "ContainerNotFound" => {
                let check = match self.tier {
                    "azure" => "and the account's (AZURE_STORAGE_ACCOUNT_NAME, or in the URL)",
                    "gcs" => "and the credentials' project",
                    _ => "and AWS_ENDPOINT_URL",
                };
                let why = format!("there is no such bucket{}; check its name {check}", self.at());
                return (ErrorKind::NotFound, Some(why));
            }
            "NoSuchKey" => return (ErrorKind::NotFound, Some("there is no such object (any more)".into())),
            "InvalidAccessKeyId" => {
                let why = format!(
                    "InvalidAccessKeyId: the access key is not known{}; check AWS_ACCESS_KEY_ID or \
                     AWS_PROFILE, and AWS_ENDPOINT_URL",
                    self.at()
                );
                return (ErrorKind::Denied, Some(why));
            }
            "SignatureDoesNotMatch" => {
                let why = "SignatureDoesNotMatch: the secret key is not that of the access key; check \
                           AWS_SECRET_ACCESS_KEY or the profile";
                return (ErrorKind::Denied, Some(why.into()));
            }
            "RequestTimeTooSkewed" => {
                return (
                    ErrorKind::Denied,
                    Some("RequestTimeTooSkewed: set this machine's clock right".into()),
                );
            }
            "ExpiredToken"
            | "ExpiredTokenException"
            | "RequestExpired"
            | "InvalidToken"
            | "TokenRefreshRequired" => {
                let why =
                    format!("{code}: get new credentials (AWS_SESSION_TOKEN, `aws sso login`, the role)");
                return (ErrorKind::Expired, Some(why));
            }
            "InvalidObjectState" | "BlobArchived" | "BlobBeingRehydrated" => {
                let why = format!(
                    "{code}: the object is archived; restore it first (`aws s3api restore-object`, or `az \
                     storage blob set-tier --tier Hot`)"
                );
                return (ErrorKind::Other, Some(why));
            }
            code if is_throttling(code) => return (ErrorKind::Throttled, None),
            "RequestTimeout" | "RequestTimeoutException" | "PriorRequestNotComplete" => {
                return (ErrorKind::Transient, None);
            }
            "PreconditionFailed" | "InvalidRange" => return self.changed(),
            _ => {}
        }
        if let Some(region) = self.elsewhere(refused) {
            let why = format!("the bucket is in the region {region}; set AWS_REGION={region}");
            return (ErrorKind::Invalid, Some(why));
        }
        match refused.status.as_u16() {
            401 | 403 => (ErrorKind::Denied, Some(self.denied(action, refused))),
            404 => (ErrorKind::NotFound, None),
            408 | 500 | 502 | 504 => (ErrorKind::Transient, None),
            412 | 416 => self.changed(),
            429 | 503 => (ErrorKind::Throttled, None),
            501 | 505 => (ErrorKind::Unsupported, None),
            301 | 302 | 307 | 308 => {
                let why = format!("{refused}: it is elsewhere; check AWS_REGION and AWS_ENDPOINT_URL");
                (ErrorKind::Invalid, Some(why))
            }
            400 if code.is_empty() && self.endpoint.as_ref().is_some_and(|at| at.starts_with("http://")) => {
                let why =
                    format!("{refused}{}: if it speaks TLS, write https:// in AWS_ENDPOINT_URL", self.at());
                (ErrorKind::Invalid, Some(why))
            }
            400 | 405 | 409 => (ErrorKind::Invalid, None),
            status if status >= 500 => (ErrorKind::Transient, None),
            _ => (ErrorKind::Other, None),
        }
    }

    /// The correct region, if this error response means that the bucket is in another region.
    fn elsewhere<'a>(&self, refused: &'a ResponseError) -> Option<&'a str> {
        let names_region = match refused.code.as_deref() {
            // A redirect, or the response to a HEAD, which has no body.
            None => matches!(refused.status.as_u16(), 301 | 307 | 400),
            Some(code) => matches!(
                code,
                "PermanentRedirect"
                    | "TemporaryRedirect"
                    | "AuthorizationHeaderMalformed"
                    | "IllegalLocationConstraintException"
            ),
        };
        refused.region.as_deref().filter(|region| names_region && self.region.as_deref() != Some(region))
    }

    fn changed(&self) -> (ErrorKind, Option<String>) {
        (ErrorKind::Changed, Some("the object was replaced since; index it again".into()))
    }

    fn denied(&self, action: OriginOperation, refused: &ResponseError) -> String {
        if !self.signed {
            return format!("{refused}: it is not public; unset AWS_SKIP_SIGNATURE and give credentials");
        }
        let needs = match (self.tier, action) {
            ("azure", _) => {
                "a right key (AZURE_STORAGE_ACCOUNT_KEY), or an identity with the role Storage Blob Data \
                 Reader"
            }
            ("gcs", OriginOperation::List) => "storage.objects.list on the bucket",
            ("gcs", OriginOperation::Read) => "storage.objects.get",
            (_, OriginOperation::List) => "s3:ListBucket on the bucket",
            (_, OriginOperation::Read) => "s3:GetObject (also for a missing object without s3:ListBucket)",
        };
        match self.tier {
            "azure" => format!("{refused}: it takes {needs}"),
            "gcs" => format!("{refused}: the credentials need {needs}"),
            _ => format!(
                "{refused}: the credentials need {needs}, and AWS_REQUEST_PAYER=requester where the \
                 requester pays"
            ),
        }
    }
}

/// The codes that AWS's own clients treat as throttling, and Azure's.
pub(crate) fn is_throttling(code: &str) -> bool {
    matches!(
        code,
        "SlowDown"
            | "Throttling"
            | "ThrottledException"
            | "RequestThrottled"
            | "RequestThrottledException"
            | "TooManyRequests"
            | "TooManyRequestsException"
            | "RequestLimitExceeded"
            | "BandwidthLimitExceeded"
            | "LimitExceededException"
            | "ServerBusy"
    ) || code.ends_with("ThrottlingException")
}

/// The error of an invalid setting, before the origin is known.
pub(crate) fn invalid(object: &str, why: impl Into<String>) -> TierError {
    TierError::invalid("s3", object, why)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use http::StatusCode;

    use super::*;

    fn place() -> BucketContext {
        BucketContext {
            tier: "s3",
            bucket: "s3://train".into(),
            endpoint: Some("http://localhost:9".into()),
            region: Some("us-east-1".into()),
            signed: true,
            proxy: None,
        }
    }

    fn refused(status: u16, code: &str) -> ResponseError {
        let code = (!code.is_empty()).then(|| code.to_owned());
        ResponseError { status: StatusCode::from_u16(status).unwrap(), code, region: None, retry_after: None }
    }

    #[test]
    // semantics: BUCKET-3, BUCKET-4
    fn error_response_has_its_kind_and_names_the_bucket() {
        use ErrorKind::{
            Changed, Denied, Expired, Invalid, NotFound, Other, Throttled, Transient, Unsupported,
        };
        for (status, code, kind, expected) in [
            (404, "NoSuchKey", NotFound, "no such object"),
            (404, "NoSuchBucket", NotFound, "AWS_ENDPOINT_URL"),
            (404, "", NotFound, "404"),
            (403, "AccessDenied", Denied, "s3:GetObject"),
            (403, "InvalidAccessKeyId", Denied, "AWS_ACCESS_KEY_ID"),
            (403, "SignatureDoesNotMatch", Denied, "AWS_SECRET_ACCESS_KEY"),
            (403, "RequestTimeTooSkewed", Denied, "clock"),
            (403, "ExpiredToken", Expired, "new credentials"),
            (400, "ExpiredToken", Expired, "new credentials"),
            (403, "RequestExpired", Expired, "new credentials"),
            (400, "RequestTimeout", Transient, "RequestTimeout"),
            (400, "KMS.ThrottlingException", Throttled, "ThrottlingException"),
            (400, "ThrottlingException", Throttled, "ThrottlingException"),
            (403, "InvalidObjectState", Other, "restore-object"),
            (409, "BlobArchived", Other, "set-tier"),
            (401, "", Denied, "401"),
            (503, "SlowDown", Throttled, "SlowDown"),
            (503, "", Throttled, "503"),
            (429, "", Throttled, "429"),
            (500, "InternalError", Transient, "InternalError"),
            (502, "", Transient, "502"),
            (599, "", Transient, "599"),
            (412, "PreconditionFailed", Changed, "index it again"),
            (416, "InvalidRange", Changed, "index it again"),
            (301, "PermanentRedirect", Invalid, "AWS_REGION"),
            (400, "InvalidArgument", Invalid, "InvalidArgument"),
            (501, "NotImplemented", Unsupported, "NotImplemented"),
        ] {
            let error = place().of_refusal(OriginOperation::Read, Some("a/b.jpg"), &refused(status, code));
            let text = error.to_string();
            assert_eq!(error.kind(), kind, "{text}");
            assert!(text.starts_with("s3: a/b.jpg: ") && text.contains("s3://train"), "{text}");
            assert!(text.contains(expected) && !text.contains('\n'), "{text}");
        }
    }

    #[test]
    fn google_and_azure_errors_name_their_own_remedies() {
        for (tier, expected) in [("azure", "Storage Blob Data Reader"), ("gcs", "storage.objects.list")] {
            let place = BucketContext { tier, bucket: "x://train".into(), endpoint: None, ..place() };
            let text = place
                .of_refusal(OriginOperation::List, None, &refused(403, "AuthorizationFailure"))
                .to_string();
            assert!(text.contains(expected) && text.contains("x://train") && !text.contains("s3:"), "{text}");
            let text =
                place.of_refusal(OriginOperation::List, None, &refused(404, "ContainerNotFound")).to_string();
            assert!(text.contains("no such bucket") && !text.contains("AWS"), "{text}");
        }
    }

    /// AWS sends `x-amz-bucket-region` also with error responses that are unrelated to regions.
    #[test]
    // semantics: BUCKET-4
    fn expired_token_with_region_header_is_expired() {
        let located = |status, code: &str, region: &str| {
            let refused = ResponseError { region: Some(region.into()), ..refused(status, code) };
            place().of_refusal(OriginOperation::Read, Some("a"), &refused)
        };
        let expired = located(400, "ExpiredToken", "us-east-1");
        assert_eq!(expired.kind(), ErrorKind::Expired, "{expired}");
        assert_eq!(located(400, "ExpiredToken", "eu-west-1").kind(), ErrorKind::Expired);
        assert_eq!(located(400, "RequestTimeout", "eu-west-1").kind(), ErrorKind::Transient);
        assert_eq!(located(400, "InvalidArgument", "eu-west-1").kind(), ErrorKind::Invalid);
        for (status, code) in [
            (301, "PermanentRedirect"),
            (307, "TemporaryRedirect"),
            (400, "AuthorizationHeaderMalformed"),
            (400, "IllegalLocationConstraintException"),
            (301, ""),
            (400, ""),
        ] {
            let text = located(status, code, "eu-west-1").to_string();
            assert!(text.contains("AWS_REGION=eu-west-1"), "{text}");
            // A message must not suggest the region that is already set.
            let text = located(status, code, "us-east-1").to_string();
            assert!(!text.contains("AWS_REGION=us-east-1"), "{text}");
        }
    }

    #[test]
    // semantics: BUCKET-11
    fn credentials_failure_keeps_its_kind_and_wait() {
        let wait = Duration::from_secs(5);
        let known = TierError::new(ErrorKind::Transient, "s3").with_detail("busy").with_retry_after(wait);
        let error = object_store::Error::Generic { store: "S3", source: Box::new(known) };
        let error = place().of_client(OriginOperation::Read, Some("a"), &error);
        assert_eq!((error.kind(), error.retry_after()), (ErrorKind::Transient, Some(wait)));
        assert_eq!(error.to_string(), "s3: a: transient failure: in s3://train: busy");
    }

    #[test]
    fn errors_of_listings_regions_and_waits_are_specific() {
        let denied =
            place().of_refusal(OriginOperation::List, None, &refused(403, "AccessDenied")).to_string();
        assert!(denied.starts_with("s3: s3://train: ") && denied.contains("s3:ListBucket"), "{denied}");
        assert!(denied.contains("AWS_REQUEST_PAYER=requester"), "{denied}");
        let public = BucketContext { signed: false, ..place() };
        let denied =
            public.of_refusal(OriginOperation::List, None, &refused(403, "AccessDenied")).to_string();
        assert!(denied.contains("AWS_SKIP_SIGNATURE"), "{denied}");
        let elsewhere =
            ResponseError { region: Some("eu-west-1".into()), ..refused(301, "PermanentRedirect") };
        let error = place().of_refusal(OriginOperation::List, None, &elsewhere);
        assert!(error.to_string().contains("AWS_REGION=eu-west-1"), "{error}");
        let later = ResponseError { retry_after: Some(Duration::from_secs(3)), ..refused(503, "SlowDown") };
        let error = place().of_refusal(OriginOperation::Read, Some("x"), &later);
        assert_eq!((error.kind(), error.retry_after()), (ErrorKind::Throttled, Some(Duration::from_secs(3))));
    }
}
