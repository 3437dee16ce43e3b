//! A connection to or from rank 0: a [session](foreread_connection::Session) with a task that
//! receives.
//!
//! Both ends send heartbeats while their programs compute, so that silence means a dead process,
//! not a busy one. The price is two tasks per connection. Dropping a [`RankLink`] closes it after
//! the queued messages were sent, as long as the other end reads them. When sending fails, received
//! messages can still be read. A rank that gives up sends its reason and closes, and this end may
//! detect the close first.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use bytes::Bytes;
use foreread_connection::ControlConnection;
use foreread_connection::{Session, SessionBounds, SessionReceiver, SessionSender, SessionWriter};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

use super::messages::{
    HEARTBEAT_INTERVAL, HEARTBEAT_TIMEOUT, MAX_MESSAGE_BYTES, MAX_PIECE_BYTES, MeetMessage, frame_kind,
};
use crate::counters::PeerCounters;

/// Messages that wait to be sent or received. Few, because their bulk may be large.
const QUEUE_LENGTH: usize = 4;

/// The bounds of a link's session.
const BOUNDS: SessionBounds = SessionBounds {
    heartbeat: HEARTBEAT_INTERVAL,
    silence: HEARTBEAT_TIMEOUT,
    send: Duration::from_secs(30),
    most: MAX_MESSAGE_BYTES,
    queue: QUEUE_LENGTH,
};

/// Bytes of bulk that are received concurrently on all links of a [`LinkTraffic`], in KiB.
const RECEIVE_BUDGET_KIB: u32 = 1 << 20;

/// A received message with all of its bulk.
#[derive(Debug)]
pub(super) struct IncomingMessage {
    pub message: MeetMessage,
    pub bulk: Bytes,
    /// Budget of the bulk, held until its receiver has accounted for it.
    pub room: Option<OwnedSemaphorePermit>,
}

/// State that the links of one rendezvous share.
#[derive(Debug)]
pub(super) struct LinkTraffic {
    /// Pieces of bulk that were sent and received, and the messages before sent ones. A transfer
    /// that progresses does not time out.
    moved: Arc<AtomicU64>,
    /// The largest bulk of a received message.
    most: u64,
    /// Budget of bulk that is being received. Other senders wait.
    room: Arc<Semaphore>,
    counters: Arc<PeerCounters>,
}

impl LinkTraffic {
    /// For links on which at most `most` bytes follow a received message. Messages are counted in
    /// `counters`.
    pub(super) fn new(most: u64, counters: Arc<PeerCounters>) -> Arc<Self> {
        let room = Arc::new(Semaphore::new(RECEIVE_BUDGET_KIB as usize));
        Arc::new(Self { moved: Arc::default(), most, room, counters })
    }

    pub(super) fn moved(&self) -> u64 {
        self.moved.load(Relaxed)
    }

    pub(super) fn counters(&self) -> &Arc<PeerCounters> {
        &self.counters
    }
}

/// A connection between rank 0 and another rank.
#[derive(Debug)]
pub(super) struct RankLink {
    out: SessionSender,
    come: mpsc::Receiver<IncomingMessage>,
    /// The other end closed it. It did not break.
    closed: Arc<AtomicBool>,
    writer: SessionWriter,
    traffic: Arc<LinkTraffic>,
}

impl RankLink {
    /// Starts the tasks of a connection.
    pub(super) fn new(connection: ControlConnection, traffic: Arc<LinkTraffic>) -> Self {
        let Session { sender, receiver, writer } = Session::start(connection, "a rank", BOUNDS);
        let (incoming, come) = mpsc::channel(QUEUE_LENGTH);
        let closed = Arc::new(AtomicBool::new(false));
        let reading = LinkReader { receiver, traffic: Arc::clone(&traffic) };
        tokio::spawn(read(reading, incoming, Arc::clone(&closed)));
        Self { out: sender, come, closed, writer, traffic }
    }

    /// Sends a message. `false` if the link is broken.
    pub(super) async fn send(&self, message: &MeetMessage) -> bool {
        self.count(self.out.send(frame_kind::MESSAGE, message.encode()).await)
    }

    /// Sends a message if there is room in the queue.
    pub(super) fn try_send(&self, message: &MeetMessage) {
        // Otherwise the end of the link is sufficient.
        self.count(self.out.try_send(frame_kind::MESSAGE, message.encode()));
    }

    /// Sends a message and the bulk whose length it contains.
    pub(super) async fn send_with_bulk(&self, message: &MeetMessage, mut bulk: Bytes) -> bool {
        if bulk.is_empty() {
            return self.send(message).await;
        }
        let mut messages = vec![(frame_kind::MESSAGE, message.encode())];
        while !bulk.is_empty() {
            messages.push((frame_kind::PIECE, bulk.split_to(bulk.len().min(MAX_PIECE_BYTES))));
        }
        self.count(self.out.send_all(messages, &self.traffic.moved).await)
    }

    fn count(&self, is_queued: bool) -> bool {
        self.traffic.counters.now().messages += u64::from(is_queued);
        is_queued
    }

    /// Whether the other end closed the link, and has therefore received all that was sent before.
    pub(super) fn was_closed(&self) -> bool {
        self.closed.load(Relaxed)
    }

    /// The next message. `None` if the link is broken.
    ///
    /// # Cancel safety
    /// No message is lost.
    pub(super) async fn next(&mut self) -> Option<IncomingMessage> {
        self.come.recv().await
    }

    /// Closes the link after all queued messages were sent.
    pub(super) async fn close(self) {
        drop((self.out, self.come));
        // Within a timeout.
        self.writer.ended().await;
    }
}

/// The receiving half of a link.
struct LinkReader {
    receiver: SessionReceiver,
    traffic: Arc<LinkTraffic>,
}

impl LinkReader {
    /// The next frame: its kind and payload. `Ok(None)` if the other end closed the connection.
    async fn frame(&mut self) -> Result<Option<(u32, Bytes)>, ()> {
        self.receiver.next().await.map_err(drop)
    }

    /// The bulk of a message, and its part of the budget.
    async fn bulk(&mut self, length: u64) -> Result<(Bytes, Option<OwnedSemaphorePermit>), ()> {
        if length == 0 {
            return Ok((Bytes::new(), None));
        }
        if length > self.traffic.most {
            tracing::warn!("a rank sends {length} bytes, where at most {} are expected", self.traffic.most);
            return Err(());
        }
        let pieces = length.div_ceil(1024).min(u64::from(RECEIVE_BUDGET_KIB)) as u32;
        let room = Arc::clone(&self.traffic.room).acquire_many_owned(pieces).await.map_err(|_| ())?;
        // Reserved at once, because growing a vector copies it. Pages are allocated as bytes
        // arrive.
        let mut all = Vec::new();
        all.try_reserve_exact(usize::try_from(length).map_err(|_| ())?).map_err(|_| ())?;
        while (all.len() as u64) < length {
            let Some((frame_kind::PIECE, piece)) = self.frame().await? else { return Err(()) };
            if piece.is_empty() || all.len() as u64 + piece.len() as u64 > length {
                return Err(());
            }
            self.traffic.moved.fetch_add(1, Relaxed);
            all.extend_from_slice(&piece);
        }
        Ok((all.into(), Some(room)))
    }

    /// The next message. `Ok(None)` if the other end closed the connection.
    async fn message(&mut self) -> Result<Option<IncomingMessage>, ()> {
        loop {
            match self.frame().await? {
                None => return Ok(None),
                Some((frame_kind::MESSAGE, text)) => {
                    let Some(message) = MeetMessage::decode(&text) else {
                        tracing::warn!("a rank sent an invalid message");
                        return Err(());
                    };
                    let (bulk, room) = self.bulk(message.length()).await?;
                    return Ok(Some(IncomingMessage { message, bulk, room }));
                }
                Some((frame_kind::PIECE, _)) => return Err(()),
                // Of a later version.
                Some(_) => {}
            }
        }
    }
}

async fn read(mut reading: LinkReader, incoming: mpsc::Sender<IncomingMessage>, closed: Arc<AtomicBool>) {
    loop {
        let come = tokio::select! {
            come = reading.message() => come,
            () = incoming.closed() => return,
        };
        // The end of the channel notifies the receiver.
        let come = match come {
            Ok(Some(come)) => come,
            ended => return closed.store(matches!(ended, Ok(None)), Relaxed),
        };
        // Repeated once a second. A rank that computes and does not read must not block the sender.
        if matches!(come.message, MeetMessage::Waiting { .. }) {
            drop(incoming.try_send(come));
        } else if incoming.send(come).await.is_err() {
            return;
        }
    }
}
