//! The disk tier of a run: opened for its datasets, closed with it.

use std::sync::Arc;
#[cfg(feature = "local")]
use std::time::Duration;

use foreread_dataset::Catalog;
#[cfg(feature = "local")]
use foreread_local::DiskTier;
use foreread_tier::{CacheTier, Context};

use crate::config::Config;
use crate::error::{Error, ErrorKind, Result};
use crate::report::DiskReport;

/// How long the end of a run waits for what is on its way to the disk.
#[cfg(feature = "local")]
const FAREWELL: Duration = Duration::from_secs(5);

/// A disk tier, and what it offers to the plan.
#[derive(Clone, Debug)]
pub(crate) struct Disk {
    pub(crate) tier: Arc<DiskTier>,
    /// Room, in bytes of footprints.
    pub(crate) capacity: u64,
    /// What it holds of the run's datasets already, in bytes.
    pub(crate) warm: u64,
    /// How many datasets the run has.
    #[cfg(feature = "local")]
    datasets: u32,
}

/// Without the `local` feature there is none.
#[cfg(not(feature = "local"))]
#[derive(Debug)]
pub(crate) enum DiskTier {}

#[cfg(feature = "local")]
impl Disk {
    pub(crate) fn cache(&self) -> Arc<dyn CacheTier> {
        Arc::clone(&self.tier) as Arc<dyn CacheTier>
    }

    /// What there is to say of it now.
    pub(crate) fn report(&self) -> DiskReport {
        let counts = self.tier.counts();
        DiskReport {
            capacity_bytes: self.capacity,
            held_bytes: held(&self.tier, self.datasets),
            written: counts.written,
            skipped: counts.skipped,
            failed: counts.failed,
            corrupt: counts.corrupt,
            reader: self.tier.reader().as_str(),
        }
    }

    /// Waits until what is on its way to the disk is there, for [`FAREWELL`] at most.
    pub(crate) async fn flush(&self) {
        if tokio::time::timeout(FAREWELL, self.tier.flush()).await.is_err() {
            tracing::warn!("the disk does not take what is on its way to it; not waiting any longer");
        }
    }
}

#[cfg(not(feature = "local"))]
impl Disk {
    pub(crate) fn cache(&self) -> Arc<dyn CacheTier> {
        match *self.tier {}
    }

    pub(crate) fn report(&self) -> DiskReport {
        match *self.tier {}
    }

    pub(crate) async fn flush(&self) {
        match *self.tier {}
    }
}

/// What is kept of a run's datasets, in bytes of footprints.
#[cfg(feature = "local")]
fn held(tier: &DiskTier, datasets: u32) -> u64 {
    (0..datasets).map(|dataset| tier.stored(foreread_types::DatasetId(dataset)).bytes).sum()
}

/// Opens the directories that `config` names; `None` if it names none.
#[cfg(feature = "local")]
pub(crate) async fn open(config: &Config, catalogs: &[Catalog], context: &Context) -> Result<Option<Disk>> {
    use foreread_local::disk::{DatasetOnDisk, DiskConfig};

    if config.disk.is_empty() {
        return Ok(None);
    }
    let directories = config.disk.iter().map(|disk| (disk.directory.clone(), disk.bytes));
    let disk = DiskConfig::new(directories);
    let datasets: Vec<DatasetOnDisk> = catalogs
        .iter()
        .map(|catalog| DatasetOnDisk {
            fingerprint: catalog.fingerprint(),
            samples: catalog.len(),
            bytes: catalog.total_bytes(),
        })
        .collect();
    let buffers = Arc::clone(&context.buffers);
    // Reads the indexes, and may have to remove old caches.
    let opening = context.runtime.spawn_blocking(move || {
        let tier = DiskTier::open(disk, &datasets, buffers)?;
        let count = datasets.len() as u32;
        let (capacity, warm) = (tier.capacity(), held(&tier, count));
        Ok(Disk { capacity, warm, tier: Arc::new(tier), datasets: count })
    });
    let opened: Result<Disk, foreread_tier::TierError> = opening
        .await
        .map_err(|error| Error::new(ErrorKind::System, format!("the disk tier was not opened: {error}")))?;
    Ok(Some(opened?))
}

/// Without the `local` feature there is no disk tier to be opened.
#[cfg(not(feature = "local"))]
pub(crate) async fn open(config: &Config, _: &[Catalog], _: &Context) -> Result<Option<Disk>> {
    if config.disk.is_empty() {
        return Ok(None);
    }
    Err(Error::new(
        ErrorKind::Usage,
        "disk: this program was built without the feature `local`, which brings it",
    ))
}
