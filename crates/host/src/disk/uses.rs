//! The notes of an agent about its disks: datasets with jobs, the budget of writes, and problems of
//! the disks.

use std::time::Instant;

use foreread_local::disk::{DiskDirectory, reserve};
use foreread_open::error::{Error, Result};
use foreread_tier::lock;

use super::{DiskDataset, HostDisk};

impl HostDisk {
    /// Takes the directories for this agent, until the disks are dropped.
    ///
    /// # Errors
    /// The agent or process that has one, and the remedy.
    pub fn reserve(&self) -> Result<()> {
        let directories = self.disks.iter().map(|disk| DiskDirectory::new(&disk.directory, disk.bytes));
        let directories = directories.zip(&self.disks).map(|(of, disk)| of.with_shared(disk.shared));
        let reserved: Vec<_> = directories
            .map(|directory| reserve(&directory))
            .collect::<Result<_, _>>()
            .map_err(Error::disk)?;
        lock(&self.state).reserved = reserved.into_iter().flatten().collect();
        Ok(())
    }

    /// Why the disks keep no samples, if they cannot be used.
    pub fn problem(&self) -> Option<String> {
        lock(&self.state).problem.clone()
    }

    /// Notes whether a dataset has jobs, and whether it keeps its room without them.
    pub fn set_use(&self, dataset: DiskDataset, has_jobs: bool, is_pinned: bool) {
        if let Some(there) = lock(&self.state).datasets.get_mut(dataset.0) {
            if there.has_jobs || has_jobs {
                there.latest = Instant::now();
            }
            (there.has_jobs, there.is_pinned) = (has_jobs, is_pinned);
        }
    }

    /// Notes that a dataset has left. Its samples stay until others need their room, and belong to
    /// it again when it is added again.
    pub(crate) fn leave(&self, dataset: DiskDataset) {
        if let Some(there) = lock(&self.state).datasets.get_mut(dataset.0) {
            (there.has_jobs, there.is_pinned, there.listener) = (false, false, None);
        }
    }

    /// Changes the capacities per day that may be written.
    pub fn set_writes_per_day(&self, capacities: f64) {
        let mut state = lock(&self.state);
        state.per_day = capacities;
        if let Some(wear) = &mut state.wear {
            wear.set_per_day(capacities, self.begun.elapsed());
        }
    }

    /// The capacities per day that may be written.
    pub fn writes_per_day(&self) -> f64 {
        lock(&self.state).per_day
    }
}
