//! The connections of this store to another one: for messages, and for samples.
//!
//! Both exist as long as the other store is in the roster. The session for messages is opened at
//! once, and again when it breaks. It reports the jobs of this store first. Without it, no sample
//! is requested, because the session defines the numbers of datasets.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard, Weak};
use std::time::Duration;

use bytes::Bytes;
use foreread_connection::{
    Backoff, Session, SessionBounds, SessionReceiver, SessionSender, WireError, WireErrorKind,
};
use foreread_peer::PeerClient;
use foreread_store::StoreJob;
use foreread_store::attach::{
    ATTACH, Attached, BLOCKS, CATALOG, DatasetAnswer, EpochOrder, ORDER, Piece, RESTART,
};
use foreread_tier::{Object, ReadFuture, ReadRequest, Span, Tier, lock};
use foreread_types::{DatasetId, SampleId, SampleKey, Tick};
use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep};

use super::messages::{ANSWER, CALL, END, JobAnswer, JobCall, MAX_MESSAGE, OPEN, OPENED, Open, VERSIONS};
use super::names::StoreName;
use super::orders::SharedJob;
use super::pace::{LinkPace, StoragePace};
use super::shared_dataset::SharedDataset;
use super::work::{absent, over_samples};
use crate::json::{decoded, encoded};

/// How long a connection may take to open.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);

/// A store of which nothing was heard for so long is gone, and its jobs with it.
const SILENT: Duration = Duration::from_secs(10);

/// The interval between heartbeats of a store. No samples are requested from a store without
/// heartbeats, because each burst of requests would wait for its end.
const HEARTBEAT: Duration = Duration::from_millis(250);
const PAUSED: Duration = Duration::from_millis(1300);

/// The bounds of a session between stores.
pub(super) const BOUNDS: SessionBounds =
    SessionBounds { heartbeat: HEARTBEAT, silence: SILENT, send: SILENT, most: MAX_MESSAGE, queue: 64 };

/// The pauses before another store is dialled again, the first and the longest.
const DIAL_AGAIN: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

/// The cache that has a link, as the link needs it.
pub(super) trait LinkedCache: Send + Sync {
    /// The present jobs.
    fn jobs(&self) -> Vec<Arc<SharedJob>>;

    /// How fast storage is here, next to one of the other stores.
    fn storage_pace(&self) -> StoragePace;

    /// Notes whether a node keeps a dataset. If not, its part is read and kept here.
    fn answered(&self, node: &str, dataset: &Arc<SharedDataset>, refused: Option<&str>);

    /// The part of an order that another store owns. `None` if that is not in the roster. Visits
    /// each sample of the order.
    fn part_of(&self, instance: &str, dataset: &SharedDataset, order: &EpochOrder) -> Option<Vec<u8>>;
}

/// The settings of a link.
#[derive(Clone, Debug)]
pub(super) struct LinkSettings {
    pub(super) own: StoreName,
    pub(super) other: StoreName,
    /// Whether both stores belong to one run. Then a new store may replace the other one, when its
    /// host was restarted.
    pub(super) is_of_plan: bool,
    pub(super) peer: Arc<PeerClient>,
}

/// A change that the other store must know.
pub(super) enum LinkCommand {
    /// A job begins. The sender is dropped once the other agent knows it, or cannot be reached.
    Begin(Arc<SharedJob>, oneshot::Sender<()>),
    /// Its part of an order.
    Order(u32, Arc<EpochOrder>, Vec<u8>),
    /// Another call of a job: its name and its argument.
    Call(u32, &'static str, Bytes),
    /// A job has ended.
    End(u32),
    /// The stores or owners have changed: jobs are to be compared, and all orders sent again.
    Again {
        /// If not, only jobs are compared.
        have_moved: bool,
    },
}

/// The connections to another agent. Dropping it closes them.
pub(super) struct NodeLink {
    node: String,
    peer: Arc<PeerClient>,
    commands: mpsc::UnboundedSender<LinkCommand>,
    /// The numbers by which samples of a job's dataset are requested.
    numbers: RwLock<Numbers>,
    /// Whether the other agent is connected, and gives signs of life.
    is_open: AtomicBool,
    is_alive: AtomicBool,
    pace: Mutex<LinkPace>,
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
    fn answered(self, bytes: u64) {
        lock(&self.link.pace).answered(bytes, Instant::now());
    }
}

impl Drop for OpenRequest {
    fn drop(&mut self) {
        lock(&self.link.pace).end(self.number);
    }
}

impl std::fmt::Debug for NodeLink {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NodeLink").field("node", &self.node).field("peer", &self.peer).finish_non_exhaustive()
    }
}

impl NodeLink {
    pub(super) fn start(
        settings: LinkSettings,
        cluster: Weak<dyn LinkedCache>,
        runtime: &Handle,
    ) -> Arc<Self> {
        let LinkSettings { own, other, is_of_plan, peer } = settings;
        let (commands, received) = mpsc::unbounded_channel();
        let (numbers, is_open, is_alive, pace) = Default::default();
        let node = other.node.clone();
        let link = Self { node, peer: peer.clone(), commands, numbers, is_open, is_alive, pace };
        let link = Arc::new(link);
        let seed = own.seed_to(&other);
        let task = LinkTask {
            link: Arc::downgrade(&link),
            cluster,
            own,
            instance: other.instance,
            is_of_plan,
            peer,
            jobs: BTreeMap::new(),
            waiting: BTreeMap::new(),
            pauses: Backoff::new(DIAL_AGAIN.0, DIAL_AGAIN.1, seed),
        };
        runtime.spawn(task.run(received));
        link
    }

    pub(super) fn send(&self, command: LinkCommand) {
        // The task has ended with the runtime.
        let _ = self.commands.send(command);
    }

    /// Has the other store know a job. The receiver ends once it does, or cannot be reached.
    pub(super) fn begin(&self, job: &Arc<SharedJob>) -> oneshot::Receiver<()> {
        let (done, is_known) = oneshot::channel();
        self.send(LinkCommand::Begin(Arc::clone(job), done));
        is_known
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
        let bytes = dataset.sizes.bytes(sample);
        let (open, ended) = self.begin_request(bytes)?;
        let object = Object { path: Arc::default(), size: bytes, version: None };
        let key = SampleKey::new(DatasetId(number), sample);
        let request = Arc::new(ReadRequest::new(key, object, Span::Whole, due));
        let reading = self.peer.read(request);
        Some(Box::pin(async move {
            tokio::select! {
                biased;
                received = reading => {
                    if received.is_ok() {
                        open.answered(bytes);
                    }
                    received
                }
                _ = ended => Err(absent()),
            }
        }))
    }

    /// Counts a request. `None` if the other store rests, and this request is not the probe.
    fn begin_request(self: &Arc<Self>, bytes: u64) -> Option<(OpenRequest, oneshot::Receiver<()>)> {
        let (number, ended) = lock(&self.pace).begin(bytes, Instant::now())?;
        Some((OpenRequest { link: Arc::clone(self), number }, ended))
    }

    /// Ends late requests, or all of them if the other store is slow.
    fn end_late(&self, storage: impl FnOnce() -> StoragePace) {
        let now = Instant::now();
        if !lock(&self.pace).look(now) {
            return;
        }
        // It looks at all reads of the store.
        let storage = storage();
        let mut pace = lock(&self.pace);
        let (late, slow) = (pace.end_late(storage, now), pace.rest(storage, now));
        drop(pace);
        if late > 0 {
            tracing::debug!(node = self.node, late, "another node is late, and samples are read here");
        }
        if let Some((oldest, rest)) = slow {
            tracing::info!(
                node = self.node,
                ?oldest,
                ?rest,
                "another node is slow, and its samples are read here"
            );
        }
    }

    /// Whether the other agent is connected.
    pub(super) fn is_open(&self) -> bool {
        self.is_open.load(Ordering::Relaxed)
    }

    /// Sends the requests of a burst.
    pub(super) fn submit(&self) {
        self.peer.submit();
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
    is_known: bool,
    /// Whether it has got the catalogs that it did not know.
    has_catalogs: bool,
}

/// The task of a session.
struct LinkTask {
    link: Weak<NodeLink>,
    cluster: Weak<dyn LinkedCache>,
    own: StoreName,
    /// The name of the other store.
    instance: String,
    is_of_plan: bool,
    peer: Arc<PeerClient>,
    jobs: BTreeMap<u32, SentJob>,
    /// The waiters for jobs to be known, by the numbers of the jobs. They outlive a session.
    waiting: BTreeMap<u32, oneshot::Sender<()>>,
    pauses: Backoff,
}

impl LinkTask {
    async fn run(mut self, mut commands: mpsc::UnboundedReceiver<LinkCommand>) {
        loop {
            let opened = Instant::now();
            let Err(error) = self.connect(&mut commands).await else { return };
            tracing::debug!(instance = self.instance, %error, "another store is not reached");
            self.jobs.clear();
            let Some(link) = self.link.upgrade() else { return };
            link.change(HashMap::clear);
            link.is_open.store(false, Ordering::Relaxed);
            // Nothing looks at them until it is reached again.
            lock(&link.pace).end_all();
            drop(link);
            if opened.elapsed() > SILENT {
                self.pauses.reset();
            }
            let again = sleep(self.pauses.pause());
            tokio::pin!(again);
            loop {
                tokio::select! {
                    biased;
                    () = &mut again => break,
                    // It hears of all jobs when it is reached.
                    command = commands.recv() => match command {
                        Some(LinkCommand::Begin(job, waiting)) => {
                            self.waiting.insert(job.number, waiting);
                        }
                        Some(LinkCommand::End(number)) => drop(self.waiting.remove(&number)),
                        Some(_) => {}
                        None => return,
                    },
                }
            }
        }
    }

    /// One session. Returns without an error if the link was dropped.
    async fn connect(
        &mut self,
        commands: &mut mpsc::UnboundedReceiver<LinkCommand>,
    ) -> Result<(), WireError> {
        let (sender, mut receiver) = self.open().await?;
        let to = OtherStore(sender);
        if let Some(link) = self.link.upgrade() {
            link.is_open.store(true, Ordering::Relaxed);
            link.set_alive(true);
        }
        for job in self.cluster.upgrade().map(|cluster| cluster.jobs()).unwrap_or_default() {
            self.begin(&to, job).await?;
        }
        let mut looks = interval(HEARTBEAT);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                // Messages that have arrived are handled before the check for silence.
                biased;
                message = receiver.next() => {
                    let closed = || WireError::new(WireErrorKind::Disconnected, "it has ended");
                    let (kind, payload) = message?.ok_or_else(closed)?;
                    // Others are of a later version.
                    if kind == ANSWER {
                        let answer = decoded(&payload).map_err(WireError::malformed)?;
                        self.answer(&to, answer).await?;
                    }
                }
                command = commands.recv() => match command {
                    Some(command) => self.command(&to, command).await?,
                    None => return Ok(()),
                },
                _ = looks.tick() => {
                    let Some(link) = self.link.upgrade() else { return Ok(()) };
                    link.set_alive(receiver.silence() < PAUSED);
                    if let Some(cluster) = self.cluster.upgrade() {
                        link.end_late(|| cluster.storage_pace());
                    }
                }
            }
        }
    }

    async fn open(&self) -> Result<(SessionSender, SessionReceiver), WireError> {
        let connection = self.peer.open_link(CONNECT_TIMEOUT).await?;
        let node = format!("the store {}", self.instance);
        let Session { sender, mut receiver, .. } = Session::start(connection, &node, BOUNDS);
        let StoreName { node: own, instance } = self.own.clone();
        let open = Open { versions: VERSIONS, node: own, instance };
        // An end that is gone is an error of the answer.
        sender.send(OPEN, encoded(&open)).await;
        let Some((OPENED, payload)) = receiver.next().await? else {
            return Err(WireError::malformed(format!("{node}: it is no store of this version")));
        };
        let opened: Open = decoded(&payload).map_err(WireError::malformed)?;
        // The address of a store that has ended may belong to another store now.
        if opened.instance != self.instance && !self.is_of_plan {
            return Err(WireError::new(WireErrorKind::OtherRun, format!("{node}: another store is there")));
        }
        Ok((sender, receiver))
    }

    async fn command(&mut self, to: &OtherStore, command: LinkCommand) -> Result<(), WireError> {
        match command {
            LinkCommand::Begin(job, waiting) => {
                if !self.is_known(job.number) {
                    self.waiting.insert(job.number, waiting);
                }
                self.begin(to, job).await
            }
            // Other jobs get all of their orders when the other store knows them.
            LinkCommand::Order(number, order, part) if self.is_known(number) => {
                to.order(number, &order, &part).await
            }
            LinkCommand::Order(..) => Ok(()),
            LinkCommand::Call(job, name, payload) => to.call(job, name, payload).await,
            LinkCommand::End(job) => self.end(to, job).await,
            LinkCommand::Again { have_moved } => self.compare(to, have_moved).await,
        }
    }

    fn is_known(&self, number: u32) -> bool {
        self.jobs.get(&number).is_some_and(|sent| sent.is_known)
    }

    async fn end(&mut self, to: &OtherStore, number: u32) -> Result<(), WireError> {
        self.jobs.remove(&number);
        self.waiting.remove(&number);
        if let Some(link) = self.link.upgrade() {
            link.change(|numbers| numbers.retain(|_, (job, _)| *job != number));
        }
        to.send(END, number.to_le_bytes().to_vec().into()).await
    }

    /// Announces jobs that the other store does not know yet, and the end of jobs. Sends all orders
    /// again if owners have changed.
    async fn compare(&mut self, to: &OtherStore, have_moved: bool) -> Result<(), WireError> {
        let Some(cluster) = self.cluster.upgrade() else { return Ok(()) };
        let jobs = cluster.jobs();
        let is_there = |number: &&u32| jobs.iter().any(|job| job.number == **number);
        let gone: Vec<u32> = self.jobs.keys().filter(|number| !is_there(number)).copied().collect();
        for number in gone {
            self.end(to, number).await?;
        }
        for job in &jobs {
            match self.jobs.get(&job.number) {
                None => self.begin(to, Arc::clone(job)).await?,
                Some(sent) if sent.is_known && have_moved => {
                    to.call(job.number, RESTART, Bytes::new()).await?;
                    self.send_orders(to, job).await?;
                }
                Some(_) => {}
            }
        }
        Ok(())
    }

    async fn attach(&self, to: &OtherStore, job: &SharedJob) -> Result<(), WireError> {
        let attach = match self.is_of_plan {
            true => encoded(&job.attach_of_plan()),
            false => encoded(&job.attach),
        };
        to.call(job.number, ATTACH, attach).await
    }

    async fn begin(&mut self, to: &OtherStore, job: Arc<SharedJob>) -> Result<(), WireError> {
        // Else it was sent when the session was opened.
        if !self.jobs.contains_key(&job.number) {
            self.attach(to, &job).await?;
            self.jobs.insert(job.number, SentJob { job, is_known: false, has_catalogs: false });
        }
        Ok(())
    }

    /// The other store has answered which datasets of a job it keeps, or why a call has failed.
    async fn answer(&mut self, to: &OtherStore, answer: JobAnswer) -> Result<(), WireError> {
        let JobAnswer { job: number, call, answer, error } = answer;
        let Some(sent) = self.jobs.get_mut(&number) else { return Ok(()) };
        if let Some(why) = error {
            tracing::info!(why, call, "another store does not do what a job needs");
            if call == ATTACH {
                self.waiting.remove(&number);
            }
            return Ok(());
        }
        if call != ATTACH {
            return Ok(());
        }
        let malformed = |error: serde_json::Error| WireError::malformed(error.to_string());
        let Attached { datasets, first_dataset, .. } = serde_json::from_str(&answer).map_err(malformed)?;
        let job = Arc::clone(&sent.job);
        let is_needed = |at: &usize| {
            datasets.get(*at) == Some(&DatasetAnswer::CatalogNeeded)
                && job.datasets.get(*at).is_some_and(Option::is_some)
        };
        let needed: Vec<usize> = (0..datasets.len()).filter(is_needed).collect();
        if !needed.is_empty() && !std::mem::replace(&mut sent.has_catalogs, true) {
            for at in needed {
                self.send_catalog(to, &job, at).await?;
            }
            return self.attach(to, &job).await;
        }
        sent.is_known = true;
        let (Some(link), Some(cluster)) = (self.link.upgrade(), self.cluster.upgrade()) else {
            return Ok(());
        };
        for blocks in job.blocks() {
            to.call(number, BLOCKS, encoded(&blocks)).await?;
        }
        self.send_orders(to, &job).await?;
        for (at, answer) in (0..).zip(datasets) {
            let Some(dataset) = job.dataset(at).cloned() else { continue };
            let refused = match answer {
                DatasetAnswer::Kept => None,
                DatasetAnswer::Refused(why) => Some(why),
                DatasetAnswer::CatalogNeeded => Some("it did not accept the catalog".to_owned()),
            };
            let request = first_dataset.checked_add(at);
            if let (Some(id), Some(request), None) = (dataset.id(), request, &refused) {
                link.change(|numbers| numbers.extend([((job.job, id), (number, request))]));
            }
            let (cluster, node) = (Arc::clone(&cluster), link.node.clone());
            let samples = dataset.sizes.len();
            over_samples(samples, move || cluster.answered(&node, &dataset, refused.as_deref())).await;
        }
        self.waiting.remove(&number);
        Ok(())
    }

    async fn send_catalog(&self, to: &OtherStore, job: &Arc<SharedJob>, at: usize) -> Result<(), WireError> {
        let Some(dataset) = job.datasets.get(at).cloned().flatten() else { return Ok(()) };
        let reading = over_samples(dataset.sizes.len(), move || dataset.catalog.to_bytes().ok());
        let Some(catalog) = reading.await.flatten() else { return Ok(()) };
        for piece in Piece::all(at as u32, &catalog) {
            to.call(job.number, CATALOG, piece.encode().into()).await?;
        }
        Ok(())
    }

    /// Sends the other store its parts of all orders of a job that are known.
    async fn send_orders(&self, to: &OtherStore, job: &Arc<SharedJob>) -> Result<(), WireError> {
        let Some(cluster) = self.cluster.upgrade() else { return Ok(()) };
        for order in job.orders() {
            let Some(dataset) = job.dataset(order.dataset).cloned() else { continue };
            let (of_part, cluster, instance) =
                (Arc::clone(&order), Arc::clone(&cluster), self.instance.clone());
            let dividing = over_samples(order.samples.len() as u64, move || {
                cluster.part_of(&instance, &dataset, &of_part)
            });
            // Without a part, the other store has left the roster meanwhile.
            let Some(Some(part)) = dividing.await else { return Ok(()) };
            to.order(job.number, &order, &part).await?;
        }
        Ok(())
    }
}

/// The other end of a session.
struct OtherStore(SessionSender);

impl OtherStore {
    async fn send(&self, kind: u32, payload: Bytes) -> Result<(), WireError> {
        let gone = || WireError::new(WireErrorKind::Disconnected, "it takes no messages");
        if self.0.send(kind, payload).await { Ok(()) } else { Err(gone()) }
    }

    async fn call(&self, job: u32, name: &'static str, payload: Bytes) -> Result<(), WireError> {
        self.send(CALL, JobCall { job, name, payload }.encode()).await
    }

    async fn order(&self, job: u32, order: &EpochOrder, part: &[u8]) -> Result<(), WireError> {
        for piece in order.pieces(part) {
            self.call(job, ORDER, piece.encode().into()).await?;
        }
        Ok(())
    }
}
