//! The control process as `foreread control` sees it: calls over the Unix socket of its user.

use std::sync::Arc;

use bytes::Bytes;
use foreread_host::host_state::invalid;
use foreread_host::provider::encoded;
use foreread_store::{SampleProvider, SampleRequest, WorkerCall};
use foreread_tier::{ErrorKind, TierError};
use serde::{Deserialize, Serialize};

use super::state::ControlState;

/// The call for the status, in JSON: [`ControlStatus`](super::ControlStatus).
pub const CONTROL_STATUS: &str = "status";
/// The call that changes something: a [`ControlRequest`], answered by a [`ControlAnswer`].
pub const CONTROL_CHANGE: &str = "change";
/// The call that ends the process.
pub const CONTROL_STOP: &str = "stop";

/// A change of the cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ControlRequest {
    /// The user that requests it, for the log. It is not proven: the socket is its user's alone.
    pub by: String,
    /// Changes of the policy, each as `KEY=VALUE`. All of them are made, or none.
    pub set: Vec<String>,
    /// An agent that is gone.
    pub forget: Option<String>,
    /// A dataset that all agents are to fill their memory with.
    pub warm: Option<String>,
}

/// The result of a change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ControlAnswer {
    /// The agents that fill their memory.
    pub warming: u64,
}

#[derive(Debug)]
pub(super) struct ControlProvider {
    pub(super) state: Arc<ControlState>,
    pub(super) address: String,
}

impl ControlProvider {
    fn change(&self, request: &ControlRequest) -> Result<ControlAnswer, TierError> {
        let refused = |error: crate::PolicyError| invalid(&error.to_string());
        let mut answer = ControlAnswer::default();
        self.state.set(&request.set, &request.by).map_err(refused)?;
        if let Some(node) = &request.forget {
            self.state.forget(node, &request.by).map_err(refused)?;
        }
        if let Some(target) = &request.warm {
            answer.warming = self.state.warm(target, &request.by) as u64;
        }
        Ok(answer)
    }
}

impl SampleProvider for ControlProvider {
    fn get(&self, requests: Vec<SampleRequest>) {
        for request in requests {
            request.answer(Err(TierError::new(ErrorKind::Unsupported, "control")));
        }
    }

    fn call(&self, call: WorkerCall) {
        let answer = match call.name() {
            CONTROL_STATUS => encoded(&self.state.status(&self.address)),
            CONTROL_CHANGE => serde_json::from_slice(call.payload())
                .map_err(|error| invalid(&error.to_string()))
                .and_then(|request| encoded(&self.change(&request)?)),
            CONTROL_STOP => {
                self.state.stop();
                Ok(Bytes::new())
            }
            _ => Err(invalid("no such call")),
        };
        call.answer(answer);
    }
}
