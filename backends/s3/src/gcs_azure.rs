//! Buckets of Google and Azure as origins.
//!
//! Their clients, credentials and settings are `object_store`'s. Responses pass through the same
//! [`OriginConnector`], so that errors are classified as S3's are.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use async_trait::async_trait;
use foreread_tier::{OpenContext, OpenOptions, OriginTier, TierError};
use object_store::list::{PaginatedListOptions, PaginatedListStore};
use object_store::{ObjectStore, RetryConfig};

use crate::config::BucketPrefix;
use crate::core::ObjectStoreOrigin;
use crate::error::{BucketContext, OriginOperation, invalid};
use crate::lister::BucketListing;
use crate::pages::{ListPage, ListedKey, PageRequest, PageSource};
use crate::reader::ObjectReader;
use crate::transport::{OriginConnector, root};

type Opened = Result<Arc<dyn OriginTier>, TierError>;

/// Opens `url` if it is a URL of Google's or Azure's.
pub(crate) fn open(url: &str, options: &OpenOptions, context: &OpenContext) -> Option<Opened> {
    let scheme = url.split_once("://")?.0.to_ascii_lowercase();
    match scheme.as_str() {
        #[cfg(feature = "gcs")]
        "gs" => Some(google(url, options, context)),
        #[cfg(feature = "azure")]
        scheme if crate::azure_url::SCHEMES.contains(&scheme) => Some(azure(url, options, context)),
        _ => None,
    }
}

/// The useful settings of all that the clients support. The other ones are set by this crate.
#[cfg(feature = "gcs")]
const GOOGLE: [&str; 6] = [
    "service_account",
    "service_account_key",
    "application_credentials",
    "bearer_token",
    "base_url",
    "skip_signature",
];
#[cfg(feature = "azure")]
const AZURE: [&str; 13] = [
    "account_name",
    "access_key",
    "sas_key",
    "bearer_token",
    "client_id",
    "client_secret",
    "tenant_id",
    "federated_token_file",
    "msi_endpoint",
    "use_azure_cli",
    "endpoint",
    "use_emulator",
    "skip_signature",
];

/// The error about a setting that the client does not support.
fn unknown(name: &str, known: &[&str]) -> TierError {
    invalid(name, format!("there is no such setting; there are: {}", known.join(", ")))
}

fn no_retries() -> RetryConfig {
    RetryConfig { max_retries: 0, ..RetryConfig::default() }
}

#[cfg(feature = "gcs")]
fn google(url: &str, options: &OpenOptions, context: &OpenContext) -> Opened {
    use object_store::gcp::{GoogleCloudStorageBuilder, GoogleConfigKey};
    let location = BucketPrefix::of(url)?;
    let mut builder = GoogleCloudStorageBuilder::from_env()
        .with_bucket_name(&location.bucket)
        .with_retry(no_retries())
        .with_http_connector(OriginConnector::default());
    for (name, value) in &options.settings {
        let key = GoogleConfigKey::from_str(name).map_err(|_| unknown(name, &GOOGLE))?;
        builder = builder.with_config(key, value);
    }
    let at = format!("gcs {}", builder.get_config_value(&GoogleConfigKey::BaseUrl).unwrap_or_default());
    let store = builder.build().map_err(|error| invalid(url, root(&error)))?;
    Ok(assemble(("gcs", "gs"), at, store, true, location, options, context))
}

#[cfg(feature = "azure")]
fn azure(url: &str, options: &OpenOptions, context: &OpenContext) -> Opened {
    use object_store::azure::{AzureConfigKey, MicrosoftAzureBuilder};
    let (location, account) = crate::azure_url::location(url)?;
    let mut builder = MicrosoftAzureBuilder::from_env();
    if let Some(account) = account {
        builder = builder.with_account(account.name);
        if let Some(endpoint) = account.endpoint {
            builder = builder.with_endpoint(endpoint);
        }
    }
    let mut builder = builder
        .with_container_name(&location.bucket)
        .with_retry(no_retries())
        .with_http_connector(OriginConnector::default());
    for (name, value) in &options.settings {
        let key = AzureConfigKey::from_str(name).map_err(|_| unknown(name, &AZURE))?;
        builder = builder.with_config(key, value);
    }
    let set = |key| builder.get_config_value(&key).unwrap_or_default();
    let at = format!("azure {} {}", set(AzureConfigKey::Endpoint), set(AzureConfigKey::AccountName));
    let store = builder.build().map_err(|error| invalid(url, root(&error)))?;
    Ok(assemble(("azure", "az"), at, store, false, location, options, context))
}

fn assemble<S: ObjectStore + PaginatedListStore + fmt::Debug>(
    (tier, scheme): (&'static str, &str),
    at: String,
    store: S,
    begins_anywhere: bool,
    location: BucketPrefix,
    options: &OpenOptions,
    context: &OpenContext,
) -> Arc<dyn OriginTier> {
    // The proxy is the same for every host.
    let proxy = crate::proxy::of("https://storage");
    let bucket = format!("{scheme}://{}", location.bucket);
    let place = BucketContext { tier, bucket, endpoint: None, region: None, signed: true, proxy };
    let canonical = format!("{at} {}/{}", location.bucket, location.prefix);
    let store = Arc::new(store);
    let pages = ClientPages { store: Arc::clone(&store), begins_anywhere, place: place.clone() };
    let buffers = Arc::clone(&context.buffers);
    let reader = ObjectReader { store, credentials: None, place, location, buffers };
    let listing = BucketListing::new(pages, &reader, None, context.seed);
    Arc::new(ObjectStoreOrigin::of(
        reader,
        Some(listing),
        options.parallelism,
        context.runtime.clone(),
        canonical,
    ))
}

/// Restores the `/` of directory markers that are out of order without it: `a-b`, `a/` came as
/// `a-b`, `a`. Each key is greater than the one before it, and the first is greater than `before`.
fn name_holders(before: &str, entries: &mut [ListedKey]) {
    let mut before = before;
    for entry in entries {
        if entry.size == 0 && entry.key.as_str() <= before {
            let named = format!("{}/", entry.key);
            if named.as_str() > before {
                entry.key = named;
            }
        }
        before = &entry.key;
    }
}

/// The pages of a client that supports them. The client removes the `/` of directory markers, so
/// that they look like empty objects.
struct ClientPages<S> {
    store: Arc<S>,
    begins_anywhere: bool,
    place: BucketContext,
}

impl<S> fmt::Debug for ClientPages<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientPages").field("place", &self.place).finish_non_exhaustive()
    }
}

#[async_trait]
impl<S: PaginatedListStore> PageSource for ClientPages<S> {
    async fn page(&self, page_request: &PageRequest<'_>) -> Result<ListPage, TierError> {
        let begins = self.begins_anywhere && page_request.token.is_none() && !page_request.after.is_empty();
        let options = PaginatedListOptions {
            offset: begins.then(|| page_request.after.to_owned()),
            page_token: page_request.token.map(str::to_owned),
            max_keys: page_request.limit,
            delimiter: page_request.directories.then_some("/".into()),
            ..PaginatedListOptions::default()
        };
        let prefix = (!page_request.prefix.is_empty()).then_some(page_request.prefix);
        let page = self.store.list_paginated(prefix, options).await;
        let page = page.map_err(|error| self.place.of_client(OriginOperation::List, None, &error))?;
        let mut entries: Vec<ListedKey> = page.result.objects.into_iter().map(ListedKey::from).collect();
        name_holders(
            if page_request.token.is_some() || begins { page_request.after } else { "" },
            &mut entries,
        );
        // The client removes the `/` of directories, too.
        let directories = page.result.common_prefixes.iter().map(|path| format!("{path}/")).collect();
        Ok(ListPage { entries, directories, token: page.page_token })
    }

    fn begins_anywhere(&self) -> bool {
        self.begins_anywhere
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directory_marker_out_of_order_gets_its_slash() {
        let entry = |key: &str, size| ListedKey { key: key.into(), size, tag: None };
        let mut entries =
            [entry("a", 0), entry("a/1", 1), entry("b-c", 1), entry("b", 0), entry("b/x", 0), entry("a", 1)];
        name_holders("a-z", &mut entries);
        let keys: Vec<&str> = entries.iter().map(|entry| entry.key.as_str()).collect();
        // An object that is out of order and not a directory marker stays. It shows that the origin
        // has another order.
        assert_eq!(keys, ["a/", "a/1", "b-c", "b/", "b/x", "a"]);
        let mut empty = [entry("a", 0), entry("b", 0)];
        name_holders("", &mut empty);
        assert_eq!((empty[0].key.as_str(), empty[1].key.as_str()), ("a", "b"));
    }
}
