//! A read that is under way.

use std::sync::Arc;

use bytes::Bytes;
use foreread_tier::{ErrorKind, TierError};
use foreread_types::SampleKey;

use super::StoreInner;
use super::state::{Actions, SampleFlight};
use super::{NodeStore, StoreJob};

/// A sample that is being read. If the read ends without a result, its requests fail.
pub(super) struct Flight {
    pub(super) inner: Arc<StoreInner>,
    pub(super) key: SampleKey,
    pub(super) is_open: bool,
}

impl Flight {
    pub(super) fn complete(mut self, received: Result<Bytes, TierError>) {
        self.end(received);
    }

    fn end(&mut self, received: Result<Bytes, TierError>) {
        self.is_open = false;
        let (mut actions, now) = (Actions::default(), (self.inner.clock)());
        let mut state = self.inner.lock();
        let SampleFlight { waiting, reader, is_on_disk, .. } =
            state.flights.remove(&self.key).unwrap_or_default();
        match &received {
            // It may have been evicted meanwhile.
            Ok(bytes) if state.cache.contains(self.key) => {
                state.samples.insert(self.key, bytes.clone());
            }
            Ok(_) => {}
            Err(_) => state.cache.forget(self.key),
        }
        for (job, _) in &waiting {
            if let Some(member) = state.jobs.get_mut(job) {
                member.waiting -= 1;
            }
        }
        let length = received.as_ref().ok().map(Bytes::len);
        // Reads from a disk have no turns.
        let first = || waiting.first().map(|(job, _)| *job);
        state.count(reader.or_else(first).unwrap_or(StoreJob(u64::MAX)), self.key.dataset, |counts| {
            match length {
                Some(_) if is_on_disk => counts.disk_reads += 1,
                Some(length) => {
                    counts.reads += 1;
                    counts.read_bytes += length as u64;
                }
                None => counts.failures += 1,
            }
        });
        state.end_read(self.key, now, &mut actions);
        let keeper =
            state.datasets.get(self.key.dataset.0 as usize).map(|dataset| Arc::clone(&dataset.reader));
        drop(state);
        self.inner.carry_out(actions);
        if let (Some(keeper), Ok(bytes), false) = (keeper, &received, is_on_disk) {
            let (store, key) = (NodeStore(Arc::clone(&self.inner)), self.key);
            let kept = Box::new(move || store.set_on_disk(key.dataset, &[key.id], true));
            keeper.keep_on_disk(key.id, bytes.clone(), kept);
        }
        for (_, answer) in waiting {
            answer(received.clone());
        }
    }
}

impl Drop for Flight {
    fn drop(&mut self) {
        if self.is_open {
            let detail = "the read has ended without a result";
            self.end(Err(TierError::new(ErrorKind::Transient, "store").with_detail(detail)));
        }
    }
}
