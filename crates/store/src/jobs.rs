//! The jobs of a store, however they are connected: through its server's socket, in its own
//! process, or by the links of other stores.

use std::fmt::Debug;
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::Bytes;

use crate::{Answer, ConnectionId, StoreError, StoreRequest};

/// How often a call looks whether it is to end.
const STOP_INTERVAL: Duration = Duration::from_millis(100);

/// Serves jobs.
pub trait StoreJobs: Debug + Send + Sync + 'static {
    /// Carries out a call of [`attach`](crate::attach). It must not block. Calls `answer` once, on
    /// any thread.
    fn carry_out(&self, connection: ConnectionId, name: &str, payload: Bytes, answer: Answer);

    /// Requests samples for a job, with its own numbers of datasets. It must not block.
    fn request(&self, connection: ConnectionId, samples: Vec<StoreRequest>);

    /// A job has ended.
    fn end(&self, connection: ConnectionId);
}

/// A job in the process of its store: without a socket, and without another thread. So a sample in
/// memory costs a microsecond, and not the eleven of a socket. Dropping it ends the job.
///
/// It does not keep the store.
#[derive(Debug)]
pub struct LocalClient {
    store: Weak<dyn StoreJobs>,
    connection: ConnectionId,
    process: u32,
}

impl LocalClient {
    /// A job of a store, by the number of its connection, which no other job has.
    pub fn new(store: &Arc<dyn StoreJobs>, connection: ConnectionId) -> Self {
        Self { store: Arc::downgrade(store), connection, process: std::process::id() }
    }

    /// Requests samples, each for the position at which it is used. Answers may be called before it
    /// returns. Answers of a store that ends are dropped.
    ///
    /// # Errors
    /// [`Gone`](crate::StoreErrorKind::Gone) if the store has ended.
    pub fn request(&self, samples: Vec<StoreRequest>) -> Result<(), StoreError> {
        let store = self.store.upgrade().ok_or_else(StoreError::gone)?;
        store.request(self.connection, samples);
        Ok(())
    }

    /// Calls the store, and `stop` about every 100 ms. If it returns true, the wait ends.
    ///
    /// # Errors
    /// [`Sample`](crate::StoreErrorKind::Sample) with the store's error,
    /// [`Gone`](crate::StoreErrorKind::Gone) and
    /// [`Interrupted`](crate::StoreErrorKind::Interrupted).
    pub fn call(
        &self,
        name: &str,
        payload: &[u8],
        stop: &mut dyn FnMut() -> bool,
    ) -> Result<Vec<u8>, StoreError> {
        let (sender, answered) = sync_channel(1);
        let answer: Answer = Box::new(move |result| {
            // A caller that has ended needs no answer.
            let _ = sender.send(result);
        });
        let (store, payload) = (self.store.upgrade(), Bytes::copy_from_slice(payload));
        store.ok_or_else(StoreError::gone)?.carry_out(self.connection, name, payload, answer);
        loop {
            match answered.recv_timeout(STOP_INTERVAL) {
                Ok(result) => return result.map(Vec::from).map_err(StoreError::sample),
                Err(RecvTimeoutError::Disconnected) => return Err(StoreError::gone()),
                Err(RecvTimeoutError::Timeout) if stop() => return Err(StoreError::interrupted()),
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
    }
}

impl Drop for LocalClient {
    fn drop(&mut self) {
        // In a forked child, another thread may have held the store's locks.
        if self.process == std::process::id()
            && let Some(store) = self.store.upgrade()
        {
            store.end(self.connection);
        }
    }
}
