//! Catalogs that rank 0 has and others need: they travel once per node.
//!
//! Rank 0 sends the bulk to one rank of each node, the relay, which passes it on to the others of its node over a connection
//! of their own. A rank whose relay is gone or slow requests it from rank 0. The price is that a node's other ranks wait for
//! two transfers, one after another. What leaves rank 0 is bounded, because a catalog of gigabytes for a thousand nodes
//! belongs into a file that all read.

use std::fmt;
use std::io;
use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::Bytes;
use foreread_types::Rank;
use tokio::sync::{Mutex, mpsc, watch};
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
    /// What was read, while any of it waits to be sent: ranks that request it at about the same time share it.
    sending: Arc<Mutex<Weak<Vec<Bytes>>>>,
}

/// One of several bytes that are kept as long as one of them is needed.
struct Part {
    all: Arc<Vec<Bytes>>,
    number: usize,
}

impl AsRef<[u8]> for Part {
    fn as_ref(&self) -> &[u8] {
        &self.all[self.number]
    }
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
        Self::new(length, true, Arc::new(move || Ok(parts.clone())))
    }

    /// `length` bytes that ranks mostly have: `read`, on a thread that may block, when ranks request them.
    pub fn on_request(
        length: u64,
        read: impl Fn() -> io::Result<Vec<Bytes>> + Send + Sync + 'static,
    ) -> Self {
        Self::new(length, false, Arc::new(read))
    }

    fn new(length: u64, is_pushed: bool, read: Read) -> Self {
        Self { length, is_pushed, read, sending: Arc::default() }
    }

    pub(super) fn length(&self) -> u64 {
        self.length
    }

    pub(super) fn is_pushed(&self) -> bool {
        self.is_pushed
    }

    /// Its bytes and the message that they follow.
    ///
    /// # Errors
    /// They cannot be read any more.
    pub(super) async fn value(self) -> Result<(Message, Vec<Bytes>), MeetError> {
        let all = self.parts().await.map_err(|error| {
            let line = format!(
                "rank 0's catalog cannot be read any more: {error}; leave its file as it is while ranks start"
            );
            MeetError::new(MeetErrorKind::Broken, line)
        })?;
        let length = all.iter().map(|part| part.len() as u64).sum();
        let part = |number| Bytes::from_owner(Part { all: Arc::clone(&all), number });
        Ok((Message::Value { key: key::BULK.to_owned(), length }, (0..all.len()).map(part).collect()))
    }

    /// Its bytes, read by one request at a time.
    async fn parts(self) -> io::Result<Arc<Vec<Bytes>>> {
        let mut sending = self.sending.lock().await;
        if let Some(all) = sending.upgrade() {
            return Ok(all);
        }
        let all = Arc::new(tokio::task::spawn_blocking(move || (self.read)()).await??);
        *sending = Arc::downgrade(&all);
        Ok(all)
    }
}

/// That more bulk would leave rank 0 than may.
pub(super) fn too_much(bytes: u64) -> MeetError {
    let line = format!(
        "rank 0 would send {} GiB of catalogs, and at most {} GiB may leave it: run `foreread index` into a shared file \
         first, and give that file to all ranks",
        bytes >> 30,
        MOST_BYTES >> 30
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
            let mut link = Link::new(connection, Arc::clone(&traffic));
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
            // Whoever has it closes. Closed here, with a heartbeat unread, TCP could cut off the end of it.
            loop {
                match timeout(SILENCE, link.next()).await {
                    Ok(Some(_)) => {}
                    Err(_) if std::mem::replace(&mut moved, traffic.moved()) != traffic.moved() => {}
                    Ok(None) | Err(_) => return,
                }
            }
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
