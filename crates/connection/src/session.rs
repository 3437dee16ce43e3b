//! A session: messages over a [`ControlConnection`] whose ends give signs of life.
//!
//! One task sends queued messages, and a heartbeat after each interval without a message. So an end
//! that computes sends heartbeats as long as its runtime has a thread, and silence means a dead or
//! an unreachable process. An end that does not read is disconnected after a timeout, so no sender
//! waits for ever. The rendezvous of ranks, the links between stores and the connections to the
//! control process are sessions.
//!
//! The price is one task per connection, and a queue between a sender and its socket.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout, timeout_at};

use crate::connection::within;
use crate::{ControlConnection, ControlMessage, MessageReceiver, MessageSender, WireError, WireErrorKind};

/// The number of heartbeats. Messages have other numbers.
const HEARTBEAT: u32 = 0;

/// The bounds of a session.
#[derive(Clone, Copy, Debug)]
pub struct SessionBounds {
    /// The interval of heartbeats while nothing else is sent.
    pub heartbeat: Duration,
    /// The other end counts as gone after this time without a message or a heartbeat.
    pub silence: Duration,
    /// The longest time that the other end may take to accept a message.
    pub send: Duration,
    /// The most bytes of a received message.
    pub most: usize,
    /// The messages that may wait to be sent.
    pub queue: usize,
}

/// Both directions of a session, and the task that sends.
pub struct Session {
    /// Queues messages.
    pub sender: SessionSender,
    /// Receives messages.
    pub receiver: SessionReceiver,
    /// The task that sends.
    pub writer: SessionWriter,
}

/// Messages that are sent one after another, without others between them.
#[derive(Debug)]
struct OutgoingMessages {
    messages: Vec<ControlMessage>,
    /// Counts the messages that were sent.
    sent: Option<Arc<AtomicU64>>,
}

/// Queues messages of a session. Clones share the queue. The session is closed at this end once all
/// clones were dropped and the queue was sent.
#[derive(Clone, Debug)]
pub struct SessionSender(mpsc::Sender<OutgoingMessages>);

/// The receiving direction of a session.
pub struct SessionReceiver {
    receiver: MessageReceiver,
    bounds: SessionBounds,
    peer: String,
    heard: Instant,
    unread: Arc<OnceLock<Instant>>,
}

/// The task that sends the messages of a session.
#[derive(Debug)]
pub struct SessionWriter(JoinHandle<()>);

impl Session {
    /// A session over a connection to `peer`, as errors call the other end. Must be called within a
    /// runtime.
    pub fn start(connection: ControlConnection, peer: impl fmt::Display, bounds: SessionBounds) -> Self {
        let (sender, receiver) = connection.split();
        let (queue, outgoing) = mpsc::channel(bounds.queue);
        let unread = Arc::new(OnceLock::new());
        let writer = tokio::spawn(write(sender, outgoing, bounds, Arc::clone(&unread)));
        let (peer, heard) = (peer.to_string(), Instant::now());
        let receiver = SessionReceiver { receiver, bounds, peer, heard, unread };
        Self { sender: SessionSender(queue), receiver, writer: SessionWriter(writer) }
    }
}

impl SessionSender {
    /// Queues a message, and waits for a place in the queue. `false` if the other end is gone.
    pub async fn send(&self, kind: u32, payload: Bytes) -> bool {
        self.0.send(OutgoingMessages::one(kind, payload)).await.is_ok()
    }

    /// Queues messages that nothing interrupts. Each increments `sent` when it was sent.
    pub async fn send_all(&self, messages: Vec<ControlMessage>, sent: &Arc<AtomicU64>) -> bool {
        let messages = OutgoingMessages { messages, sent: Some(Arc::clone(sent)) };
        self.0.send(messages).await.is_ok()
    }

    /// Queues a message if the queue has a place. `false` if not, or if the other end is gone.
    pub fn try_send(&self, kind: u32, payload: Bytes) -> bool {
        self.0.try_send(OutgoingMessages::one(kind, payload)).is_ok()
    }

    /// Whether the other end is gone, or does not read.
    pub fn is_closed(&self) -> bool {
        self.0.is_closed()
    }
}

impl OutgoingMessages {
    fn one(kind: u32, payload: Bytes) -> Self {
        Self { messages: vec![(kind, payload)], sent: None }
    }
}

impl SessionReceiver {
    /// The next message. `None` after the other end has closed the session.
    ///
    /// # Errors
    /// If the connection is broken or the other end is silent, or a message is too long.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    pub async fn next(&mut self) -> Result<Option<ControlMessage>, WireError> {
        loop {
            let receiving = self.receiver.receive(self.bounds.most);
            let Ok(received) = timeout_at(self.heard + self.bounds.silence, receiving).await else {
                return Err(self.timed_out("is silent"));
            };
            self.heard = Instant::now();
            match received {
                // It keeps sending and does not read.
                Ok(_) if self.unread.get().is_some_and(|since| since.elapsed() > self.bounds.silence) => {
                    return Err(self.timed_out("takes no messages"));
                }
                Ok(Some((HEARTBEAT, _))) => {}
                received => return received.map_err(|error| error.with(&self.peer)),
            }
        }
    }

    /// The time since the last message or heartbeat that was received here.
    pub fn silence(&self) -> Duration {
        self.heard.elapsed()
    }

    fn timed_out(&self, what: &str) -> WireError {
        WireError::new(WireErrorKind::Timeout, format!("{}: it {what}", self.peer))
    }
}

impl SessionWriter {
    /// Waits until the queue was sent, or the other end is gone. All senders must have been
    /// dropped.
    pub async fn ended(self) {
        // A panic of the task changes nothing.
        drop(self.0.await);
    }

    /// Ends the task without sending the queue.
    pub fn abort(&self) {
        self.0.abort();
    }
}

/// Sends all queued messages, and heartbeats. Notes in `unread` when the other end stops reading.
async fn write(
    mut sender: MessageSender,
    mut outgoing: mpsc::Receiver<OutgoingMessages>,
    bounds: SessionBounds,
    unread: Arc<OnceLock<Instant>>,
) {
    loop {
        let OutgoingMessages { messages, sent } = match timeout(bounds.heartbeat, outgoing.recv()).await {
            Err(_) => OutgoingMessages::one(HEARTBEAT, Bytes::new()),
            Ok(Some(messages)) => messages,
            Ok(None) => {
                // Otherwise the connection breaks, which the other end detects, too.
                drop(timeout(bounds.send, sender.shutdown()).await);
                return;
            }
        };
        for (kind, payload) in messages {
            if within(bounds.send, "", sender.send(kind, payload)).await.is_err() {
                // The first time counts.
                let _ = unread.set(Instant::now());
                return;
            }
            if let Some(sent) = &sent {
                sent.fetch_add(1, Relaxed);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use foreread_types::Rank;
    use tokio::io::duplex;

    use super::*;
    use crate::handshake::{answer, initiate};
    use crate::{Identity, Purpose, SampleOffer, Token, WireProtection};

    const SECOND: Duration = Duration::from_secs(1);
    const BOUNDS: SessionBounds = SessionBounds {
        heartbeat: SECOND,
        silence: SECOND.saturating_mul(3),
        send: SECOND,
        most: 1000,
        queue: 4,
    };

    fn identity(rank: u32) -> Identity {
        let token = Token::new("b7e1c95a03f64d2893ab5c17e0d68f42").unwrap();
        Identity { rank: Rank(rank), job: 7, token }
    }

    /// Both ends of a connection with so many bytes under way.
    async fn connections(bytes: usize) -> [ControlConnection; 2] {
        let (one, other) = duplex(bytes);
        let (requester, known, spoke) = (identity(0), [identity(1)], AtomicBool::new(false));
        let wire = WireProtection::Sealed;
        let initiating = initiate(Box::new(one), &requester, Purpose::Rendezvous, wire, None);
        let offer = SampleOffer::new(wire);
        let answering = answer(Box::new(other), "one".into(), &known, &offer, |_| true, &spoke);
        let ((one, _), (other, _)) = tokio::try_join!(initiating, answering).unwrap();
        [one, other].map(|channel| ControlConnection::new(channel, 7))
    }

    async fn sessions() -> [Session; 2] {
        connections(1 << 16).await.map(|connection| Session::start(connection, "peer", BOUNDS))
    }

    #[tokio::test(start_paused = true)]
    async fn idle_session_lives_and_a_dead_end_is_silent() {
        let [one, mut other] = sessions().await;
        assert!(timeout(SECOND * 60, other.receiver.next()).await.is_err());
        assert!(other.receiver.silence() <= SECOND);
        // The process of the other end is stopped: its connection stays open.
        one.writer.abort();
        let stopped = Instant::now();
        let error = other.receiver.next().await.unwrap_err();
        assert_eq!(
            (error.kind(), error.to_string()),
            (WireErrorKind::Timeout, "peer: it is silent".to_owned())
        );
        assert!(stopped.elapsed() <= SECOND * 4, "{:?}", stopped.elapsed());
        drop(one.receiver);
    }

    #[tokio::test(start_paused = true)]
    async fn closed_session_delivers_what_was_queued() {
        let [one, mut other] = sessions().await;
        let sent = Arc::new(AtomicU64::new(0));
        let pieces = (1..4).map(|kind| (kind, Bytes::from(vec![kind as u8; 900]))).collect();
        assert!(one.sender.send_all(pieces, &sent).await);
        assert!(one.sender.try_send(9, Bytes::new()));
        drop(one.sender);
        one.writer.ended().await;
        assert_eq!(sent.load(Relaxed), 3);
        for kind in [1, 2, 3, 9] {
            assert_eq!(other.receiver.next().await.unwrap().unwrap().0, kind);
        }
        drop(one.receiver);
        assert!(other.receiver.next().await.unwrap().is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn end_that_takes_no_messages_is_cut_off() {
        let [one, other] = connections(200).await;
        let (mut one, unread) = (Session::start(one, "peer", BOUNDS), other);
        let begun = Instant::now();
        while one.sender.send(1, vec![0; 900].into()).await {
            assert!(begun.elapsed() < SECOND * 10);
        }
        // Messages that arrived before can be read, for a while.
        let (mut chatty, _unread) = unread.split();
        let chatter = async {
            loop {
                chatty.send(2, Bytes::new()).await.unwrap();
                tokio::time::sleep(SECOND / 2).await;
            }
        };
        let received = async {
            loop {
                if let Err(error) = one.receiver.next().await {
                    return error;
                }
            }
        };
        let error = tokio::select! {
            error = received => error,
            () = chatter => unreachable!("it does not end"),
        };
        assert_eq!(error.to_string(), "peer: it takes no messages");
        assert!(one.sender.is_closed() && !one.sender.try_send(1, Bytes::new()));
    }

    #[tokio::test(start_paused = true)]
    async fn too_long_message_ends_the_session() {
        let [one, mut other] = sessions().await;
        assert!(one.sender.send(1, vec![0; 1001].into()).await);
        let error = other.receiver.next().await.unwrap_err();
        assert_eq!(error.kind(), WireErrorKind::Malformed, "{error}");
    }
}
