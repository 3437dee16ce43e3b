//! A meeting as every rank but 0 sees it.
//!
//! Each step is a request to rank 0 and its answer. A connection that breaks is made again and the request is repeated;
//! rank 0 keeps what was brought. The step's deadline passes while nothing comes, as at rank 0 ([`super::first`]).

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use foreread_types::Rank;
use tokio::time::{Instant, sleep_until, timeout, timeout_at};

use super::dial::{Dial, Found, Miss};
use super::link::{Incoming, Link};
use super::members::RECONNECT;
use super::messages::{Hello, Message, ranks, refusal};
use super::waiting::{BACK, Doubt, NOT_ALL, Patience};
use super::{MeetError, MeetErrorKind};
use crate::Nonce;
use crate::{Address, Identity};

/// For so long who answers in rank 0's place has to have another token before it is believed, or until the deadline. Nothing
/// proves it: it may be an earlier run that is about to end, or anybody, where rank 0 is not there yet.
const SURE: Duration = Duration::from_secs(60);

/// A rank while ranks meet.
#[derive(Debug)]
pub(super) struct Member {
    pub dial: Dial,
    pub hello: Hello,
    pub patience: Patience,
    pub link: Option<Link>,
    /// Where rank 0 was reached.
    pub at: Option<Address>,
    /// Whom rank 0 waits for.
    missing: (Vec<Rank>, usize, Option<String>),
    works: u64,
    why: Option<String>,
    /// Where rank 0 runs, once it was met.
    first: String,
    /// Since when there is no connection to rank 0, where there was one.
    lost: Option<Instant>,
    doubt: Doubt,
    /// Attempts to find rank 0 since it was there last.
    attempts: u32,
    /// Since when who answers in rank 0's place has another token, and where.
    other_token: Option<(Instant, Address)>,
    /// What the run's id begins with, once rank 0 was met.
    pub nonce: Option<Nonce>,
}

impl Member {
    pub(super) fn new(dial: Dial, hello: Hello, patience: Patience) -> Self {
        let missing = (vec![Rank(0)], 0, None);
        Self {
            dial,
            hello,
            patience,
            link: None,
            at: None,
            missing,
            works: 0,
            why: None,
            first: String::new(),
            lost: None,
            doubt: Doubt::default(),
            attempts: 0,
            other_token: None,
            nonce: None,
        }
    }

    /// Finds rank 0; the caller then has what it needs to introduce itself.
    pub(super) async fn find(&mut self) -> Result<Found, MeetError> {
        loop {
            let dial = self.dial.clone();
            let mut attempt = pin!(dial.attempt());
            let found = loop {
                match timeout_at(self.patience.next(), &mut attempt).await {
                    Ok(found) => break found,
                    Err(_) => self.look()?,
                }
            };
            match found {
                Ok(found) => {
                    self.other_token = None;
                    return Ok(found);
                }
                Err(Miss::Never(error)) => return Err(error),
                Err(Miss::NotYet(why)) => (self.why, self.other_token) = (why, None),
                Err(Miss::OtherToken(at)) => {
                    self.why = Some(format!("who answers at {at} has another token (FOREREAD_TOKEN)"));
                    if self.other_token.is_none() {
                        self.other_token = Some((Instant::now(), at));
                        self.patience.show_now();
                    }
                }
            }
            self.pause().await?;
        }
    }

    /// Waits before the next attempt.
    pub(super) async fn pause(&mut self) -> Result<(), MeetError> {
        self.attempts += 1;
        let next = Instant::now() + self.dial.pause(self.attempts, self.hello.started);
        while Instant::now() < next {
            sleep_until(next.min(self.patience.next())).await;
            self.look()?;
        }
        Ok(())
    }

    /// Shows what is waited for; an error when the deadline has passed.
    fn look(&mut self) -> Result<(), MeetError> {
        let seconds = self.patience.deadline().as_secs();
        let rank = self.dial.rank;
        if self.link.is_none() {
            let why = self.why.as_ref().map(|why| format!("; {why}")).unwrap_or_default();
            // During the run it is looked for as long as the run lasts.
            let lost = self.lost.filter(|_| !self.hello.started).map(|lost| lost.elapsed());
            let gone = lost.filter(|lost| *lost >= RECONNECT);
            let gone = gone.map(|_| format!("rank 0 ({}) was here and is gone", self.first));
            let on = format!(
                "at {}{}{why}",
                self.dial.place,
                match &gone {
                    Some(gone) => format!("; {gone}"),
                    None => String::new(),
                }
            );
            match self.hello.met {
                None => self.patience.show_absent(&[Rank(0)], 0, Some(on)),
                Some(_) => self.patience.show(&[Rank(0)], 0, Some(on)),
            }
            // Once they have met, at this meeting or an earlier one, it is somebody else.
            let met = self.hello.met.is_some() || self.hello.loader > 0;
            if let Some((since, at)) = self.other_token.as_ref().filter(|_| !met)
                && (since.elapsed() >= SURE || self.patience.over())
            {
                let line = format!(
                    "rank {rank} has another token than rank 0 at {at}: give all ranks the same FOREREAD_TOKEN"
                );
                return Err(MeetError::new(MeetErrorKind::Secret, line));
            }
            let for_good = self.doubt.confirmed(lost.is_some_and(|lost| lost >= BACK));
            if !for_good && !self.patience.over() {
                return Ok(());
            }
            if let Some(gone) = gone {
                let place = &self.dial.place;
                let line = format!(
                    "{gone}: rank {rank} does not reach it at {place} any more; see what rank 0 said last{why}"
                );
                return Err(MeetError::new(MeetErrorKind::Deadline, line));
            }
            let last = match &self.why {
                Some(why) => format!("the last attempt: {why}"),
                None => {
                    "see whether it was started, and whether it says the same of where to meet".to_owned()
                }
            };
            let place = &self.dial.place;
            let line =
                format!("rank {rank} did not find rank 0 at {place} within {seconds} s; {last}; {NOT_ALL}");
            return Err(MeetError::new(MeetErrorKind::Deadline, line));
        }
        let (missing, more, on) = &self.missing;
        self.patience.show(missing, *more, on.clone());
        if !self.patience.over() {
            return Ok(());
        }
        let who = ranks(missing, *more);
        // Rank 0 ends at about the same time, and may know more.
        let why = on.as_ref().map(|on| format!("; {on}")).unwrap_or_default();
        let line = format!(
            "rank {rank} waited {seconds} s for {who}: see whether all were started and what they wait for{why}"
        );
        Err(MeetError::new(MeetErrorKind::Deadline, line))
    }

    /// Introduces itself on a connection; `false` where rank 0 says not yet, or breaks off.
    pub(super) async fn introduce(&mut self, found: Found) -> Result<bool, MeetError> {
        let mut link = Link::new(found.connection, Arc::default());
        link.say(&Message::Hello(Box::new(self.hello.clone()))).await;
        loop {
            match timeout_at(self.patience.next(), link.next()).await {
                Ok(Some(Incoming::Message(Message::Welcome { process, nonce, place }))) => {
                    self.hello.met = Some(process);
                    self.nonce = Nonce::parse(&nonce);
                    (self.first, self.lost, self.why) = (place, None, None);
                    self.attempts = 0;
                    self.link = Some(link);
                    self.at = Some(found.at);
                    return Ok(true);
                }
                Ok(Some(Incoming::Message(Message::Elsewhere { addresses }))) => {
                    let addresses = addresses.iter().filter_map(|address| address.parse().ok());
                    self.dial.redirected(&found.at, addresses.collect());
                    return Ok(false);
                }
                Ok(Some(Incoming::Message(Message::Refuse { why, again: true, .. }))) => {
                    // It is there.
                    (self.lost, self.why) = (None, Some(why));
                    return Ok(false);
                }
                Ok(Some(Incoming::Message(Message::Refuse { kind, why, .. }))) => {
                    return Err(refusal(&kind, why));
                }
                Ok(Some(_)) => {}
                Ok(None) => {
                    self.why = Some("it closed the connection before it said anything".to_owned());
                    return Ok(false);
                }
                Err(_) => self.look()?,
            }
        }
    }

    /// Makes the connection again, as the same rank.
    async fn link(&mut self, identity: &Identity) -> Result<&mut Link, MeetError> {
        while self.link.is_none() {
            let found = self.find().await?;
            if found.identity.token.expose() != identity.token.expose() {
                let line = "rank 0 was started again and has a token of its own: start all ranks again";
                return Err(MeetError::new(MeetErrorKind::Broken, line));
            }
            if !self.introduce(found).await? {
                self.pause().await?;
            }
        }
        self.link.as_mut().ok_or_else(|| MeetError::new(MeetErrorKind::Broken, "no connection to rank 0"))
    }

    /// What rank 0 answers to a request for the value of `key`, with this rank's part of it where it has one.
    pub(super) async fn request(
        &mut self,
        identity: &Identity,
        key: &str,
        part: Option<Bytes>,
    ) -> Result<Bytes, MeetError> {
        self.patience.begin();
        // Until rank 0 says otherwise.
        self.missing = (vec![Rank(0)], 0, None);
        loop {
            let link = self.link(identity).await?;
            match part.clone() {
                Some(part) => link.say_with(&Message::Exchange { key: key.to_owned() }, part).await,
                None => link.say(&Message::Wait { key: key.to_owned() }).await,
            };
            // Where it could not be said, what came before the link broke may say why.
            if let Some(value) = self.answer(key).await? {
                return Ok(value);
            }
            self.link = None;
            self.lost.get_or_insert_with(Instant::now);
        }
    }

    /// The value of a key; nothing where the connection breaks.
    async fn answer(&mut self, key: &str) -> Result<Option<Bytes>, MeetError> {
        loop {
            let Some(link) = self.link.as_mut() else { return Ok(None) };
            match timeout_at(self.patience.next(), link.next()).await {
                Err(_) => self.look()?,
                Ok(None) => return Ok(None),
                Ok(Some(Incoming::Message(Message::Value { key: of }))) if of == key => {
                    // A link on which nothing comes breaks by itself, so there is no deadline here.
                    let value = link.whole(u64::MAX).await;
                    self.patience.begin();
                    return Ok(value);
                }
                Ok(Some(Incoming::Message(Message::Refuse { kind, why, .. }))) => {
                    return Err(refusal(&kind, why));
                }
                Ok(Some(Incoming::Message(Message::Waiting { missing, more, on, works }))) => {
                    self.missing = (missing.into_iter().map(Rank).collect(), more as usize, on);
                    if works > self.works {
                        self.works = works;
                        self.patience.begin();
                    }
                }
                Ok(Some(_)) => {}
            }
        }
    }

    /// Says something that is not answered; `false` where there is no connection.
    pub(super) async fn say(&self, message: &Message) -> bool {
        match &self.link {
            Some(link) => link.say(message).await,
            None => false,
        }
    }

    /// Makes the connection again that broke while this rank was busy, or the others would take it for gone. What stands in
    /// the way is said at the next request.
    pub(super) async fn reconnect(&mut self, identity: &Identity) {
        self.link = None;
        self.lost.get_or_insert_with(Instant::now);
        drop(timeout(RECONNECT, self.link(identity)).await);
    }
}
