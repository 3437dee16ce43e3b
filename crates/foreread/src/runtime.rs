//! The runtime that a run works on: the caller's, or one of its own.
//!
//! An own runtime is made when a run is prepared, never at load time, and is let go without waiting when the run ends:
//! its tasks own what they use, and a read that hangs in the kernel must not hang the program's exit.

use std::future::Future;
use std::sync::mpsc;

use tokio::runtime::{Builder, Handle, Runtime};

use crate::error::{Error, ErrorKind, Result};

#[derive(Debug)]
pub(crate) struct Workers {
    handle: Handle,
    own: Option<Runtime>,
}

impl Workers {
    /// `given`, or else a runtime of our own.
    pub(crate) fn new(given: Option<Handle>) -> Result<Self> {
        if let Some(handle) = given {
            return Ok(Self { handle, own: None });
        }
        // One thread drives the engine; reads have threads of their own.
        let runtime = Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("foreread")
            .enable_all()
            .build()
            .map_err(|error| Error::new(ErrorKind::System, format!("no threads to run on: {error}")))?;
        Ok(Self { handle: runtime.handle().clone(), own: Some(runtime) })
    }

    pub(crate) fn handle(&self) -> &Handle {
        &self.handle
    }

    /// Runs `work` on the runtime and waits for it on a channel, never by `block_on`, which would panic inside another
    /// runtime.
    pub(crate) fn wait<T: Send + 'static>(
        &self,
        work: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<T> {
        let (tell, told) = mpsc::sync_channel(1);
        self.handle.spawn(async move {
            // Nobody listens any more: the caller has given up.
            let _ = tell.send(work.await);
        });
        told.recv().map_err(|_| Error::new(ErrorKind::System, "the runtime was shut down"))?
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        if let Some(runtime) = self.own.take() {
            runtime.shutdown_background();
        }
    }
}
