//! The I/O of a rank other than 0 during the rendezvous: its connection to rank 0.
//!
//! A broken connection is reconnected, and requests without a reply are sent again. Rank 0 keeps
//! all contributions. [`Follower`] handles the messages. The deadline of a step passes while
//! nothing arrives, as at rank 0 ([`super::rank0`]).

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use foreread_connection::{Address, Identity};
use tokio::time::{Instant, sleep_until, timeout, timeout_at};

use super::dial::{DialError, Rank0Connection, Rank0Dialer};
use super::follower::{Follower, FollowerEvent};
use super::link::{IncomingMessage, LinkTraffic, RankLink};
use super::members::RECONNECT_TIMEOUT;
use super::messages::{DRAIN_TIMEOUT, Hello, MAX_PART_BYTES, MeetMessage};
use super::{MeetError, MeetErrorKind};

/// How long another rank 0 may take to reply.
const OTHER_RANK0_TIMEOUT: Duration = Duration::from_secs(2);

/// Drives a [`Follower`] over its connection to rank 0.
#[derive(Debug)]
pub(super) struct FollowerDriver {
    pub follower: Follower,
    pub dial: Rank0Dialer,
    pub traffic: Arc<LinkTraffic>,
    pub link: Option<RankLink>,
    /// The address at which rank 0 was reached.
    pub at: Option<Address>,
}

impl FollowerDriver {
    pub(super) fn new(dial: Rank0Dialer, follower: Follower, traffic: Arc<LinkTraffic>) -> Self {
        Self { follower, dial, traffic, link: None, at: None }
    }

    fn check_deadline(&mut self) -> Result<(), MeetError> {
        self.follower.check_deadline(self.traffic.moved(), Instant::now())
    }

    /// Connects to rank 0. The caller then introduces this rank.
    pub(super) async fn find(&mut self) -> Result<Rank0Connection, MeetError> {
        loop {
            let dial = self.dial.clone();
            let mut attempt = pin!(dial.attempt());
            let found = loop {
                match timeout_at(self.follower.wait.next(), &mut attempt).await {
                    Ok(found) => break found,
                    Err(_) => self.check_deadline()?,
                }
            };
            match found {
                Ok(found) => {
                    self.follower.reached();
                    return Ok(found);
                }
                Err(error) => self.follower.dial_failed(error, Instant::now())?,
            }
            self.pause().await?;
        }
    }

    /// Waits before the next attempt.
    pub(super) async fn pause(&mut self) -> Result<(), MeetError> {
        self.follower.attempts += 1;
        let pause = self.dial.retry_delay(self.follower.attempts, self.follower.hello.started);
        let next = Instant::now() + pause;
        while Instant::now() < next {
            sleep_until(next.min(self.follower.wait.next())).await;
            self.check_deadline()?;
        }
        Ok(())
    }

    /// Sends the hello on a connection and waits for the admission. `false` if rank 0 refuses it
    /// for now, or the connection ends.
    pub(super) async fn introduce(&mut self, found: Rank0Connection) -> Result<bool, MeetError> {
        let mut link = RankLink::new(found.connection, Arc::clone(&self.traffic));
        link.send(&MeetMessage::Hello(Box::new(self.follower.hello.clone()))).await;
        loop {
            let come = match timeout_at(self.follower.wait.next(), link.next()).await {
                Ok(come) => come,
                Err(_) => {
                    self.check_deadline()?;
                    continue;
                }
            };
            let Some(IncomingMessage { message, bulk, .. }) = come else {
                self.follower.closed(Instant::now());
                return Ok(false);
            };
            match self.follower.handle(message, bulk, Instant::now())? {
                FollowerEvent::Handled => {}
                FollowerEvent::Welcome => {
                    (self.link, self.at) = (Some(link), Some(found.at));
                    return Ok(true);
                }
                FollowerEvent::RetryLater => return Ok(false),
                FollowerEvent::Redirect(addresses) => {
                    let addresses = addresses.iter().filter_map(|address| address.parse().ok());
                    self.dial.redirected(&found.at, addresses.collect());
                    return Ok(false);
                }
            }
        }
    }

    /// Reconnects as the same rank.
    async fn connect(&mut self, identity: &Identity) -> Result<(), MeetError> {
        while self.link.is_none() {
            let found = self.find().await?;
            if found.identity.token.expose() != identity.token.expose() {
                let line = "rank 0 was started again and has another token: start all ranks again";
                return Err(MeetError::new(MeetErrorKind::Broken, line));
            }
            if !self.introduce(found).await? {
                self.pause().await?;
            }
        }
        Ok(())
    }

    /// The value of `key`. `request` is sent on each new connection. If the value `comes` without a
    /// request, it is only sent after a connection was lost that may have delivered it.
    pub(super) async fn value(
        &mut self,
        identity: &Identity,
        key: &str,
        request: Option<(MeetMessage, Bytes)>,
        comes: bool,
    ) -> Result<Bytes, MeetError> {
        self.follower.begin(Instant::now());
        loop {
            if let Some(value) = self.follower.take(key)? {
                return Ok(value);
            }
            self.connect(identity).await?;
            let is_reported = !comes || self.follower.was_lost;
            if let Some((message, bulk)) = request.as_ref().filter(|_| is_reported)
                && let Some(link) = &self.link
            {
                // If it cannot be sent, messages received before may contain the reason.
                link.send_with_bulk(message, bulk.clone()).await;
            }
            while self.link.is_some() {
                if let Some(value) = self.follower.take(key)? {
                    return Ok(value);
                }
                self.next().await?;
            }
        }
    }

    /// Keeps the connection to rank 0 while this rank waits for another rank. Without it, rank 0
    /// would take this rank for gone. Returns only on an error.
    ///
    /// # Cancel safety
    /// No message is lost.
    pub(super) async fn stay(&mut self, identity: &Identity) -> MeetError {
        self.follower.begin(Instant::now());
        loop {
            if let Err(error) = self.connect(identity).await {
                return error;
            }
            while self.link.is_some() {
                if let Err(error) = self.next().await {
                    return error;
                }
            }
        }
    }

    /// Handles the next message of rank 0, or shows the progress of waiting.
    async fn next(&mut self) -> Result<(), MeetError> {
        let Some(link) = &mut self.link else { return Ok(()) };
        match timeout_at(self.follower.wait.next(), link.next()).await {
            Err(_) => self.check_deadline(),
            Ok(Some(IncomingMessage { message, bulk, .. })) => {
                self.follower.handle(message, bulk, Instant::now()).map(|_| ())
            }
            Ok(None) => {
                self.lose();
                Ok(())
            }
        }
    }

    fn lose(&mut self) {
        if self.link.take().is_some() {
            self.follower.closed(Instant::now());
        }
    }

    /// Sends a message without a reply. `false` without a connection.
    pub(super) async fn send(&self, message: &MeetMessage) -> bool {
        match &self.link {
            Some(link) => link.send(message).await,
            None => false,
        }
    }

    /// Reconnects after the connection broke while this rank was busy, so that it does not count as
    /// gone. A failure is reported by the next request.
    pub(super) async fn reconnect(&mut self, identity: &Identity) {
        // Messages received before the break may report that the rendezvous has failed, and rank 0
        // may have ended since.
        let listen = async { while self.link.is_some() && self.next().await.is_ok() {} };
        drop(timeout(DRAIN_TIMEOUT, listen).await);
        self.lose();
        if !self.follower.is_refused() {
            drop(timeout(RECONNECT_TIMEOUT, self.connect(identity)).await);
        }
    }
}

/// Checks whether another process is rank 0 of this job.
pub(super) async fn check_other_rank0(dial: &Rank0Dialer, hello: &Hello) -> Result<(), MeetError> {
    let introduction = async {
        // A notice that is unreadable now is replaced.
        let found = match dial.attempt().await {
            Ok(found) => found,
            Err(DialError::NotYet(_) | DialError::OtherToken(_) | DialError::Fatal(_)) => return Ok(()),
        };
        let mut link = RankLink::new(found.connection, LinkTraffic::new(MAX_PART_BYTES, Arc::default()));
        link.send(&MeetMessage::Hello(Box::new(hello.clone()))).await;
        match link.next().await {
            Some(IncomingMessage { message: MeetMessage::Refuse { kind, why, again: false }, .. }) => {
                Err(MeetError::new(kind, why))
            }
            _ => Ok(()),
        }
    };
    // A process that does not answer in time is ignored.
    timeout(OTHER_RANK0_TIMEOUT, introduction).await.unwrap_or(Ok(()))
}
