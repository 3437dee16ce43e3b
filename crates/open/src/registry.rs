//! The registry of backends by URL scheme.

use std::sync::Arc;

use foreread_tier::Backend;

use crate::error::{Error, ErrorKind, Result};

/// The backends that a program can open origins with, by URL scheme.
///
/// Built-in backends come with the crate's features. A program registers custom backends at run
/// time, without a feature:
///
/// ```
/// # extern crate foreread_open as foreread;
/// use foreread::Registry;
/// let registry = Registry::with_defaults();
/// assert!(registry.find("/data/train").is_ok());
/// assert!(registry.find("gopher://old/data").is_err());
/// ```
#[derive(Clone, Debug, Default)]
pub struct Registry(Vec<Arc<dyn Backend>>);

impl Registry {
    /// A registry without backends.
    pub fn empty() -> Self {
        Self::default()
    }

    /// The backends of the enabled features.
    pub fn with_defaults() -> Self {
        let registry = Self::empty();
        // First, so that it does not take a scheme from a dedicated backend.
        #[cfg(feature = "opendal")]
        let registry = registry.register(foreread_opendal::OpendalBackend::new());
        let registry = registry.register(foreread_local::LocalBackend::new());
        #[cfg(feature = "lustre")]
        let registry = registry.register(foreread_lustre::LustreBackend::new());
        #[cfg(feature = "s3")]
        let registry = registry.register(foreread_s3::S3Backend::new());
        registry
    }

    /// Adds `backend`, which takes over its schemes from earlier backends.
    #[must_use]
    pub fn register(mut self, backend: impl Backend) -> Self {
        self.0.push(Arc::new(backend));
        self
    }

    /// All supported schemes, sorted.
    pub fn schemes(&self) -> Vec<&str> {
        let mut schemes: Vec<&str> = self.0.iter().flat_map(|backend| backend.schemes()).copied().collect();
        schemes.sort_unstable();
        schemes.dedup();
        schemes
    }

    /// The backend for `url`. A path without a scheme belongs to `file`.
    ///
    /// # Errors
    /// If no backend supports the scheme. The message lists the supported schemes.
    pub fn find(&self, url: &str) -> Result<&Arc<dyn Backend>> {
        let scheme = scheme(url).unwrap_or("file").to_ascii_lowercase();
        let knows = |backend: &&Arc<dyn Backend>| backend.schemes().contains(&scheme.as_str());
        self.0.iter().rev().find(knows).ok_or_else(|| {
            let known = self.schemes().join(", ");
            let known =
                if known.is_empty() { "none (no backend's feature is enabled)".to_owned() } else { known };
            Error::new(
                ErrorKind::Dataset,
                format!("{url}: no backend opens '{scheme}' URLs{}; known schemes: {known}", hint(&scheme)),
            )
        })
    }
}

/// The feature that provides an unknown scheme.
fn hint(scheme: &str) -> &'static str {
    match scheme {
        "s3" | "s3a" => " without the feature `s3`",
        "gs" => " without the feature `gcs`",
        "lustre" => " without the feature `lustre`",
        "az" | "abfs" | "abfss" | "wasb" | "wasbs" => " without the feature `azure`",
        "hdfs" => " without the feature `opendal-hdfs`",
        "sftp" => " without the feature `opendal-sftp`",
        _ if cfg!(feature = "opendal") => "",
        _ => " (the feature `opendal` knows more)",
    }
}

/// The scheme of a URL, or `None` for a path.
fn scheme(url: &str) -> Option<&str> {
    let (scheme, _) = url.split_once("://")?;
    let mut letters = scheme.chars();
    let fits = letters.next()?.is_ascii_alphabetic()
        && letters.all(|c| c.is_ascii_alphanumeric() || matches!(c, '+' | '-' | '.'));
    fits.then_some(scheme)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schemes_are_parsed_from_urls() {
        assert_eq!(scheme("s3://bucket/x"), Some("s3"));
        assert_eq!(scheme("/odd/path://x"), None);
        assert_eq!(scheme("data/train"), None);
        assert_eq!(scheme("://x"), None);
    }

    #[test]
    fn unknown_scheme_is_refused_with_the_known_ones() {
        let error = Registry::with_defaults().find("s4://bucket").unwrap_err();
        assert!(error.to_string().starts_with("s4://bucket: no backend opens 's4' URLs; known schemes: "));
    }

    #[test]
    // semantics: AGENT-9
    fn credentials_of_every_store_are_compared() {
        let registry = Registry::with_defaults();
        let counts = |url: &str, name: &str| {
            registry.find(url).unwrap().credentials().iter().any(|start| name.starts_with(start))
        };
        for name in ["HOME", "AWS_PROFILE", "FOREREAD_SEED"] {
            assert!(!counts("/data", name) && !counts("file:///data", name), "{name}");
        }
        #[cfg(feature = "s3")]
        for name in ["HOME", "AWS_PROFILE"] {
            assert!(counts("s3://bucket", name), "{name}");
        }
        #[cfg(feature = "azure")]
        assert!(counts("az://container", "AZURE_STORAGE_KEY"));
        #[cfg(feature = "opendal")]
        for (url, name) in [
            ("https://host", "FOREREAD_HTTP_PASSWORD"),
            ("webdav://host", "FOREREAD_WEBDAV_PASSWORD"),
            ("oss://bucket", "ALIBABA_CLOUD_ACCESS_KEY_ID"),
            ("cos://bucket", "TENCENTCLOUD_SECRET_ID"),
            ("hf://datasets/owner/name", "HF_TOKEN"),
        ] {
            assert!(counts(url, name) && !counts(url, "FOREREAD_SEED") && !counts(url, "PATH"), "{name}");
        }
    }
}
