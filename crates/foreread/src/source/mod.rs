//! Samples by their ids: for programs that ask for what they want, and can at best say in which order they will.
//!
//! A [`Loader`](crate::Loader) decides the order. Where somebody else does (a sampler in Python, a data loader whose
//! workers read files), a [`Source`] is told the order as far as it is known ([`announce`](Source::announce)), reads
//! ahead by it, and keeps samples by it; what is asked for then is there. What nobody announced, or asks for out of
//! order, is read directly. So a wrong announcement costs time and never a sample.
//!
//! The caches outlive announcements: what memory holds by one order is found by the next, whatever that places where. The
//! price of an order that is known piece by piece is that samples are kept first come, first kept.

mod asked;
#[cfg(all(feature = "share", target_os = "linux"))]
mod share;
mod shelf;
mod waits;

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use foreread_dataset::Catalog;
use foreread_layers::{Limit, Meter};
use foreread_loader::{Direct, LoadErrorKind, OnError, RunReport, Source as From};
use foreread_oracle::{Deal, Explicit, Phase, PhaseKind, Run, Schedule};
use foreread_planner::{Cluster, LocalPlan, plan_to_keep};
use foreread_tier::{Budget, CacheTier};
use foreread_types::{DatasetId, Rank, SampleId, SampleKey, Tick};

pub use self::asked::Asked;
use self::shelf::Shelf;
use self::waits::Waits;
use crate::assembly::Assembly;
use crate::error::{Error, Result};
use crate::loader::Ready;
use crate::memory::Grant;
use crate::planned::Planned;
use crate::prepared::Prepared;
use crate::report::{Adapted, AskedReport, ReadsReport, Report, Whole};
use crate::runtime::Workers;

/// The engine hands over about so many bytes at a time, at most this part of the look-ahead, and at most so many samples.
const HANDFUL: u64 = 1 << 20;
const PART: u64 = 16;
const MOST: u64 = 64;

/// This part of the look-ahead may lie on the shelf; the rest is for reading.
const SHELF: u64 = 2;

/// What is read by requests of its own takes at most this part of the look-ahead for this process, and as much for its
/// workers.
const DIRECT: u64 = 2;

/// What this many announcements in a row leave out has no right to memory any longer.
const FORGOTTEN: u64 = 8;

/// The one dataset of a source.
const DATASET: DatasetId = DatasetId(0);

/// Samples by their ids, read ahead by an announced order. Made by [`Builder::source`](crate::Builder::source); cheap to
/// clone, and used from any number of threads.
///
/// ```
/// use std::time::Duration;
/// use foreread::Loader;
/// # let directory = tempfile::tempdir()?;
/// # for name in ["a", "b", "c"] { std::fs::write(directory.path().join(name), name)?; }
/// # let path = directory.path().to_str().expect("a path of ASCII");
/// let source = Loader::builder(path).source()?;
/// source.announce(vec![vec![2, 0, 1]], false)?;
/// let mut asked = source.ask(&[2]);
/// let (at, sample) = loop {
///     if let Some(came) = asked.wait(Duration::from_millis(100)) {
///         break came;
///     }
/// };
/// assert_eq!((at, &sample?[..]), (0, &b"c"[..]));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Source {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    catalog: Catalog,
    cluster: Cluster,
    look_ahead: u64,
    kernel_cached: bool,
    direct: Direct,
    /// Where memory keeps samples, to be told which are of no use any longer.
    memory: Vec<Arc<dyn CacheTier>>,
    origin: Meter,
    limit: Option<Limit>,
    disk: Option<crate::disk::Disk>,
    waits: Arc<Waits>,
    /// What unforeseen reads of this process hold until they are taken, in bytes.
    asking: Budget,
    state: Mutex<State>,
    /// Samples have come, or the engine is free to be waited for.
    arrived: Condvar,
    /// Counted until the source is dropped.
    _granted: Option<Grant>,
    /// Last: what works on its threads goes first.
    workers: Workers,
}

#[derive(Debug)]
struct State {
    assembly: Assembly,
    shelf: Shelf,
    run: Option<Run>,
    plan: Option<LocalPlan>,
    engine: Engine,
    /// The first use that the engine has not delivered.
    next: Tick,
    /// Announcements so far: what an engine brings after the next one is of no use.
    announced: u64,
    /// The last announcement that a sample was in, by its id; 0 for none.
    used: Vec<u64>,
    /// What earlier engines and direct reads have done.
    earlier: RunReport,
    direct: ReadsReport,
}

#[derive(Debug)]
enum Engine {
    /// Nothing is announced, or all of it was delivered.
    None,
    Idle(Box<foreread_loader::Loader>),
    /// Somebody waits for its next batch, and will put it back.
    Lent,
}

/// Where a sample is to be had.
enum Due {
    Here(bytes::Bytes),
    /// The engine brings it soon.
    Soon,
    /// Only a read of its own brings it.
    Unforeseen,
}

impl Ready {
    /// Serves samples by their ids instead of running by the settings' order.
    ///
    /// # Errors
    /// A run of several datasets, or of ranks that work together: each of them has an order of its own that others do
    /// not know.
    pub fn source(self) -> Result<Source> {
        let (prepared, workers) = self.parts();
        let Prepared { planned, opened, caches, disk, shared, joint, .. } = prepared;
        let Planned { config, cluster, memory: granted, .. } = planned;
        if opened.len() > 1 || joint.is_some() {
            return Err(Error::usage(
                "samples are served by id from one dataset, and to one rank: leave out the validation set and the meeting",
            ));
        }
        let limit = opened.first().and_then(|dataset| dataset.limit.clone());
        let catalog = opened[0].catalog.clone();
        let look_ahead = config.look_ahead;
        let kernel_cached = opened[0].origin.profile().kernel_cached;
        let memory =
            caches.iter().filter(|(from, _)| *from == From::Memory).map(|(_, cache)| Arc::clone(cache));
        let memory = memory.collect();
        // What cannot be read is an error of whoever asks for it.
        let blocks = foreread_loader::BlockTable::default();
        let assembly = Assembly::new(opened, caches, None, look_ahead, OnError::Skip, blocks, config.retry);
        let inner = Inner {
            catalog,
            cluster,
            look_ahead,
            kernel_cached,
            direct: assembly.direct(),
            memory,
            origin: shared.meter,
            limit,
            disk,
            waits: Arc::default(),
            asking: Budget::new(look_ahead / DIRECT),
            state: Mutex::new(State {
                assembly,
                shelf: Shelf::new(look_ahead / SHELF),
                run: None,
                plan: None,
                engine: Engine::None,
                next: Tick(0),
                announced: 0,
                used: Vec::new(),
                earlier: RunReport::default(),
                direct: ReadsReport::default(),
            }),
            arrived: Condvar::new(),
            _granted: granted,
            workers,
        };
        Ok(Source { inner: Arc::new(inner) })
    }
}

impl Source {
    /// Says in which order samples will be asked for from now on: epoch by epoch, each epoch's ids in order; repeated and
    /// missing ids are fine. What was announced before holds no longer. With `goes_on`, epochs like the last one follow,
    /// which is what deciding what to keep counts on.
    ///
    /// Blocks the thread for as long as planning takes (a fraction of a second for a million samples). Epochs of different lengths
    /// are read ahead as if they were one.
    ///
    /// # Errors
    /// Ids that the dataset does not have; settings that cannot be planned; a thread of the given
    /// [runtime](crate::Builder::runtime).
    pub fn announce(&self, mut orders: Vec<Vec<u64>>, goes_on: bool) -> Result<()> {
        self.inner.workers.may_block()?;
        self.pause();
        orders.retain(|order| !order.is_empty());
        if orders.iter().any(|order| order.len() != orders[0].len()) {
            orders = vec![orders.concat()];
        }
        let Some(last) = orders.last().cloned() else {
            self.inner.lock().start(None);
            self.inner.arrived.notify_all();
            return Ok(());
        };
        let sizes = [self.inner.catalog.sizes()];
        let all: Vec<Vec<u64>> = orders.iter().cloned().chain(goes_on.then_some(last)).collect();
        self.make_way(&all)?;
        let planned = plan_to_keep(&self.run(all)?, &sizes, &self.inner.cluster)?;
        let run = self.run(orders)?;
        let runtime = self.inner.workers.handle();
        self.inner.lock().start(Some((run, LocalPlan::Alone(Arc::new(planned)), runtime)));
        self.inner.arrived.notify_all();
        Ok(())
    }

    /// Says that an epoch is over: the time until samples are asked for again counts neither as time nor as waited for.
    /// [`announce`](Self::announce) says so too. Where somebody still waits, it holds from when nobody does.
    pub fn pause(&self) {
        self.inner.waits.pause();
    }

    /// Asks for samples: what is announced when it is due, the rest by reads of their own that begin at once.
    /// On a thread of the given [runtime](crate::Builder::runtime), each answer is an error.
    pub fn ask(&self, ids: &[u64]) -> Asked {
        Asked::new(Arc::clone(&self.inner), ids)
    }

    /// What the samples are.
    pub fn catalog(&self) -> &Catalog {
        &self.inner.catalog
    }

    /// How far reads may run ahead, in bytes.
    pub fn look_ahead(&self) -> u64 {
        self.inner.look_ahead
    }

    /// Whether this machine's kernel keeps what is read from the origin: it is a directory of a file system of its own.
    pub fn is_kernel_cached(&self) -> bool {
        self.inner.kernel_cached
    }

    /// What has been delivered and read so far. Samples that were read outside of the announced order are in `direct`, and
    /// in no epoch; how long all that were asked for were waited for is in `asked`.
    pub fn report(&self) -> Report {
        let state = self.inner.lock();
        let (mut run, mut look_ahead) = (state.earlier.clone(), None);
        if let Engine::Idle(engine) = &state.engine {
            run = run.followed_by(engine.report());
            look_ahead = Some(engine.look_ahead());
        }
        let look_ahead = look_ahead.unwrap_or(foreread_loader::LookAhead {
            allowed: self.inner.look_ahead,
            now: self.inner.look_ahead,
            lowest: self.inner.look_ahead,
        });
        let whole = Whole {
            rank: 0,
            world_size: 1,
            samples: self.inner.catalog.len(),
            dataset_bytes: self.inner.catalog.total_bytes(),
            floor: state.plan.as_ref().map_or(0, LocalPlan::floor),
            planned: state.plan.as_ref().map_or(0, LocalPlan::origin_bytes),
        };
        let adapted = Adapted::of(self.inner.limit.as_ref().map(Limit::decisions), look_ahead);
        let disk = self.inner.disk.as_ref().map(crate::disk::Disk::report);
        let direct = Some(state.direct);
        let asked = Some(AskedReport::of(self.inner.waits.read()));
        Report { disk, direct, asked, ..Report::new(&whole, &self.inner.origin.read(), adapted, &run) }
    }

    /// Waits until the disk tier has written what it was given, for five seconds at most. Blocks the thread.
    ///
    /// # Errors
    /// If the thread belongs to the given [runtime](crate::Builder::runtime), or that runtime was shut down.
    pub fn flush(&self) -> Result<()> {
        let Some(disk) = self.inner.disk.clone() else { return Ok(()) };
        self.inner.workers.wait(async move {
            disk.flush().await;
            Ok(())
        })
    }

    fn run(&self, orders: Vec<Vec<u64>>) -> Result<Run> {
        let sizes = self.inner.catalog.sizes();
        let epochs = orders.len() as u64;
        let train = Phase {
            kind: PhaseKind::Train,
            dataset: DATASET,
            sampler: Arc::new(Explicit::new(sizes.len(), orders)?),
            batch_size: Some((HANDFUL.min(self.inner.look_ahead / PART) / self.inner.mean()).clamp(1, MOST)),
            drop_last: false,
        };
        Ok(Run::new(Arc::new(Schedule::new(epochs, vec![train])?), Deal::Torch, 1, Rank(0))?)
    }

    /// Has memory forget what has not been announced for a while: it would hold it for good.
    fn make_way(&self, orders: &[Vec<u64>]) -> Result<()> {
        if self.inner.memory.is_empty() {
            return Ok(());
        }
        let mut state = self.inner.lock();
        let now = state.announced + 1;
        state.used.resize(self.inner.catalog.len() as usize, 0);
        for &id in orders.iter().flatten() {
            if let Some(used) = state.used.get_mut(id as usize) {
                *used = now;
            }
        }
        // Each is forgotten once.
        let forgotten = (0..).zip(&state.used).filter(|(_, used)| **used + FORGOTTEN == now && **used > 0);
        let forgotten: Vec<_> = forgotten.map(|(id, _)| SampleKey::new(DATASET, SampleId(id))).collect();
        drop(state);
        if forgotten.is_empty() {
            return Ok(());
        }
        let memory = self.inner.memory.clone();
        self.inner.workers.wait(async move {
            for cache in memory {
                cache.remove(forgotten.clone()).await;
            }
            Ok(())
        })
    }
}

impl Inner {
    /// No change is left half made by a panic: each is a few assignments.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How long a sample is on average, in bytes; at least 1.
    fn mean(&self) -> u64 {
        (self.catalog.total_bytes() / self.catalog.len().max(1)).max(1)
    }

    /// Waits at most `timeout` for the engine's next batch, if nobody else does; else for whoever does.
    fn pull(&self, mut state: MutexGuard<'_, State>, timeout: Duration) {
        let Engine::Idle(_) = &state.engine else {
            let waited = self.arrived.wait_timeout(state, timeout);
            drop(waited.unwrap_or_else(PoisonError::into_inner));
            return;
        };
        let Engine::Idle(engine) = std::mem::replace(&mut state.engine, Engine::Lent) else { return };
        let of = state.announced;
        drop(state);
        let came = engine.next_timeout(timeout);
        let mut state = self.lock();
        if state.announced != of {
            // Announced anew meanwhile: what came, and its engine, end here, outside of the lock.
            drop(state);
            return;
        }
        match came {
            Ok(Some(batch)) => {
                if let Some(pass) = state.run.as_ref().and_then(|run| run.pass(batch.epoch() as usize)) {
                    let behind = ((batch.index() + 1) * pass.batch_size).min(pass.samples);
                    state.next = Tick(pass.first_tick.0 + behind);
                }
                for sample in batch.samples() {
                    state.shelf.put(sample.id().0, sample.bytes());
                }
                state.engine = Engine::Idle(engine);
            }
            Err(error) if error.kind() == LoadErrorKind::Timeout => state.engine = Engine::Idle(engine),
            end => {
                if let Err(error) = end {
                    tracing::warn!(%error, "reading ahead has ended; samples are read when they are asked for");
                }
                state.earlier = std::mem::take(&mut state.earlier).followed_by(engine.report());
                state.engine = Engine::None;
            }
        }
        drop(state);
        self.arrived.notify_all();
    }
}

impl State {
    /// Replaces what is announced.
    fn start(&mut self, next: Option<(Run, LocalPlan, &tokio::runtime::Handle)>) {
        self.announced += 1;
        self.next = Tick(0);
        self.shelf.clear();
        if let Engine::Idle(engine) = std::mem::replace(&mut self.engine, Engine::None) {
            self.earlier = std::mem::take(&mut self.earlier).followed_by(engine.report());
        }
        (self.run, self.plan) = (None, None);
        if let Some((run, plan, runtime)) = next {
            let engine = self.assembly.start(run.clone(), plan.clone(), runtime);
            self.engine = Engine::Idle(Box::new(engine));
            (self.run, self.plan) = (Some(run), Some(plan));
        }
    }

    /// Where a sample is to be had now.
    fn due(&mut self, id: u64, mean: u64) -> Due {
        if let Some(bytes) = self.shelf.take(id) {
            return Due::Here(bytes);
        }
        let Some(run) = self.run.as_ref().filter(|_| !matches!(self.engine, Engine::None)) else {
            return Due::Unforeseen;
        };
        // What is due so late that the shelf could not hold what lies before it, its asker would wait for too long. Orders
        // of later passes are not computed: that would take seconds, under the lock that all askers wait for.
        let last = Tick(self.next.0.saturating_add(self.shelf.limit() / mean));
        match run.next_use_within(SampleKey::new(DATASET, SampleId(id)), self.next, last) {
            Some(_) => Due::Soon,
            None => Due::Unforeseen,
        }
    }
}
