//! The control process of a job's own agents.
//!
//! It is a few tasks in the process that hosts the agent of rank 0's node. It has no policy, so it
//! waits for no agents of an earlier process.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use foreread_connection::{Identity, TransportListener};
use foreread_host::policy::CLUSTER_WORDS;
use foreread_host::policy_file::PolicyFile;
use tokio::runtime::Handle;
use tokio::task::JoinHandle;

use super::serving;
use super::state::ControlState;
use super::tokens::ClusterToken;
use crate::error::AgentError;

/// The control process of a job. It ends when this is dropped.
#[derive(Debug)]
pub(crate) struct JobControl(Vec<JoinHandle<()>>);

impl JobControl {
    /// Serves the agents that have this identity.
    ///
    /// # Errors
    /// If the policy has a mistake, and there is none.
    pub(crate) fn start(
        runtime: &Handle,
        listeners: Vec<Box<dyn TransportListener>>,
        identity: Identity,
    ) -> Result<Self, AgentError> {
        let file = PolicyFile::with_words(PathBuf::new(), CLUSTER_WORDS);
        let state = Arc::new(ControlState::new(&[ClusterToken::of_job(identity)], file, Duration::ZERO)?);
        let serve = |listener| runtime.spawn(serving::serve(listener, Arc::clone(&state)));
        let mut tasks: Vec<_> = listeners.into_iter().map(serve).collect();
        tasks.push(runtime.spawn(serving::grant_regularly(state)));
        Ok(Self(tasks))
    }
}

impl Drop for JobControl {
    fn drop(&mut self) {
        self.0.iter().for_each(JoinHandle::abort);
    }
}
