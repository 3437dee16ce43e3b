//! Gets copies from hosts of other nodes.
//!
//! A file is requested of a few hosts, one after another, in the order of a hash of file and host.
//! So requests for many files are spread over all hosts. Each step has a short timeout. A host that
//! fails is avoided for a while, and the file is read from the storage at once.
//!
//! The connection is a task of the runtime, and the caller's thread writes the pieces that it
//! sends. So a slow disk delays no other connection, and an end of the runtime is the end of the
//! pieces.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use foreread_connection::connection::within;
use foreread_connection::{Address, ControlConnection, Identity, SystemTransport, WireError, WireErrorKind};
use tokio::sync::mpsc::{Receiver, Sender};
use tokio::task::JoinSet;

use super::finding::HostId;
use super::messages::{ABSENT, COPY, COPY_BYTES, CopyRequest, MAX_PIECE, PIECE, REQUEST, decode_copy};

/// How long a host may take to connect, to answer, and for each piece.
const TIMEOUT: Duration = Duration::from_millis(250);

/// How long a host that failed is avoided. Twice as long after each further failure.
const AVOIDED: Duration = Duration::from_secs(10);
const MAX_DOUBLINGS: u32 = 5;

/// The hosts that are requested to give a file.
const MAX_CANDIDATES: usize = 4;

/// Connections to a host that are kept for the next files.
const MAX_IDLE: usize = 4;

/// A host of another node.
#[derive(Debug, Default)]
struct KnownHost {
    addresses: Vec<Address>,
    avoided_until: Option<Instant>,
    failures: u32,
    idle: Vec<ControlConnection>,
}

/// The hosts of other nodes, and connections to them.
#[derive(Debug)]
pub(super) struct NodeLinks {
    identity: Arc<Identity>,
    hosts: Mutex<BTreeMap<HostId, KnownHost>>,
}

impl NodeLinks {
    pub(super) fn new(identity: Arc<Identity>) -> Self {
        Self { identity, hosts: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<HostId, KnownHost>> {
        self.hosts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the list of all hosts. Those whose addresses are to be read are returned: new ones,
    /// and those that failed, with the number of their failures.
    pub(super) fn listed(&self, all: &[HostId]) -> Vec<(HostId, u32)> {
        let mut hosts = self.lock();
        hosts.retain(|host, _| all.contains(host));
        let mut wanted = Vec::new();
        for host in all {
            match hosts.get(host) {
                Some(known) if known.failures == 0 && !known.addresses.is_empty() => {}
                known => wanted.push((*host, known.map_or(0, |known| known.failures))),
            }
        }
        wanted
    }

    /// Takes the addresses of a host. Other ones than before are those of a new process.
    pub(super) fn set_addresses(&self, host: HostId, addresses: Vec<Address>) {
        let mut hosts = self.lock();
        let known = hosts.entry(host).or_default();
        if known.addresses != addresses {
            *known = KnownHost { addresses, ..KnownHost::default() };
        }
    }

    /// The hosts that may have a file, in the order of the requests.
    pub(super) fn candidates(&self, request: &CopyRequest) -> Vec<HostId> {
        let now = Instant::now();
        let hosts = self.lock();
        let usable = hosts.iter().filter(|(_, known)| {
            !known.addresses.is_empty() && known.avoided_until.is_none_or(|until| until <= now)
        });
        let mut usable: Vec<(Option<u64>, HostId)> =
            usable.map(|(host, _)| (request.hash(host.0), *host)).collect();
        usable.sort_unstable();
        usable.into_iter().map(|(_, host)| host).take(MAX_CANDIDATES).collect()
    }

    /// Avoids a host that failed for a while.
    pub(super) fn avoid(&self, host: HostId) {
        let mut hosts = self.lock();
        let Some(known) = hosts.get_mut(&host) else { return };
        let now = Instant::now();
        // Several requests may have failed for one reason.
        if known.avoided_until.is_none_or(|until| until <= now) {
            known.avoided_until = Some(now + AVOIDED * (1 << known.failures.min(MAX_DOUBLINGS)));
            known.failures += 1;
        }
        known.idle.clear();
    }

    fn idle(&self, host: HostId) -> Option<ControlConnection> {
        self.lock().get_mut(&host)?.idle.pop()
    }

    /// Keeps a connection whose answer is complete.
    fn keep(&self, host: HostId, connection: ControlConnection) {
        let mut hosts = self.lock();
        let Some(known) = hosts.get_mut(&host) else { return };
        (known.failures, known.avoided_until) = (0, None);
        if known.idle.len() < MAX_IDLE {
            known.idle.push(connection);
        }
    }

    /// Connects to the first address of a host that answers.
    async fn connect(self: &Arc<Self>, host: HostId) -> Result<ControlConnection, WireError> {
        let addresses = self.lock().get(&host).map(|known| known.addresses.clone()).unwrap_or_default();
        let mut attempts = JoinSet::new();
        for address in addresses {
            let identity = Arc::clone(&self.identity);
            attempts.spawn(async move {
                let to = Some(host.rank());
                ControlConnection::open(&SystemTransport, &address, &identity, to, TIMEOUT).await
            });
        }
        let mut last = WireError::new(WireErrorKind::Disconnected, "a host without addresses");
        while let Some(attempt) = attempts.join_next().await {
            match attempt {
                Ok(Ok((connection, _))) => return Ok(connection),
                Ok(Err(error)) => last = error,
                Err(_) => {}
            }
        }
        Err(last)
    }
}

/// What a host has sent.
#[derive(Debug)]
pub(super) enum CopyPart {
    /// It has no copy.
    Absent,
    /// A copy with this checksum follows.
    Begin(u32),
    Piece(Bytes),
}

/// Requests a copy from a host and passes on what it sends. After an error, the parts end early.
pub(super) async fn request_copy(
    links: Arc<NodeLinks>,
    host: HostId,
    request: Arc<CopyRequest>,
    parts: Sender<CopyPart>,
) {
    if let Err(error) = try_request(&links, host, &request, &parts).await {
        tracing::debug!(%error, host = host.0, "another node gives no copy");
    }
}

async fn try_request(
    links: &Arc<NodeLinks>,
    host: HostId,
    request: &CopyRequest,
    parts: &Sender<CopyPart>,
) -> Result<(), WireError> {
    let (mut connection, answer) = exchange(links, host, request).await?;
    let begin = match answer {
        (ABSENT, payload) if payload.is_empty() => CopyPart::Absent,
        (COPY, payload) => match decode_copy(&payload) {
            Some(crc32c) => CopyPart::Begin(crc32c),
            None => return Err(WireError::malformed("a copy without a checksum")),
        },
        (kind, _) => return Err(WireError::malformed(format!("an answer of kind {kind}"))),
    };
    let mut missing = if matches!(begin, CopyPart::Begin(_)) { request.size } else { 0 };
    if parts.send(begin).await.is_err() {
        return Ok(());
    }
    while missing > 0 {
        let received = within(TIMEOUT, "a host", connection.receive(piece_length(missing))).await?;
        let piece = whole_piece(received, missing);
        let piece = piece.ok_or_else(|| WireError::malformed("a copy ended early"))?;
        missing -= piece.len() as u64;
        if parts.send(CopyPart::Piece(piece)).await.is_err() {
            return Ok(());
        }
    }
    links.keep(host, connection);
    Ok(())
}

/// The length of the next piece of a copy.
fn piece_length(missing: u64) -> usize {
    missing.min(MAX_PIECE as u64) as usize
}

/// The next piece of a copy. All pieces but the last have the full length. So a host that sends
/// byte after byte delays a copy by one timeout at most.
fn whole_piece(received: Option<(u32, Bytes)>, missing: u64) -> Option<Bytes> {
    received.filter(|(kind, piece)| *kind == PIECE && piece.len() == piece_length(missing)).map(|it| it.1)
}

/// Sends a request, and returns the first message of the answer.
async fn exchange(
    links: &Arc<NodeLinks>,
    host: HostId,
    request: &CopyRequest,
) -> Result<(ControlConnection, (u32, Bytes)), WireError> {
    let bytes = request.encode();
    let over = async |mut connection: ControlConnection| {
        within(TIMEOUT, "a host", connection.send(REQUEST, bytes.clone())).await?;
        let received = within(TIMEOUT, "a host", connection.receive(COPY_BYTES)).await?;
        let closed = || WireError::new(WireErrorKind::Disconnected, "the host closed the connection");
        Ok((connection, received.ok_or_else(closed)?))
    };
    // The host closes connections that it has not used for a while.
    while let Some(connection) = links.idle(host) {
        match over(connection).await {
            Err(error) if WireError::kind(&error) == WireErrorKind::Disconnected => {}
            result => return result,
        }
    }
    over(links.connect(host).await?).await
}

/// What became of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FetchOutcome {
    /// All bytes are there, with this checksum.
    Fetched(u32),
    /// The host has no copy.
    Absent,
    /// The host failed, or its bytes are wrong.
    Failed,
    /// The file cannot be written here.
    Unwritable,
}

/// Writes the parts of a copy of `size` bytes to a file, and compares its checksum.
pub(super) fn write_parts(mut parts: Receiver<CopyPart>, to: &File, size: u64) -> FetchOutcome {
    let expected = match parts.blocking_recv() {
        Some(CopyPart::Begin(crc32c)) => crc32c,
        Some(CopyPart::Absent) => return FetchOutcome::Absent,
        Some(CopyPart::Piece(_)) | None => return FetchOutcome::Failed,
    };
    let (mut at, mut crc) = (0, 0);
    while at < size {
        let Some(CopyPart::Piece(piece)) = parts.blocking_recv() else { return FetchOutcome::Failed };
        if piece.len() as u64 > size - at {
            return FetchOutcome::Failed;
        }
        crc = crc32c::crc32c_append(crc, &piece);
        if to.write_all_at(&piece, at).is_err() {
            return FetchOutcome::Unwritable;
        }
        at += piece.len() as u64;
    }
    if crc == expected { FetchOutcome::Fetched(crc) } else { FetchOutcome::Failed }
}

#[cfg(test)]
mod tests {
    use foreread_connection::Token;
    use foreread_preload::layout;
    use tokio::sync::mpsc::channel;

    use super::*;

    /// The outcome of these parts for a file of eleven bytes.
    fn outcome(parts: Vec<CopyPart>) -> FetchOutcome {
        let (sender, receiver) = channel(16);
        parts.into_iter().for_each(|part| sender.blocking_send(part).unwrap());
        drop(sender);
        write_parts(receiver, &tempfile::tempfile().unwrap(), 11)
    }

    #[test]
    // semantics: FILES-10
    fn only_whole_and_right_bytes_are_a_copy() {
        let crc = crc32c::crc32c(b"hello nodes");
        let begin = || CopyPart::Begin(crc);
        let piece = |bytes: &'static [u8]| CopyPart::Piece(Bytes::from_static(bytes));
        let whole = vec![begin(), piece(b"hello "), piece(b"nodes")];
        assert_eq!(outcome(whole), FetchOutcome::Fetched(crc));
        assert_eq!(outcome(vec![CopyPart::Absent]), FetchOutcome::Absent);
        for wrong in [
            vec![],
            vec![piece(b"hello nodes")],
            vec![begin(), piece(b"hello ")],
            vec![begin(), piece(b"hello nodez")],
            vec![begin(), piece(b"hello nodes!")],
            vec![begin(), piece(b"hello "), CopyPart::Absent],
            vec![CopyPart::Begin(crc ^ 1), piece(b"hello nodes")],
        ] {
            assert_eq!(outcome(wrong), FetchOutcome::Failed);
        }
    }

    /// Guards against this fault: a host could delay a copy for hours by sending single bytes.
    #[test]
    // semantics: FILES-10
    fn pieces_of_a_copy_are_whole() {
        let (full, missing) = (Bytes::from(vec![7; MAX_PIECE]), MAX_PIECE as u64 + 3);
        assert_eq!(whole_piece(Some((PIECE, full.clone())), missing), Some(full.clone()));
        assert_eq!(whole_piece(Some((PIECE, full.slice(..3))), 3), Some(full.slice(..3)));
        for length in [0, 1, MAX_PIECE - 1] {
            assert_eq!(whole_piece(Some((PIECE, full.slice(..length))), missing), None);
        }
        assert_eq!(whole_piece(Some((PIECE, full.clone())), 3), None);
        assert_eq!(whole_piece(Some((ABSENT, full)), missing), None);
        assert_eq!(whole_piece(None, missing), None);
    }

    #[test]
    fn failed_hosts_are_avoided_and_requests_are_spread() {
        let token = Token::random().unwrap();
        let links = NodeLinks::new(Arc::new(Identity { rank: HostId(1).rank(), job: 1, token }));
        let hosts: Vec<HostId> = (2..12).map(HostId).collect();
        assert_eq!(links.listed(&hosts).len(), 10);
        for host in &hosts {
            links.set_addresses(*host, vec![Address::tcp("10.0.0.1", 1)]);
        }
        assert_eq!(links.listed(&hosts), []);
        let identity = layout::Identity::default();
        let request = |number: u32| CopyRequest::new(1, number.to_string().as_bytes(), &identity).unwrap();
        let mut firsts = BTreeMap::<HostId, u32>::new();
        for number in 0..1000 {
            let candidates = links.candidates(&request(number));
            assert_eq!((candidates.len(), &candidates), (4, &links.candidates(&request(number))));
            *firsts.entry(candidates[0]).or_default() += 1;
        }
        assert!(firsts.len() == 10 && firsts.values().all(|count| *count > 50), "{firsts:?}");
        (0..2).for_each(|_| links.avoid(hosts[0]));
        assert!((0..100).all(|number| !links.candidates(&request(number)).contains(&hosts[0])));
        assert_eq!(links.listed(&hosts[..3]), [(hosts[0], 1)]);
        // A new process has other addresses.
        links.set_addresses(hosts[0], vec![Address::tcp("10.0.0.1", 2)]);
        assert_eq!(links.candidates(&request(0)).len(), 3);
    }
}
