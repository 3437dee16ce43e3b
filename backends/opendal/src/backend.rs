//! Opening origins by URL.

use std::sync::Arc;

use async_trait::async_trait;
use foreread_tier::{Backend, OpenContext, OpenOptions, OriginTier, TierError};

use crate::config::OriginTarget;
use crate::error::from_opendal;
use crate::services::SERVICES;
use crate::transport::transporter;
use crate::{OpendalConfig, OpendalOrigin};

/// Opens origins of the services that are enabled by features.
#[derive(Clone, Debug)]
pub struct OpendalBackend {
    schemes: Vec<&'static str>,
    credentials: Vec<&'static str>,
}

impl OpendalBackend {
    /// The backend, for the schemes of all enabled services.
    pub fn new() -> Self {
        let schemes = SERVICES.iter().flat_map(|service| service.schemes).map(|(scheme, _)| *scheme);
        let credentials = SERVICES.iter().flat_map(|service| service.credentials).copied();
        Self { schemes: schemes.collect(), credentials: credentials.collect() }
    }
}

impl Default for OpendalBackend {
    fn default() -> Self {
        Self::new()
    }
}

#[async_trait]
impl Backend for OpendalBackend {
    fn schemes(&self) -> &[&str] {
        &self.schemes
    }

    fn credentials(&self) -> &[&str] {
        &self.credentials
    }

    /// Creates the client without a request to the origin. A missing origin is detected by the
    /// first listing or read.
    async fn open(
        &self,
        url: &str,
        options: &OpenOptions,
        context: &OpenContext,
    ) -> Result<Arc<dyn OriginTier>, TierError> {
        let target = OriginTarget::new(url, &options.settings, |name| std::env::var(name).ok())?;
        let (name, place) = (target.service.name, target.canonical_place());
        let mut config = OpendalConfig::from_options(options)?;
        config.list = target.list;
        let failed = |error: opendal::Error| from_opendal(name, url, &error);
        let operator = (target.service.make)(target.options).map_err(failed)?;
        let transport = transporter(target.service.redirects).map_err(failed)?;
        let client = operator.context().with_http_transport(transport);
        Ok(Arc::new(OpendalOrigin::named(name, place, operator.with_context(client), config, context)))
    }
}
