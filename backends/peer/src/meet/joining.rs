//! The rendezvous, step by step, until the start.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use foreread_connection::{ControlConnection, Identity, Nonce, PeerIdentity, RunId, token};
use foreread_tier::OpenContext;
use foreread_types::{Fingerprint, Rank};
use tokio::runtime::Handle;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep};

use super::compare::{difference, pack, unpack};
use super::descriptors;
use super::endpoint::LocalEndpoint;
use super::follower::Follower;
use super::follower_driver::{FollowerDriver, check_other_rank0};
use super::group::{RunGroup, RunLink};
use super::hub::Hub;
use super::leader::Leader;
use super::link::LinkTraffic;
use super::messages::{ComparedSettings, Hello, MAX_PART_BYTES, MeetMessage, RankInfo, key};
use super::node::host_name;
use super::owned_task::OwnedTask;
use super::rank0::{Rank0Driver, Rank0Steps};
use super::roster::RunRoster;
use super::sessions::{redirect_all, serve_all};
use super::settings::RendezvousSettings;
use super::shared_catalog::{self, RelayOffers, SharedCatalog};
use super::waiting::WaitDeadline;
use super::{MeetError, MeetErrorKind};
use crate::peer_client::{PeerClient, PeerClientFactory};
use crate::server::PeerServer;

/// How often rank 0 checks that it can be found.
const REPUBLISH_INTERVAL: Duration = Duration::from_secs(1);

/// Ranks that have connected and not started yet. All ranks make the same steps in the same order.
/// Each step has the deadline of the [`RendezvousSettings`], which restarts while bytes are
/// transferred or a rank reports progress.
///
/// Dropping it notifies the other ranks that this rank gave up.
#[derive(Debug)]
pub struct RendezvousSteps {
    role: Role,
    endpoint: Arc<LocalEndpoint>,
    identity: Identity,
    /// `None` after the start.
    server: Option<PeerServer>,
    nodes: Vec<u32>,
    groups: Vec<u32>,
    /// Steps that this rank has made.
    steps: u32,
    /// The clients of other ranks' stores, once there are any.
    clients: Option<(Arc<RunRoster>, PeerClientFactory)>,
    /// The catalogs that rank 0 has shared: whether each node gets them without a request.
    pushed: Vec<bool>,
    deadline: Duration,
}

#[derive(Debug)]
enum Role {
    Rank0 {
        driver: Rank0Driver,
        serving: Option<OwnedTask>,
        /// Keeps rank 0's notice and rendezvous address in place until the start.
        publishing: Option<OwnedTask>,
    },
    Follower {
        driver: Box<FollowerDriver>,
        /// Catalogs for other ranks of this node. `None` once no more are added.
        offers: Option<watch::Sender<RelayOffers>>,
        _passing_on: Option<OwnedTask>,
    },
    /// Started.
    Started,
}

impl RendezvousSteps {
    /// Connects to the other ranks. Returns when all ranks are connected.
    ///
    /// # Errors
    ///
    /// [`MeetError`], one line on every rank. A rank did not come in time, has another version or
    /// world size, or exists twice. Or the rendezvous address or the token is missing.
    pub async fn join(settings: RendezvousSettings) -> Result<Self, MeetError> {
        let random = token::random().map_err(MeetError::no_random(MeetErrorKind::Broken))?;
        let process = u64::from_le_bytes(*random.first_chunk().unwrap_or(&[0; 8]));
        let nonce = Nonce::new(*random.last_chunk().unwrap_or(&[0; 16]));
        descriptors::raise_limit(settings.launched.world_size)?;
        let endpoint = Arc::new(LocalEndpoint::new(&settings, process).await?);
        let RendezvousSettings {
            launched, version, loader, token, deadline, progress, serving: bounds, ..
        } = settings;
        let counters = settings.counters;
        let made = if token.is_some() { None } else { endpoint.generated_token()? };
        let token = token.or_else(|| made.clone());
        let (rank, job, world_size) = (launched.rank, launched.job_hash(), launched.world_size);
        let dial = endpoint.dial(token.clone());
        let hello = Hello::new(endpoint.info(&[]), world_size, version.clone(), loader, process);
        let wait = WaitDeadline::new(deadline, progress, Instant::now());
        let start = |identity, listeners| {
            PeerServer::start(&Handle::current(), identity, listeners, bounds, Arc::clone(&counters))
        };
        let (role, identity, server) = if rank.0 == 0 {
            check_other_rank0(&dial, &hello).await?;
            let Some(token) = token else {
                return Err(MeetError::new(MeetErrorKind::Secret, "there is no token"));
            };
            let identity = Identity { rank, job, token };
            let server = start(identity.clone(), endpoint.listen().await?);
            let listens = endpoint.advertised(server.addresses());
            let leader = Leader::new(endpoint.info(&listens), world_size as usize, version, process, nonce);
            let traffic = LinkTraffic::new(MAX_PART_BYTES, Arc::clone(&counters));
            let leader = leader.with_loader(loader, Arc::clone(&endpoint.board));
            let hub = Arc::new(Hub::new(leader, Arc::clone(&traffic)));
            let serving =
                server.meetings().map(|meetings| OwnedTask::new(serve_all(Arc::clone(&hub), meetings)));
            endpoint.publish(&listens, made.as_ref(), false).await?;
            let (publishing, known, counted) =
                (Arc::clone(&endpoint), identity.clone(), Arc::clone(&counters));
            let publishing = OwnedTask::new(async move {
                loop {
                    sleep(REPUBLISH_INTERVAL).await;
                    if let Err(error) = publishing.publish(&listens, made.as_ref(), true).await {
                        tracing::debug!(%error, "cannot write the notice again");
                    }
                    if let Some(listener) = publishing.listen_at_place(&listens).await {
                        let (known, counted) = (known.clone(), Arc::clone(&counted));
                        let server =
                            PeerServer::start(&Handle::current(), known, vec![listener], bounds, counted);
                        if let Some(meetings) = server.meetings() {
                            redirect_all(&listens, &traffic, meetings).await;
                        }
                    }
                }
            });
            let driver = Rank0Driver { hub, steps: Rank0Steps::new(wait, dial.place.to_string()) };
            (Role::Rank0 { driver, serving, publishing: Some(publishing) }, identity, server)
        } else {
            let traffic = LinkTraffic::new(u64::MAX, Arc::clone(&counters));
            let follower = Follower::new(hello, wait, dial.place.to_string());
            let mut driver = FollowerDriver::new(dial, follower, Arc::clone(&traffic));
            let mut served: Option<(Identity, PeerServer)> = None;
            let (identity, server) = loop {
                let found = driver.find().await?;
                let same =
                    served.take().filter(|(known, _)| known.token.expose() == found.identity.token.expose());
                let (identity, server) = match same {
                    Some(same) => same,
                    None => (found.identity.clone(), start(found.identity.clone(), endpoint.listen().await?)),
                };
                driver.follower.hello.info = endpoint.info(&endpoint.advertised(server.addresses()));
                if driver.introduce(found).await? {
                    break (identity, server);
                }
                driver.pause().await?;
                served = Some((identity, server));
            };
            let (offers, offered) = watch::channel(RelayOffers::default());
            let passing_on = server
                .meetings()
                .map(|meetings| OwnedTask::new(shared_catalog::relay_catalogs(meetings, offered, traffic)));
            let driver = Box::new(driver);
            (Role::Follower { driver, offers: Some(offers), _passing_on: passing_on }, identity, server)
        };
        let (nodes, pushed, server) = (Vec::new(), Vec::new(), Some(server));
        let (groups, steps) = (Vec::new(), 0);
        let clients = None;
        let mut joining =
            Self { role, endpoint, identity, server, nodes, groups, steps, clients, pushed, deadline };
        joining.count_nodes().await?;
        if joining.nodes.iter().any(|node| *node > 0)
            && let Some(own) = joining.infos().get(rank.0 as usize)
        {
            joining.endpoint.log_network(&own.addresses);
        }
        Ok(joining)
    }

    /// Waits for all ranks and numbers their nodes.
    async fn count_nodes(&mut self) -> Result<(), MeetError> {
        if let Role::Rank0 { driver, .. } = &mut self.role {
            driver.arrive().await?;
        }
        let infos = self.infos();
        self.nodes = numbered(infos.iter().map(|info| info.node.clone()));
        self.groups = numbered(infos.into_iter().map(|info| (info.node, info.group)));
        Ok(())
    }

    /// The ranks, as far as this one knows them.
    fn infos(&self) -> Vec<RankInfo> {
        match &self.role {
            Role::Rank0 { driver, .. } => driver.hub.with(|leader| leader.infos()),
            Role::Follower { driver, .. } => driver.follower.infos.clone(),
            Role::Started => Vec::new(),
        }
    }

    /// The addresses of all ranks, as this rank reaches them.
    fn roster(&self) -> RunRoster {
        let at = match &self.role {
            Role::Follower { driver, .. } => driver.at.as_ref(),
            Role::Rank0 { .. } | Role::Started => None,
        };
        let roster = RunRoster::new(self.endpoint.launched.world_size, self.endpoint.node.clone(), at);
        self.update(&roster);
        roster
    }

    fn update(&self, roster: &RunRoster) {
        self.infos().iter().for_each(|info| roster.update(info));
        if let Role::Follower { driver, .. } = &self.role {
            driver.follower.moved.iter().for_each(|info| roster.update(info));
        }
    }

    /// The client of the store that another rank hosts. Its requests for samples wait for the
    /// start. Peer clients use the memory and the runtime of the first `context`.
    pub fn client(&mut self, rank: Rank, context: &OpenContext) -> Arc<PeerClient> {
        let (roster, requester) = self.clients(context);
        roster.remote(rank, &requester)
    }

    fn clients(&mut self, context: &OpenContext) -> (Arc<RunRoster>, PeerClientFactory) {
        let clients = self.clients.take().unwrap_or_else(|| {
            let (network, identity) = (Arc::clone(&self.endpoint.network), self.identity.clone());
            let server = self.server.as_ref();
            let counters = server.map(|server| Arc::clone(server.counters())).unwrap_or_default();
            let requester = PeerClientFactory::new(identity, None, network, context, counters);
            let wire = server.map(PeerServer::wire).unwrap_or_default();
            (Arc::new(self.roster()), requester.with_wire(wire))
        });
        self.clients.insert(clients).clone()
    }

    /// The connections of other ranks for messages to the store that this rank hosts. They wait
    /// until the first caller takes them. Dropping the receiver refuses them.
    pub fn links(&self) -> Option<mpsc::Receiver<(PeerIdentity, ControlConnection)>> {
        self.server.as_ref()?.links()
    }

    /// This rank.
    pub fn rank(&self) -> Rank {
        self.endpoint.launched.rank
    }

    /// The number of ranks.
    pub fn world_size(&self) -> u32 {
        self.endpoint.launched.world_size
    }

    /// The node of each rank, numbered in the order of their first ranks. Ranks of one node share
    /// its disks. They use Unix sockets if they share the network namespace.
    pub fn nodes(&self) -> &[u32] {
        &self.nodes
    }

    /// The number of each rank's group: ranks of one node that may share a store.
    pub fn groups(&self) -> &[u32] {
        &self.groups
    }

    /// Reports progress of a long task to all ranks. To be repeated while it progresses. Deadlines
    /// restart, and all ranks show it.
    pub async fn working(&mut self, on: &str) {
        match &mut self.role {
            Role::Rank0 { driver, .. } => driver.working(on),
            Role::Follower { driver, .. } => {
                if !driver.send(&MeetMessage::Working { on: on.to_owned() }).await {
                    driver.reconnect(&self.identity).await;
                }
            }
            Role::Started => {}
        }
    }

    /// Rank 0's `blob` on all ranks. The value of other ranks is ignored.
    ///
    /// # Errors
    ///
    /// As [`join`](Self::join).
    pub async fn share(&mut self, blob: Option<Bytes>) -> Result<Bytes, MeetError> {
        self.share_with(blob, Vec::new()).await
    }

    /// Rank 0's `blob` on all ranks, and catalogs for ranks that get them by
    /// [`bulks`](Self::bulks). Only one share of a rendezvous may have catalogs.
    ///
    /// # Errors
    ///
    /// As [`join`](Self::join). [`MeetErrorKind::Setting`] if more than 16 GiB of catalogs would
    /// leave rank 0, or there are more than 16 of them.
    pub async fn share_with(
        &mut self,
        blob: Option<Bytes>,
        bulks: Vec<SharedCatalog>,
    ) -> Result<Bytes, MeetError> {
        let key = self.step("share");
        match &mut self.role {
            Role::Rank0 { driver, .. } => {
                if bulks.len() > shared_catalog::MAX_CATALOGS {
                    let error = MeetError::new(MeetErrorKind::Setting, "more than 16 catalogs are shared");
                    return Err(driver.fail(error).await);
                }
                let blob = blob.unwrap_or_default();
                // The number of catalogs, and for each whether it is sent without a request.
                let mut value = vec![bulks.len() as u8];
                value.extend(bulks.iter().map(|bulk| u8::from(bulk.is_pushed())));
                value.extend_from_slice(&blob);
                driver.share(&key, value.into(), bulks).await?;
                Ok(blob)
            }
            Role::Follower { .. } => {
                let mut value = self.value(&key, None).await?;
                let bulks = 1 + usize::from(value.first().copied().unwrap_or_default());
                let kinds = value.split_to(bulks.min(value.len()));
                self.pushed = kinds.iter().skip(1).map(|kind| *kind != 0).collect();
                if let Role::Follower { offers: Some(offers), .. } = &self.role {
                    offers.send_modify(|offers| offers.pushed.clone_from(&self.pushed));
                }
                Ok(value)
            }
            Role::Started => Ok(Bytes::new()),
        }
    }

    /// The catalogs of the last [`share_with`](Self::share_with) that this rank does not `have`, in
    /// their order. They come from a rank of this node or from rank 0. The other ranks of the node
    /// may get this rank's catalogs from it. `None`s on rank 0.
    ///
    /// # Errors
    ///
    /// As [`join`](Self::join).
    pub async fn bulks(&mut self, have: Vec<Option<SharedCatalog>>) -> Result<Vec<Option<Bytes>>, MeetError> {
        let rank = self.rank();
        let relay = shared_catalog::relay(self.nodes.iter(), rank.0 as usize).map(|rank| Rank(rank as u32));
        let relay = relay.filter(|relay| *relay != rank);
        let addresses = relay.map(|relay| self.roster().addresses(relay)).unwrap_or_default();
        let numbers = 0..have.len();
        let Role::Follower { driver, offers, .. } = &mut self.role else {
            return Ok(vec![None; have.len()]);
        };
        let (network, identity) = (&*self.endpoint.network, &self.identity);
        let shared = self.pushed.iter().copied().enumerate();
        let missing = shared.filter(|(number, _)| have.get(*number).is_none_or(Option::is_none));
        let missing: BTreeMap<usize, bool> = missing.collect();
        let offer = |here: BTreeMap<usize, SharedCatalog>| {
            if let Some(offers) = &*offers {
                offers.send_modify(|offers| {
                    offers.here.extend(here);
                    offers.is_waiting = true;
                });
            }
        };
        offer(have.into_iter().enumerate().filter_map(|(number, bulk)| Some((number, bulk?))).collect());
        let mut got = BTreeMap::new();
        if let Some(relay) = relay.filter(|_| !missing.is_empty()) {
            let (to, silence) = ((relay, &addresses[..]), shared_catalog::relay_timeout(self.deadline));
            let traffic = Arc::clone(&driver.traffic);
            tokio::select! {
                fetched = shared_catalog::fetch(network, to, identity, &traffic, &missing, silence) => {
                    got = fetched;
                }
                error = driver.stay(identity) => return Err(error),
            }
        }
        for (number, is_pushed) in missing {
            if got.contains_key(&number) {
                continue;
            }
            if let Some(relay) = relay {
                tracing::debug!(%relay, "the relay did not deliver a catalog, which is now requested from \
                     rank 0");
            }
            let comes = relay.is_none() && is_pushed;
            let fetch = (MeetMessage::Fetch { number: number as u32 }, Bytes::new());
            let value = driver.value(identity, &key::bulk(number), Some(fetch), comes).await?;
            offer(BTreeMap::from([(number, SharedCatalog::needed(value.clone()))]));
            got.insert(number, value);
        }
        Ok(numbers.map(|number| got.remove(&number)).collect())
    }

    /// The result of `digest` on all ranks. Rank 0 calls it with the payloads of all ranks, at most
    /// 256 MiB each. All ranks must have the same `words` (seed, names of datasets ...).
    ///
    /// # Errors
    ///
    /// As [`join`](Self::join). [`MeetErrorKind::Differs`] on every rank if their settings differ,
    /// in a line that names the ranks and settings.
    pub async fn exchange(
        &mut self,
        words: ComparedSettings,
        own: Bytes,
        digest: impl FnOnce(Vec<Bytes>) -> Bytes + Send,
    ) -> Result<Bytes, MeetError> {
        let key = self.step("exchange");
        match &mut self.role {
            Role::Rank0 { driver, .. } => {
                let value = digest(driver.gather(&key, &words, &own).await?);
                driver.agree(&key, &words, &value);
                Ok(value)
            }
            Role::Follower { .. } => self.part(&key, &words, &own).await,
            Role::Started => Ok(Bytes::new()),
        }
    }

    /// The key of the next step.
    fn step(&mut self, name: &str) -> String {
        self.steps += 1;
        if let Role::Follower { offers, .. } = &mut self.role
            && !self.pushed.is_empty()
        {
            *offers = None;
        }
        key::step(self.steps, name)
    }

    /// The value of a key. `request` is the message that obtains it, if it does not come without
    /// one.
    async fn value(&mut self, key: &str, request: Option<(MeetMessage, Bytes)>) -> Result<Bytes, MeetError> {
        match &mut self.role {
            Role::Follower { driver, .. } => driver.value(&self.identity, key, request, false).await,
            Role::Rank0 { .. } | Role::Started => Ok(Bytes::new()),
        }
    }

    /// The value of a key to which this rank contributes its settings and a payload.
    async fn part(&mut self, key: &str, words: &ComparedSettings, own: &[u8]) -> Result<Bytes, MeetError> {
        let part = pack(words, own);
        let message = MeetMessage::part(key, &part);
        let (ours, value) = unpack(&self.value(key, Some((message, part))).await?);
        // A restarted rank comes after the other ranks have agreed.
        let ours: ComparedSettings = serde_json::from_slice(&ours).unwrap_or_default();
        match difference(words, &ours) {
            None => Ok(value),
            Some(what) => {
                let line = format!("rank {} differs from rank 0: {what}", self.rank());
                Err(MeetError::new(MeetErrorKind::Differs, line))
            }
        }
    }

    /// Starts the run, once all ranks are ready and have the same `words` (the inputs of the plan,
    /// its fingerprint). The run's id is bound to `bound`, which names the datasets and the plan:
    /// ranks exchange samples only if it is equal. Peer clients use the memory and the runtime of
    /// `context`, unless there are some.
    ///
    /// # Errors
    ///
    /// As [`exchange`](Self::exchange).
    pub async fn start(
        mut self,
        words: ComparedSettings,
        bound: &[Fingerprint],
        context: &OpenContext,
    ) -> Result<RunGroup, MeetError> {
        let nonce = match &self.role {
            Role::Rank0 { driver, .. } => Some(driver.hub.with(|leader| leader.nonce)),
            Role::Follower { driver, .. } => driver.follower.nonce,
            Role::Started => None,
        };
        let nonce = nonce.ok_or_else(|| MeetError::new(MeetErrorKind::Broken, "rank 0 sent no run id"))?;
        let run = RunId::new(nonce, bound);
        // Before the last step, because a rank that has passed it may send requests.
        if let Some(server) = &self.server {
            server.enter(run);
        }
        let key = self.step("start");
        match &mut self.role {
            Role::Rank0 { driver, .. } => driver.start(&key, &words).await?,
            Role::Follower { .. } => _ = self.part(&key, &words, &[]).await?,
            Role::Started => {}
        }
        let (roster, requester) = self.clients(context);
        self.update(&roster);
        // It is set once.
        let _ = requester.run.set(run);
        let has_started = || MeetError::new(MeetErrorKind::Broken, "the ranks have started before");
        let running = match std::mem::replace(&mut self.role, Role::Started) {
            Role::Rank0 { driver, serving, .. } => RunLink::rank0(driver.hub, serving, &roster, context),
            Role::Follower { driver, .. } => RunLink::follower(*driver, &roster, context),
            Role::Started => return Err(has_started()),
        };
        let server = self.server.take().ok_or_else(has_started)?;
        Ok(RunGroup::new(Arc::clone(&self.endpoint), running, roster, (run, requester), server))
    }

    /// Ends before the start. Every rank ends with a line that contains `why`.
    pub async fn give_up(mut self, why: &str) {
        match std::mem::replace(&mut self.role, Role::Started) {
            Role::Rank0 { mut driver, serving, .. } => {
                let line = format!("rank 0 ({}) gave up: {why}", host_name());
                driver.fail(MeetError::new(MeetErrorKind::Refused, line)).await;
                drop(serving);
            }
            Role::Follower { mut driver, .. } => {
                // Without a connection, rank 0 detects the end itself.
                _ = driver.send(&MeetMessage::GiveUp { why: why.to_owned() }).await;
                if let Some(link) = driver.link.take() {
                    link.close().await;
                }
            }
            Role::Started => {}
        }
        self.endpoint.withdraw();
    }
}

/// The numbers of values, by their first occurrence.
fn numbered<T: PartialEq>(values: impl Iterator<Item = T>) -> Vec<u32> {
    let mut known: Vec<T> = Vec::new();
    let number = |value: T| match known.iter().position(|other| *other == value) {
        Some(at) => at as u32,
        None => {
            known.push(value);
            known.len() as u32 - 1
        }
    };
    values.map(number).collect()
}

impl Drop for RendezvousSteps {
    fn drop(&mut self) {
        const WHY: &str = "it ended before the start";
        match &mut self.role {
            Role::Rank0 { driver, serving, publishing } => {
                // Otherwise it could write the notice again after its withdrawal below.
                *publishing = None;
                let error = MeetError::new(MeetErrorKind::Refused, format!("rank 0 gave up: {WHY}"));
                driver.hub.with(|leader| leader.fail(error));
                if let (Some(serving), Ok(runtime)) = (serving.take(), Handle::try_current()) {
                    // Leaves the other ranks time to receive it.
                    runtime.spawn(async move {
                        sleep(Duration::from_secs(2)).await;
                        drop(serving);
                    });
                }
            }
            Role::Follower { driver, .. } => {
                if let Some(link) = &driver.link {
                    link.try_send(&MeetMessage::GiveUp { why: WHY.to_owned() });
                }
            }
            Role::Started => return,
        }
        self.endpoint.withdraw();
    }
}
