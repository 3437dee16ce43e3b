//! Catalogs that rank 0 has and others need: they travel once per node.
//!
//! Rank 0 sends the bulk to one rank of each node, the relay, which passes it on to the others of its node over a connection
//! of their own. A rank whose relay is gone or slow requests it from rank 0. The price is that a node's other ranks wait for
//! two transfers, one after another. What leaves rank 0 is bounded, because a catalog of gigabytes for a thousand nodes
//! belongs into a file that all read.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use foreread_types::Rank;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::link::{Incoming, Link, Traffic};
use super::messages::{Message, key};
use super::{MeetError, MeetErrorKind};
use crate::{Address, Connection, Greeting, Identity, Network};

/// Bytes of bulk that may leave rank 0 in one run.
pub(super) const MOST_BYTES: u64 = 16 << 30;

/// How long a relay may take to answer at one address.
const ANSWER: Duration = Duration::from_secs(5);

/// How long a relay may be silent that waits for the bulk.
pub(super) const SILENCE: Duration = Duration::from_secs(30);

/// How often a relay says that the bulk is on its way.
const NEWS: Duration = Duration::from_secs(5);

/// Reads the bulk.
type Read = Arc<dyn Fn() -> io::Result<Vec<Bytes>> + Send + Sync>;

/// Bytes that not all ranks need: catalogs.
#[derive(Clone)]
pub struct Bulk {
    length: u64,
    is_pushed: bool,
    read: Read,
}

impl fmt::Debug for Bulk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Bulk")
            .field("length", &self.length)
            .field("is_pushed", &self.is_pushed)
            .finish_non_exhaustive()
    }
}

impl Bulk {
    /// These bytes, which each node needs: they are sent without a request.
    pub fn needed(parts: Vec<Bytes>) -> Self {
        let length = parts.iter().map(|part| part.len() as u64).sum();
        Self { length, is_pushed: true, read: Arc::new(move || Ok(parts.clone())) }
    }

    /// `length` bytes that ranks mostly have: `read`, on a thread that may block, for each rank that requests them.
    pub fn on_request(
        length: u64,
        read: impl Fn() -> io::Result<Vec<Bytes>> + Send + Sync + 'static,
    ) -> Self {
        Self { length, is_pushed: false, read: Arc::new(read) }
    }

    pub(super) fn length(&self) -> u64 {
        self.length
    }

    pub(super) fn is_pushed(&self) -> bool {
        self.is_pushed
    }

    /// Its bytes and the message that they follow; nothing where they cannot be read, which is logged.
    pub(super) async fn value(self) -> Option<(Message, Vec<Bytes>)> {
        let parts = match tokio::task::spawn_blocking(move || (self.read)()).await.ok()? {
            Ok(parts) => parts,
            Err(error) => {
                tracing::warn!(%error, "a rank needs the catalog, which cannot be read");
                return None;
            }
        };
        let length = parts.iter().map(|part| part.len() as u64).sum();
        Some((Message::Value { key: key::BULK.to_owned(), length }, parts))
    }
}

/// That more bulk would leave rank 0 than may.
pub(super) fn too_much(bytes: u64) -> MeetError {
    let line = format!(
        "rank 0 would send {} GiB of catalogs to the other nodes: run `foreread index` into a shared file first, and give \
         that file to all ranks",
        bytes >> 30
    );
    MeetError::new(MeetErrorKind::Setting, line)
}

/// The rank of `rank`'s node that gets the bulk from rank 0; `nodes` are the ranks' nodes. Rank 0 serves none of its node, so
/// that it sends one copy there, too.
pub(super) fn relay<T: PartialEq>(nodes: impl Iterator<Item = T> + Clone, rank: usize) -> Option<usize> {
    let own = nodes.clone().nth(rank)?;
    nodes.skip(1).position(|node| node == own).map(|at| at + 1)
}

/// Gives the bulk to whoever of the node comes for it. Ends with the last handle on `meetings`.
pub(super) async fn pass_on(
    mut meetings: mpsc::Receiver<(Greeting, Connection)>,
    bulk: watch::Receiver<Option<Bytes>>,
    traffic: Arc<Traffic>,
) {
    let mut all = JoinSet::new();
    while let Some((greeting, connection)) = meetings.recv().await {
        let (mut bulk, traffic) = (bulk.clone(), Arc::clone(&traffic));
        all.spawn(async move {
            let link = Link::new(connection, Arc::clone(&traffic));
            let mut moved = traffic.moved();
            let bulk = loop {
                let comes = async { bulk.wait_for(Option::is_some).await.ok()?.clone() };
                match timeout(NEWS, comes).await {
                    Ok(Some(bulk)) => break bulk,
                    // It has none: who came asks rank 0.
                    Ok(None) => return,
                    Err(_) if std::mem::replace(&mut moved, traffic.moved()) != traffic.moved() => {
                        link.say(&Message::Working { on: "receives the catalog".to_owned() }).await;
                    }
                    Err(_) => {}
                }
            };
            tracing::debug!(to = %greeting.rank, bytes = bulk.len(), "passes the catalog on");
            let message = Message::Value { key: key::BULK.to_owned(), length: bulk.len() as u64 };
            link.say_with(&message, vec![bulk]).await;
            link.close().await;
        });
        while all.try_join_next().is_some() {}
    }
    while all.join_next().await.is_some() {}
}

/// The bulk from the `relay` at one of these addresses, which may be silent for so long; nothing where it does not come.
pub(super) async fn fetch(
    network: &dyn Network,
    (relay, addresses): (Rank, &[Address]),
    identity: &Identity,
    traffic: &Arc<Traffic>,
    silence: Duration,
) -> Option<Bytes> {
    for address in addresses {
        let opened = Connection::open(network, address, identity, Some(relay), ANSWER).await;
        let connection = match opened {
            Ok((connection, _)) => connection,
            Err(error) => {
                tracing::debug!(%error, "the rank that has the catalog is not reached");
                continue;
            }
        };
        let mut link = Link::new(connection, Arc::clone(traffic));
        let mut moved = traffic.moved();
        loop {
            match timeout(silence, link.next()).await {
                Ok(Some(Incoming { message: Message::Value { key, .. }, bulk, .. })) if key == key::BULK => {
                    return Some(bulk);
                }
                Ok(Some(_)) => {}
                Ok(None) => return None,
                // It comes, slowly.
                Err(_) if traffic.moved() != moved => moved = traffic.moved(),
                Err(_) => return None,
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_rank_of_each_node_gets_the_bulk_from_rank_0() {
        let nodes = [5, 5, 6, 5, 6, 7];
        let relays: Vec<_> = (0..6).map(|rank| relay(nodes.iter(), rank)).collect();
        assert_eq!(relays, [1, 1, 2, 1, 2, 5].map(Some));
        assert_eq!(relay([5, 6].iter(), 0), None, "rank 0 has it");
    }

    #[test]
    fn too_large_catalogs_name_the_remedy() {
        let error = too_much(17 << 30).to_string();
        assert!(
            error.contains("17 GiB") && error.contains("run `foreread index` into a shared file"),
            "{error}"
        );
    }
}
