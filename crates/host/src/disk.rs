//! The disks of an agent, or of the cache that ranks share: samples of all its datasets, below its
//! memory.
//!
//! # Decisions and price
//!
//! * *Static.* A sample that is on a disk stays there while its dataset has jobs. Memory follows
//!   the next use, and keeps samples that the disks do not have. A disk that followed the next use
//!   would wear out.
//! * *Datasets without jobs give their room* to datasets with jobs, the least recently used first.
//!   Pinned ones keep it. It is taken in pieces, because removals free whole blocks.
//! * *Writes have a budget* ([`WearBudget`]).
//! * *The ranks of one job have no budget*, and no copies of files in their room. A directory that
//!   another job owns is read. Earlier ranks with caches of their own have left parts of a
//!   directory. All of them belong to this tier.
//! * *A new dataset opens the disk tier again*, because a tier knows its datasets from the
//!   beginning. The price: samples are read from their origins meanwhile. New datasets are rare.

mod uses;

use std::collections::HashSet;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::Bytes;
use foreread_dataset::Catalog;
use foreread_local::DiskTier;
use foreread_local::disk::{DatasetOnDisk, DiskConfig, DiskDirectory, Reservation, SharedRoom, WhenOwned};
use foreread_open::disk::{
    Disk, DiskReport, guarded, parts_of, report_of, warn_of_little_space, within_flush_timeout,
};
use foreread_open::error::{Error, Result};
use foreread_planner::WearBudget;
use foreread_tier::{
    Budget, Buffers, CacheTier, Charge, ErrorKind, Lookup, Object, ReadRequest, Sample, Span, TierError, lock,
};
use foreread_types::{DatasetId, DatasetIdentity, RankOf, SampleId, SampleKey, Tick};
use tokio::runtime::Handle;

use crate::node::NodeDataset;

/// Capacities per day that may be written, unless the policy says otherwise.
pub const WRITES_PER_DAY: f64 = 0.5;

/// Room is taken from a dataset in pieces of at least this many bytes.
const PIECE_BYTES: u64 = 8 << 20;

/// The most bytes of samples that wait for room. More are not written.
const WAITING_BYTES: u64 = 32 << 20;

/// How long a tier may still be in use before it is opened again.
const REOPEN_TIMEOUT: Duration = Duration::from_secs(10);

/// How long the end waits for reads and writes under way.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

const REOPEN_POLL: Duration = Duration::from_millis(5);

/// The bytes that a removal may leave in use at its ends.
const BLOCK_BYTES: u64 = 8 << 10;

/// A dataset of the disks, by its place in the list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiskDataset(usize);

/// Called with the samples of a dataset that the disks have, or have no longer.
pub type DiskListener = Arc<dyn Fn(DiskChange<'_>) + Send + Sync>;

/// A change of the samples of a dataset that the disks have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiskChange<'a> {
    /// They have these, ascending, and no others.
    All(&'a [SampleId]),
    /// They have these no longer.
    Lost(&'a [SampleId]),
}

/// The counts of the disks, and the bytes that they keep.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HostDiskCounts {
    /// The bytes that samples may take.
    pub capacity: u64,
    /// The bytes that samples take.
    pub held_bytes: u64,
    /// Bytes that were given to the disks since the start.
    pub written_bytes: u64,
    /// Samples that were not written for lack of budget.
    pub refused: u64,
    /// Their bytes.
    pub refused_bytes: u64,
}

/// The disks of an agent.
pub struct HostDisk {
    disks: Vec<Disk>,
    buffers: Arc<dyn Buffers>,
    runtime: Handle,
    /// Whether they belong to an agent, and not to the ranks of one job.
    is_of_agent: bool,
    begun: Instant,
    state: Mutex<DiskState>,
    /// One dataset is added at a time.
    opening: tokio::sync::Mutex<()>,
    /// Room is made by one task at a time.
    making_room: tokio::sync::Mutex<()>,
    /// Bytes of samples that wait for room.
    waiting: Budget,
    /// Samples that were not written because too many waited.
    skipped: AtomicU64,
    /// Samples that are being written. A sample that is read again meanwhile is not written twice.
    writing: Mutex<HashSet<SampleKey>>,
    /// The room of the first directory, which copies of whole files share.
    room: SharedRoom,
}

/// A sample that is being written, until it is dropped.
struct SampleWrite {
    disk: Arc<HostDisk>,
    key: SampleKey,
}

impl SampleWrite {
    /// `None` if the sample is being written already.
    fn begin(disk: &Arc<HostDisk>, key: SampleKey) -> Option<Self> {
        let mut writing = lock(&disk.writing);
        writing.insert(key).then(|| Self { disk: Arc::clone(disk), key })
    }
}

impl Drop for SampleWrite {
    fn drop(&mut self) {
        lock(&self.disk.writing).remove(&self.key);
    }
}

struct DiskState {
    /// `None` before the first dataset, and while it is opened again.
    tier: Option<OpenTier>,
    datasets: Vec<HostedOnDisk>,
    /// The datasets that jobs have named.
    expected: HashSet<DatasetIdentity>,
    wear: Option<WearBudget>,
    per_day: f64,
    /// Why no tier is open, if it could not be opened.
    problem: Option<String>,
    /// The directories, as an agent has them.
    reserved: Vec<Reservation>,
}

#[derive(Clone)]
struct OpenTier {
    tier: Arc<DiskTier>,
    /// The same with a timeout and a circuit breaker.
    cache: Arc<dyn CacheTier>,
}

struct HostedOnDisk {
    on_disk: DatasetOnDisk,
    url: String,
    has_jobs: bool,
    is_pinned: bool,
    /// The last time at which it had a job.
    latest: Instant,
    /// `None` before it is added.
    listener: Option<DiskListener>,
}

impl HostedOnDisk {
    fn new(dataset: NodeDataset, listener: Option<DiskListener>) -> Self {
        let NodeDataset { identity, url, samples, bytes } = dataset;
        let on_disk = DatasetOnDisk { identity, samples, bytes };
        Self { on_disk, url, has_jobs: true, is_pinned: false, latest: Instant::now(), listener }
    }
}

impl std::fmt::Debug for HostDisk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HostDisk").field("counts", &self.counts()).finish_non_exhaustive()
    }
}

impl HostDisk {
    /// The disks of a configuration. They are opened with the first dataset.
    pub(super) fn new(
        disks: Vec<Disk>,
        is_of_agent: bool,
        buffers: Arc<dyn Buffers>,
        runtime: Handle,
    ) -> Self {
        let (tier, datasets, expected, wear, problem, reserved) = Default::default();
        let state = DiskState { tier, datasets, expected, wear, per_day: WRITES_PER_DAY, problem, reserved };
        let (opening, making_room, skipped, writing) = Default::default();
        let (state, waiting, begun) = (Mutex::new(state), Budget::new(WAITING_BYTES), Instant::now());
        let room = SharedRoom::new(disks.first().map_or(0, |disk| disk.bytes));
        Self {
            disks,
            buffers,
            runtime,
            is_of_agent,
            begun,
            state,
            opening,
            making_room,
            waiting,
            skipped,
            writing,
            room,
        }
    }

    /// The first directory of an agent, and its room, which copies of whole files share.
    pub fn shared_room(&self) -> Option<(&Path, SharedRoom)> {
        let first = self.disks.first().filter(|_| self.is_of_agent)?;
        Some((&first.directory, self.room.clone()))
    }

    fn tier(&self) -> Option<OpenTier> {
        lock(&self.state).tier.clone()
    }

    /// Adds a dataset. The listener hears which of its samples are there already.
    ///
    /// # Errors
    /// If a directory cannot be used. Then the disks keep the datasets that they had.
    pub(super) async fn add(
        self: &Arc<Self>,
        catalog: &Catalog,
        identity: DatasetIdentity,
        listener: DiskListener,
    ) -> Result<DiskDataset, TierError> {
        let _opening = self.opening.lock().await;
        let (samples, bytes, url) = (catalog.len(), catalog.total_bytes(), catalog.base_url().to_owned());
        let hosted = HostedOnDisk::new(NodeDataset { identity, url, samples, bytes }, Some(listener));
        let number = {
            let mut state = lock(&self.state);
            let is_this =
                |known: &HostedOnDisk| known.listener.is_none() && known.on_disk.identity == identity;
            if let Some(number) = state.datasets.iter().position(is_this) {
                state.datasets[number] = hosted;
                let tier = state.tier.as_ref().map(|open| Arc::clone(&open.tier));
                drop(state);
                self.tell(DiskDataset(number), tier.as_deref());
                return Ok(DiskDataset(number));
            }
            state.datasets.push(hosted);
            state.datasets.len() - 1
        };
        if let Err(error) = self.open_again().await {
            {
                let mut state = lock(&self.state);
                state.datasets.truncate(number);
                state.problem = (number == 0).then(|| error.to_string());
            }
            if number > 0
                && let Err(error) = self.open_again().await
            {
                tracing::warn!(%error, "the agent's disks are not used any more");
                lock(&self.state).problem = Some(error.to_string());
                self.tell_all(None);
            }
            return Err(error);
        }
        Ok(DiskDataset(number))
    }

    /// Notes datasets that a job is about to add. Earlier caches of them stay until then.
    pub fn expect<'a>(&self, identities: impl Iterator<Item = &'a str>) {
        // A text that is no identity names no dataset, and the job is refused.
        let identities = identities.filter_map(|identity| identity.parse::<DatasetIdentity>().ok());
        lock(&self.state).expected.extend(identities);
    }

    /// Opens the tier for these datasets, which are added later.
    ///
    /// # Errors
    /// If a directory cannot be used.
    pub async fn open_for(self: Arc<Self>, datasets: Vec<NodeDataset>) -> Result<()> {
        let _opening = self.opening.lock().await;
        for dataset in datasets {
            let mut state = lock(&self.state);
            if state.datasets.iter().all(|known| known.on_disk.identity != dataset.identity) {
                state.datasets.push(HostedOnDisk::new(dataset, None));
            }
        }
        self.open_again().await.map_err(Error::disk)
    }

    /// Opens the tier for all datasets, in place of the earlier tier. Listeners get its samples.
    async fn open_again(self: &Arc<Self>) -> Result<(), TierError> {
        // The directories have one owner at a time. Reads and writes under way end first.
        let before = lock(&self.state).tier.take().map(|open| Arc::downgrade(&open.tier));
        let begun = Instant::now();
        while before.as_ref().is_some_and(|tier| tier.strong_count() > 0) && begun.elapsed() < REOPEN_TIMEOUT
        {
            tokio::time::sleep(REOPEN_POLL).await;
        }
        let opening = Arc::clone(self);
        let opened = self.runtime.spawn_blocking(move || opening.open()).await;
        let open = opened.map_err(|_| TierError::new(ErrorKind::Closed, "disk"))??;
        self.tell_all(Some(&open.tier));
        let mut state = lock(&self.state);
        let (now, per_day) = (self.begun.elapsed(), state.per_day);
        let tier = &open.tier;
        state.wear.get_or_insert_with(|| WearBudget::new(tier.capacity(), tier.free(), per_day, now));
        (state.tier, state.problem) = (Some(open), None);
        Ok(())
    }

    /// Calls all listeners with the samples of a tier, or without any if there is no tier.
    fn tell_all(&self, tier: Option<&DiskTier>) {
        let datasets = lock(&self.state).datasets.len();
        (0..datasets).for_each(|number| self.tell(DiskDataset(number), tier));
    }

    fn tell(&self, dataset: DiskDataset, tier: Option<&DiskTier>) {
        if let Some(listener) = self.listener(dataset) {
            let ids = tier.map(|tier| tier.samples(DatasetId(dataset.0 as u32))).unwrap_or_default();
            listener(DiskChange::All(&ids));
        }
    }

    fn listener(&self, dataset: DiskDataset) -> Option<DiskListener> {
        lock(&self.state).datasets.get(dataset.0)?.listener.clone()
    }

    fn open(&self) -> Result<OpenTier, TierError> {
        let (kept, (datasets, locations)): (_, (Vec<DatasetOnDisk>, Vec<_>)) = {
            let state = lock(&self.state);
            let one = |of: &HostedOnDisk| (of.on_disk, (of.on_disk.identity, of.url.clone()));
            (state.expected.iter().copied().collect(), state.datasets.iter().map(one).unzip())
        };
        let directories = self
            .disks
            .iter()
            .map(|disk| DiskDirectory::new(&disk.directory, disk.bytes).with_shared(disk.shared));
        let config = match self.is_of_agent {
            true => {
                let with_room = |(number, directory): (usize, DiskDirectory)| match number {
                    0 => directory.with_room(self.room.clone()),
                    _ => directory,
                };
                DiskConfig::new(directories.enumerate().map(with_room)).when_owned(WhenOwned::Refuse)
            }
            false => DiskConfig::new(directories.flat_map(|directory| parts_of(RankOf::ALONE, &directory))),
        };
        let config = config.with_locations(locations).with_kept(kept);
        let tier = Arc::new(DiskTier::open(config, &datasets, Arc::clone(&self.buffers))?);
        if !self.is_of_agent {
            self.disks.iter().for_each(warn_of_little_space);
        }
        Ok(OpenTier { cache: guarded(Arc::clone(&tier)), tier })
    }

    /// The counts of the disks, and the bytes that they keep.
    pub fn counts(&self) -> HostDiskCounts {
        let state = lock(&self.state);
        let mut counts = HostDiskCounts::default();
        if let Some(OpenTier { tier, .. }) = &state.tier {
            counts.capacity = tier.capacity();
            counts.held_bytes = tier.capacity().saturating_sub(tier.free());
        } else {
            // No dataset of samples has used them yet.
            counts.capacity = self.disks.iter().map(|disk| disk.bytes).fold(0, u64::saturating_add);
            counts.held_bytes = self.room.files();
        }
        if let Some(wear) = &state.wear {
            (counts.written_bytes, counts.refused, counts.refused_bytes) =
                (wear.written_bytes, wear.refused, wear.refused_bytes);
        }
        counts
    }

    /// The number of a dataset's samples on the disks, and their bytes there.
    pub fn held(&self, dataset: DiskDataset) -> (u64, u64) {
        let Some(OpenTier { tier, .. }) = self.tier() else { return (0, 0) };
        let stored = tier.stored(DatasetId(dataset.0 as u32));
        (stored.samples, stored.bytes)
    }

    /// Whether more samples could be written.
    pub fn has_room(&self) -> bool {
        self.tier().is_some_and(|open| open.tier.free() > open.tier.capacity() / 64)
    }

    /// Reads a sample of `bytes` bytes. `None` if the disks do not have it, or cannot read it.
    pub(super) async fn read(&self, dataset: DiskDataset, id: SampleId, bytes: u64) -> Option<Bytes> {
        let OpenTier { cache, .. } = self.tier()?;
        let key = SampleKey::new(DatasetId(dataset.0 as u32), id);
        if !matches!(cache.lookup(key), Lookup::Stored) {
            self.tell_lost(dataset, &[id]);
            return None;
        }
        let object = Object { path: Arc::default(), size: bytes, version: None };
        let request = ReadRequest::new(key, object, Span::Whole, Tick(0));
        let read = cache.read(Arc::new(request));
        cache.submit();
        match read.await {
            Ok(bytes) => Some(bytes),
            Err(error) => {
                tracing::debug!(%error, sample = %id, "a sample is read from storage instead of the disk");
                if error.kind().is_loss() {
                    cache.remove(vec![key]).await;
                    self.tell_lost(dataset, &[id]);
                }
                None
            }
        }
    }

    fn tell_lost(&self, dataset: DiskDataset, ids: &[SampleId]) {
        if let Some(listener) = self.listener(dataset) {
            listener(DiskChange::Lost(ids));
        }
    }

    /// Writes a sample behind its use, if there is room and budget. Calls `kept` once it is there.
    pub(super) fn keep(
        self: &Arc<Self>,
        dataset: DiskDataset,
        id: SampleId,
        bytes: Bytes,
        kept: Box<dyn FnOnce() + Send>,
    ) {
        let Some(OpenTier { cache, .. }) = self.tier() else { return };
        let key = SampleKey::new(DatasetId(dataset.0 as u32), id);
        let footprint = cache.footprint().of(bytes.len() as u64);
        if !matches!(cache.lookup(key), Lookup::Absent) {
            // It was read from storage while the tier was opened again.
            return kept();
        }
        // A slow disk must not fill the memory. A larger sample waits alone.
        let Some(waiting) = self.waiting.try_charge(WAITING_BYTES.min(bytes.len() as u64)) else {
            self.skipped.fetch_add(1, Ordering::Relaxed);
            return;
        };
        let Some(writing) = SampleWrite::begin(self, key) else { return };
        let disk = Arc::clone(self);
        self.runtime.spawn(async move {
            let _writing = writing;
            let Some(room) = disk.room(&*cache, footprint).await else { return };
            let stored = cache.store(room, key, Sample::uncharged(bytes)).await;
            drop(waiting);
            match stored {
                Ok(()) => kept(),
                Err(error) => {
                    tracing::debug!(%error, sample = %id, "a sample is not on the disk");
                    disk.give_back(footprint);
                }
            }
        });
    }

    /// Room for a sample, within the budget. Datasets without jobs give theirs.
    async fn room(&self, cache: &dyn CacheTier, bytes: u64) -> Option<Charge> {
        let mut room = cache.reserve(bytes);
        if room.is_none() && self.victim().is_none() {
            return None;
        }
        // Before others are removed: for a sample that may not be written, they would be lost for
        // nothing.
        if !self.take_writes(bytes) {
            return None;
        }
        if room.is_none() {
            let _making = self.making_room.lock().await;
            room = cache.reserve(bytes);
            while room.is_none() && self.evict(cache, bytes).await {
                room = cache.reserve(bytes);
            }
        }
        if room.is_none() {
            self.give_back(bytes);
        }
        room
    }

    /// Whether `bytes` may be written now, of samples or of files. Then they count.
    pub fn take_writes(&self, bytes: u64) -> bool {
        if !self.is_of_agent {
            return true;
        }
        let (now, free) = (self.begun.elapsed(), self.room.free());
        let capacity = self.disks.iter().map(|disk| disk.bytes).fold(0, u64::saturating_add);
        let mut state = lock(&self.state);
        let per_day = state.per_day;
        // No tier is open before the first dataset of samples.
        let wear = state.wear.get_or_insert_with(|| WearBudget::new(capacity, free, per_day, now));
        wear.take(bytes, now)
    }

    /// Takes back the budget of bytes that were not written.
    pub fn give_back(&self, bytes: u64) {
        if let Some(wear) = &mut lock(&self.state).wear {
            wear.give_back(bytes);
        }
    }

    /// The dataset without jobs that was used least recently, among those with samples.
    fn victim(&self) -> Option<(usize, Arc<DiskTier>)> {
        let state = lock(&self.state);
        let OpenTier { tier, .. } = state.tier.as_ref()?;
        let unused = state.datasets.iter().enumerate().filter(|(number, dataset)| {
            let is_unused = !dataset.has_jobs && !dataset.is_pinned;
            is_unused && tier.stored(DatasetId(*number as u32)).samples > 0
        });
        let oldest = unused.min_by_key(|(_, dataset)| dataset.latest).map(|(number, _)| number);
        oldest.map(|number| (number, Arc::clone(tier)))
    }

    /// Removes a piece of a dataset without jobs, but no more than may be written. `false` if there
    /// is none.
    async fn evict(&self, cache: &dyn CacheTier, bytes: u64) -> bool {
        let Some((number, tier)) = self.victim() else { return false };
        let dataset = DatasetId(number as u32);
        let stored = tier.stored(dataset);
        let mean = stored.bytes.div_ceil(stored.samples.max(1)).max(1);
        let credit = lock(&self.state).wear.map_or(u64::MAX, |wear| wear.credit());
        let count = (PIECE_BYTES.min(credit).max(bytes) + BLOCK_BYTES).div_ceil(mean) as usize;
        let mut ids = tier.samples(dataset);
        ids.truncate(count);
        if ids.is_empty() {
            return false;
        }
        self.tell_lost(DiskDataset(number), &ids);
        cache.remove(ids.iter().map(|id| SampleKey::new(dataset, *id)).collect()).await;
        true
    }

    /// Waits until all given samples are written, for a few seconds at most.
    pub async fn flush(&self) {
        let written = async {
            while !lock(&self.writing).is_empty() {
                tokio::time::sleep(REOPEN_POLL).await;
            }
            // Samples that are not written are read from storage later.
            if let Some(OpenTier { tier, .. }) = self.tier() {
                tier.flush().await;
            }
        };
        within_flush_timeout(written).await;
    }

    /// The counters of the tier. `None` before the first dataset.
    pub fn report(&self) -> Option<DiskReport> {
        let state = lock(&self.state);
        let OpenTier { tier, .. } = state.tier.as_ref()?;
        let mut report = report_of(tier, tier.capacity(), state.datasets.len() as u32);
        report.skipped += self.skipped.load(Ordering::Relaxed);
        Some(report)
    }

    /// The ascending ids of a dataset's samples on the disks.
    pub fn samples(&self, dataset: DiskDataset) -> Vec<SampleId> {
        self.tier().map(|open| open.tier.samples(DatasetId(dataset.0 as u32))).unwrap_or_default()
    }

    /// Closes the tier, so that the process can open its directories again. Blocks the thread until
    /// reads and writes under way have ended, for a few seconds at most.
    pub fn close(&self) {
        let Some(open) = lock(&self.state).tier.take() else { return };
        let tier = Arc::downgrade(&open.tier);
        drop(open);
        let begun = Instant::now();
        while tier.strong_count() > 0 && begun.elapsed() < CLOSE_TIMEOUT {
            std::thread::sleep(REOPEN_POLL);
        }
    }
}
