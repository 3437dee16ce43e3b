//! The `foreread` command under test. Cargo builds a package's own binaries before its tests, and
//! no other package's. With `FOREREAD_TEST_MIRROR` it has a custom storage backend: `mirror://DIR`
//! is the directory. Files are taken for settled at once, so that tests need not wait. With
//! `FOREREAD_TEST_SILENCE`, an agent may be silent for so many seconds, as on a busy machine.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use foreread::Registry;
use foreread::backend::{Backend, ErrorKind, OpenContext, OpenOptions, OriginTier, TierError};

#[derive(Debug)]
struct Mirror;

#[async_trait]
impl Backend for Mirror {
    fn schemes(&self) -> &[&str] {
        &["mirror"]
    }

    async fn open(
        &self,
        url: &str,
        options: &OpenOptions,
        context: &OpenContext,
    ) -> Result<Arc<dyn OriginTier>, TierError> {
        let path = url.strip_prefix("mirror://").unwrap_or(url);
        let registry = Registry::with_defaults();
        let unknown = |error: foreread::Error| {
            TierError::new(ErrorKind::Unsupported, "mirror").with_detail(error.to_string())
        };
        registry.find(path).map_err(unknown)?.open(path, options, context).await
    }
}

fn main() -> ExitCode {
    foreread_file_cache::settle_after(Duration::ZERO);
    if let Some(seconds) = std::env::var("FOREREAD_TEST_SILENCE").ok().and_then(|text| text.parse().ok()) {
        foreread_agent_client::silent_after(Duration::from_secs(seconds));
    }
    match std::env::var_os("FOREREAD_TEST_MIRROR") {
        Some(_) => foreread_cli::run_with(Registry::with_defaults().register(Mirror)),
        None => foreread_cli::run(),
    }
}
