//! A job's connection to its agent: through a socket, or within this process.

use std::sync::Arc;
use std::time::Instant;

use foreread_store::{Client, LocalClient, RequestStream, StoreError};

use crate::watch::is_late;

/// A connection to the agent.
pub(crate) enum Connection {
    /// Through a socket. The agent may be silent, and may end.
    Served(Client, RequestStream),
    /// In this process.
    Here(Arc<LocalClient>),
}

impl Connection {
    /// Calls the agent. Blocks, as long as it gives signs of life and `is_over` is false.
    pub(crate) fn call(
        &self,
        name: &str,
        payload: &[u8],
        is_over: &dyn Fn() -> bool,
    ) -> Result<Vec<u8>, StoreError> {
        let client = match self {
            Self::Served(client, _) => client,
            Self::Here(store) => return store.call(name, payload, &mut || is_over()),
        };
        let (stream, begun) = (client.stream(), Instant::now());
        let mut is_silent =
            || is_late(stream.heard(), begun, Instant::now()) || is_over() || stream.ping(0).is_err();
        client.call_with(name, payload, &mut is_silent)
    }
}
