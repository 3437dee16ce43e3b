//! Ranks come together, step by step.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use foreread_tier::Context;
use foreread_types::{Fingerprint, Rank, StoreId};
use tokio::runtime::Handle;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::attend::admit;
use super::dial::{Dial, Miss, job_of};
use super::first::First;
use super::group::{Group, Parts, Side as Started};
use super::hub::Hub;
use super::launcher::Launched;
use super::link::{Incoming, Link};
use super::listen::Ground;
use super::messages::{Hello, Message, Person, Step, Words, refusal};
use super::node::{host_name, node_id};
use super::other::{Other, Take};
use super::roster::Roster;
use super::waiting::{Patience, Progress};
use super::{MeetError, MeetErrorKind};
use crate::run_id::Nonce;
use crate::{Address, Counters, Identity, Network, RunId, Server, Settings as Serving, System, Token, token};

/// How long another rank 0 may take to say that it is there.
const ANOTHER: Duration = Duration::from_secs(2);

/// How ranks meet.
#[allow(missing_debug_implementations, reason = "it holds a closure")]
pub struct Settings {
    launched: Launched,
    version: String,
    meeting: u16,
    network: Arc<dyn Network>,
    token: Option<Token>,
    listen: Vec<Address>,
    deadline: Duration,
    progress: Progress,
    serving: Serving,
    counters: Arc<Counters>,
}

impl Settings {
    /// The ranks that a launcher started, all of which have to be of one `version`. 300 s for all to come and for each step;
    /// the machine's own sockets; nothing is shown.
    pub fn new(launched: Launched, version: impl Into<String>) -> Self {
        Self {
            launched,
            version: version.into(),
            meeting: 0,
            network: Arc::new(System),
            token: None,
            listen: Vec::new(),
            deadline: Duration::from_secs(300),
            progress: Box::new(|_| ()),
            serving: Serving::default(),
            counters: Arc::default(),
        }
    }

    /// The same for the process's meeting of this number, counted from 0 on every rank: the n-th of one rank meets the n-th of
    /// the others, beside earlier ones that still last.
    #[must_use]
    pub fn with_meeting(self, meeting: u16) -> Self {
        Self { meeting, ..self }
    }

    /// The same with the user's token ([`given_token`](super::given_token)).
    #[must_use]
    pub fn with_token(self, token: Option<Token>) -> Self {
        Self { token, ..self }
    }

    /// The same over another network.
    #[must_use]
    pub fn with_network(self, network: Arc<dyn Network>) -> Self {
        Self { network, ..self }
    }

    /// The same for a rank that listens at these addresses alone.
    #[must_use]
    pub fn with_listen(self, listen: Vec<Address>) -> Self {
        Self { listen, ..self }
    }

    /// The same with another deadline.
    #[must_use]
    pub fn with_deadline(self, deadline: Duration) -> Self {
        Self { deadline, ..self }
    }

    /// The same, and once a second `progress` is told what is waited for.
    #[must_use]
    pub fn with_progress(self, progress: Progress) -> Self {
        Self { progress, ..self }
    }

    /// The same with other bounds for serving samples, counted in `counters`.
    #[must_use]
    pub fn with_serving(self, serving: Serving, counters: Arc<Counters>) -> Self {
        Self { serving, counters, ..self }
    }
}

/// Ranks that have come together and not yet started. All go through the same steps in the same order; each step has the
/// deadline of the [`Settings`], which begins anew while bytes move or a rank says that it works.
///
/// Dropping it tells the others that this rank gave up.
#[derive(Debug)]
pub struct Joining {
    side: Side,
    launched: Launched,
    network: Arc<dyn Network>,
    identity: Option<Identity>,
    server: Option<Server>,
    ground: Option<Ground>,
    node: String,
    nodes: Vec<u32>,
}

#[derive(Debug)]
enum Side {
    First {
        first: First,
        admitting: Option<Admitting>,
    },
    Other(Box<Other>),
    /// It has started.
    Left,
}

/// The task that serves the other ranks; ends when dropped.
#[derive(Debug)]
pub(super) struct Admitting(JoinHandle<()>);

impl Drop for Admitting {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Joining {
    /// Comes together with the other ranks; returns when all are there.
    ///
    /// # Errors
    ///
    /// [`MeetError`], one line on every rank: somebody did not come in time, is of another version or world size, or is
    /// there twice; there is no place to meet or no token.
    pub async fn join(settings: Settings) -> Result<Self, MeetError> {
        let Settings { launched, version, meeting, network, token, listen, deadline, .. } = settings;
        let Settings { progress, serving, counters, .. } = settings;
        let random = token::random().map_err(|error| {
            MeetError::caused(MeetErrorKind::Broken, "the operating system has no random bytes", error)
        })?;
        let instance = u64::from_le_bytes(*random.first_chunk().unwrap_or(&[0; 8]));
        let nonce = Nonce::new(*random.last_chunk().unwrap_or(&[0; 16]));
        let node = node_id();
        let person = |addresses: &[Address]| Person {
            rank: launched.rank.0,
            node: node.clone(),
            host: host_name(),
            pid: std::process::id(),
            addresses: addresses.iter().map(ToString::to_string).collect(),
        };
        let patience = Patience::new(deadline, progress);
        let hello = |person| {
            let (world_size, version) = (launched.world_size, version.clone());
            Hello { person, world_size, version, instance, met: None, started: false }
        };
        if launched.world_size == 1 {
            let hub = Arc::new(Hub::new(person(&[]), 1, version, instance, nonce));
            let first = First { hub, patience, round: 0, place: String::new(), counters };
            let side = Side::First { first, admitting: None };
            let (identity, server, ground) = (None, None, None);
            return Ok(Self { side, launched, network, identity, server, ground, node, nodes: vec![0] });
        }
        let (net, has_token) = (Arc::clone(&network), token.is_some());
        let ground = Ground::new(net, launched.clone(), meeting, instance, listen, has_token).await?;
        let place = ground.place();
        let (rank, job) = (launched.rank, launched.job_number());
        let dial = Dial { network: Arc::clone(&network), place, rank, job, meeting, token: token.clone() };
        let handle = Handle::current();
        let mut joining = if rank.0 == 0 {
            another_first(&dial, &hello(person(&[]))).await?;
            let made = match &token {
                Some(_) => None,
                None => Some(Token::random().map_err(|error| {
                    MeetError::caused(
                        MeetErrorKind::Secret,
                        "the operating system has no random bytes",
                        error,
                    )
                })?),
            };
            let Some(token) = token.or_else(|| made.clone()) else {
                return Err(MeetError::new(MeetErrorKind::Secret, "there is no token"));
            };
            let identity = Identity { rank, job: job_of(job, meeting), token };
            let listeners = ground.listen().await?;
            let server = Server::start(&handle, identity.clone(), listeners, serving, Arc::clone(&counters));
            let world = launched.world_size as usize;
            let hub = Arc::new(Hub::new(person(server.addresses()), world, version, instance, nonce));
            let admitting =
                server.meetings().map(|meetings| Admitting(handle.spawn(admit(Arc::clone(&hub), meetings))));
            ground.publish(server.addresses(), made.as_ref()).await?;
            let place = dial.place.to_string();
            let side = Side::First { first: First { hub, patience, round: 0, place, counters }, admitting };
            let (identity, server, ground) = (Some(identity), Some(server), Some(ground));
            Self { side, launched, network, identity, server, ground, node, nodes: Vec::new() }
        } else {
            let mut other = Other::new(dial, hello(person(&[])), patience);
            let mut served: Option<(Server, Identity)> = None;
            let (server, identity) = loop {
                let found = other.find().await?;
                let same =
                    served.take().filter(|(_, known)| known.token.expose() == found.identity.token.expose());
                let (server, identity) = match same {
                    Some(same) => same,
                    None => {
                        let identity = found.identity.clone();
                        let listeners = ground.listen().await?;
                        let server = Server::start(
                            &handle,
                            identity.clone(),
                            listeners,
                            serving,
                            Arc::clone(&counters),
                        );
                        // Nobody meets here.
                        drop(server.meetings());
                        (server, identity)
                    }
                };
                other.hello.person = person(server.addresses());
                if other.introduce(found).await? {
                    break (server, identity);
                }
                other.pause().await?;
                served = Some((server, identity));
            };
            let side = Side::Other(Box::new(other));
            let (identity, server, ground) = (Some(identity), Some(server), Some(ground));
            Self { side, launched, network, identity, server, ground, node, nodes: Vec::new() }
        };
        joining.count_nodes().await?;
        Ok(joining)
    }

    /// Waits for all, and tells all which of them share a node.
    async fn count_nodes(&mut self) -> Result<(), MeetError> {
        let mut numbers = None;
        if let Side::First { first, .. } = &mut self.side {
            first.arrive().await?;
            let mut known: Vec<String> = Vec::new();
            let number = |person: Person| match known.iter().position(|node| *node == person.node) {
                Some(at) => at as u32,
                None => {
                    known.push(person.node);
                    known.len() as u32 - 1
                }
            };
            let all: Vec<u32> = first.hub.people().into_iter().map(number).collect();
            numbers = Some(serde_json::to_vec(&all).unwrap_or_default().into());
        }
        let numbers = self.share(numbers).await?;
        self.nodes = serde_json::from_slice(&numbers).unwrap_or_default();
        Ok(())
    }

    /// This rank.
    pub fn rank(&self) -> Rank {
        self.launched.rank
    }

    /// How many ranks there are.
    pub fn world_size(&self) -> u32 {
        self.launched.world_size
    }

    /// The node of each rank, numbered in the order of their first ranks. Ranks of one node share its disks, and reach each
    /// other by Unix sockets where they see the same directories.
    pub fn nodes(&self) -> &[u32] {
        &self.nodes
    }

    /// Tells all that this rank works on something that takes its time, as often as it gets on with it: deadlines begin
    /// anew, and it is shown on all ranks.
    pub async fn working(&mut self, on: &str) {
        match &mut self.side {
            Side::First { first, .. } => first.working(on),
            Side::Other(other) => other.say(&Message::Working { on: on.to_owned() }).await,
            Side::Left => {}
        }
    }

    /// Rank 0's `blob` on all ranks. Only rank 0's counts.
    ///
    /// # Errors
    ///
    /// As [`join`](Self::join).
    pub async fn share(&mut self, blob: Option<Bytes>) -> Result<Bytes, MeetError> {
        let own = blob.clone();
        let mut all = Vec::new();
        let mut take = |at: u64, _: u64, piece: Bytes| {
            all.truncate(at as usize);
            all.extend_from_slice(&piece);
        };
        self.share_with(blob, &mut take).await?;
        match &self.side {
            Side::First { .. } => Ok(own.unwrap_or_default()),
            _ => Ok(all.into()),
        }
    }

    /// As [`share`](Self::share), for what is not to be held in memory: `take` gets each piece, with where it belongs and how
    /// many bytes all have. It begins again at 0 where a connection broke. On rank 0 it gets nothing.
    ///
    /// # Errors
    ///
    /// As [`join`](Self::join).
    pub async fn share_with(&mut self, blob: Option<Bytes>, take: Take<'_>) -> Result<(), MeetError> {
        match &mut self.side {
            Side::First { first, .. } => first.share(blob.unwrap_or_default()).await,
            Side::Other(_) => self.step(Step::Share, Words::new(), None, take).await,
            Side::Left => Ok(()),
        }
    }

    /// What each rank brings, on rank 0; nothing on the others. At most 256 MiB a rank.
    ///
    /// # Errors
    ///
    /// As [`join`](Self::join).
    pub async fn gather(&mut self, own: Bytes) -> Result<Option<Vec<Bytes>>, MeetError> {
        match &mut self.side {
            Side::First { first, .. } => first.gather(own).await.map(Some),
            Side::Other(_) => {
                self.step(Step::Gather, Words::new(), Some(own), &mut |_, _, _| ()).await?;
                Ok(None)
            }
            Side::Left => Ok(None),
        }
    }

    /// What `digest` makes, on rank 0, of what all ranks bring, on all ranks.
    ///
    /// # Errors
    ///
    /// As [`join`](Self::join).
    pub async fn exchange(
        &mut self,
        own: Bytes,
        digest: impl FnOnce(Vec<Bytes>) -> Bytes + Send,
    ) -> Result<Bytes, MeetError> {
        let all = self.gather(own).await?;
        self.share(all.map(digest)).await
    }

    /// Makes sure that all ranks have the same names and values (seed, fingerprints of schedule, catalog, plan ...).
    ///
    /// # Errors
    ///
    /// As [`join`](Self::join); [`MeetErrorKind::Differs`] on every rank where they do not, in a line that says which ranks
    /// differ in what.
    pub async fn compare(&mut self, words: Vec<(String, String)>) -> Result<(), MeetError> {
        match &mut self.side {
            Side::First { first, .. } => first.compare(words).await,
            Side::Other(_) => self.step(Step::Compare, words, None, &mut |_, _, _| ()).await,
            Side::Left => Ok(()),
        }
    }

    async fn step(
        &mut self,
        step: Step,
        words: Words,
        bring: Option<Bytes>,
        take: Take<'_>,
    ) -> Result<(), MeetError> {
        match (&mut self.side, &self.identity) {
            (Side::Other(other), Some(identity)) => other.step(identity, step, words, bring, take).await,
            _ => Ok(()),
        }
    }

    /// Begins, when all ranks are ready. `bound` is what the run's id is bound to: ranks exchange samples only where all of
    /// it is equal, so it names what they read and how they have planned it. `stores` says for each rank which store it
    /// uses; ranks may share one. Others are asked with the memory and the runtime of `context`.
    ///
    /// # Errors
    ///
    /// As [`join`](Self::join).
    pub async fn start(
        mut self,
        bound: &[Fingerprint],
        stores: &[StoreId],
        context: &Context,
    ) -> Result<Group, MeetError> {
        let nonce = match &self.side {
            Side::First { first, .. } => Some(first.hub.nonce),
            Side::Other(other) => other.nonce,
            Side::Left => None,
        };
        let nonce = nonce.ok_or_else(|| MeetError::new(MeetErrorKind::Broken, "rank 0 named no run"))?;
        let run = RunId::new(nonce, bound);
        // Before the last step: whoever has passed that may ask.
        if let Some(server) = &self.server {
            server.enter(run);
        }
        let mut roster = Vec::new();
        match &mut self.side {
            Side::First { first, .. } => roster = first.start().await?.to_vec(),
            Side::Other(_) => {
                let mut take = |at: u64, _: u64, piece: Bytes| {
                    roster.truncate(at as usize);
                    roster.extend_from_slice(&piece);
                };
                self.step(Step::Start, Words::new(), None, &mut take).await?;
            }
            Side::Left => {}
        }
        let people: Vec<Person> = serde_json::from_slice(&roster).map_err(|error| {
            MeetError::caused(MeetErrorKind::Broken, "rank 0 sent a list of ranks that cannot be read", error)
        })?;
        let (side, at) = match std::mem::replace(&mut self.side, Side::Left) {
            Side::First { first, admitting } => (Started::First { hub: first.hub, admitting }, None),
            Side::Other(other) => {
                let at = other.at.clone();
                (Started::Other(other), at)
            }
            Side::Left => return Err(MeetError::new(MeetErrorKind::Broken, "the ranks have started before")),
        };
        let parts = Parts {
            launched: &self.launched,
            stores,
            run,
            roster: Arc::new(Roster::new(&people, self.node.clone(), at.as_ref())),
            side,
            server: self.server.take(),
            identity: self.identity.take(),
            network: Arc::clone(&self.network),
            ground: self.ground.take(),
        };
        Ok(Group::new(parts, context))
    }

    /// Ends before the start; every rank ends with a line that says `why`.
    pub async fn give_up(mut self, why: &str) {
        match std::mem::replace(&mut self.side, Side::Left) {
            Side::First { mut first, admitting } => {
                let line = format!("rank 0 ({}) gave up: {why}", host_name());
                first.fail(MeetError::new(MeetErrorKind::Refused, line)).await;
                drop(admitting);
            }
            Side::Other(mut other) => {
                other.say(&Message::GiveUp { why: why.to_owned() }).await;
                if let Some(link) = other.link.take() {
                    link.close().await;
                }
            }
            Side::Left => {}
        }
    }
}

impl Drop for Joining {
    fn drop(&mut self) {
        const WHY: &str = "it ended before the start";
        match &mut self.side {
            Side::First { first, admitting } => {
                first.hub.fail(MeetError::new(MeetErrorKind::Refused, format!("rank 0 gave up: {WHY}")));
                if let (Some(admitting), Ok(runtime)) = (admitting.take(), Handle::try_current()) {
                    // Time for the others to hear it.
                    runtime.spawn(async move {
                        tokio::time::sleep(Duration::from_secs(2)).await;
                        drop(admitting);
                    });
                }
            }
            Side::Other(other) => {
                if let Some(link) = &other.link {
                    link.try_say(&Message::GiveUp { why: WHY.to_owned() });
                }
            }
            Side::Left => return,
        }
        if let Some(ground) = &self.ground {
            ground.withdraw();
        }
    }
}

/// Finds out whether another process is rank 0 of this job.
async fn another_first(dial: &Dial, hello: &Hello) -> Result<(), MeetError> {
    let ask = async {
        // What cannot be read now is replaced.
        let found = match dial.attempt().await {
            Ok(found) => found,
            Err(Miss::NotYet(_) | Miss::OtherToken(_) | Miss::Never(_)) => return Ok(()),
        };
        let mut link = Link::new(found.connection, Arc::default());
        link.say(&Message::Hello(Box::new(hello.clone()))).await;
        match link.next().await {
            Some(Incoming::Message(Message::Refuse { kind, why, again: false })) => Err(refusal(&kind, why)),
            _ => Ok(()),
        }
    };
    // Nobody is waited for who does not answer.
    timeout(ANOTHER, ask).await.unwrap_or(Ok(()))
}
