//! This agent's connections to another one: for messages, and for samples.
//!
//! Both are there as long as the other agent is in the roster. The one for messages is opened at
//! once and again when it breaks, and says first which jobs there are. While it is not there, no
//! sample is requested: the numbers of datasets are those of this connection.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, Weak};
use std::time::Duration;

use bytes::Bytes;
use foreread_connection::connection::within;
use foreread_connection::{
    Address, ControlConnection, MessageReceiver, MessageSender, SystemTransport, WireError, WireErrorKind,
};
use foreread_peer::{PeerClient, PeerClientFactory, PeerCounters};
use foreread_store::StoreJob;
use foreread_store::attach::{DatasetAnswer, Piece};
use foreread_tier::{Object, OpenContext, ReadFuture, ReadRequest, Span, Tier};
use foreread_types::{DatasetId, SampleId, SampleKey, Tick};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep};

use super::messages::{
    ANSWER, BLOCKS, CATALOG, CatalogPiece, END, JOB, JobAnswer, JobBegins, JobBlocks, JobName, MAX_MESSAGE,
    OPEN, OPENED, ORDER, Open, PING, RESTART, VERSIONS,
};
use super::orders::{JobOrder, OrderPiece, SharedJob, divided};
use super::pace::LinkPace;
use super::roster::RosterNode;
use super::serving::run_of;
use super::shared_dataset::SharedDataset;
use super::{ClusterCache, ClusterMember, absent};
use crate::control::{decoded, encoded};

/// How long a connection may take to open.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);

/// An agent of which nothing was heard for so long is gone, and its jobs with it.
pub(super) const SILENT: Duration = Duration::from_secs(10);

/// How often an agent gives signs of life. One that has not done so for some time is requested no
/// samples, or each burst of requests would wait for its end.
const PING_INTERVAL: Duration = Duration::from_millis(250);
const PAUSED: Duration = Duration::from_secs(1);

/// How long an agent waits before it dials another one again, at least and at most.
const DIAL_AGAIN: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

/// What a link needs.
#[derive(Clone, Debug)]
pub(super) struct LinkSettings {
    pub(super) member: ClusterMember,
    pub(super) node: RosterNode,
}

/// What the other agent is to know.
pub(super) enum LinkCommand {
    /// A job begins. The sender is dropped once the other agent knows it, or cannot be reached.
    Begin(Arc<SharedJob>, oneshot::Sender<()>),
    /// Its part of an order.
    Order(u32, Arc<JobOrder>, Vec<u8>),
    /// The orders of a job are void.
    Restart(u32),
    /// A job reads a dataset in blocks at first.
    Blocks(u32, u32),
    /// A job has ended.
    End(u32),
    /// The agents or owners have changed: jobs are to be compared, and all orders sent again.
    Again {
        /// If not, only jobs are compared.
        have_moved: bool,
    },
}

/// The connections to another agent. Dropping it closes them.
pub(super) struct NodeLink {
    node: String,
    client: Arc<PeerClient>,
    commands: mpsc::UnboundedSender<LinkCommand>,
    /// The numbers by which samples of a job's dataset are requested.
    numbers: RwLock<Numbers>,
    /// Whether the other agent is connected, and gives signs of life.
    is_open: AtomicBool,
    is_alive: AtomicBool,
    pace: Mutex<LinkPace>,
    /// Counts how often all requests were ended.
    ended: watch::Sender<u64>,
}

/// By a job and its dataset: the job's number on the connection, and that of requests.
type Numbers = HashMap<(StoreJob, DatasetId), (u32, u32)>;

/// A request without an answer, until it is dropped.
struct OpenRequest {
    link: Arc<NodeLink>,
    number: u64,
}

impl OpenRequest {
    /// It was answered: the other agent is not slow.
    fn answered(self) {
        self.link.pace().answered();
    }
}

impl Drop for OpenRequest {
    fn drop(&mut self) {
        self.link.pace().end(self.number);
    }
}

impl std::fmt::Debug for NodeLink {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NodeLink")
            .field("node", &self.node)
            .field("client", &self.client)
            .finish_non_exhaustive()
    }
}

impl NodeLink {
    pub(super) fn start(
        settings: LinkSettings,
        cluster: Weak<ClusterCache>,
        context: &OpenContext,
    ) -> Arc<Self> {
        let LinkSettings { member, node } = settings;
        let addresses: Vec<Address> = node.addresses.iter().filter_map(|text| text.parse().ok()).collect();
        let (run, counters) = (run_of(&node.instance), Arc::new(PeerCounters::default()));
        let factory = PeerClientFactory::new(
            member.identity.clone(),
            run,
            Arc::new(SystemTransport),
            context,
            counters,
        )
        .with_wire(member.wire);
        let client = factory.remote(member.identity.rank, addresses.clone());
        let (commands, received) = mpsc::unbounded_channel();
        let (numbers, is_open, is_alive, pace) = Default::default();
        let (name, ended) = (node.node.clone(), watch::Sender::new(0));
        let link = Self { node: name, client, commands, numbers, is_open, is_alive, pace, ended };
        let link = Arc::new(link);
        let task = LinkTask {
            link: Arc::downgrade(&link),
            cluster,
            member,
            instance: node.instance,
            addresses,
            jobs: HashMap::new(),
        };
        context.runtime.spawn(task.run(received));
        link
    }

    pub(super) fn send(&self, command: LinkCommand) {
        // The task has ended with the runtime.
        let _ = self.commands.send(command);
    }

    /// Requests a sample for the use of a job. `None` if the other agent does not know the job.
    pub(super) fn read(
        self: &Arc<Self>,
        dataset: &SharedDataset,
        sample: SampleId,
        job: StoreJob,
        due: Tick,
    ) -> Option<ReadFuture> {
        if !self.is_alive.load(Ordering::Relaxed) {
            return None;
        }
        let (_, number) = *self.lock().get(&(job, dataset.id()?))?;
        let open = self.begin_request()?;
        let object = Object { path: Arc::default(), size: dataset.sizes.bytes(sample), version: None };
        let key = SampleKey::new(DatasetId(number), sample);
        let reading = self.client.read(Arc::new(ReadRequest::new(key, object, Span::Whole, due)));
        let mut ended = self.ended.subscribe();
        Some(Box::pin(async move {
            tokio::select! {
                received = reading => {
                    if received.is_ok() {
                        open.answered();
                    }
                    received
                }
                _ = ended.changed() => Err(absent()),
            }
        }))
    }

    /// Counts a request. `None` if the other agent rests, and this is not the one that tries.
    fn begin_request(self: &Arc<Self>) -> Option<OpenRequest> {
        let number = self.pace().begin(Instant::now())?;
        Some(OpenRequest { link: Arc::clone(self), number })
    }

    fn pace(&self) -> MutexGuard<'_, LinkPace> {
        self.pace.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends all requests if one takes too long, where reads of the own stores take `wait`.
    fn end_slow(&self, wait: Duration) {
        let Some((oldest, rest)) = self.pace().rest(wait, Instant::now()) else { return };
        tracing::info!(
            node = self.node,
            ?oldest,
            ?rest,
            "another node is slow, and its samples are read here"
        );
        self.ended.send_modify(|ended| *ended += 1);
    }

    /// Whether the other agent is connected.
    pub(super) fn is_open(&self) -> bool {
        self.is_open.load(Ordering::Relaxed)
    }

    /// Sends the requests of a burst.
    pub(super) fn submit(&self) {
        self.client.submit();
    }

    fn set_alive(&self, is_alive: bool) {
        self.is_alive.store(is_alive, Ordering::Relaxed);
    }

    fn lock(&self) -> RwLockReadGuard<'_, Numbers> {
        self.numbers.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, change: impl FnOnce(&mut Numbers)) {
        change(&mut self.numbers.write().unwrap_or_else(PoisonError::into_inner));
    }
}

/// A job that the other agent knows, or will know.
struct SentJob {
    job: Arc<SharedJob>,
    /// Who waits for the answer.
    waiting: Option<oneshot::Sender<()>>,
    is_known: bool,
    /// Whether it has got the catalogs that it did not know.
    has_catalogs: bool,
}

/// The task of a connection for messages.
struct LinkTask {
    link: Weak<NodeLink>,
    cluster: Weak<ClusterCache>,
    member: ClusterMember,
    /// That of the other agent.
    instance: String,
    addresses: Vec<Address>,
    jobs: HashMap<u32, SentJob>,
}

impl LinkTask {
    async fn run(mut self, mut commands: mpsc::UnboundedReceiver<LinkCommand>) {
        let mut wait = DIAL_AGAIN.0;
        loop {
            let opened = Instant::now();
            let Err(error) = self.connect(&mut commands).await else { return };
            tracing::debug!(instance = self.instance, %error, "another agent is not reached");
            self.jobs.clear();
            let Some(link) = self.link.upgrade() else { return };
            link.change(HashMap::clear);
            link.is_open.store(false, Ordering::Relaxed);
            drop(link);
            wait = if opened.elapsed() > SILENT { DIAL_AGAIN.0 } else { (wait * 2).min(DIAL_AGAIN.1) };
            let again = sleep(wait);
            tokio::pin!(again);
            loop {
                tokio::select! {
                    () = &mut again => break,
                    // It hears of all jobs when it is reached. Those that wait for it do so no
                    // longer.
                    command = commands.recv() => if command.is_none() { return },
                }
            }
        }
    }

    /// One connection. Returns without an error if the link was dropped.
    async fn connect(
        &mut self,
        commands: &mut mpsc::UnboundedReceiver<LinkCommand>,
    ) -> Result<(), WireError> {
        let (mut sender, mut receiver) = self.open().await?;
        if let Some(link) = self.link.upgrade() {
            link.is_open.store(true, Ordering::Relaxed);
        }
        for job in self.cluster.upgrade().map(|cluster| cluster.jobs()).unwrap_or_default() {
            self.begin(&mut sender, job, None).await?;
        }
        let mut pings = interval(PING_INTERVAL);
        pings.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut heard = Instant::now();
        loop {
            let is_long = tokio::select! {
                command = commands.recv() => match command {
                    Some(command) => self.command(&mut sender, command).await?,
                    None => return Ok(()),
                },
                message = receiver.receive(MAX_MESSAGE) => {
                    let closed = || WireError::new(WireErrorKind::Disconnected, "it has ended");
                    let (kind, payload) = message?.ok_or_else(closed)?;
                    heard = Instant::now();
                    if kind == ANSWER {
                        let answer = decoded(&payload).map_err(WireError::malformed)?;
                        self.answer(&mut sender, answer).await?;
                        true
                    } else {
                        // A sign of life, or of a later version.
                        false
                    }
                }
                _ = pings.tick() => {
                    if heard.elapsed() > SILENT {
                        return Err(WireError::new(WireErrorKind::Timeout, "it is silent"));
                    }
                    send(&mut sender, PING, Bytes::new()).await?;
                    false
                }
            };
            if is_long {
                // Nothing was heard meanwhile.
                heard = Instant::now();
            }
            let Some(link) = self.link.upgrade() else { return Ok(()) };
            link.set_alive(heard.elapsed() < PAUSED);
            if let Some(cluster) = self.cluster.upgrade() {
                link.end_slow(cluster.store.origin_wait());
            }
        }
    }

    async fn open(&self) -> Result<(MessageSender, MessageReceiver), WireError> {
        let mut last = WireError::new(WireErrorKind::Disconnected, "it has no address");
        for address in &self.addresses {
            match self.open_at(address).await {
                Ok(opened) => return Ok(opened),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    async fn open_at(&self, address: &Address) -> Result<(MessageSender, MessageReceiver), WireError> {
        let ClusterMember { identity, node, instance, .. } = &self.member;
        let opening = ControlConnection::open(&SystemTransport, address, identity, None, CONNECT_TIMEOUT);
        let (connection, _) = opening.await?;
        let (mut sender, mut receiver) = connection.split();
        let open = Open { versions: VERSIONS, node: node.clone(), instance: instance.clone() };
        send(&mut sender, OPEN, encoded(&open)).await?;
        let answer = within(SILENT, address, receiver.receive(MAX_MESSAGE)).await?;
        let Some((OPENED, payload)) = answer else {
            return Err(WireError::malformed(format!("{address}: it is no agent of this version")));
        };
        let opened: Open = decoded(&payload).map_err(WireError::malformed)?;
        // Another agent may have got the address of one that has ended.
        if opened.instance != self.instance {
            return Err(WireError::new(
                WireErrorKind::OtherRun,
                format!("{address}: another agent is there"),
            ));
        }
        Ok((sender, receiver))
    }

    /// Carries out a command. Returns whether that may have taken long.
    async fn command(&mut self, sender: &mut MessageSender, command: LinkCommand) -> Result<bool, WireError> {
        match command {
            LinkCommand::Begin(job, waiting) => self.begin(sender, job, Some(waiting)).await?,
            LinkCommand::Order(number, order, part) => {
                // Other jobs get all of their orders when the other agent knows them.
                if self.jobs.get(&number).is_some_and(|sent| sent.is_known) {
                    send_order(sender, number, &order, &part).await?;
                }
            }
            LinkCommand::Restart(job) => send(sender, RESTART, encoded(&JobName { job })).await?,
            LinkCommand::Blocks(job, dataset) => {
                send(sender, BLOCKS, encoded(&JobBlocks { job, dataset })).await?;
            }
            LinkCommand::End(job) => self.end(sender, job).await?,
            LinkCommand::Again { have_moved } => self.compare(sender, have_moved).await?,
        }
        Ok(true)
    }

    async fn end(&mut self, sender: &mut MessageSender, number: u32) -> Result<(), WireError> {
        self.jobs.remove(&number);
        if let Some(link) = self.link.upgrade() {
            link.change(|numbers| numbers.retain(|_, (job, _)| *job != number));
        }
        send(sender, END, encoded(&JobName { job: number })).await
    }

    /// Begins and ends what the other agent does not know, and sends all orders again if owners have
    /// changed.
    async fn compare(&mut self, sender: &mut MessageSender, have_moved: bool) -> Result<(), WireError> {
        let Some(cluster) = self.cluster.upgrade() else { return Ok(()) };
        let jobs = cluster.jobs();
        let is_there = |number: &&u32| jobs.iter().any(|job| job.number == **number);
        let gone: Vec<u32> = self.jobs.keys().filter(|number| !is_there(number)).copied().collect();
        for number in gone {
            self.end(sender, number).await?;
        }
        for job in &jobs {
            match self.jobs.get(&job.number) {
                None => self.begin(sender, Arc::clone(job), None).await?,
                Some(sent) if sent.is_known && have_moved => {
                    send(sender, RESTART, encoded(&JobName { job: job.number })).await?;
                    self.send_orders(sender, job).await?;
                }
                Some(_) => {}
            }
        }
        Ok(())
    }

    async fn begin(
        &mut self,
        sender: &mut MessageSender,
        job: Arc<SharedJob>,
        waiting: Option<oneshot::Sender<()>>,
    ) -> Result<(), WireError> {
        if let Some(sent) = self.jobs.get_mut(&job.number) {
            // It was sent when the connection was opened.
            sent.waiting = waiting.filter(|_| !sent.is_known);
            return Ok(());
        }
        send(sender, JOB, encoded(&JobBegins { job: job.number, attach: job.attach.clone() })).await?;
        let number = job.number;
        self.jobs.insert(number, SentJob { job, waiting, is_known: false, has_catalogs: false });
        Ok(())
    }

    /// The other agent has answered which datasets of a job it keeps.
    async fn answer(&mut self, sender: &mut MessageSender, answer: JobAnswer) -> Result<(), WireError> {
        let JobAnswer { job: number, datasets, first, refused } = answer;
        let Some(sent) = self.jobs.get_mut(&number) else { return Ok(()) };
        let job = Arc::clone(&sent.job);
        let needed: Vec<usize> = (0..)
            .zip(&datasets)
            .filter_map(|(at, answer)| (*answer == DatasetAnswer::CatalogNeeded).then_some(at))
            .filter(|at| job.datasets.get(*at).is_some_and(Option::is_some))
            .collect();
        if !needed.is_empty() && !std::mem::replace(&mut sent.has_catalogs, true) {
            for at in needed {
                self.send_catalog(sender, &job, at).await?;
            }
            let begins = JobBegins { job: number, attach: job.attach.clone() };
            return send(sender, JOB, encoded(&begins)).await;
        }
        if let Some(why) = refused {
            tracing::info!(why, "another agent does not take a job");
            sent.waiting = None;
            return Ok(());
        }
        sent.is_known = true;
        let (Some(link), Some(cluster)) = (self.link.upgrade(), self.cluster.upgrade()) else {
            return Ok(());
        };
        for dataset in job.blocks() {
            send(sender, BLOCKS, encoded(&JobBlocks { job: number, dataset })).await?;
        }
        self.send_orders(sender, &job).await?;
        for (at, answer) in (0..).zip(datasets) {
            let Some(dataset) = job.dataset(at).cloned() else { continue };
            let refused = match answer {
                DatasetAnswer::Kept => None,
                DatasetAnswer::Refused(why) => Some(why),
                DatasetAnswer::CatalogNeeded => Some("it did not accept the catalog".to_owned()),
            };
            let request = first.checked_add(at);
            if let (Some(id), Some(request), None) = (dataset.id(), request, &refused) {
                link.change(|numbers| numbers.extend([((job.job, id), (number, request))]));
            }
            let (cluster, node) = (Arc::clone(&cluster), link.node.clone());
            // It may look at all samples.
            tokio::task::spawn_blocking(move || cluster.answered(&node, &dataset, refused.as_deref()));
        }
        if let Some(sent) = self.jobs.get_mut(&number) {
            // The job waits no longer.
            sent.waiting = None;
        }
        Ok(())
    }

    async fn send_catalog(
        &self,
        sender: &mut MessageSender,
        job: &Arc<SharedJob>,
        at: usize,
    ) -> Result<(), WireError> {
        let dataset = job.datasets.get(at).cloned().flatten();
        let reading = tokio::task::spawn_blocking(move || dataset?.catalog.to_bytes().ok());
        let Ok(Some(catalog)) = reading.await else { return Ok(()) };
        for piece in Piece::all(at as u32, &catalog) {
            let piece = CatalogPiece { job: job.number, piece };
            send(sender, CATALOG, piece.encode().into()).await?;
        }
        Ok(())
    }

    /// Sends the other agent its parts of all orders of a job that are known.
    async fn send_orders(&self, sender: &mut MessageSender, job: &Arc<SharedJob>) -> Result<(), WireError> {
        let Some(view) = self.cluster.upgrade().map(|cluster| cluster.view()) else { return Ok(()) };
        let Some(own) = view.position(&self.instance) else { return Ok(()) };
        for order in job.orders() {
            let Some(dataset) = job.dataset(order.dataset).cloned() else { continue };
            let (of_part, view) = (Arc::clone(&order), Arc::clone(&view));
            let dividing = tokio::task::spawn_blocking(move || {
                let owner = |sample| view.owners.of(dataset.hash, dataset.unit(sample));
                let mut parts = divided(&of_part, 1, |sample| (owner(sample) == Some(own)).then_some(0));
                parts.pop().unwrap_or_default()
            });
            let Ok(part) = dividing.await else { return Ok(()) };
            send_order(sender, job.number, &order, &part).await?;
        }
        Ok(())
    }
}

async fn send_order(
    sender: &mut MessageSender,
    job: u32,
    order: &JobOrder,
    part: &[u8],
) -> Result<(), WireError> {
    for piece in OrderPiece::all(job, order, part) {
        send(sender, ORDER, piece.encode().into()).await?;
    }
    Ok(())
}

async fn send(sender: &mut MessageSender, kind: u32, payload: Bytes) -> Result<(), WireError> {
    within(SILENT, "an agent", sender.send(kind, payload)).await
}
