//! The jobs of a host, the datasets that they use, and the reads for jobs of other nodes.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use foreread_store::{ConnectionId, NodeStore, StoreCounts};
use foreread_tier::lock;
use foreread_types::DatasetId;

use crate::connections::{AttachedJob, Connections};

/// The jobs of a host.
#[derive(Debug)]
pub(crate) struct Jobs {
    connections: Mutex<Connections>,
    /// When the last job has left.
    left: Mutex<Instant>,
    /// The reads for jobs of other nodes that have ended.
    ended_for_others: Mutex<StoreCounts>,
}

impl Default for Jobs {
    /// None, since now.
    fn default() -> Self {
        let (connections, ended_for_others) = Default::default();
        Self { connections, left: Mutex::new(Instant::now()), ended_for_others }
    }
}

impl Jobs {
    /// Every change is complete before the lock is released, even after a panic.
    pub(crate) fn lock(&self) -> MutexGuard<'_, Connections> {
        lock(&self.connections)
    }

    /// The job of a connection, once it is attached.
    pub(crate) fn job(&self, connection: ConnectionId) -> Option<Arc<AttachedJob>> {
        self.lock().get(&connection)?.attached.clone()
    }

    /// The attached jobs.
    pub(crate) fn attached(&self) -> Vec<Arc<AttachedJob>> {
        self.lock().values().filter_map(|there| there.attached.clone()).collect()
    }

    /// The datasets that jobs use.
    pub(crate) fn used(&self) -> HashSet<DatasetId> {
        let connections = self.lock();
        let jobs = connections.values().filter_map(|there| there.attached.as_ref());
        jobs.flat_map(|job| job.used_datasets()).collect()
    }

    /// Whether a job uses a dataset.
    pub(crate) fn uses(&self, id: DatasetId) -> bool {
        let connections = self.lock();
        let mut jobs = connections.values().filter_map(|there| there.attached.as_ref());
        jobs.any(|job| job.used_datasets().any(|used| used == id))
    }

    /// For how long no job has been attached. `is_used`: the host is in use for another reason.
    pub(crate) fn idle_time(&self, is_used: impl FnOnce() -> bool) -> Duration {
        if self.lock().values().any(|connection| connection.attached.is_some()) {
            return Duration::ZERO;
        }
        let mut left = lock(&self.left);
        if is_used() {
            *left = Instant::now();
        }
        left.elapsed()
    }

    /// The reads of storage for jobs of other nodes so far.
    pub(crate) fn reads_for_others(&self, store: &NodeStore) -> StoreCounts {
        let connections = self.lock();
        let linked = connections.values().filter(|there| there.node.is_some());
        let jobs = linked.filter_map(|there| there.attached.as_ref());
        let ended = *lock(&self.ended_for_others);
        jobs.map(|job| store.job_counts(job.job)).fold(ended, |sum, counts| StoreCounts {
            requests: sum.requests + counts.requests,
            read_bytes: sum.read_bytes + counts.read_bytes,
            ..sum
        })
    }

    /// Removes a connection. Returns its job.
    pub(crate) fn remove(&self, connection: ConnectionId, store: &NodeStore) -> Option<Arc<AttachedJob>> {
        let mut connections = self.lock();
        let left = connections.remove(&connection)?;
        let job = left.attached?;
        if left.node.is_some() {
            let counts = store.job_counts(job.job);
            let mut ended = lock(&self.ended_for_others);
            ended.requests += counts.requests;
            ended.read_bytes += counts.read_bytes;
        }
        // A report before this would count its reads neither here nor there.
        drop(connections);
        Some(job)
    }

    /// Notes that a job has left.
    pub(crate) fn note_left(&self) {
        *lock(&self.left) = Instant::now();
    }
}

#[cfg(test)]
mod tests {
    use foreread_store::StoreJob;
    use foreread_store::attach::Attach;

    use super::*;
    use crate::connections::JobConnection;

    #[test]
    fn datasets_are_used_while_their_job_is_attached() {
        let (jobs, connection) = (Jobs::default(), ConnectionId::numbered(7));
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let store = NodeStore::new(1000, runtime.handle().clone());
        let job: StoreJob = store.add_job(true);
        let (used, other) = (DatasetId(3), DatasetId(4));
        let attached =
            AttachedJob { job, attach: Attach::default(), datasets: vec![Some(used)], numbers: vec![None] };
        jobs.lock().insert(connection, JobConnection::default());
        assert!(jobs.job(connection).is_none() && !jobs.uses(used));
        jobs.lock().get_mut(&connection).unwrap().attached = Some(Arc::new(attached));
        assert!(jobs.uses(used) && !jobs.uses(other) && jobs.used() == HashSet::from([used]));
        assert_eq!(jobs.idle_time(|| unreachable!("a job is attached")), Duration::ZERO);
        assert_eq!(jobs.remove(connection, &store).unwrap().job, job);
        assert!(!jobs.uses(used) && jobs.remove(connection, &store).is_none());
        assert!(jobs.idle_time(|| true) < Duration::from_secs(60));
    }
}
