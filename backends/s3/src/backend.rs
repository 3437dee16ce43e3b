//! Opens buckets by URL.

use std::sync::Arc;

use async_trait::async_trait;
use foreread_tier::{Backend, ErrorKind, OpenContext, OpenOptions, OriginTier, TierError};
use object_store::RetryConfig;
use object_store::aws::AmazonS3Builder;

use crate::config::S3Config;
use crate::core::ObjectStoreOrigin;
use crate::credential_chain::CredentialChain;
use crate::credentials::Credentials;
use crate::environment::Environment;
use crate::error::{BucketContext, invalid};
use crate::lister::BucketListing;
use crate::pages::S3Pages;
use crate::reader::ObjectReader;
use crate::transport::{CredentialClient, OriginConnector, SharedClient, options};

/// Opens prefixes of buckets: `s3://bucket/prefix` (and `s3a`). With the features `gcs` and `azure`
/// it also opens `gs://` and `az://`.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct S3Backend {
    environment: Option<Environment>,
}

impl S3Backend {
    /// The backend. It reads the process's environment on every open.
    pub const fn new() -> Self {
        Self { environment: None }
    }

    /// Uses these variables instead of the process's. Google's and Azure's buckets ignore them.
    #[must_use]
    pub fn with_environment(self, environment: Environment) -> Self {
        Self { environment: Some(environment) }
    }
}

#[async_trait]
impl Backend for S3Backend {
    fn schemes(&self) -> &[&str] {
        &[
            "s3",
            "s3a",
            #[cfg(feature = "gcs")]
            "gs",
            #[cfg(feature = "azure")]
            "az",
            #[cfg(feature = "azure")]
            "abfs",
            #[cfg(feature = "azure")]
            "abfss",
            #[cfg(feature = "azure")]
            "wasb",
            #[cfg(feature = "azure")]
            "wasbs",
        ]
    }

    /// Google's and Azure's libraries ask servers that variables of their own name, too.
    fn credentials(&self) -> &[&str] {
        &["HOME", "AWS_", "GOOGLE_", "GCE_", "AZURE_", "IDENTITY_"]
    }

    /// Resolves the settings and fetches the first credentials. No request is sent to the origin. A
    /// source of credentials that is busy or unreachable is retried, for two minutes at most.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] for an invalid URL or setting. [`ErrorKind::Denied`] without
    /// credentials. [`ErrorKind::Expired`] if they have expired. [`ErrorKind::Transient`] if their
    /// source was unreachable until the last attempt.
    ///
    /// # Cancel safety
    /// Dropping the future leaves no state.
    async fn open(
        &self,
        url: &str,
        options: &OpenOptions,
        context: &OpenContext,
    ) -> Result<Arc<dyn OriginTier>, TierError> {
        #[cfg(any(feature = "gcs", feature = "azure"))]
        if let Some(opened) = crate::gcs_azure::open(url, options, context) {
            return opened;
        }
        let environment = self.environment.clone().unwrap_or_else(Environment::of_process);
        let environment = environment.with_keys(&options.settings)?;
        let (url, options, settings) = (url.to_owned(), options.clone(), environment.clone());
        let gathering = context
            .runtime
            .spawn_blocking(move || PreparedBucket::new(S3Config::gather(&url, &options, &settings)?));
        let prepared = gathering.await.map_err(|error| {
            TierError::new(ErrorKind::Closed, "s3")
                .with_detail("the runtime ended while the bucket was opened")
                .with_source(error)
        })??;
        Ok(Arc::new(prepared.open(environment, context).await?))
    }
}

/// The parts of a bucket whose creation reads files or blocks. It must not occupy a thread of the
/// runtime.
struct PreparedBucket {
    config: S3Config,
    client: SharedClient,
    client_of_credentials: Option<CredentialClient>,
}

impl PreparedBucket {
    fn new(config: S3Config) -> Result<Self, TierError> {
        let place = config.address();
        let failed =
            |why: String| invalid(&place, format!("no connection can be made: {why}; see AWS_CA_BUNDLE"));
        let judges = OriginConnector { plain: config.plain, bundle: config.ca_bundle.clone() };
        let client = judges.client().map_err(failed)?;
        let client_of_credentials =
            (!config.skip_signature).then(|| CredentialClient::new(config.ca_bundle.clone()));
        Ok(Self { config, client: SharedClient(client), client_of_credentials })
    }

    async fn open(
        self,
        environment: Environment,
        context: &OpenContext,
    ) -> Result<ObjectStoreOrigin, TierError> {
        let Self { config, client, client_of_credentials } = self;
        let place = BucketContext {
            tier: "s3",
            bucket: format!("s3://{}", config.bucket),
            endpoint: config.endpoint.clone(),
            region: Some(config.region.clone()),
            signed: !config.skip_signature,
            proxy: crate::proxy::of(&config.address()),
        };
        let credentials = client_of_credentials.map(|client_of_credentials| {
            let (profile, region) = (config.profile.clone(), config.region.clone());
            let chain = CredentialChain::new(
                environment,
                client_of_credentials,
                profile,
                config.profile_first,
                region,
            );
            Arc::new(Credentials::new(chain, context.runtime.clone()))
        });
        if let Some(credentials) = &credentials {
            credentials.first().await.map_err(|error| place.of_credentials(None, &error))?;
        }
        let endpoint = if config.virtual_hosted { config.bucket_address() } else { config.address() };
        let mut builder = AmazonS3Builder::new()
            .with_bucket_name(&config.bucket)
            .with_region(&config.region)
            .with_endpoint(endpoint)
            .with_allow_http(config.plain)
            .with_virtual_hosted_style_request(config.virtual_hosted)
            .with_skip_signature(config.skip_signature)
            .with_request_payer(config.request_payer)
            .with_client_options(options(config.plain))
            .with_retry(RetryConfig { max_retries: 0, ..RetryConfig::default() })
            .with_http_connector(client.clone());
        if let Some(credentials) = &credentials {
            builder = builder.with_credentials(Arc::clone(credentials) as _);
        }
        let store =
            builder.build().map_err(|error| invalid(&place.bucket, crate::transport::root(&error)))?;
        let pages = S3Pages {
            client: client.0,
            address: config.bucket_address(),
            region: config.region.clone(),
            request_payer: config.request_payer,
            credentials: credentials.clone(),
            place: place.clone(),
        };
        let reader = ObjectReader {
            store: Arc::new(store),
            credentials,
            place,
            location: config.location(),
            buffers: Arc::clone(&context.buffers),
        };
        let listing = BucketListing::new(pages, &reader, config.parallelism, context.seed);
        let place = config.canonical_place();
        Ok(ObjectStoreOrigin::of(reader, Some(listing), config.parallelism, context.runtime.clone(), place))
    }
}
