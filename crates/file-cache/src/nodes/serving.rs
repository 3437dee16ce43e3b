//! Gives copies to hosts of other nodes.
//!
//! All connections are tasks of one thread, and files are read by a few others. A peer that does
//! not know the token gets no answer. The numbers of connections before and after the handshake are
//! limited separately, so strangers do not displace hosts. Requests are short, and a connection has
//! one piece in memory. The price of the limits: beyond them, hosts read the storage.

use std::os::unix::fs::FileExt;
use std::slice::from_ref;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use bytes::Bytes;
use foreread_connection::connection::within;
use foreread_connection::handshake::{PATIENCE, answer};
use foreread_connection::{
    BoxedStream, ControlConnection, Identity, Purpose, SampleOffer, TransportListener, WireError,
    WireErrorKind, WireProtection,
};
use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;
use tokio::time::{sleep, timeout};

use super::copies::{CopySource, FoundCopy};
use super::messages::{ABSENT, COPY, CopyRequest, MAX_PIECE, MAX_REQUEST, PIECE, REQUEST, encode_copy};

/// Connections before the end of the handshake, and after it.
const MAX_STRANGERS: usize = 64;
const MAX_CONNECTIONS: usize = 64;

/// How long a connection may be without a request.
const IDLE: Duration = Duration::from_secs(5);

/// How long a peer may take no byte.
const STALLED: Duration = Duration::from_secs(5);

/// How often it is noticed that the host has ended.
const POLL: Duration = Duration::from_millis(50);

/// Answers other hosts until this one ends.
pub(super) async fn serve(
    mut listener: Box<dyn TransportListener>,
    identity: Arc<Identity>,
    source: Arc<dyn CopySource>,
) {
    let strangers = Arc::new(Semaphore::new(MAX_STRANGERS));
    let known = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    while !source.has_ended() {
        let (stream, from) = match timeout(POLL, listener.accept()).await {
            Ok(Ok(accepted)) => accepted,
            // No connection, or no descriptor for one.
            Err(_) => continue,
            Ok(Err(_)) => {
                sleep(POLL).await;
                continue;
            }
        };
        // One too many is closed at once.
        let Ok(permit) = Arc::clone(&strangers).try_acquire_owned() else { continue };
        let (identity, source, known) = (Arc::clone(&identity), Arc::clone(&source), Arc::clone(&known));
        tokio::spawn(async move {
            let result = async {
                let connection = welcome(stream, &from, &identity).await?;
                drop(permit);
                let Ok(_permit) = known.try_acquire() else {
                    return Err(WireError::new(WireErrorKind::Refused, "too many hosts are connected"));
                };
                answer_requests(connection, &from, &source).await
            };
            if let Err(error) = result.await {
                tracing::debug!(%error, from, "a connection of another node ended");
            }
        });
    }
}

/// The connection of a peer that knows the token.
async fn welcome(
    stream: BoxedStream,
    from: &str,
    identity: &Identity,
) -> Result<ControlConnection, WireError> {
    let offer = SampleOffer::new(WireProtection::Sealed);
    let is_wanted = |purpose| purpose == Purpose::Rendezvous;
    let has_spoken = AtomicBool::new(false);
    let handshake = answer(stream, from.to_owned(), from_ref(identity), &offer, is_wanted, &has_spoken);
    let (channel, _) = within(PATIENCE, from, handshake).await?;
    Ok(ControlConnection::new(channel, identity.job))
}

async fn answer_requests(
    mut connection: ControlConnection,
    from: &str,
    source: &Arc<dyn CopySource>,
) -> Result<(), WireError> {
    loop {
        let received = timeout(IDLE, connection.receive(MAX_REQUEST)).await;
        // A host that needs nothing for a while connects again.
        let Some((kind, payload)) = received.unwrap_or(Ok(None))? else { return Ok(()) };
        let request = (kind == REQUEST).then(|| CopyRequest::decode(&payload)).flatten();
        let request = request.ok_or_else(|| WireError::malformed(format!("{from} sent no request")))?;
        let own = Arc::clone(source);
        // Looking for a copy waits for the lock of the host, and opens a file.
        match spawn_blocking(move || own.copy_of(&request)).await.ok().flatten() {
            None => within(STALLED, from, connection.send(ABSENT, Bytes::new())).await?,
            Some(copy) => {
                send_copy(&mut connection, from, copy).await?;
                source.given();
            }
        }
    }
}

async fn send_copy(connection: &mut ControlConnection, from: &str, copy: FoundCopy) -> Result<(), WireError> {
    within(STALLED, from, connection.send(COPY, encode_copy(copy.crc32c))).await?;
    let (file, mut at) = (Arc::new(copy.file), 0);
    while at < copy.size {
        let length = (copy.size - at).min(MAX_PIECE as u64);
        let from_file = Arc::clone(&file);
        let read = spawn_blocking(move || {
            let mut piece = vec![0; length as usize];
            from_file.read_exact_at(&mut piece, at).map(|()| piece)
        });
        let piece = read.await.map_err(std::io::Error::other).flatten();
        // The connection ends without the rest, and the peer reads the original.
        let piece = piece.map_err(|error| WireError::io("cannot read a copy", error))?;
        within(STALLED, from, connection.send(PIECE, piece.into())).await?;
        at += length;
    }
    Ok(())
}
