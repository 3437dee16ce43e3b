//! A connection to or from rank 0, read and written by tasks of its own.
//!
//! Both ends speak while their programs compute, so that silence means that a process is gone and not that it is busy. The
//! price is two tasks for each connection. Whoever drops a [`Link`] ends it; what was given to be sent is sent first, as long
//! as the other end takes it. Where nothing more can be sent, what came is still to be had: a rank that gives up says why and
//! closes, and who was speaking to it just then notices the close first.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::messages::{ALIVE, LONGEST, Message, PIECE, SILENCE, what};
use crate::connection::{Connection, Receiver, Sender};

/// What waits to be sent or to be taken: a few, because some are pieces of bulk.
const WAITING: usize = 4;

/// An end that takes nothing for so long is gone.
const STUCK: Duration = Duration::from_secs(30);

/// What is sent.
#[derive(Debug)]
enum Outgoing {
    Message(Bytes),
    Bulk(Bytes),
}

/// What comes.
#[derive(Debug)]
pub(super) enum Incoming {
    Message(Message),
    Piece(Bytes),
}

/// A connection between rank 0 and another.
#[derive(Debug)]
pub(super) struct Link {
    out: mpsc::Sender<Outgoing>,
    come: mpsc::Receiver<Incoming>,
    /// The other end closed it; it did not break.
    closed: Arc<AtomicBool>,
    writer: JoinHandle<()>,
}

impl Link {
    /// Takes over a connection. `moved` grows with every piece of bulk that leaves.
    pub(super) fn new(connection: Connection, moved: Arc<AtomicU64>) -> Self {
        let (sender, receiver) = connection.split();
        let (out, outgoing) = mpsc::channel(WAITING);
        let (incoming, come) = mpsc::channel(WAITING);
        let closed = Arc::new(AtomicBool::new(false));
        let mut reader = tokio::spawn(read(receiver, incoming, Arc::clone(&closed)));
        let writer = tokio::spawn(async move {
            // The stream closes when neither half is left.
            if write(sender, outgoing, &moved).await.is_none() {
                // What the other end said before it closed may say why, and lies here unread. One that takes nothing and goes
                // on speaking is not heard for ever.
                drop(timeout(SILENCE, &mut reader).await);
            }
            reader.abort();
        });
        Self { out, come, closed, writer }
    }

    /// Sends a message; `false` if the link is broken.
    pub(super) async fn say(&self, message: &Message) -> bool {
        self.out.send(Outgoing::Message(message.encode())).await.is_ok()
    }

    /// Sends a message if there is room for it.
    pub(super) fn try_say(&self, message: &Message) {
        // Where there is none, the end of the link says enough.
        drop(self.out.try_send(Outgoing::Message(message.encode())));
    }

    /// Sends bulk behind the message that says what it is.
    pub(super) async fn say_with(&self, message: &Message, bulk: Bytes) -> bool {
        self.say(message).await && self.out.send(Outgoing::Bulk(bulk)).await.is_ok()
    }

    /// Whether it ended because the other end closed it, which has then taken all that was sent before.
    pub(super) fn was_closed(&self) -> bool {
        self.closed.load(Relaxed)
    }

    /// The next thing that comes; `None` if the link is broken.
    ///
    /// # Cancel safety
    /// Nothing is lost.
    pub(super) async fn next(&mut self) -> Option<Incoming> {
        self.come.recv().await
    }

    /// The bulk that comes next, of at most `most` bytes; `None` if the link is broken, or something else comes.
    pub(super) async fn whole(&mut self, most: u64) -> Option<Bytes> {
        let Incoming::Message(Message::Bulk { length }) = self.next().await? else { return None };
        if length > most {
            tracing::warn!("a rank sends {length} bytes, where at most {most} are expected");
            return None;
        }
        // Memory is taken as bytes come: a length alone costs nothing.
        let mut all = Vec::new();
        while (all.len() as u64) < length {
            let Incoming::Piece(piece) = self.next().await? else { return None };
            if piece.is_empty() || all.len() as u64 + piece.len() as u64 > length {
                return None;
            }
            all.extend_from_slice(&piece);
        }
        Some(all.into())
    }

    /// Ends the link when all that was to be sent has left.
    pub(super) async fn close(self) {
        drop((self.out, self.come));
        // It ends by itself within a bound; that it panicked changes nothing.
        drop(self.writer.await);
    }
}

/// Sends all there is to send; `None` where the other end takes no more of it.
async fn write(mut sender: Sender, mut outgoing: mpsc::Receiver<Outgoing>, moved: &AtomicU64) -> Option<()> {
    loop {
        match timeout(ALIVE, outgoing.recv()).await {
            Err(_) => send(&mut sender, what::ALIVE, Bytes::new()).await?,
            Ok(None) => {
                drop(timeout(STUCK, sender.shutdown()).await);
                return Some(());
            }
            Ok(Some(Outgoing::Message(text))) => send(&mut sender, what::MESSAGE, text).await?,
            Ok(Some(Outgoing::Bulk(bulk))) => send_bulk(&mut sender, bulk, moved).await?,
        }
    }
}

async fn send(sender: &mut Sender, what: u32, payload: Bytes) -> Option<()> {
    timeout(STUCK, sender.send(what, payload)).await.ok()?.ok()
}

async fn send_bulk(sender: &mut Sender, mut bulk: Bytes, moved: &AtomicU64) -> Option<()> {
    let length = bulk.len() as u64;
    send(sender, what::MESSAGE, Message::Bulk { length }.encode()).await?;
    while !bulk.is_empty() {
        let piece = bulk.split_to(bulk.len().min(PIECE));
        moved.fetch_add(1, Relaxed);
        send(sender, what::PIECE, piece).await?;
    }
    Some(())
}

async fn read(mut receiver: Receiver, incoming: mpsc::Sender<Incoming>, closed: Arc<AtomicBool>) {
    loop {
        let come = tokio::select! {
            come = timeout(SILENCE, receiver.receive(LONGEST)) => come,
            () = incoming.closed() => return,
        };
        // Whatever the reason is that nothing more comes, the channel's end says it.
        let (what, payload) = match come {
            Ok(Ok(Some(message))) => message,
            ended => return closed.store(matches!(ended, Ok(Ok(None))), Relaxed),
        };
        let item = match what {
            what::ALIVE => continue,
            what::PIECE => Incoming::Piece(payload),
            what::MESSAGE => match Message::decode(&payload) {
                // Said again soon; a rank that computes and does not listen is not to hold up who says it.
                Some(message @ Message::Waiting { .. }) => {
                    drop(incoming.try_send(Incoming::Message(message)));
                    continue;
                }
                Some(message) => Incoming::Message(message),
                None => {
                    tracing::warn!("a rank says what this version does not understand");
                    return;
                }
            },
            // A later version's.
            _ => continue,
        };
        if incoming.send(item).await.is_err() {
            return;
        }
    }
}
