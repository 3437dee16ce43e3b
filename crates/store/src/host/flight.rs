//! A read that is under way.

use std::sync::Arc;

use bytes::Bytes;
use foreread_tier::{ErrorKind, TierError};
use foreread_types::SampleKey;

use super::StoreInner;
use super::StoreJob;
use super::state::{Actions, SampleFlight};

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
        let SampleFlight { waiting, reader, .. } = state.flights.remove(&self.key).unwrap_or_default();
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
        state.count(reader.unwrap_or(StoreJob(u64::MAX)), self.key.dataset, |counts| match length {
            Some(length) => {
                counts.reads += 1;
                counts.read_bytes += length as u64;
            }
            None => counts.failures += 1,
        });
        state.end_read(self.key, now, &mut actions);
        drop(state);
        self.inner.carry_out(actions);
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
