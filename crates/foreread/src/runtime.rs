//! The runtime of a run: its own threads, or the runtime that the caller has given.
//!
//! A separate runtime is the default for every caller, including async ones. A trainer that
//! computes in a task then never starves the reads, and any executor may drive the loader's
//! futures. One task makes all decisions, so one thread is enough for it. Connections (TLS, HTTP),
//! checksums and copies of origins' data are separate tasks, on [I/O threads](io_threads). The
//! price is two to five threads per loader, and a thread switch for each call that waits. The
//! runtime is created when a run is prepared, and shut down without waiting when the run ends. Its
//! tasks own their data, and a read that hangs in the kernel must not hang the program's exit.
//!
//! A given runtime may run on the calling thread. Blocking that thread would block the work that
//! the call waits for, so such calls are refused at once ([`Workers::may_block`]).

use std::future::Future;
use std::num::NonZeroUsize;
use std::sync::mpsc;

use tokio::runtime::{Builder, Handle, Runtime, RuntimeFlavor};
use tokio::task::JoinSet;

use foreread_open::error::{Error, ErrorKind, Result, ended};

#[derive(Debug)]
pub(crate) struct Workers {
    handle: Handle,
    own: Option<Runtime>,
}

impl Workers {
    /// `given`, or a new runtime for this run.
    pub(crate) fn new(given: Option<Handle>) -> Result<Self> {
        if let Some(handle) = given {
            return Ok(Self { handle, own: None });
        }
        let cores = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
        let runtime = Builder::new_multi_thread()
            .worker_threads(1 + io_threads(cores))
            .thread_name("foreread")
            .enable_all()
            .build()
            .map_err(|error| Error::new(ErrorKind::System, format!("cannot start threads: {error}")))?;
        Ok(Self { handle: runtime.handle().clone(), own: Some(runtime) })
    }

    pub(crate) fn handle(&self) -> &Handle {
        &self.handle
    }

    /// Whether the calling thread may block until the runtime has finished some work.
    ///
    /// # Errors
    /// If the thread belongs to the runtime, or the runtime has only its callers' threads.
    pub(crate) fn may_block(&self) -> Result<()> {
        // A multi-thread runtime has other threads, but they cannot steal a task that was woken
        // from this one.
        let is_here = Handle::try_current().is_ok_and(|here| here.id() == self.handle.id());
        let is_callers = self.own.is_none() && self.handle.runtime_flavor() == RuntimeFlavor::CurrentThread;
        if is_here || is_callers {
            return Err(Error::usage(
                "this call would block the runtime that it waits for: leave out `runtime(..)`, so that the \
                 run uses a separate thread, or use the async method",
            ));
        }
        Ok(())
    }

    /// Runs `work` on the runtime and blocks until it is done. It waits on a channel, because
    /// `block_on` would panic inside of another runtime.
    ///
    /// # Errors
    /// As `work`, and if this thread may not block, `work` panics, or the runtime is shut down.
    pub(crate) fn wait<T: Send + 'static>(
        &self,
        work: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<T> {
        self.may_block()?;
        let (sender, receiver) = mpsc::sync_channel(1);
        let work = self.handle.spawn(work);
        self.handle.spawn(async move {
            // The receiver waits as long as this task lives.
            let _ = sender.send(work.await);
        });
        receiver.recv().map_err(|_| Error::shut_down())?.map_err(ended)?
    }

    /// Runs `work` on the runtime, under any executor of the caller.
    ///
    /// # Errors
    /// As `work`, and if `work` panics or the runtime is shut down.
    ///
    /// # Cancel safety
    /// Dropping the future cancels `work`.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        work: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<T> {
        let mut tasks = JoinSet::new();
        tasks.spawn_on(work, &self.handle);
        tasks.join_next().await.ok_or_else(Error::shut_down)?.map_err(ended)?
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        if let Some(runtime) = self.own.take() {
            runtime.shutdown_background();
        }
    }
}

/// The number of a loader's I/O threads. The thread that makes decisions is not counted. A quarter
/// of the cores, because ranks share a machine, and at most four.
fn io_threads(cores: usize) -> usize {
    (cores / 4).clamp(1, 4)
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn seven() -> Result<u32> {
        tokio::time::sleep(std::time::Duration::from_millis(1)).await;
        Ok(7)
    }

    #[test]
    // semantics: FAIL-21
    fn io_threads_are_a_quarter_of_the_cores_from_one_to_four() {
        assert_eq!([1, 2, 4, 8, 15, 16, 128].map(io_threads), [1, 1, 1, 2, 3, 4, 4]);
    }

    #[test]
    fn own_runtime_may_be_awaited_on_any_thread() {
        let workers = Workers::new(None).unwrap();
        assert_eq!(workers.wait(seven()).unwrap(), 7);
        for runtime in [Builder::new_current_thread().build(), Builder::new_multi_thread().build()] {
            let runtime = runtime.unwrap();
            runtime.block_on(async { assert_eq!(workers.wait(seven()).unwrap(), 7) });
            let workers = Workers::new(None).unwrap();
            let task = runtime.spawn(async move { workers.wait(seven()).unwrap() });
            assert_eq!(runtime.block_on(task).unwrap(), 7);
        }
    }

    #[test]
    fn given_runtime_is_never_waited_for_on_its_thread() {
        for runtime in [Builder::new_current_thread().build(), Builder::new_multi_thread().build()] {
            let runtime = runtime.unwrap();
            let workers = Workers::new(Some(runtime.handle().clone())).unwrap();
            let task = runtime.spawn(async move { workers.wait(seven()).unwrap_err() });
            let error = runtime.block_on(task).unwrap();
            assert_eq!(error.kind(), ErrorKind::Usage);
            assert!(error.to_string().contains("leave out `runtime(..)`"), "{error}");
        }
        let undriven = Builder::new_current_thread().build().unwrap();
        assert!(Workers::new(Some(undriven.handle().clone())).unwrap().wait(seven()).is_err());
        let driven = Builder::new_multi_thread().enable_all().build().unwrap();
        assert_eq!(Workers::new(Some(driven.handle().clone())).unwrap().wait(seven()).unwrap(), 7);
    }

    #[test]
    fn runtime_that_was_shut_down_is_an_error() {
        let gone = Builder::new_multi_thread().build().unwrap();
        let workers = Workers::new(Some(gone.handle().clone())).unwrap();
        gone.shutdown_background();
        assert_eq!(workers.wait(seven()).unwrap_err().to_string(), "the runtime was shut down");
    }

    #[test]
    // semantics: FAIL-19
    fn panic_is_reported_as_a_panic() {
        let workers = Workers::new(None).unwrap();
        let error = workers.wait(async { panic!("of a callback") as Result<()> }).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Panic);
        assert!(error.to_string().contains("of a callback"), "{error}");
    }
}
