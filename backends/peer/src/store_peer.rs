//! The connections to a store that another process hosts: for messages, and for samples.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use foreread_connection::{
    Address, ControlConnection, Identity, Purpose, Transport, WireError, WireErrorKind,
};
use foreread_types::Rank;
use tokio::sync::SetOnce;

use crate::peer_client::PeerClient;

/// A store that another process hosts. Clones are the same.
///
/// Messages can be sent before a run has started, and samples requested once it has: then its
/// [client](Self::set_client) is known.
#[derive(Clone)]
pub struct StorePeer {
    network: Arc<dyn Transport>,
    identity: Identity,
    rank: Rank,
    addresses: Vec<Address>,
    client: Arc<SetOnce<Arc<PeerClient>>>,
}

impl StorePeer {
    /// The store that `rank` hosts, which listens at any of `addresses`.
    pub fn new(network: Arc<dyn Transport>, identity: Identity, rank: Rank, addresses: Vec<Address>) -> Self {
        Self { network, identity, rank, addresses, client: Arc::default() }
    }

    /// The rank that hosts it.
    pub fn rank(&self) -> Rank {
        self.rank
    }

    /// Sets the client of its samples. A second call has no effect.
    pub fn set_client(&self, client: Arc<PeerClient>) {
        // The first one stays.
        let _ = self.client.set(client);
    }

    /// The client of its samples, if it is known.
    pub fn client(&self) -> Option<&Arc<PeerClient>> {
        self.client.get()
    }

    /// Waits until the client of its samples is known.
    ///
    /// # Cancel safety
    /// Dropping the future changes nothing.
    pub async fn known_client(&self) -> Arc<PeerClient> {
        Arc::clone(self.client.wait().await)
    }

    /// Opens a connection for messages. Each address may take `timeout`.
    ///
    /// # Errors
    /// That of the last address.
    ///
    /// # Cancel safety
    /// Dropping the future closes the connection.
    pub async fn open(&self, timeout: Duration) -> Result<ControlConnection, WireError> {
        let mut last = WireError::new(WireErrorKind::Disconnected, "it has no address");
        // A rank that was started again has other addresses.
        let addresses = self.client().map_or_else(|| self.addresses.clone(), |client| client.addresses());
        for address in &addresses {
            let (network, to) = (&*self.network, Some(self.rank));
            let purpose = Purpose::Link;
            let opening = ControlConnection::open_for(purpose, network, address, &self.identity, to, timeout);
            match opening.await {
                Ok((connection, _)) => return Ok(connection),
                Err(error) => last = error,
            }
        }
        Err(last)
    }
}

impl fmt::Debug for StorePeer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StorePeer")
            .field("rank", &self.rank)
            .field("addresses", &self.addresses)
            .finish_non_exhaustive()
    }
}
