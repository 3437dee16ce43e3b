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
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::messages::{ALIVE, LONGEST, Message, PIECE, SILENCE, what};
use crate::Counters;
use crate::connection::{Connection, Receiver, Sender};

/// What waits to be sent or to be taken: a few, because some are pieces of bulk.
const WAITING: usize = 4;

/// An end that takes nothing for so long is gone.
const STUCK: Duration = Duration::from_secs(30);

/// Bytes of bulk that arrive at a time on all links of a [`Traffic`], in KiB.
const ARRIVING: u32 = 1 << 20;

/// What is sent: a message, and the bulk that follows it.
#[derive(Debug)]
struct Outgoing {
    message: Bytes,
    bulk: Bytes,
}

/// What comes: a message with all of its bulk.
#[derive(Debug)]
pub(super) struct Incoming {
    pub message: Message,
    pub bulk: Bytes,
    /// Room of the bulk until its receiver has accounted for it.
    pub room: Option<OwnedSemaphorePermit>,
}

/// What the links of one meeting share.
#[derive(Debug)]
pub(super) struct Traffic {
    /// Pieces of bulk that were sent and received: a transfer that moves is not late.
    moved: AtomicU64,
    /// The most bulk of one message that is received.
    most: u64,
    /// Room for bulk that arrives. Other senders wait.
    room: Arc<Semaphore>,
    counters: Arc<Counters>,
}

impl Traffic {
    /// Of links on which at most `most` bytes follow a message. Messages are counted in `counters`.
    pub(super) fn new(most: u64, counters: Arc<Counters>) -> Arc<Self> {
        let room = Arc::new(Semaphore::new(ARRIVING as usize));
        Arc::new(Self { moved: AtomicU64::new(0), most, room, counters })
    }

    pub(super) fn moved(&self) -> u64 {
        self.moved.load(Relaxed)
    }

    pub(super) fn counters(&self) -> &Arc<Counters> {
        &self.counters
    }
}

/// A connection between two ranks that meet.
#[derive(Debug)]
pub(super) struct Link {
    out: mpsc::Sender<Outgoing>,
    come: mpsc::Receiver<Incoming>,
    /// The other end closed it; it did not break.
    closed: Arc<AtomicBool>,
    writer: JoinHandle<()>,
}

impl Link {
    /// Takes over a connection.
    pub(super) fn new(connection: Connection, traffic: Arc<Traffic>) -> Self {
        let (sender, receiver) = connection.split();
        let (out, outgoing) = mpsc::channel(WAITING);
        let (incoming, come) = mpsc::channel(WAITING);
        let closed = Arc::new(AtomicBool::new(false));
        let reading = Reading { receiver, traffic: Arc::clone(&traffic) };
        let mut reader = tokio::spawn(read(reading, incoming, Arc::clone(&closed)));
        let writer = tokio::spawn(async move {
            // The stream closes when neither half is left.
            if write(sender, outgoing, &traffic).await.is_none() {
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
        self.say_with(message, Bytes::new()).await
    }

    /// Sends a message if there is room for it.
    pub(super) fn try_say(&self, message: &Message) {
        // Where there is none, the end of the link says enough.
        drop(self.out.try_send(Outgoing { message: message.encode(), bulk: Bytes::new() }));
    }

    /// Sends a message and the bulk whose length it names.
    pub(super) async fn say_with(&self, message: &Message, bulk: Bytes) -> bool {
        self.out.send(Outgoing { message: message.encode(), bulk }).await.is_ok()
    }

    /// Whether it ended because the other end closed it, which has then taken all that was sent before.
    pub(super) fn was_closed(&self) -> bool {
        self.closed.load(Relaxed)
    }

    /// The next message; `None` if the link is broken.
    ///
    /// # Cancel safety
    /// Nothing is lost.
    pub(super) async fn next(&mut self) -> Option<Incoming> {
        self.come.recv().await
    }

    /// Ends the link when all that was to be sent has left.
    pub(super) async fn close(self) {
        drop((self.out, self.come));
        // It ends by itself within a bound; that it panicked changes nothing.
        drop(self.writer.await);
    }
}

/// Sends all there is to send; `None` where the other end takes no more of it.
async fn write(mut sender: Sender, mut outgoing: mpsc::Receiver<Outgoing>, traffic: &Traffic) -> Option<()> {
    loop {
        match timeout(ALIVE, outgoing.recv()).await {
            Err(_) => send(&mut sender, what::ALIVE, Bytes::new()).await?,
            Ok(None) => {
                drop(timeout(STUCK, sender.shutdown()).await);
                return Some(());
            }
            Ok(Some(Outgoing { message, mut bulk })) => {
                traffic.counters.now().messages += 1;
                send(&mut sender, what::MESSAGE, message).await?;
                while !bulk.is_empty() {
                    let piece = bulk.split_to(bulk.len().min(PIECE));
                    traffic.moved.fetch_add(1, Relaxed);
                    send(&mut sender, what::PIECE, piece).await?;
                }
            }
        }
    }
}

async fn send(sender: &mut Sender, what: u32, payload: Bytes) -> Option<()> {
    timeout(STUCK, sender.send(what, payload)).await.ok()?.ok()
}

/// The way in of a link.
struct Reading {
    receiver: Receiver,
    traffic: Arc<Traffic>,
}

impl Reading {
    /// The next frame that is no heartbeat: what it is, and its bytes. `Ok(None)` where the other end closed the connection.
    async fn frame(&mut self) -> Result<Option<(u32, Bytes)>, ()> {
        loop {
            match timeout(SILENCE, self.receiver.receive(LONGEST)).await {
                Ok(Ok(Some((what::ALIVE, _)))) => {}
                Ok(Ok(frame)) => return Ok(frame),
                Ok(Err(_)) | Err(_) => return Err(()),
            }
        }
    }

    /// The bulk behind a message, and the room that it takes.
    async fn bulk(&mut self, length: u64) -> Result<(Bytes, Option<OwnedSemaphorePermit>), ()> {
        if length == 0 {
            return Ok((Bytes::new(), None));
        }
        if length > self.traffic.most {
            tracing::warn!("a rank sends {length} bytes, where at most {} are expected", self.traffic.most);
            return Err(());
        }
        let pieces = length.div_ceil(1024).min(u64::from(ARRIVING)) as u32;
        let room = Arc::clone(&self.traffic.room).acquire_many_owned(pieces).await.map_err(|_| ())?;
        // At once, because a vector that grows is copied; pages are taken as bytes come.
        let mut all = Vec::new();
        all.try_reserve_exact(usize::try_from(length).map_err(|_| ())?).map_err(|_| ())?;
        while (all.len() as u64) < length {
            let Some((what::PIECE, piece)) = self.frame().await? else { return Err(()) };
            if piece.is_empty() || all.len() as u64 + piece.len() as u64 > length {
                return Err(());
            }
            self.traffic.moved.fetch_add(1, Relaxed);
            all.extend_from_slice(&piece);
        }
        Ok((all.into(), Some(room)))
    }

    /// The next message; `Ok(None)` where the other end closed the connection.
    async fn message(&mut self) -> Result<Option<Incoming>, ()> {
        loop {
            match self.frame().await? {
                None => return Ok(None),
                Some((what::MESSAGE, text)) => {
                    let Some(message) = Message::decode(&text) else {
                        tracing::warn!("a rank says what this version does not understand");
                        return Err(());
                    };
                    let (bulk, room) = self.bulk(message.length()).await?;
                    return Ok(Some(Incoming { message, bulk, room }));
                }
                Some((what::PIECE, _)) => return Err(()),
                // A later version's.
                Some(_) => {}
            }
        }
    }
}

async fn read(mut reading: Reading, incoming: mpsc::Sender<Incoming>, closed: Arc<AtomicBool>) {
    loop {
        let come = tokio::select! {
            come = reading.message() => come,
            () = incoming.closed() => return,
        };
        // Whatever the reason is that nothing more comes, the channel's end says it.
        let come = match come {
            Ok(Some(come)) => come,
            ended => return closed.store(matches!(ended, Ok(None)), Relaxed),
        };
        // Said again soon; a rank that computes and does not listen is not to hold up who says it.
        if matches!(come.message, Message::Waiting { .. }) {
            drop(incoming.try_send(come));
        } else if incoming.send(come).await.is_err() {
            return;
        }
    }
}
