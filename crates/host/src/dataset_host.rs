//! The side of an agent or host: opens and reads the datasets of jobs, with a job's layers.

use std::collections::BTreeMap;
use std::num::NonZeroU64;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};
use std::time::Duration;

use bytes::Bytes;
use foreread_dataset::Catalog;
use foreread_layers::{Bandwidth, Limit, Meter, MeterReading};
use foreread_loader::{BlockTable, Dataset, DirectReader};
use foreread_open::credentials::credentials_proof;
use foreread_open::error::{Error, ErrorKind, Result, ended};
use foreread_open::origin::OpenDataset;
use foreread_open::origin_policy::{OriginPolicy, OtherReads};
use foreread_open::registry::Registry;
use foreread_open::storage::StorageOptions;
use foreread_open::target::TargetSpec;
use foreread_open::units::UnitFacts;
use foreread_planner::MAX_BLOCK_BYTES;
use foreread_store::{SampleBlock, SampleReader};
use foreread_tier::{ErrorKind as TierErrorKind, Lifetime, OpenContext, ReadFuture, Tier, TierError, lock};
use foreread_types::{DatasetId, DatasetIdentity, SampleId, SampleKey, Sizes, Tick};
use futures::future::BoxFuture;

use crate::disk::{DiskDataset, DiskListener, HostDisk};
use crate::node::HostSettings;

/// The fewest reads that are of use at once, for any origin.
const FEWEST_READS: usize = 8;

/// The reads that an agent gets at once from the cache of its node.
const RELAYED_READS: usize = 1024;

/// Opens datasets for jobs.
#[derive(Debug)]
pub struct DatasetHost {
    settings: HostSettings,
    registry: Registry,
    context: OpenContext,
    /// The limits of origins, by their names. Datasets of one origin share them.
    bandwidths: Mutex<BTreeMap<String, Bandwidth>>,
    disk: Option<Arc<HostDisk>>,
    is_agent: bool,
    /// The datasets that are read from the agent of the node.
    through_agent: Vec<OpenDataset>,
    /// Counts the reads of all datasets.
    meter: Meter,
}

/// A dataset that jobs share.
#[derive(Clone, Debug)]
pub struct HostedDataset {
    catalog: Catalog,
    identity: DatasetIdentity,
    place: Arc<str>,
    sizes: Sizes,
    reader: Arc<HostedReader>,
    needs: u64,
}

impl DatasetHost {
    /// Reads by `settings` with the backends of `registry`: for an agent, or for the ranks of one
    /// job.
    pub fn new(settings: HostSettings, registry: Registry, is_agent: bool, context: OpenContext) -> Self {
        context.buffers.return_unused_on(&context.runtime);
        let bandwidths = Mutex::default();
        let disk = (!settings.disk.is_empty()).then(|| {
            let (disks, OpenContext { buffers, runtime, .. }) = (settings.disk.clone(), context.clone());
            Arc::new(HostDisk::new(disks, is_agent, buffers, runtime))
        });
        let (through_agent, meter) = (Vec::new(), Meter::new());
        Self { settings, registry, context, bandwidths, disk, is_agent, through_agent, meter }
    }

    /// Makes it read these datasets from the agent of the node. It has no disks then.
    #[must_use]
    pub fn with_agent(self, through_agent: Vec<OpenDataset>) -> Self {
        Self { through_agent, disk: None, ..self }
    }

    /// A proof of the environment's credentials for `url`. An unknown scheme is an error where it
    /// is opened.
    pub(crate) fn credentials(&self, url: &str) -> String {
        self.registry.find(url).map(|backend| credentials_proof(&**backend)).unwrap_or_default()
    }

    /// The disks, if there are any.
    pub fn disk(&self) -> Option<&Arc<HostDisk>> {
        self.disk.as_ref()
    }

    /// The requests to storage that were made again so far, for all datasets.
    pub fn repeated_reads(&self) -> OtherReads {
        let MeterReading { retried, hedged, .. } = self.meter.read();
        OtherReads { retried, hedged, ..OtherReads::default() }
    }

    /// Limits the bytes per second of an origin, for all its datasets together, from now on.
    pub fn set_limit(&self, origin: &str, bytes_per_second: Option<NonZeroU64>) {
        self.bandwidth(origin).set_rate(bytes_per_second);
    }

    /// The limit of an origin. At first, each has the configured limit.
    fn bandwidth(&self, origin: &str) -> Bandwidth {
        let mut known = lock(&self.bandwidths);
        let first = || Bandwidth::changeable(self.settings.origin.limit.and_then(NonZeroU64::new));
        known.entry(origin.to_owned()).or_insert_with(first).clone()
    }

    /// Opens the dataset of a catalog, from the place where it was made, within the limit of a
    /// origin.
    ///
    /// # Errors
    /// If its storage cannot be opened. If its shards are compressed as a whole.
    pub async fn open(
        &self,
        catalog: Catalog,
        settings: &BTreeMap<String, String>,
        origin: &str,
    ) -> Result<HostedDataset> {
        let known = self.through_agent.iter().find(|known| {
            known.identity == catalog.identity(known.origin.place()) && known.catalog.len() == catalog.len()
        });
        if let Some(known) = known {
            return Ok(self.hosted(known.clone(), Default::default(), true));
        }
        let (of_units, is_agent) = (catalog.clone(), self.is_agent);
        let blocks = self.context.runtime.spawn_blocking(move || units(&of_units, is_agent));
        let (blocks, needs) = blocks.await.map_err(ended)??;
        let storage: StorageOptions = settings.iter().map(|(name, value)| (&**name, &**value)).collect();
        let url = catalog.base_url().to_owned();
        let targets = TargetSpec { catalog: Some(catalog), storage, ..TargetSpec::by(url) };
        let policy = OriginPolicy::new(&self.settings.origin, &self.context)
            .with_bandwidth(self.bandwidth(origin))
            .with_meter(self.meter.clone());
        let opened =
            foreread_open::origin::open(&targets, None, &self.registry, &self.context, &policy, |_| ())
                .await?;
        Ok(self.hosted(opened, (blocks, needs), false))
    }

    fn hosted(
        &self,
        opened: OpenDataset,
        (blocks, needs): (HostedBlocks, u64),
        is_relayed: bool,
    ) -> HostedDataset {
        let blocks = RwLock::new(Arc::new(blocks));
        let OpenDataset { catalog, identity, origin, limit, .. } = opened;
        let (sizes, place) = (catalog.sizes(), origin.place().into());
        let dataset = Dataset::new(catalog.clone(), Arc::clone(&origin) as Arc<dyn Tier>);
        let dataset = dataset.with_retry(self.settings.origin.retry);
        let reader = DirectReader::new(vec![dataset], Vec::new());
        let (disk, on_disk, lengths) = (self.disk.clone(), OnceLock::new(), sizes.clone());
        let source = RwLock::new(Some(Arc::new(OpenSource { reader, origin, limit })));
        let reader = Arc::new(HostedReader { source, lengths, disk, on_disk, blocks, is_relayed });
        HostedDataset { catalog, identity, place, sizes, reader, needs }
    }
}

impl HostedDataset {
    /// The identity of its bytes, as the host sees them.
    pub fn identity(&self) -> String {
        self.identity.to_string()
    }

    /// The identity of its data's location ([`place`](foreread_tier::OriginTier::place)).
    pub fn place(&self) -> &str {
        &self.place
    }

    /// How long its storage waits for servers that are silent, if it does and is open.
    pub fn patience(&self) -> Option<Duration> {
        self.reader.source()?.origin.profile().patience
    }

    /// Whether it is read from the agent of the node.
    pub fn is_relayed(&self) -> bool {
        self.reader.is_relayed
    }

    /// Whether its storage is open.
    pub fn is_open(&self) -> bool {
        self.reader.source().is_some()
    }

    /// Closes its storage, once reads under way have ended. Other reads fail from now on.
    pub fn close(&self) {
        self.reader.source.write().unwrap_or_else(PoisonError::into_inner).take();
    }

    /// Reads from the storage of another one with the same identity from now on.
    pub fn open_as(&self, other: &Self) {
        let source = other.reader.source();
        *self.reader.source.write().unwrap_or_else(PoisonError::into_inner) = source;
    }

    /// Notes that it is forgotten: its samples on the host's disks belong to no known dataset.
    pub fn leave_disk(&self) {
        if let (Some(disk), Some(&number)) = (&self.reader.disk, self.reader.on_disk.get()) {
            disk.leave(number);
        }
    }

    /// Uses the host's disks from now on, if there are any. The listener gets the samples that they
    /// have. Disks that cannot be used are a warning.
    pub async fn use_disk(&self, listener: DiskListener) -> Option<DiskDataset> {
        let disk = self.reader.disk.as_ref()?;
        match disk.add(&self.catalog, self.identity, listener).await {
            Ok(number) => Some(*self.reader.on_disk.get_or_init(|| number)),
            Err(error) => {
                let url = self.catalog.base_url();
                tracing::warn!(%error, url, "the disks keep no samples of a dataset");
                None
            }
        }
    }

    /// Reads its shards in blocks of at most `bytes` bytes from now on, where their samples stay.
    /// Without a number, it uses the blocks of [`shared_blocks`](Self::shared_blocks). Visits every
    /// entry of the catalog, so it is not for a runtime's thread.
    ///
    /// # Errors
    /// A damaged entry.
    pub fn read_in_blocks(&self, bytes: Option<u64>) -> Result<()> {
        let all = MAX_BLOCK_BYTES + 1;
        let bytes = bytes.map_or(all, |bytes| bytes.min(MAX_BLOCK_BYTES));
        let blocks = self.reader.blocks();
        let is_fixed = blocks.are_units || self.reader.is_relayed || !self.catalog.format().is_packed();
        if is_fixed || blocks.bytes == bytes {
            return Ok(());
        }
        let table = match bytes == all {
            true => BlockTable::of_all(&self.catalog, MAX_BLOCK_BYTES)?,
            false => BlockTable::of_servers(&self.catalog, bytes)?,
        };
        tracing::debug!(url = self.catalog.base_url(), bytes, blocks = table.len(), "reads in blocks");
        let blocks = Arc::new(HostedBlocks { bytes, table, are_units: false });
        *self.reader.blocks.write().unwrap_or_else(PoisonError::into_inner) = blocks;
        Ok(())
    }

    /// The samples that any node should read together: the samples of a stored unit, or of a part
    /// of a shard. Equal on all nodes. Visits every entry of the catalog of shards.
    ///
    /// # Errors
    /// A damaged entry.
    pub fn shared_blocks(&self) -> Result<Vec<Range<u64>>> {
        let blocks = self.reader.blocks();
        match (blocks.are_units, self.catalog.format().is_packed()) {
            (true, _) => Ok(blocks.table.ranges()),
            (false, true) => Ok(BlockTable::of_all(&self.catalog, MAX_BLOCK_BYTES)?.ranges()),
            (false, false) => Ok(Vec::new()),
        }
    }

    /// The memory that its samples need together, in bytes, if they share stored units: each use
    /// would decode a unit otherwise, and a job alone keeps the units for its next uses. 0 if not.
    pub fn needs(&self) -> u64 {
        self.needs
    }

    /// The path of its catalog in memory, if that can be shared.
    pub fn shared_catalog(&self) -> Option<PathBuf> {
        self.catalog.shared_memory()
    }

    /// Its catalog.
    pub fn catalog(&self) -> &Catalog {
        &self.catalog
    }

    /// The lengths of its samples.
    pub fn sizes(&self) -> &Sizes {
        &self.sizes
    }

    /// Reads its samples.
    pub fn reader(&self) -> Arc<dyn SampleReader> {
        Arc::clone(&self.reader) as Arc<dyn SampleReader>
    }
}

/// Samples of one dataset, read through its layers into memory that stays.
#[derive(Debug)]
struct HostedReader {
    /// `None` while it has no jobs.
    source: RwLock<Option<Arc<OpenSource>>>,
    lengths: Sizes,
    disk: Option<Arc<HostDisk>>,
    /// Set once the disks know the dataset.
    on_disk: OnceLock<DiskDataset>,
    blocks: RwLock<Arc<HostedBlocks>>,
    /// Whether it is read from the agent of the node, which reads in blocks and limits reads of
    /// storage itself.
    is_relayed: bool,
}

/// The open storage of a dataset.
#[derive(Debug)]
struct OpenSource {
    reader: DirectReader,
    origin: Arc<dyn foreread_tier::OriginTier>,
    limit: Option<Limit>,
}

/// The blocks of shards, and their length. Blocks that nodes share have the greatest length plus
/// one. There are none at first, except for stored units.
#[derive(Debug, Default)]
struct HostedBlocks {
    bytes: u64,
    table: BlockTable,
    are_units: bool,
}

/// The stored units that samples of a catalog share, as blocks, and the memory that an agent needs
/// for all samples. Direct reads of single samples would decode a whole shard for each. So an agent
/// does not read them, because its jobs come and go.
fn units(catalog: &Catalog, is_agent: bool) -> Result<(HostedBlocks, u64)> {
    let Some((facts, ..)) = UnitFacts::of(catalog) else { return Ok(Default::default()) };
    if facts.whole > 0 && is_agent {
        let why = "its shards are compressed as a whole; jobs read them by themselves";
        return Err(Error::new(ErrorKind::System, why));
    }
    // The caches of a job hold parts of it, which their plan has compared with their memory.
    let needs = if is_agent { UnitFacts::room(&[catalog.sizes()]) } else { 0 };
    Ok((HostedBlocks { bytes: 0, table: BlockTable::of_units(catalog)?, are_units: true }, needs))
}

fn closed() -> TierError {
    TierError::new(TierErrorKind::Closed, "agent").with_detail("the dataset has no jobs, and is closed")
}

impl HostedReader {
    fn source(&self) -> Option<Arc<OpenSource>> {
        self.source.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn blocks(&self) -> Arc<HostedBlocks> {
        Arc::clone(&self.blocks.read().unwrap_or_else(PoisonError::into_inner))
    }
}

impl SampleReader for HostedReader {
    fn read(&self, id: SampleId, order: Tick) -> ReadFuture {
        let source = self.source();
        let key = SampleKey::new(DatasetId(0), id);
        Box::pin(async move {
            source.ok_or_else(closed)?.reader.clone().read_for(key, order, Lifetime::Kept).await
        })
    }

    fn block(&self, id: SampleId) -> Option<SampleBlock> {
        let blocks = self.blocks.read().unwrap_or_else(PoisonError::into_inner);
        let (samples, range) = blocks.table.block(id)?;
        Some(SampleBlock { samples, bytes: range.end - range.start, is_unit: blocks.are_units })
    }

    fn read_block(&self, ids: Vec<SampleId>, order: Tick) -> BoxFuture<'static, Vec<ReadFuture>> {
        let (source, blocks) = (self.source(), self.blocks());
        Box::pin(async move {
            let Some(source) = source else {
                return ids.iter().map(|_| Box::pin(async { Err(closed()) }) as ReadFuture).collect();
            };
            let reader = source.reader.clone();
            let block = ids.first().and_then(|id| blocks.table.block(*id));
            let bytes = block.map(|(_, bytes)| bytes).unwrap_or_default();
            reader.read_block(DatasetId(0), ids, (bytes, order), Lifetime::Kept).await
        })
    }

    fn submit(&self) {
        if let Some(source) = self.source() {
            source.origin.submit();
        }
    }

    /// Twice as many as the origin is known to answer at once. So reads wait in the layers, too,
    /// and an adaptive limit sees that there is demand for more.
    fn parallelism(&self) -> usize {
        if self.is_relayed {
            return RELAYED_READS;
        }
        let Some(source) = self.source() else { return FEWEST_READS };
        let known = source.limit.as_ref().map(|limit| limit.decisions().limit);
        2 * known.unwrap_or_else(|| source.origin.profile().parallelism).max(FEWEST_READS)
    }

    fn has_disk(&self) -> bool {
        self.on_disk.get().is_some()
    }

    fn read_disk(&self, id: SampleId) -> ReadFuture {
        let (disk, number, bytes) = (self.disk.clone(), self.on_disk.get().copied(), self.lengths.bytes(id));
        Box::pin(async move {
            let found = match disk.zip(number) {
                Some((disk, number)) => disk.read(number, id, bytes).await,
                None => None,
            };
            found.ok_or_else(|| TierError::new(TierErrorKind::Absent, "disk"))
        })
    }

    fn keep_on_disk(&self, id: SampleId, bytes: Bytes, kept: Box<dyn FnOnce() + Send>) {
        if let (Some(disk), Some(&number)) = (&self.disk, self.on_disk.get()) {
            disk.keep(number, id, bytes, kept);
        }
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn ranks_plan_with_what_a_sample_takes_in_an_agent() {
        assert_eq!(foreread_open::units::STORE_FOOTPRINT, foreread_store::NodeStore::FOOTPRINT);
    }
}
