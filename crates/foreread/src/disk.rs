//! The disk tier of a run: opened for its datasets, closed with it.

use std::sync::Arc;

use foreread_dataset::Catalog;
use foreread_tier::{CacheTier, Context};

use crate::config::Config;
use crate::error::{Error, ErrorKind, Result};

/// A disk tier, and what it offers to the plan.
#[derive(Debug)]
pub(crate) struct Disk {
    pub(crate) tier: Arc<dyn CacheTier>,
    /// Room, in bytes of footprints.
    pub(crate) capacity: u64,
    /// What it holds of the run's datasets already, in bytes.
    pub(crate) warm: u64,
}

/// Opens the directories that `config` names; `None` if it names none.
#[cfg(feature = "local")]
pub(crate) async fn open(config: &Config, catalogs: &[Catalog], context: &Context) -> Result<Option<Disk>> {
    use foreread_local::disk::{DatasetOnDisk, DiskConfig, DiskTier};
    use foreread_types::DatasetId;

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
        let warm = (0..datasets.len() as u32).map(|dataset| tier.stored(DatasetId(dataset)).bytes).sum();
        Ok(Disk { capacity: tier.capacity(), warm, tier: Arc::new(tier) })
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
