//! The cache that the ranks of a node share, without an agent: its core, in the process of a rank.
//!
//! It ends with the rank. It has no files, no page and no policy, and reads what the ranks attach
//! with. Gaps between samples of different lengths come on top of its memory, as they do with the
//! caches of single ranks.

use std::sync::Arc;

use foreread::{Config, HostedStore, NodeHost};
use foreread_store::Server;

use crate::job_runtime::JobRuntime;
use crate::provider::AgentProvider;
use crate::{AgentCore, AgentError, FileLimit, arguments, server_settings};

/// Open files of a process that hosts a cache: enough for a terabyte of memory. Programs that close
/// all descriptors, as some trainers' helpers do, depend on a limit that is not too high.
const DESCRIPTORS: u64 = 1 << 16;

/// Starts the cache of a node in the process of its first rank.
#[derive(Clone, Copy, Debug, Default)]
pub struct JobHost;

/// A running one.
#[derive(Debug)]
struct JobStore {
    provider: Arc<AgentProvider>,
    /// Dropped in this order: no rank is served when the runtime ends.
    server: Server,
    _runtime: JobRuntime,
}

impl NodeHost for JobHost {
    fn start(&self, config: &Config) -> Result<Box<dyn HostedStore>, String> {
        JobStore::start(config.clone()).map(|store| Box::new(store) as _).map_err(|error| error.to_string())
    }
}

impl JobStore {
    fn start(config: Config) -> Result<Self, AgentError> {
        FileLimit::current().raise(Some(DESCRIPTORS));
        let policy = arguments(None, &config);
        let AgentCore { runtime, arena, provider } = AgentCore::new(0, config, policy, None)?;
        let buffers = Arc::new(arena);
        let server = Server::start(Arc::clone(&provider) as _, buffers, server_settings())?;
        Ok(Self { provider, server, _runtime: runtime })
    }
}

impl HostedStore for JobStore {
    fn address(&self) -> String {
        self.server.address()
    }

    fn set_memory(&self, bytes: u64) {
        self.provider.state.grant(bytes);
    }
}
