//! Access control of the test store.

use std::collections::BTreeSet;
use std::sync::{PoisonError, RwLock};

use hyper::HeaderMap;
use hyper::header::AUTHORIZATION;

use super::answer::S3Error;

/// The admitted and the expired keys. Signatures are not checked: tests are about which credentials
/// a client uses, and how it signs is tested in its library.
#[derive(Debug, Default)]
pub(super) struct Access(RwLock<AccessKeys>);

#[derive(Debug, Default)]
struct AccessKeys {
    /// If it is empty, every key is admitted.
    known: BTreeSet<String>,
    /// Access keys and session tokens.
    expired: BTreeSet<String>,
}

impl Access {
    pub(super) fn allow(&self, key: &str) {
        self.0.write().unwrap_or_else(PoisonError::into_inner).known.insert(key.to_owned());
    }

    pub(super) fn expire(&self, key: &str) {
        self.0.write().unwrap_or_else(PoisonError::into_inner).expired.insert(key.to_owned());
    }

    /// The region of the request's signature, if it is signed.
    pub(super) fn check(&self, headers: &HeaderMap) -> Result<Option<String>, S3Error> {
        let scope = headers.get(AUTHORIZATION).and_then(|value| value.to_str().ok()).and_then(|text| {
            let (_, rest) = text.split_once("Credential=")?;
            let mut parts = rest.split([',', ' ']).next()?.split('/');
            let key = parts.next()?.to_owned();
            Some((key, parts.nth(1).map(str::to_owned)))
        });
        let token = headers.get("x-amz-security-token").and_then(|value| value.to_str().ok());
        let keys = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let Some((key, region)) = scope else {
            return if keys.known.is_empty() { Ok(None) } else { Err(S3Error::AccessDenied) };
        };
        if !keys.known.is_empty() && !keys.known.contains(&key) {
            return Err(S3Error::InvalidAccessKeyId);
        }
        if keys.expired.contains(&key) || token.is_some_and(|token| keys.expired.contains(token)) {
            return Err(S3Error::ExpiredToken);
        }
        Ok(region)
    }
}
