//! The disk tier as the engine uses it.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel, sync_channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use foreread_tier::{
    Budget, Buffers, CacheTier, Charge, ErrorKind, Lookup, ReadFuture, ReadRequest, Sample, Tier, TierError,
    TierProfile,
};
use foreread_types::{DatasetId, DatasetIdentity, Footprint, SampleId, SampleKey};
use tokio::sync::oneshot;

use super::commands::{DiskKey, PackJob};
use super::config::{Access, DatasetOnDisk, DatasetUsage, DiskConfig, DiskCounts, DiskOutlook, DiskReader};
use super::counters::DiskCounters;
use super::dataset_dir::SegmentWriter;
use super::error::NAME;
use super::index::IndexFollower;
use super::open::{self, OpenedDirectory};
use super::packer::{Packer, WriterHandle};
use super::place::{FOOTPRINT, READ_MEMORY, RecordLength, reserved};
use super::readers::DiskReaders;
use super::record_block::PendingRecord;
use super::record_reader::RecordReader;
use super::state::{CacheDirectory, CachedDataset, DiskState, TierLocks};
use super::table::PlaceTable;
use super::writer::DirectoryWriter;
use crate::jobs::lock;

/// How often a reader polls the owner's index.
const FOLLOW: Duration = Duration::from_secs(1);

/// Samples on local disks, kept from one run to the next. See the [module](super).
///
/// It uses plain threads. Up to `parallelism` threads read (`foreread-disk`) and one packs
/// (`foreread-pack`). One per directory writes (`foreread-write`). One follows the owners of
/// read-only directories (`foreread-follow`).
///
/// Dropping it does not wait. The writer threads finish the queued writes, own the directories
/// until then, and end. A tier that is opened there by the same process waits up to five seconds
/// for them. A process that ends earlier loses only the queued writes. [`flush`](Self::flush) waits
/// for them. A forked child keeps the directories in use until it ends.
pub struct DiskTier {
    profile: TierProfile,
    store: Arc<DiskState>,
    readers: DiskReaders,
    followers: Arc<Mutex<Vec<FollowedDataset>>>,
    /// Dropping it ends the follower thread.
    _following: Sender<()>,
    locks: Arc<TierLocks>,
}

/// A dataset directory that another process writes.
struct FollowedDataset {
    directory: usize,
    set: usize,
    follower: IndexFollower,
}

impl fmt::Debug for DiskTier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let directories: Vec<_> =
            self.store.directories.iter().map(|directory| (&directory.path, directory.access)).collect();
        f.debug_struct("DiskTier")
            .field("directories", &directories)
            .field("counts", &self.counts())
            .finish_non_exhaustive()
    }
}

impl DiskTier {
    /// Opens the directories of `config` and recovers the cached samples of `datasets`, numbered in
    /// this order. Samples are read into memory from `buffers`. Blocks on files for as long as it
    /// takes to read 20 bytes per sample.
    ///
    /// A missing directory is created, its parent is not. Samples beyond the capacity are dropped.
    /// Other datasets' caches are removed as the [module](super) describes.
    ///
    /// Some problems cost one warning and not the run. A directory on a full disk, or with the
    /// user's quota reached, is only read. So is a read-only directory with a cache of one of the
    /// datasets. A directory is left out ([`Access::Unused`]) where the cache cannot be kept
    /// private. The reason is a file system without owners and modes, or other users that have
    /// taken all of the cache's names.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] for no directories or more than 32, for one given twice, or for one
    /// too small for a single sample. [`ErrorKind::Denied`] or [`ErrorKind::NotFound`] if one
    /// cannot be used. [`ErrorKind::Other`] if another process owns one, with
    /// [`WhenOwned::Refuse`](super::WhenOwned::Refuse). The message names the directory and the
    /// remedy.
    pub fn open(
        config: DiskConfig,
        datasets: &[DatasetOnDisk],
        buffers: Arc<dyn Buffers>,
    ) -> Result<Self, TierError> {
        let counters = DiskCounters::new();
        let (sets, numbers) = sets(&config, datasets, &counters);
        let roots = open::open_roots(&config, &sets)?;
        let mut opened = Vec::with_capacity(config.directories.len());
        for (number, root) in (0..).zip(&roots) {
            opened.push(open::open(&config, number, root.as_ref(), &sets, datasets)?);
        }
        let (jobs, queue) = channel();
        let (mut directories, mut segment_writers) = (Vec::new(), Vec::new());
        let mut locks = Vec::new();
        for OpenedDirectory { directory, segment_writers: own, locks: held } in opened {
            directories.push(directory);
            segment_writers.push(own);
            locks.extend(held);
        }
        let locks = Arc::new(TierLocks::new(locks, roots));
        let store = Arc::new(DiskState {
            sets,
            numbers,
            directories,
            buffers,
            write_behind: Budget::new(config.write_behind),
            reads_in_flight: AtomicUsize::default(),
            closing: AtomicBool::default(),
            error_logged: AtomicBool::default(),
            counters,
            jobs,
            pending_writes: Mutex::default(),
        });
        let followers = Arc::new(Mutex::new(followers(&store)));
        let (_following, stop) = channel();
        // From here on an error ends the started threads, as any drop does.
        let tier = Self {
            profile: TierProfile::new(config.parallelism),
            readers: DiskReaders::new(config.reader, RecordReader(Arc::clone(&store)), config.parallelism)?,
            store,
            followers,
            _following,
            locks,
        };
        tier.begin(queue, segment_writers)?;
        tier.store.counters.capacity(tier.capacity());
        tier.refresh();
        tier.follow(stop)?;
        Ok(tier)
    }

    /// The offer that [`open`](Self::open) would find, for a plan. Nothing is created, removed or
    /// locked, and a directory that does not exist counts as empty.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] for no directories or more than 32, or for one without space for a
    /// sample.
    pub fn look(config: &DiskConfig, datasets: &[DatasetOnDisk]) -> Result<DiskOutlook, TierError> {
        let (sets, _) = sets(config, datasets, &DiskCounters::new());
        open::look(config, &sets, datasets)
    }

    /// Starts the threads that write.
    fn begin(
        &self,
        jobs: Receiver<PackJob>,
        segment_writers: Vec<Vec<SegmentWriter>>,
    ) -> Result<(), TierError> {
        let mut writers = Vec::new();
        for (number, segment_writers) in (0..).zip(segment_writers) {
            if self.store.directories[usize::from(number)].access != Access::Owner {
                writers.push(None);
                continue;
            }
            let (commands, received) = channel();
            let (giving, spare) = sync_channel(4);
            let queued = Arc::new(AtomicUsize::new(0));
            writers.push(Some(WriterHandle { commands, queued: Arc::clone(&queued), spare }));
            let (store, _locks) = (Arc::clone(&self.store), Arc::clone(&self.locks));
            let writer = DirectoryWriter {
                store,
                number,
                segment_writers,
                commands: received,
                queued,
                spare: giving,
                emptying: Default::default(),
                _locks,
            };
            spawn("foreread-write", move || writer.run())?;
        }
        let packer = Packer::new(Arc::clone(&self.store), jobs, writers);
        spawn("foreread-pack", move || packer.run())
    }

    /// The space of a sample: its length and a trailer, rounded up to 64 bytes, and its entry in
    /// the index. It is known before opening, so that a run can be planned without its disks.
    pub const FOOTPRINT: Footprint = FOOTPRINT;

    /// The capacity of a directory that holds so many samples of one dataset with so many bytes in
    /// all, with the indexes. A little more than is needed, because lengths are rounded up.
    pub fn room_for(samples: u64, bytes: u64) -> u64 {
        open::room_for(samples, bytes)
    }

    /// The bytes of footprints that fit, which the planner may use. Only directories that this tier
    /// owns count.
    pub fn capacity(&self) -> u64 {
        self.sum(|directory| directory.quota.budget().limit())
    }

    /// The free bytes of footprints in all directories together.
    pub fn free(&self) -> u64 {
        self.sum(|directory| directory.quota.free())
    }

    /// Sums over the directories, each of which may have the maximum capacity.
    fn sum(&self, bytes: impl Fn(&CacheDirectory) -> u64) -> u64 {
        self.store.directories.iter().map(bytes).fold(0, u64::saturating_add)
    }

    /// The cached part of a dataset. After opening, that is the result of the warm start.
    pub fn stored(&self, dataset: DatasetId) -> DatasetUsage {
        self.store.set(dataset).map_or_else(DatasetUsage::default, |set| self.store.sets[set].table.stored())
    }

    /// The cached samples of a dataset, ascending.
    pub fn samples(&self, dataset: DatasetId) -> Vec<SampleId> {
        match self.store.set(dataset) {
            Some(set) => self.store.sets[set].table.iter().map(|(id, _)| id).collect(),
            None => Vec::new(),
        }
    }

    /// The access to each directory, in their order.
    pub fn access(&self) -> Vec<Access> {
        self.store.directories.iter().map(|directory| directory.access).collect()
    }

    /// How it reads: [`DiskReader::Threads`] or [`DiskReader::Ring`].
    pub fn reader(&self) -> DiskReader {
        self.readers.kind()
    }

    /// The counts since it was opened.
    pub fn counts(&self) -> DiskCounts {
        self.store.counters.counts()
    }

    /// Completes when every sample given to [`store`](CacheTier::store) before is written or has
    /// failed. Nothing is synced: the samples survive the end of the process, not of the machine.
    /// It waits for a hanging disk, so use a timeout.
    ///
    /// # Cancel safety
    /// Dropping the future has no effect on the writes.
    pub async fn flush(&self) {
        let (done, written) = oneshot::channel();
        if self.store.jobs.send(PackJob::Flush(Arc::new(done))).is_ok() {
            // The last writer drops it.
            let _ = written.await;
        }
    }

    /// Reads the additions of the owners of read-only directories to their indexes. A thread does
    /// so every second. Blocks on files.
    pub fn refresh(&self) {
        refresh(&self.store, &self.locks, &self.followers);
    }

    /// Starts the follower thread, if there is anything to follow.
    fn follow(&self, stop: Receiver<()>) -> Result<(), TierError> {
        if lock(&self.followers).is_empty() {
            return Ok(());
        }
        let (store, locks) = (Arc::clone(&self.store), Arc::clone(&self.locks));
        let followers = Arc::clone(&self.followers);
        spawn("foreread-follow", move || {
            while stop.recv_timeout(FOLLOW) == Err(RecvTimeoutError::Timeout) {
                refresh(&store, &locks, &followers);
            }
        })
    }

    fn key(&self, key: SampleKey) -> Option<DiskKey> {
        Some((self.store.set(key.dataset)?, key.id))
    }

    /// The directory of the charge `room`.
    fn directory_of(&self, room: &Charge) -> Option<usize> {
        self.store.directories.iter().position(|directory| room.is_of(directory.quota.budget()))
    }
}

impl Drop for DiskTier {
    fn drop(&mut self) {
        self.store.closing.store(true, Ordering::Relaxed);
        self.locks.close();
        // A missing packer has already ended.
        let _ = self.store.jobs.send(PackJob::End);
    }
}

fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> Result<(), TierError> {
    match std::thread::Builder::new().name(name.to_owned()).spawn(work) {
        Ok(_) => Ok(()),
        Err(error) => Err(TierError::new(ErrorKind::Transient, NAME)
            .with_detail("no thread could be started; raise `ulimit -u`")
            .with_source(error)),
    }
}

/// The distinct datasets, and the index of each dataset among them.
fn sets(
    config: &DiskConfig,
    datasets: &[DatasetOnDisk],
    counters: &DiskCounters,
) -> (Vec<CachedDataset>, Vec<usize>) {
    // A dataset and an earlier one of its lineage have caches of their own in one tier.
    let lineage = |dataset: &DatasetOnDisk| {
        let found = config.lineages.iter().find(|lineage| lineage.identity == dataset.identity)?;
        let name = found.pieces.first()?.1;
        let is_alone = |other: &DatasetOnDisk| other.identity == dataset.identity || other.identity != name;
        datasets.iter().all(is_alone).then_some((name, found))
    };
    let mut sets: Vec<CachedDataset> = Vec::new();
    let mut keys: Vec<DatasetIdentity> = Vec::new();
    let mut numbers = Vec::with_capacity(datasets.len());
    for dataset in datasets {
        let same = keys.iter().position(|key| *key == dataset.identity);
        numbers.push(same.unwrap_or(sets.len()));
        if same.is_some() {
            continue;
        }
        keys.push(dataset.identity);
        let all = datasets.iter().filter(|other| other.identity == dataset.identity);
        let samples = all.map(|dataset| dataset.samples).max().unwrap_or(0);
        let own = || (dataset.identity, vec![(0, dataset.identity)], Vec::new());
        let earlier = lineage(dataset).filter(|(name, _)| sets.iter().all(|set| set.identity != *name));
        let (identity, pieces, gone) =
            earlier.map_or_else(own, |(name, of)| (name, of.pieces.clone(), of.gone.clone()));
        let table = PlaceTable::new(samples, gone, counters.held.clone());
        sets.push(CachedDataset { identity, pieces, table });
    }
    (sets, numbers)
}

fn followers(store: &DiskState) -> Vec<FollowedDataset> {
    let mut followers = Vec::new();
    for (number, directory) in store.directories.iter().enumerate() {
        if directory.access != Access::ReadOnly {
            continue;
        }
        for (set, dir) in directory.dirs.iter().enumerate() {
            let follower = IndexFollower::new(dir.identity(), number as u8);
            followers.push(FollowedDataset { directory: number, set, follower });
        }
    }
    followers
}

fn refresh(store: &DiskState, locks: &TierLocks, followers: &Mutex<Vec<FollowedDataset>>) {
    let mut followers = lock(followers);
    for FollowedDataset { directory, set, follower } in followers.iter_mut() {
        let dir = &store.directories[*directory].dirs[*set];
        // Without the lock the cache could be removed while it is read.
        let update = match locks.follow((*directory, *set), dir).then(|| dir.folder()) {
            Some(Ok(folder)) => follower.poll(&folder),
            _ => Ok(follower.close()),
        };
        let update = match update {
            Ok(update) => update,
            Err(error) => {
                tracing::debug!(%error, "the index of a cache that is only read could not be read");
                continue;
            }
        };
        let table = &store.sets[*set].table;
        if update.replaced {
            table.clear(*directory as u8);
        }
        // After the index: its entries are in files that are opened from now on.
        dir.forget_replaced();
        for entry in update.entries.into_iter().filter(|entry| table.knows(entry.id)) {
            if entry.dead {
                table.take_from(entry.id, entry.place);
            } else if table.get(entry.id).is_none_or(|place| place.directory == entry.place.directory) {
                // A sample that is cached in another directory stays there.
                table.put(entry.id, entry.place);
            }
        }
    }
}

impl Tier for DiskTier {
    fn name(&self) -> &str {
        NAME
    }

    fn profile(&self) -> &TierProfile {
        &self.profile
    }

    /// Reads on the tier's own threads. An invalid record is [`ErrorKind::Corrupt`] and dropped. A
    /// record that cannot be read now stays, and the error has another kind. The result's
    /// allocation is the blocks around the record, in which the sample begins at a multiple of 64.
    fn read(&self, request: Arc<ReadRequest>) -> ReadFuture {
        self.readers.read(request)
    }

    /// Wakes as many threads as are useful, or a ring once.
    fn submit(&self) {
        self.readers.submit();
    }
}

#[async_trait]
impl CacheTier for DiskTier {
    /// The length and 24 bytes, rounded up to 64, and 44 bytes of the index.
    fn footprint(&self) -> Footprint {
        FOOTPRINT
    }

    fn read_memory(&self) -> Footprint {
        READ_MEMORY
    }

    fn keeps_memory(&self) -> bool {
        false
    }

    /// [`Lookup::Stored`] once a sample is written and listed, otherwise [`Lookup::Absent`]. One
    /// load from memory.
    fn lookup(&self, key: SampleKey) -> Lookup {
        match self.key(key).and_then(|key| self.store.place(key)) {
            Some(_) => Lookup::Stored,
            None => Lookup::Absent,
        }
    }

    /// Reserves space in the directory with the most free bytes.
    fn reserve(&self, bytes: u64) -> Option<Charge> {
        let bytes = reserved(bytes);
        let mut writable: Vec<_> =
            self.store.directories.iter().filter(|directory| directory.is_writable()).collect();
        writable.sort_by_key(|directory| std::cmp::Reverse(directory.quota.free()));
        writable.into_iter().find_map(|directory| directory.quota.try_charge(bytes))
    }

    /// Queues a copy of the sample. The future completes when it is written or has failed.
    ///
    /// # Errors
    /// [`ErrorKind::Full`] at once if the write queue is full (see [`DiskTier::counts`]), or later
    /// if the disk is. [`ErrorKind::Invalid`] if `room` is not this tier's or too small, or the
    /// sample is not of the run's datasets. [`ErrorKind::Unsupported`] for samples of 4 GiB or
    /// more. Otherwise the file system's error, and nothing more is written to that directory.
    ///
    /// # Cancel safety
    /// A future that is dropped before its first poll stores nothing. After that the sample is
    /// stored.
    async fn store(&self, room: Charge, key: SampleKey, sample: Sample) -> Result<(), TierError> {
        let error = |kind| TierError::new(kind, NAME).with_object(key.to_string());
        let bytes = FOOTPRINT.of(sample.len() as u64);
        let Some(directory) = self.directory_of(&room).filter(|_| room.bytes() >= bytes) else {
            return Err(error(ErrorKind::Invalid).with_detail("the room was not reserved for this sample"));
        };
        let known = |(set, id): &DiskKey| self.store.sets[*set].table.knows(*id);
        let Some(own) = self.key(key).filter(known) else {
            return Err(error(ErrorKind::Invalid).with_detail("it is not a sample of the run's datasets"));
        };
        let Some(length) = RecordLength::of(sample.len() as u64) else {
            return Err(
                error(ErrorKind::Unsupported).with_detail("samples of 4 GiB or more are not kept on disk")
            );
        };
        let closed = || error(ErrorKind::Closed).with_detail("the thread that writes has ended");
        let (done, stored) = oneshot::channel();
        {
            // Jobs are sent under this lock, so a queued sample's own job always comes first.
            let mut pending_writes = self.store.pending_writes();
            let job = if let Some((directory, outcome)) = pending_writes.get(&own) {
                PackJob::AwaitPrevious { directory: *directory, outcome: Arc::clone(outcome), done }
            } else if self.store.place(own).is_some() {
                return Ok(());
            } else {
                let Some(write_behind) = self.write_behind(bytes) else {
                    drop(pending_writes);
                    self.store.counters.skipped();
                    return Err(error(ErrorKind::Full).with_detail("the write queue is full"));
                };
                pending_writes.insert(own, (directory, Arc::default()));
                let pending = PendingRecord { id: key.id, length, room, write_behind, done };
                PackJob::Store { key: own, directory, sample, pending }
            };
            let sent = self.store.jobs.send(job);
            if sent.is_err() {
                pending_writes.remove(&own);
                // Before the unsent job: ending its charges may call back.
                drop(pending_writes);
                return Err(closed());
            }
        }
        stored.await.unwrap_or_else(|_| Err(closed()))
    }

    /// Removes samples at once, queued ones included. The future completes when their space is
    /// free. In a read-only directory the owner's copy stays, and the next opening finds it.
    ///
    /// # Cancel safety
    /// A future that is dropped after its first poll removes the samples.
    async fn remove(&self, keys: Vec<SampleKey>) {
        let mut gone = Vec::new();
        for key in keys.into_iter().filter_map(|key| self.key(key)) {
            let place = self.store.sets[key.0].table.take(key.1);
            if place.is_some() || self.store.pending_writes().contains_key(&key) {
                gone.push((key, place));
            }
        }
        if gone.is_empty() {
            return;
        }
        let (done, forgotten) = oneshot::channel();
        if self.store.jobs.send(PackJob::Remove { keys: gone, done: Some(Arc::new(done)) }).is_ok() {
            // The last writer drops it.
            let _ = forgotten.await;
        }
    }
}

impl DiskTier {
    /// Charges the write-behind budget. A sample larger than the budget is accepted when the queue
    /// is empty.
    fn write_behind(&self, bytes: u64) -> Option<Charge> {
        let write_behind = &self.store.write_behind;
        let alone = bytes > write_behind.limit() && write_behind.used() == 0;
        if alone { Some(write_behind.charge(bytes)) } else { write_behind.try_charge(bytes) }
    }
}

#[cfg(test)]
mod tests {
    use foreread_tier::{HeapBuffers, Object, Span};
    use foreread_types::{DatasetIdentity, Tick};
    use rustix::io::Errno;

    use super::super::record_reader::PreparedRead;
    use super::*;
    use crate::jobs::ReadJob;

    /// A passing error once emptied the cache for good.
    #[test]
    // semantics: DISK-17
    fn record_with_a_passing_read_error_is_kept() {
        let directory = tempfile::tempdir().unwrap();
        let config = DiskConfig::new([(directory.path().to_owned(), 4 << 20)]);
        let dataset = DatasetOnDisk { identity: DatasetIdentity(1), samples: 10, bytes: 1 << 20 };
        let tier = DiskTier::open(config, &[dataset], Arc::new(HeapBuffers)).unwrap();
        let key = SampleKey::new(DatasetId(0), SampleId(3));
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let room = tier.reserve(FOOTPRINT.of(100)).unwrap();
        runtime.block_on(tier.store(room, key, Sample::uncharged(vec![7; 100].into()))).unwrap();
        let object = Object { path: "a".into(), size: 100, version: None };
        let request = Arc::new(ReadRequest::new(key, object, Span::Whole, Tick(0)));
        let reader = RecordReader(Arc::clone(&tier.store));
        let read = |errno: Option<Errno>| {
            let mut answered = None;
            let mut answer = |_, result| answered = Some(result);
            let (prepared, _) = reader.prepare(&ReadJob::new(Arc::clone(&request)), &mut answer);
            let PreparedRead { records, file, mut buffer, offset } = prepared.unwrap();
            let done = errno.map_or_else(|| file.read(&mut buffer, offset), Err);
            reader.finish(&records, offset, buffer, done, &mut answer);
            answered.unwrap()
        };
        for errno in [Errno::IO, Errno::NOMEM, Errno::AGAIN, Errno::TIMEDOUT, Errno::NODEV] {
            assert!(!read(Some(errno)).unwrap_err().kind().is_loss(), "{errno}");
            assert!(matches!(tier.lookup(key), Lookup::Stored), "after {errno}");
        }
        assert_eq!((read(None).unwrap().len(), tier.counts().corrupt), (100, 0));
        assert_eq!(read(Some(Errno::STALE)).unwrap_err().kind(), ErrorKind::Corrupt);
        assert!(matches!(tier.lookup(key), Lookup::Absent));
    }
}
