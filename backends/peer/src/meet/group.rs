//! The ranks of a run, from its start to its end.
//!
//! Samples flow between ranks directly; rank 0 is needed only for what concerns all: how far all have come, what each
//! reports, when all are done, who comes back. When rank 0 dies, that ends and the rest goes on: whatever waits for it has a
//! deadline. A rank that is gone is read around by the layers above; here it is only said.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use bytes::Bytes;
use foreread_tier::{Context, Peers, Serve, Tier};
use foreread_types::{Rank, SampleKey, StoreId};
use tokio::sync::watch;
use tokio::time::{Instant, timeout, timeout_at};

use super::board::Board;
use super::ground::Ground;
use super::hub::Hub;
use super::joining::Task;
use super::launcher::Launched;
use super::member::Member;
use super::members::RECONNECT;
use super::messages::key;
use super::roster::Roster;
use super::run::{Heard, Outbox, run};
use crate::{Asker, Counters, Identity, Network, PeerTier, RunId, Server};

/// How long the last words may take.
const LAST: Duration = Duration::from_secs(2);

/// How ranks have left each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Left {
    /// All were done.
    Together,
    /// Rank 0 did not wait for these any longer: they are gone, or the deadline passed.
    Without(Vec<Rank>),
    /// Rank 0 said nothing before the deadline: it waits for others, or is gone.
    Unheard,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[derive(Debug)]
pub(super) enum Side {
    First { hub: Arc<Hub>, serving: Option<Task> },
    Member(Box<Member>),
}

#[derive(Debug)]
enum Running {
    First {
        hub: Arc<Hub>,
        _serving: Option<Task>,
        _following: Task,
    },
    Member {
        outbox: watch::Sender<Outbox>,
        reported: watch::Receiver<bool>,
        lost: watch::Receiver<bool>,
        over: watch::Receiver<Option<Vec<Rank>>>,
        task: Mutex<Option<Task>>,
    },
}

/// The ranks of a run, which have started together.
#[derive(Debug)]
pub struct Group {
    rank: Rank,
    world_size: u32,
    stores: Vec<StoreId>,
    run: RunId,
    roster: Arc<Roster>,
    running: Running,
    asker: Option<Asker>,
    tiers: Mutex<BTreeMap<StoreId, Arc<PeerTier>>>,
    ground: Option<Arc<Ground>>,
    board: Arc<Board>,
    counters: Arc<Counters>,
    /// Answers until all have left.
    server: Mutex<Option<Server>>,
}

/// What a [`Group`] is made of.
pub(super) struct Parts<'a> {
    pub launched: &'a Launched,
    pub stores: &'a [StoreId],
    pub run: RunId,
    pub roster: Arc<Roster>,
    pub side: Side,
    pub server: Option<Server>,
    pub identity: Option<Identity>,
    pub network: Arc<dyn Network>,
    pub ground: Option<Arc<Ground>>,
    pub board: Arc<Board>,
}

impl Group {
    pub(super) fn new(parts: Parts<'_>, context: &Context) -> Self {
        let roster = Arc::clone(&parts.roster);
        let running = match parts.side {
            Side::First { hub, serving } => {
                let following = follow(Arc::clone(&hub), Arc::clone(&roster));
                let following = Task(context.runtime.spawn(following));
                Running::First { hub, _serving: serving, _following: following }
            }
            Side::Member(member) => {
                let (outbox, told) = watch::channel(Outbox::default());
                let (reported, has_report) = watch::channel(false);
                let (lost, is_lost) = watch::channel(false);
                let (over, is_over) = watch::channel(None);
                let heard = Heard { reported, lost, over };
                let task = Task(context.runtime.spawn(run(*member, Arc::clone(&roster), told, heard)));
                let task = Mutex::new(Some(task));
                Running::Member { outbox, reported: has_report, lost: is_lost, over: is_over, task }
            }
        };
        let counters = parts.server.as_ref().map(|server| Arc::clone(server.counters())).unwrap_or_default();
        let asker = parts
            .identity
            .map(|identity| Asker::new(identity, parts.run, parts.network, context, Arc::clone(&counters)))
            .map(|asker| asker.with_wire(parts.server.as_ref().map(Server::wire).unwrap_or_default()));
        Self {
            rank: parts.launched.rank,
            world_size: parts.launched.world_size,
            stores: parts.stores.to_vec(),
            run: parts.run,
            roster,
            running,
            asker,
            tiers: Mutex::default(),
            ground: parts.ground,
            board: parts.board,
            counters,
            server: Mutex::new(parts.server),
        }
    }

    /// The run that these ranks are in: the same on all of them.
    pub fn run(&self) -> RunId {
        self.run
    }

    /// Says how far this rank has come: a count that only grows. Returns at once; rank 0 hears the latest, not each.
    pub fn progress(&self, at: u64) {
        match &self.running {
            Running::First { hub, .. } => hub.with(|leader| leader.progress(0, at)),
            Running::Member { outbox, .. } => {
                outbox.send_modify(|outbox| outbox.progress = Some(at));
            }
        }
    }

    /// How far all ranks have come, on rank 0: the least that any has said last; 0 while one has said nothing. Nothing on the
    /// other ranks. The receiver can be waited on for changes.
    pub fn lowest(&self) -> Option<watch::Receiver<u64>> {
        match &self.running {
            Running::First { hub, .. } => Some(hub.lowest()),
            Running::Member { .. } => None,
        }
    }

    /// Gives rank 0 this rank's report, at most 256 MiB; says whether rank 0 has it before the deadline.
    ///
    /// # Cancel safety
    /// The report is sent although nobody waits for it.
    pub async fn report(&self, report: Bytes, deadline: Duration) -> bool {
        match &self.running {
            Running::First { hub, .. } => {
                // Rank 0 names no other steps than it does.
                drop(hub.with(|leader| leader.part(0, key::REPORT, report)));
                true
            }
            Running::Member { outbox, reported, .. } => {
                outbox.send_modify(|outbox| outbox.report = Some(report));
                let mut reported = reported.clone();
                timeout(deadline, reported.wait_for(|reported| *reported)).await.is_ok_and(|got| got.is_ok())
            }
        }
    }

    /// The reports of all ranks, on rank 0, its own with them; of those that are gone, or do not report before the deadline,
    /// there is none. Empty on the other ranks.
    pub async fn reports(&self, deadline: Duration) -> Vec<Option<Bytes>> {
        let Running::First { hub, .. } = &self.running else { return Vec::new() };
        let until = Instant::now() + deadline;
        let mut arrivals = hub.arrivals();
        loop {
            arrivals.mark_unchanged();
            let (reports, (coming, _)) = hub.with(|leader| {
                (leader.store.parts(key::REPORT), leader.unfinished(key::REPORT, Instant::now()))
            });
            if coming == 0 || Instant::now() >= until {
                return reports;
            }
            look(&mut arrivals, until).await;
        }
    }

    /// Waits until there has been no connection to rank 0 for so long without a break; for ever on rank 0.
    ///
    /// # Cancel safety
    /// Nothing is lost but the time.
    pub async fn lost_first(&self, this_long: Duration) {
        let Running::Member { lost, .. } = &self.running else { return std::future::pending().await };
        let mut lost = lost.clone();
        loop {
            if lost.wait_for(|lost| *lost).await.is_err() {
                // The connection was put down, not lost.
                return std::future::pending().await;
            }
            let back = async {
                if lost.wait_for(|lost| !*lost).await.is_err() {
                    // Rank 0 does not want this rank back.
                    std::future::pending::<()>().await;
                }
            };
            if timeout(this_long, back).await.is_err() {
                return;
            }
        }
    }

    /// Says that this rank is done, and goes on serving until all are done or gone, or the deadline passes; then it serves
    /// no more.
    ///
    /// # Cancel safety
    /// That this rank is done is said although nobody waits.
    pub async fn leave(&self, deadline: Duration) -> Left {
        let left = self.part(Instant::now() + deadline).await;
        let server = lock(&self.server).take();
        if let Some(server) = server {
            server.close().await;
        }
        if let Some(ground) = &self.ground {
            ground.withdraw(&self.board);
        }
        left
    }

    async fn part(&self, until: Instant) -> Left {
        match &self.running {
            Running::First { hub, .. } => {
                drop(hub.with(|leader| leader.part(0, key::DONE, Bytes::new())));
                let mut arrivals = hub.arrivals();
                let missing = loop {
                    arrivals.mark_unchanged();
                    let (working, missing) = hub.with(|leader| leader.unfinished(key::DONE, Instant::now()));
                    if working == 0 || Instant::now() >= until {
                        break missing;
                    }
                    look(&mut arrivals, until).await;
                };
                hub.with(|leader| leader.end(&missing));
                // They close their connections when they have heard it.
                let last = async {
                    loop {
                        arrivals.mark_unchanged();
                        if hub.with(|leader| leader.all_heard()) || arrivals.changed().await.is_err() {
                            return;
                        }
                    }
                };
                drop(timeout(LAST, last).await);
                if missing.is_empty() { Left::Together } else { Left::Without(missing) }
            }
            Running::Member { outbox, task, over, .. } => {
                outbox.send_modify(|outbox| outbox.done = true);
                let mut over = over.clone();
                let heard = timeout_at(until, over.wait_for(Option::is_some)).await;
                let missing = heard.ok().and_then(|heard| heard.ok().and_then(|missing| missing.clone()));
                outbox.send_modify(|outbox| outbox.end = true);
                let task = lock(task).take();
                if let Some(mut task) = task {
                    drop(timeout(LAST, &mut task.0).await);
                }
                match missing {
                    None => Left::Unheard,
                    Some(missing) if missing.is_empty() => Left::Together,
                    Some(missing) => Left::Without(missing),
                }
            }
        }
    }

    /// Ranks of which rank 0 hears nothing, on rank 0. For tests: whoever asks a rank finds out sooner by itself.
    #[cfg(feature = "testing")]
    pub fn gone(&self) -> Vec<Rank> {
        match &self.running {
            Running::First { hub, .. } => hub.with(|leader| leader.lost(Instant::now())),
            Running::Member { .. } => Vec::new(),
        }
    }

    /// What was asked and served.
    pub fn counters(&self) -> &Arc<Counters> {
        &self.counters
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if let Some(ground) = &self.ground {
            ground.withdraw(&self.board);
        }
    }
}

impl Peers for Group {
    fn rank(&self) -> Rank {
        self.rank
    }

    fn world_size(&self) -> u32 {
        self.world_size
    }

    fn tier(&self, store: StoreId) -> Option<Arc<dyn Tier>> {
        let own = self.stores.get(self.rank.0 as usize);
        if own == Some(&store) {
            return None;
        }
        let asker = self.asker.as_ref()?;
        let users = self.stores.iter().enumerate().filter(|(_, used)| **used == store);
        let mut users: Vec<_> = users.map(|(rank, _)| Rank(rank as u32)).collect();
        if users.is_empty() {
            return None;
        }
        // Not everybody asks the same of a node's ranks.
        let turn = self.rank.0 as usize % users.len();
        users.rotate_left(turn);
        let mut tiers = lock(&self.tiers);
        let tier = tiers.entry(store).or_insert_with(|| {
            let remotes = users.into_iter().map(|rank| self.roster.remote(rank, asker)).collect();
            Arc::new(PeerTier::new(remotes))
        });
        Some(Arc::clone(tier) as Arc<dyn Tier>)
    }

    fn cancel(&self, store: StoreId, key: SampleKey) {
        if let Some(tier) = lock(&self.tiers).get(&store) {
            tier.cancel(key);
        }
    }

    fn serve(&self, source: Weak<dyn Serve>) {
        if let Some(server) = &*lock(&self.server) {
            server.serve(source);
        }
    }
}

/// Waits until something has come, or it is time to see who is gone for good.
async fn look(arrivals: &mut watch::Receiver<()>, until: Instant) {
    let next = until.min(Instant::now() + RECONNECT / 4);
    // Whatever it was, the caller looks.
    drop(timeout_at(next, arrivals.changed()).await);
}

/// Rank 0 learns, as the others do, which ranks were started again.
async fn follow(hub: Arc<Hub>, roster: Arc<Roster>) {
    let mut news = hub.news();
    let mut moves = 0;
    loop {
        while let Some(person) = hub.with(|leader| leader.store.value(&key::moved(moves)).cloned()) {
            if let Ok(person) = serde_json::from_slice(&person) {
                roster.place(&person);
            }
            moves += 1;
        }
        if news.changed().await.is_err() {
            return;
        }
    }
}
