//! Catalogs that rank 0 has and other ranks need. Each travels once per node.
//!
//! Rank 0 sends a catalog that it has listed to one rank of each node, the relay, and other
//! catalogs to ranks that request them. The relay sends its catalogs, received or opened, to the
//! other ranks of its node over separate connections. A rank whose relay is gone or slow requests a
//! catalog from rank 0. The price is that the other ranks of a node wait for two transfers, one
//! after another. The bytes that leave rank 0 are bounded. A catalog of gigabytes for a thousand
//! nodes belongs into a shared file.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io;
use std::pin::pin;
use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::Bytes;
use foreread_connection::{Address, ControlConnection, Identity, PeerIdentity, Transport};
use foreread_types::Rank;
use tokio::sync::{Mutex, mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::link::{IncomingMessage, LinkTraffic, RankLink};
use super::messages::{MeetMessage, key};
use super::{MeetError, MeetErrorKind};

/// Catalogs of a run.
pub(super) const MAX_CATALOGS: usize = 16;

/// Bytes of catalogs that may leave rank 0 in one run.
pub(super) const MAX_SENT_BYTES: u64 = 16 << 30;

/// Timeout of the connection to a relay at one address.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Timeout of a relay that waits for a catalog itself.
const RELAY_TIMEOUT: Duration = Duration::from_secs(30);

/// Interval of a relay's progress messages.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(5);

/// The timeout of a relay in a rendezvous with this deadline: a third of it, and longer than its
/// progress interval.
pub(super) fn relay_timeout(deadline: Duration) -> Duration {
    RELAY_TIMEOUT.min(deadline / 3).max(PROGRESS_INTERVAL * 3 / 2)
}

/// Reads a catalog.
type ReadCatalog = Arc<dyn Fn() -> io::Result<Bytes> + Send + Sync>;

/// A catalog, which not all ranks need.
#[derive(Clone)]
pub struct SharedCatalog {
    length: u64,
    is_pushed: bool,
    read: ReadCatalog,
    /// The bytes while they are being sent, shared by ranks that request them at about the same
    /// time.
    sending: Arc<Mutex<Weak<Bytes>>>,
}

/// Bytes that are shared by all connections on which they are sent.
struct SharedBytes(Arc<Bytes>);

impl AsRef<[u8]> for SharedBytes {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for SharedCatalog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Bulk")
            .field("length", &self.length)
            .field("is_pushed", &self.is_pushed)
            .finish_non_exhaustive()
    }
}

impl SharedCatalog {
    /// A catalog that each node needs. It is sent without a request.
    pub fn needed(bytes: Bytes) -> Self {
        Self::new(bytes.len() as u64, true, Arc::new(move || Ok(bytes.clone())))
    }

    /// A catalog of `length` bytes that most ranks have. `read` runs on a blocking thread when a
    /// rank requests it.
    pub fn on_request(length: u64, read: impl Fn() -> io::Result<Bytes> + Send + Sync + 'static) -> Self {
        Self::new(length, false, Arc::new(read))
    }

    fn new(length: u64, is_pushed: bool, read: ReadCatalog) -> Self {
        Self { length, is_pushed, read, sending: Arc::default() }
    }

    pub(super) fn length(&self) -> u64 {
        self.length
    }

    /// Its bytes, read on this thread.
    #[cfg(test)]
    pub(super) fn read(&self) -> Bytes {
        (self.read)().unwrap()
    }

    /// Whether each node gets it without a request.
    pub fn is_pushed(&self) -> bool {
        self.is_pushed
    }

    /// Its bytes, and the message that precedes them, as the catalog of this number.
    ///
    /// # Errors
    /// The catalog can no longer be read.
    pub(super) async fn value(&self, number: usize) -> io::Result<(MeetMessage, Bytes)> {
        let all = self.bytes().await?;
        Ok((MeetMessage::value(&key::bulk(number), all.len()), Bytes::from_owner(SharedBytes(all))))
    }

    /// Its bytes, read by one request at a time.
    async fn bytes(&self) -> io::Result<Arc<Bytes>> {
        let mut sending = self.sending.lock().await;
        if let Some(all) = sending.upgrade() {
            return Ok(all);
        }
        let read = Arc::clone(&self.read);
        let all = Arc::new(tokio::task::spawn_blocking(move || read()).await??);
        *sending = Arc::downgrade(&all);
        Ok(all)
    }
}

/// The error if rank 0 can no longer read a catalog that other ranks need.
pub(super) fn unreadable(error: &io::Error) -> MeetError {
    let line =
        format!("rank 0 can no longer read its catalog: {error}; do not change the file while ranks start");
    MeetError::new(MeetErrorKind::Broken, line)
}

/// The error if more catalog bytes would leave rank 0 than allowed.
pub(super) fn too_large(bytes: u64) -> MeetError {
    let line = format!(
        "rank 0 would send {} GiB of catalogs, more than the maximum of {} GiB: run `foreread index` into \
         a shared file first, and give that file to all ranks",
        bytes >> 30,
        MAX_SENT_BYTES >> 30
    );
    MeetError::new(MeetErrorKind::Setting, line)
}

/// The rank of `rank`'s node that gets catalogs from rank 0. `nodes` are the nodes of all ranks.
/// Rank 0 itself does not relay, so its node gets one copy, too.
pub(super) fn relay<T: PartialEq>(nodes: impl Iterator<Item = T> + Clone, rank: usize) -> Option<usize> {
    let own = nodes.clone().nth(rank)?;
    nodes.skip(1).position(|node| node == own).map(|at| at + 1)
}

/// The catalogs that a relay has for the other ranks of its node.
#[derive(Debug, Default)]
pub(super) struct RelayOffers {
    /// By the catalogs' numbers: whether it is sent without a request. Empty before rank 0 has
    /// named them.
    pub pushed: Vec<bool>,
    /// The catalogs that this rank has.
    pub here: BTreeMap<usize, SharedCatalog>,
    /// Whether this rank waits for catalogs from rank 0.
    pub is_waiting: bool,
}

impl RelayOffers {
    /// The next catalog for a connection on which these were `requested` and `sent`, and its bytes
    /// if they are here.
    pub(super) fn next_due(
        &self,
        requested: &BTreeSet<usize>,
        sent: &BTreeSet<usize>,
    ) -> Option<(usize, Option<SharedCatalog>)> {
        let is_due = |number: &usize| self.pushed[*number] || requested.contains(number);
        let due = (0..self.pushed.len()).filter(|number| is_due(number) && !sent.contains(number));
        let mut due: Vec<_> = due.map(|number| (number, self.here.get(&number).cloned())).collect();
        due.sort_by_key(|(_, bulk)| bulk.is_none());
        due.into_iter().next()
    }
}

/// Relays catalogs to the other ranks of the node. Ends with the last handle on `meetings`.
pub(super) async fn relay_catalogs(
    mut meetings: mpsc::Receiver<(PeerIdentity, ControlConnection)>,
    offers: watch::Receiver<RelayOffers>,
    traffic: Arc<LinkTraffic>,
) {
    let mut all = JoinSet::new();
    while let Some((greeting, connection)) = meetings.recv().await {
        let link = RankLink::new(connection, Arc::clone(&traffic));
        all.spawn(relay_to(greeting.rank, link, offers.clone(), Arc::clone(&traffic)));
        while all.try_join_next().is_some() {}
    }
    while all.join_next().await.is_some() {}
}

/// Relays catalogs to one rank. Ends when that rank closes the connection, or has to get the rest
/// from rank 0.
async fn relay_to(
    to: Rank,
    mut link: RankLink,
    mut offers: watch::Receiver<RelayOffers>,
    traffic: Arc<LinkTraffic>,
) {
    let (mut requested, mut sent) = (BTreeSet::new(), BTreeSet::new());
    // No more catalogs will be added.
    let mut is_final = false;
    let mut moved = traffic.moved();
    loop {
        let (due, is_waiting) = {
            let offers = offers.borrow_and_update();
            (offers.next_due(&requested, &sent), offers.is_waiting)
        };
        let is_due = due.is_some();
        if let Some((number, Some(bulk))) = due {
            // Reading a file from a file server may take long, too.
            let mut value = pin!(bulk.value(number));
            let value = loop {
                tokio::select! {
                    value = &mut value => break value,
                    () = sleep(PROGRESS_INTERVAL) => {
                        link.send(&MeetMessage::Working { on: "reads the catalog".to_owned() }).await;
                    }
                }
            };
            let Ok((message, bytes)) = value else { return };
            tracing::debug!(%to, bytes = bytes.len(), "passes a catalog on");
            sent.insert(number);
            if !link.send_with_bulk(&message, bytes).await {
                return;
            }
            continue;
        }
        if is_final && is_due {
            return;
        }
        tokio::select! {
            changed = offers.changed(), if !is_final => is_final = changed.is_err(),
            // The other end closes when it has all. If this end closed with an unread heartbeat,
            // TCP could drop sent data.
            come = link.next() => match come {
                Some(IncomingMessage { message: MeetMessage::Fetch { number }, .. })
                    if requested.len() < MAX_CATALOGS =>
                {
                    requested.insert(number as usize);
                }
                Some(_) => {}
                None => return,
            },
            () = sleep(PROGRESS_INTERVAL) => {
                let has_moved = std::mem::replace(&mut moved, traffic.moved()) != traffic.moved();
                if is_due && is_waiting || has_moved {
                    link.send(&MeetMessage::Working { on: "receives the catalog".to_owned() }).await;
                }
            }
        }
    }
}

/// Fetches the catalogs of these numbers from the `relay` (`true`: sent without a request). The
/// relay may be silent for at most `silence`. Returns the catalogs that arrived.
pub(super) async fn fetch(
    network: &dyn Transport,
    (relay, addresses): (Rank, &[Address]),
    identity: &Identity,
    traffic: &Arc<LinkTraffic>,
    needed: &BTreeMap<usize, bool>,
    silence: Duration,
) -> BTreeMap<usize, Bytes> {
    let mut got = BTreeMap::new();
    for address in addresses {
        let opened = ControlConnection::open(network, address, identity, Some(relay), CONNECT_TIMEOUT).await;
        let connection = match opened {
            Ok((connection, _)) => connection,
            Err(error) => {
                tracing::debug!(%error, "cannot connect to the node's relay");
                continue;
            }
        };
        let mut link = RankLink::new(connection, Arc::clone(traffic));
        for (&number, _) in needed.iter().filter(|(_, is_pushed)| !**is_pushed) {
            link.send(&MeetMessage::Fetch { number: number as u32 }).await;
        }
        let mut moved = traffic.moved();
        while got.len() < needed.len() {
            match timeout(silence, link.next()).await {
                Ok(Some(IncomingMessage { message: MeetMessage::Value { key, .. }, bulk, .. })) => {
                    let number = needed.keys().find(|number| key == key::bulk(**number));
                    got.extend(number.map(|number| (*number, bulk)));
                }
                Ok(Some(_)) => {}
                Ok(None) => return got,
                // Bytes still arrive, slowly.
                Err(_) if traffic.moved() != moved => moved = traffic.moved(),
                Err(_) => return got,
            }
        }
        return got;
    }
    got
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn relay_timeout_is_longer_than_its_progress_interval() {
        let silence = |seconds| relay_timeout(Duration::from_secs(seconds));
        assert_eq!((silence(300), silence(60)), (RELAY_TIMEOUT, Duration::from_secs(20)));
        assert!(silence(10) > PROGRESS_INTERVAL && silence(10) < Duration::from_secs(10));
    }

    #[test]
    fn one_rank_of_each_node_gets_the_bulk_from_rank_0() {
        let nodes = [5, 5, 6, 5, 6, 7];
        let relays: Vec<_> = (0..6).map(|rank| relay(nodes.iter(), rank)).collect();
        assert_eq!(relays, [1, 1, 2, 1, 2, 5].map(Some));
        assert_eq!(relay([5, 6].iter(), 0), None, "rank 0 has it");
    }

    #[test]
    fn too_large_catalogs_name_the_remedy() {
        let error = too_large(17 << 30).to_string();
        assert!(
            error.contains("17 GiB") && error.contains("run `foreread index` into a shared file"),
            "{error}"
        );
    }
}
