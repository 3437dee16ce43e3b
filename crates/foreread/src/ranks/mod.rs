//! Ranks that work together: from a meeting to a plan that all share.
//!
//! Rank 0 opens and lists the dataset, and sends the catalog, its own position and the speeds that it knows; every rank
//! says what it can keep and keeps already; from these all compute the same plan, and compare its fingerprint before
//! anything is read. What a user says differently on two ranks is said back in one line, on every rank. The price of
//! one catalog for all is that ranks wait for rank 0's listing, which they would otherwise all do at once.

mod encryption;
mod guarded;
mod offer;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use foreread_dataset::{Catalog, Progress};
use foreread_loader::{BlockTable, LocalDeal, Others};
use foreread_oracle::Schedule;
use foreread_peer::meet::{
    Group, Joining, Launched, Left, MeetError, Settings, Surroundings, Waiting, given_token,
};
use foreread_peer::{Counters, Network, Settings as Bounds, System, Token};
use foreread_planner::LocalPlan;
use foreread_tier::{Context, Peers};
use foreread_types::{Rank, Sizes, StoreId};
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use self::guarded::Guarded;
use self::offer::{Offer, bundle, unbundle};
use crate::calibration::Calibration;
use crate::cluster;
use crate::config::Config;
use crate::disk::{self, OnNode};
use crate::error::{Error, ErrorKind, Result};
use crate::merged::Merged;
use crate::origin::{Opened, Shared, open, open_known};
use crate::planned::{Place, Planned, memory_of};
use crate::prepared::{Prepared, caches};
use crate::registry::Registry;
use crate::report::PeersReport;
use crate::state::State;
use crate::target::Named;

/// How long ranks wait for each other before they give up; what takes long and is seen to go on does not count.
const DEADLINE: Duration = Duration::from_secs(300);

/// How long a rank that is done keeps answering others that are not.
pub(crate) const FAREWELL: Duration = Duration::from_secs(600);

/// How long rank 0 may take to say that it has a report, before it counts as gone: longer than it may be silent.
const HEARD: Duration = Duration::from_secs(15);

/// How long the connection to rank 0 may be broken at a run's end, before it counts as gone.
const LOST: Duration = Duration::from_secs(3);

/// Who has not been asked for anything for so long is not needed any more.
const QUIET: Duration = Duration::from_secs(5);

/// Bytes that are read from the origin for others at a time, and that wait to be sent to them.
const SERVING: u64 = 64 << 20;

impl From<MeetError> for Error {
    fn from(error: MeetError) -> Self {
        Self::new(ErrorKind::Ranks, error.to_string())
    }
}

/// Where and how the ranks of a run find each other.
pub struct Meeting {
    launched: Launched,
    token: Option<Token>,
    network: Arc<dyn Network>,
    deadline: Duration,
    progress: Box<dyn FnMut(&Waiting) + Send + Sync>,
}

impl std::fmt::Debug for Meeting {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Meeting").field("launched", &self.launched).finish_non_exhaustive()
    }
}

impl Meeting {
    /// What the launcher says (torchrun, SLURM, Open MPI, MPICH, or `FOREREAD_MEET` with rank and world size); none where
    /// there is only one rank, or nothing says where ranks could meet. `environment` gives a variable's value.
    ///
    /// # Errors
    /// If what is said contradicts itself, or the ranks' secret is missing where it cannot be made.
    pub fn of(config: &Config, environment: &dyn Fn(&str) -> Option<String>) -> Result<Option<Self>> {
        if config.world_size < 2 {
            return Ok(None);
        }
        let surroundings = Surroundings::of_this_process(environment);
        let (rank, world_size) = (Rank(config.rank), config.world_size);
        let launched = Launched::by(&surroundings)?
            .filter(|launched| (launched.rank, launched.world_size) == (rank, world_size));
        let launched = match launched {
            Some(launched) => launched,
            None => Launched::explicit(rank, world_size, &surroundings)?,
        };
        if launched.rendezvous.is_none() {
            return Ok(None);
        }
        let token = given_token(&surroundings)?;
        let network = encryption::encrypted(Arc::new(System), environment)?;
        Ok(Some(Self { launched, token, network, deadline: DEADLINE, progress: Box::new(|_| ()) }))
    }

    /// The same with another deadline for the ranks to come.
    #[must_use]
    pub fn deadline(self, deadline: Duration) -> Self {
        Self { deadline, ..self }
    }

    /// The same over another network than the machine's sockets.
    #[must_use]
    pub fn network(self, network: Arc<dyn Network>) -> Self {
        Self { network, ..self }
    }

    /// The same, telling `progress` about once a second what is being waited for.
    #[must_use]
    pub fn progress(self, progress: impl FnMut(&Waiting) + Send + Sync + 'static) -> Self {
        Self { progress: Box::new(progress), ..self }
    }
}

/// What rank 0 tells all.
#[derive(Debug, Serialize, Deserialize)]
struct Told {
    /// How long each catalog is that follows.
    catalogs: Vec<u64>,
    state: Option<State>,
    calibration: Option<Calibration>,
    origin_limit: Option<u64>,
    origin_parallelism: Option<usize>,
    compute: Duration,
}

impl Told {
    fn encode(&self, catalogs: &[Catalog]) -> Result<Bytes> {
        let mut bytes = serde_json::to_vec(self).map_err(|error| unreadable(&error))?;
        bytes.push(b'\n');
        catalogs.iter().for_each(|catalog| bytes.extend_from_slice(catalog.as_bytes()));
        Ok(bytes.into())
    }

    fn decode(bytes: &[u8]) -> Result<(Self, Vec<Catalog>)> {
        let end = bytes.iter().position(|&byte| byte == b'\n').ok_or_else(|| unreadable(&"it has no end"))?;
        let (head, mut rest) = (&bytes[..end], &bytes[end + 1..]);
        let told: Self = serde_json::from_slice(head).map_err(|error| unreadable(&error))?;
        let mut catalogs = Vec::new();
        for &length in &told.catalogs {
            let length = usize::try_from(length).unwrap_or(usize::MAX);
            let (catalog, later) =
                rest.split_at_checked(length).ok_or_else(|| unreadable(&"it is cut short"))?;
            catalogs.push(Catalog::from_bytes(catalog.to_vec(), "rank 0's catalog")?);
            rest = later;
        }
        Ok((told, catalogs))
    }

    /// The settings with rank 0's figures instead of this rank's: a plan of all has one set of them.
    fn figures(&self, config: &Config) -> Config {
        Config {
            calibration: self.calibration.clone().map(Arc::new),
            origin_limit: self.origin_limit,
            origin_parallelism: self.origin_parallelism,
            compute: self.compute,
            ..config.clone()
        }
    }
}

fn unreadable(why: &dyn std::fmt::Display) -> Error {
    Error::new(
        ErrorKind::Ranks,
        format!("what rank 0 sent cannot be read: {why}; do all ranks run the same release?"),
    )
}

/// A run that works together with others, beyond what a run alone has.
#[derive(Debug)]
pub(crate) struct Joint {
    pub(crate) group: Arc<Group>,
    pub(crate) others: Others,
}

impl Joint {
    pub(crate) fn others(&self) -> Others {
        self.others.clone()
    }

    /// Says how many steps this rank has completed, and returns how many all have, as far as it knows: rank 0 knows of
    /// all, others of themselves.
    pub(crate) fn progress(&self, steps: u64) -> u64 {
        self.group.progress(steps);
        self.group.lowest().map_or(steps, |lowest| steps.min(*lowest.borrow()))
    }

    /// What this rank and others have given each other.
    pub(crate) fn exchanged(&self) -> PeersReport {
        let tally = self.group.counters().read();
        PeersReport {
            served: tally.served,
            served_bytes: tally.served_bytes,
            asked: tally.asked,
            received: tally.got,
            received_bytes: tally.got_bytes,
            late: tally.late,
            lost: tally.lost,
            strangers: tally.strangers,
        }
    }

    /// Says that this rank is done, and answers the others until they are; on rank 0, returns all reports as one.
    pub(crate) fn leave(
        &self,
        own: Merged,
        at_most: Duration,
    ) -> impl Future<Output = Option<Merged>> + Send + 'static + use<> {
        let group = Arc::clone(&self.group);
        async move {
            let until = Instant::now() + at_most;
            // Numbers and strings alone: it cannot fail.
            let report = serde_json::to_vec(&own).unwrap_or_default();
            let heard = tokio::select! {
                heard = group.report(report.into(), at_most.min(HEARD)) => heard,
                () = group.lost_first(LOST) => false,
            };
            if !heard {
                tracing::warn!(
                    "rank 0 does not answer; this rank ends when nobody asks it for samples any more"
                );
                tokio::select! {
                    () = quiet(&group) => {}
                    () = tokio::time::sleep_until(until) => {}
                }
                return None;
            }
            let all = match group.rank() {
                Rank(0) => Some(merged(&group.reports(at_most).await)),
                _ => None,
            };
            let left = tokio::select! {
                left = group.leave(until.saturating_duration_since(Instant::now())) => left,
                // It has the report and will not say that all is over.
                () = forsaken(&group) => Left::Unheard,
            };
            match left {
                Left::Together => {}
                Left::Without(ranks) => {
                    tracing::warn!(?ranks, "ends without ranks that have not come to their end");
                }
                Left::Unheard => tracing::warn!("ends without a word of rank 0"),
            }
            all
        }
    }
}

/// Without rank 0 nobody says when all are done: a rank answers as long as it is asked.
async fn quiet(group: &Group) {
    let served = || group.counters().read().served;
    let mut before = served();
    loop {
        tokio::time::sleep(QUIET).await;
        let now = served();
        if std::mem::replace(&mut before, now) == now {
            return;
        }
    }
}

/// Waits until rank 0 is gone and nobody asks this rank any more.
async fn forsaken(group: &Group) {
    group.lost_first(LOST).await;
    quiet(group).await;
}

/// All reports as one; ranks that sent none are not counted.
fn merged(reports: &[Option<Bytes>]) -> Merged {
    let mut all = Merged::default();
    for report in reports.iter().flatten() {
        match serde_json::from_slice::<Merged>(report) {
            Ok(report) => all.add(&report),
            Err(error) => tracing::warn!(%error, "a rank's report cannot be read"),
        }
    }
    all
}

/// Meets the other ranks, and opens and plans the run with them.
pub(crate) async fn prepare(
    targets: &Named,
    config: Config,
    registry: &Registry,
    context: &Context,
    resume: Option<State>,
    meeting: Meeting,
    progress: impl FnMut(Progress) + Send,
) -> Result<Prepared> {
    let config = config.validated()?;
    let Meeting { launched, token, network, deadline, progress: show } = meeting;
    let settings = Settings::new(launched, env!("CARGO_PKG_VERSION"))
        .with_token(token)
        .with_network(network)
        .with_deadline(deadline)
        .with_progress(show)
        .with_serving(Bounds::default().with_budget(SERVING), Arc::new(Counters::default()));
    let mut joining = Joining::join(settings).await?;
    let run = Run { targets, config, registry, context };
    match run.prepare(&mut joining, resume, progress).await {
        Ok(prepared) => start(prepared, joining, context).await,
        Err(error) => {
            // Or the others would wait for this rank until their deadline.
            joining.give_up(&error.to_string()).await;
            Err(error)
        }
    }
}

/// How often others are told that something goes on.
const NEWS: Duration = Duration::from_secs(5);

/// Does what takes its time; meanwhile others know why they wait.
async fn working<T>(joining: &mut Joining, on: &str, work: impl Future<Output = T>) -> T {
    let mut work = std::pin::pin!(work);
    joining.working(on).await;
    loop {
        tokio::select! {
            done = &mut work => return done,
            () = tokio::time::sleep(NEWS) => joining.working(on).await,
        }
    }
}

struct Run<'a> {
    targets: &'a Named,
    config: Config,
    registry: &'a Registry,
    context: &'a Context,
}

impl Run<'_> {
    async fn prepare(
        self,
        joining: &mut Joining,
        resume: Option<State>,
        progress: impl FnMut(Progress) + Send,
    ) -> Result<Prepared> {
        let (config, context) = (&self.config, self.context);
        let shared = Shared::new(config, context);
        let (told, opened) = self.datasets(joining, &shared, resume, progress).await?;
        let catalogs: Vec<Catalog> = opened.iter().map(|dataset| dataset.catalog.clone()).collect();
        joining.compare(self.words(&told, &catalogs)?).await?;
        let sizes: Vec<Sizes> = catalogs.iter().map(Catalog::sizes).collect();
        let figures = told.figures(config);
        let nodes = joining.nodes().to_vec();
        let own = nodes.get(config.rank as usize).copied().unwrap_or_default();
        let on_node = OnNode {
            rank: nodes.iter().take(config.rank as usize).filter(|node| **node == own).count(),
            ranks: nodes.iter().filter(|node| **node == own).count().max(1),
        };
        let opening = disk::open(config, on_node, &catalogs, context);
        let disk = working(joining, "opens its disk tier", opening).await?;
        let place = Place {
            kernel_cached: opened.iter().all(|dataset| dataset.origin.profile().kernel_cached),
            disk: disk.as_ref().map_or(0, |disk| disk.capacity),
            warm: 0,
            url: Some(catalogs[0].base_url().to_owned()),
            packed: false,
        };
        // What each keeps, and then what all keep.
        let described = cluster::describe(&figures, memory_of(config, &place), &place, sizes.first());
        let levels = described.stores[0].levels.iter().map(|level| (level.name.clone(), level.capacity));
        let held = disk.as_ref().map_or_else(Vec::new, disk::Disk::ids);
        let offer = Offer::new(own.to_string(), levels.collect(), held).encode();
        let whole = {
            // Gone before planning: of a thousand ranks they are megabytes, on each.
            let offers = joining.exchange(offer.into(), |offers| bundle(&offers).into()).await?;
            let offers = unbundle(&offers).map_err(|_| unreadable(&"what ranks keep makes no sense"))?;
            offer::cluster(described, &cluster::kinds(&figures), &offers, cluster::DISK)
        };
        let planning_config = config.clone();
        let (of_run, of_state) = (config.clone(), catalogs);
        let planning = context.runtime.spawn_blocking(move || {
            let start = |schedule: &Schedule| {
                told.state.map(|state| state.position(&of_run, &of_state, schedule)).transpose()
            };
            Planned::joint(planning_config, &sizes, &place, whole, start)
        });
        let planned = working(joining, "plans", planning)
            .await
            .map_err(|error| Error::new(ErrorKind::System, format!("planning stopped: {error}")))??;
        if let LocalPlan::Together { plan, .. } = planned.plan() {
            joining.compare(vec![("plan".to_owned(), plan.fingerprint().to_string())]).await?;
        }
        let caches = caches(&planned, disk.as_ref());
        let blocks = BlockTable::default();
        Ok(Prepared { planned, opened, caches, disk, shared, blocks, joint: None })
    }

    /// The datasets, listed by rank 0 for all.
    async fn datasets(
        &self,
        joining: &mut Joining,
        shared: &Shared,
        resume: Option<State>,
        mut progress: impl FnMut(Progress) + Send,
    ) -> Result<(Told, Vec<Opened>)> {
        let Self { targets, config, registry, context } = self;
        let validation = config.validate.as_ref().map(Named::by);
        if config.rank > 0 {
            let (told, catalogs) = Told::decode(&joining.share(None).await?)?;
            let mut opened = Vec::new();
            for catalog in catalogs {
                opened.push(open_known(catalog, registry, context, shared).await?);
            }
            return Ok((told, opened));
        }
        let mut opened = Vec::new();
        for targets in std::iter::once(*targets).chain(&validation) {
            let named = targets.names.first().map_or("", String::as_str);
            let opening = open(targets, config.format, registry, context, shared, &mut progress);
            opened.push(working(joining, &format!("rank 0 opens {named}"), opening).await?);
        }
        let catalogs: Vec<Catalog> = opened.iter().map(|dataset| dataset.catalog.clone()).collect();
        let told = Told {
            catalogs: catalogs.iter().map(|catalog| catalog.as_bytes().len() as u64).collect(),
            state: resume,
            calibration: config.calibration.as_deref().cloned(),
            origin_limit: config.origin_limit,
            origin_parallelism: config.origin_parallelism,
            compute: config.compute,
        };
        joining.share(Some(told.encode(&catalogs)?)).await?;
        Ok((told, opened))
    }

    /// What has to be equal on all ranks, in the words in which users say it.
    fn words(&self, told: &Told, catalogs: &[Catalog]) -> Result<Vec<(String, String)>> {
        let config = &self.config;
        let mut words = vec![
            ("dataset", crate::origin::names(self.targets, &catalogs[0])?),
            (
                "validation set",
                match (&config.validate, catalogs.get(1)) {
                    (Some(target), Some(catalog)) => crate::origin::names(&Named::by(target), catalog)?,
                    (Some(target), None) => target.clone(),
                    (None, Some(_)) => "none".to_owned(),
                    (None, None) => "none".to_owned(),
                },
            ),
            ("sampler", config.sampler.to_string()),
            ("seed", config.seed.to_string()),
            ("batch size", config.batch_size.to_string()),
            ("number of epochs", config.epochs.to_string()),
            ("drop-last", config.drop_last.to_string()),
            ("deal", if config.locality { "locality".to_owned() } else { config.deal.to_string() }),
            ("look-ahead", config.look_ahead.to_string()),
            ("on-error", format!("{:?}", config.on_error).to_lowercase()),
        ];
        if let Some(state) = &told.state {
            words.push(("state", format!("epoch {}, {} samples", state.epoch(), state.consumed())));
        }
        Ok(words.into_iter().map(|(word, value)| (word.to_owned(), value)).collect())
    }
}

/// Begins with the others, when all have said that their runs are the same.
async fn start(prepared: Prepared, joining: Joining, context: &Context) -> Result<Prepared> {
    let whole = &prepared.planned.cluster;
    let stores: Vec<StoreId> = whole.stores.iter().map(|store| store.id).collect();
    let group = Arc::new(joining.start(&stores, context).await?);
    let locality = match prepared.planned.plan() {
        LocalPlan::Together { plan, .. } if prepared.planned.config.locality => {
            Some(Arc::new(LocalDeal { cluster: whole.clone(), owners: plan.owners().clone() }))
        }
        _ => None,
    };
    let peers: Arc<dyn Peers> = Arc::new(Guarded::new(Arc::clone(&group), context.seed));
    let others = Others { peers, stores: stores.into(), locality, budget: SERVING };
    Ok(Prepared { joint: Some(Joint { group, others }), ..prepared })
}
