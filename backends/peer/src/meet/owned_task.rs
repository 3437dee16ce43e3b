//! A task that ends with its owner.

use tokio::task::JoinHandle;

/// A task that is aborted when this is dropped.
#[derive(Debug)]
pub(super) struct OwnedTask(pub JoinHandle<()>);

impl OwnedTask {
    /// Spawns it on the current runtime.
    pub(super) fn new(work: impl Future<Output = ()> + Send + 'static) -> Self {
        Self(tokio::spawn(work))
    }
}

impl Drop for OwnedTask {
    fn drop(&mut self) {
        self.0.abort();
    }
}
